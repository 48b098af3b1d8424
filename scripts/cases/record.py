"""Recording a case: its program as it is, and once more without each of its causes and decoys."""

from __future__ import annotations

import gc
import random
import threading
import tomllib
import types
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import torch
from scripts.cases import ranks
from scripts.cases.machine import Finished, Machine, Setting
from scripts.cases.pretend import machine, pretended, running_on, uncounted

from bottleneck_lab.grading.causes import MEMORY_GROWTH

PROGRAM = "program.py"
PRINT_US = 30.0
"""The host's time for a line that is printed."""


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cause, or one decoy, and the program without it.

    `edits` are pairs of texts: the first occurs once in the program, and is replaced by the second.
    `machine` changes what surrounds the program. `also` are further places that a learner may
    rightly name, each by a text that occurs once. `why` says of a decoy why it brings nothing.
    """

    name: str
    fix: str
    cause: str = ""
    edits: list[tuple[str, str]] = []
    machine: dict[str, Any] = {}
    host: dict[str, float] = {}
    also: list[str] = []
    why: str = ""


class Entire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine on which the top cause costs nothing at all, where its fix leaves a part of it."""

    machine: dict[str, Any] = {}
    host: dict[str, float] = {}


class CaseSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a `case.toml`. `host` gives functions of the program the time, µs, that their
    work takes on a host, `machine` the fields of `Setting`.
    """

    title: str
    level: int
    story: str
    explanation: str
    cause: str
    machine: dict[str, Any] = {}
    host: dict[str, float] = {}
    switch: list[Switch] = []
    decoy: list[Switch] = []
    entire: Entire | None = None


def load_spec(folder: Path) -> CaseSpec:
    """Return what a case's folder declares."""
    return msgspec.convert(tomllib.loads((folder / "case.toml").read_text()), CaseSpec)


def apply(program: str, switch: Switch) -> str:
    """Return the program without what the switch stands for. Raises ValueError for an edit that
    does not fit exactly once.
    """
    for old, new in switch.edits:
        if program.count(old) != 1:
            raise ValueError(f"{switch.name}: {old!r} occurs {program.count(old)} times")
        program = program.replace(old, new)
    return program


def lines_of(program: str, switch: Switch) -> list[int]:
    """Return the numbers of the program's lines that a switch is about: its edits first."""
    lines: list[int] = []
    for text in (*(old for old, _ in switch.edits), *switch.also):
        if program.count(text) != 1:
            raise ValueError(f"{switch.name}: {text!r} occurs {program.count(text)} times")
        first = program[: program.index(text)].count("\n") + 1
        lines += range(first, first + text.rstrip("\n").count("\n") + 1)
    return list(dict.fromkeys(lines))


def run(program: str, spec: CaseSpec, switch: Switch | None = None) -> list[Machine]:
    """Run the program on every rank of its machine; return what they recorded."""
    setting = Setting(**spec.machine)
    host = dict(spec.host)
    if switch is not None:
        program = apply(program, switch)
        setting = replace(setting, **switch.machine)
        host |= switch.host
    runs = [Machine(setting, PROGRAM, rank) for rank in range(setting.ranks)]
    ranks.meet(runs)
    failures: list[BaseException] = []

    def rank(one: Machine) -> None:
        try:
            _run_rank(program, one, host)
        except BaseException as error:  # a rank's failure must end the others' waiting
            failures.append(error)
            ranks.abort(one)

    torch.set_float32_matmul_precision("highest")  # programs may have changed it
    gc.disable()
    with pretended():
        threads = [threading.Thread(target=rank, args=(one,), daemon=True) for one in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    gc.enable()
    if failures:
        raise failures[0]
    return runs


def _run_rank(program: str, one: Machine, host: dict[str, float]) -> None:
    module = types.ModuleType("program")
    torch.manual_seed(one.setting.seed)
    random.seed(one.setting.seed)
    with running_on(one):
        exec(compile(program, PROGRAM, "exec"), module.__dict__)
        module.print = _print
        for name, us in host.items():
            _charge(module, name, us)
        try:
            module.main()
        except Finished:
            return
    if not one.elapsed:
        raise RuntimeError("the program has recorded no steps")


def _charge(module: types.ModuleType, name: str, us: float) -> None:
    """Let a function of the program take `us` of the host whenever it is called."""
    *path, last = name.split(".")
    owner: Any = module
    for part in path:
        owner = getattr(owner, part)
    function: Callable[..., Any] = getattr(owner, last)
    line = function.__code__.co_firstlineno

    @wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        run = machine()
        start = run.host
        with uncounted():
            result = function(*args, **kwargs)
        run.work(us)
        run.row("python_function", f"{PROGRAM}({line}): {last}", start, run.host)
        return result

    setattr(owner, last, charged)


def _print(*_values: Any, **_options: Any) -> None:
    with machine().range("<built-in function print>", "python_function"):
        machine().work(PRINT_US)


def cost(runs: list[Machine], cause: str) -> float:
    """Return what gains are ratios of: peak memory where memory is the cause, else time."""
    if cause == MEMORY_GROWTH:
        return max(one.peak_bytes for one in runs)
    return elapsed_ms(runs)


def elapsed_ms(runs: list[Machine]) -> float:
    """Return how long the recorded steps took, on the slowest rank."""
    return max(one.elapsed for one in runs) / 1e3
