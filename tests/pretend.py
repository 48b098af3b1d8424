"""The GPU that is not there (scripts/pretend_gpu), for tests in this process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from .modules import load_file

pretend_gpu = load_file(
    Path(__file__).parents[1] / "scripts" / "pretend_gpu" / "__init__.py", "pretend_gpu"
)


@contextlib.contextmanager
def on_device(monkeypatch):
    """Put the device into this process's torch, which is yielded, until the block is left."""
    torch = pytest.importorskip("torch")
    from pretend_gpu import device

    for name, replacement in device.SURFACE.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    with device.OnTheHost():
        yield torch
