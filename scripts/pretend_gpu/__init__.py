"""A CUDA device that is not there, to rehearse on: `make gpu ARGS=--pretend`.

What a program asks of `cuda` is done on the host, in order, on a queue whose time is modelled:
operators are queued for a while each, and who waits for the device waits that long. So labs, checks
and captures run from start to end on a machine without a GPU. No figure of it means anything: a
check on it ends INCONCLUSIVE and keeps none, `make gpu` records nothing.

It is a plugin (bottleneck_lab/plugin.py): every process of the package loads it, and it replaces
names of modules as they are imported. replacements.py has all of them, device.py the device,
run.py the process of a script that runs alone, tools/ what stands in for NVIDIA's profilers.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "Rehearsal (no GPU)"
GPUS = 2
"""Devices that are stood in for: as many as `ddp-scaling` needs."""
REHEARSED = "Rehearsal without a real device: the check ran, but nothing was measured."
HERE = Path(__file__).resolve().parent
VARIABLE = "BOTTLENECK_LAB_PLUGIN"
_exec_module = SourceFileLoader.exec_module


def pretending() -> bool:
    """Return True if this process and those that it starts use the device that is not there."""
    return os.environ.get(VARIABLE) == str(HERE)


def install() -> None:
    """Replace names in every module at the end of its import, from now on."""
    import_module("pretend_gpu.replacements")  # now: it could not be imported during its own import
    SourceFileLoader.exec_module = _exec_and_replace  # type: ignore[method-assign]  # intended


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Pretend until the block is left, in a process that has imported the package already, and in
    those that it starts: for tests.
    """
    from pretend_gpu.replacements import PACKAGE

    # Before names are replaced on import: what is replaced twice is not put back.
    modules = [import_module(name) for name in PACKAGE]
    replaced: list[tuple[ModuleType, str, Any, Any]] = []
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(HERE)
    install()
    try:
        for module in modules:
            replaced += _replace(module)
        yield
    finally:
        SourceFileLoader.exec_module = _exec_module  # type: ignore[method-assign]  # as it was
        for module, name, old, new in replaced:
            setattr(module, name, old)
            if callable(new):  # a number is the same object wherever it stands
                _swap(new, old)
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def _exec_and_replace(self: SourceFileLoader, module: ModuleType) -> None:
    _exec_module(self, module)
    _replace(module)


def _replace(module: ModuleType) -> list[tuple[ModuleType, str, Any, Any]]:
    """Put what pretends in the place of a module's names; return the module, each name, what was
    there and its replacement.

    Raises AttributeError if the module lacks one: it was renamed, and its replacement must be too.
    """
    from pretend_gpu.replacements import replacements_of

    done = []
    for name, new in replacements_of(module).items():
        old = getattr(module, name)
        done.append((module, name, old, new))
        setattr(module, name, new)
        # A function may have been imported by name elsewhere; what this module itself has imported
        # is replaced in it alone.
        if getattr(old, "__module__", None) == module.__name__:
            _swap(old, new)
    return done


def _swap(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("bottleneck_lab"):
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)
