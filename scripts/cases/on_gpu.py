"""Programs of the case library on a real GPU, to set beside what was modelled: how long their
recorded steps take, with their top cause and without it.

Host functions to which `case.toml` gives a time take that time. Ranks, other programs and slow
links are the modelled machine's: such cases are not run.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import types
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from scripts.cases.record import PROGRAM, CaseSpec, Switch, apply

from bottleneck_lab.grading.causes import MEMORY_GROWTH


class Recorded(BaseException):
    """The steps to record are over; the program need not go on."""


def why_not(spec: CaseSpec) -> str:
    """Return why a case shows nothing on one GPU, in words; empty if it does."""
    return "needs what only the modelled machine has" if spec.machine else ""


def measure(program: str, spec: CaseSpec, top: Switch | None, trace: Path) -> dict[str, float]:
    """Run the program as it is, into `trace`, and without `top`. Returns milliseconds of its
    recorded steps, or MiB of its peak where memory is the cause, of both and their ratio.
    """
    costs = {"as_it_is": record(program, spec, trace)}
    if top is not None and top.edits:
        without = record(apply(program, top), spec, trace.with_name(f"without-{trace.name}"))
        costs |= {"without": without, "gain": costs["as_it_is"] / without}
    return {name: round(cost, 3) for name, cost in costs.items()}


def record(program: str, spec: CaseSpec, trace: Path) -> float:
    """Run a program until its profiler has recorded its steps, and export them to `trace`. Returns
    what that cost: ms, or MiB where memory is the cause.
    """

    import torch  # here: every process of a run of tests reads this file, and few call it

    class Profile(torch.profiler.profile):
        """The program's own profiler, whose trace is kept; its program ends there."""

        done = False

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options |= {"on_trace_ready": self.keep, "with_stack": False}
            super().__init__(*arguments, **options)

        def keep(self, _profiler: Any) -> None:
            self.export_chrome_trace(str(trace))
            self.done = True

        def step(self) -> None:
            super().step()
            if self.done:
                raise Recorded

    module = types.ModuleType("program")
    torch.manual_seed(1)
    random.seed(1)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with patch.object(torch.profiler, "profile", Profile), contextlib.suppress(Recorded):
        exec(compile(program, PROGRAM, "exec"), module.__dict__)
        for name, us in spec.host.items():
            _keep_busy(module, name, us)
        module.main()
    if spec.cause == MEMORY_GROWTH:
        return torch.cuda.max_memory_allocated() / (1 << 20)
    return _recorded_ms(trace)


def _recorded_ms(trace: Path) -> float:
    """Return how long all recorded steps of a trace took."""
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    steps = [
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in events
        if str(event.get("name", "")).startswith("ProfilerStep#")
        and event.get("cat") == "user_annotation"
    ]
    return (max(end for _, end in steps) - min(begin for begin, _ in steps)) / 1000


def _keep_busy(module: types.ModuleType, name: str, us: float) -> None:
    """Let a function of the program keep its core busy for `us` whenever it is called."""
    *path, last = name.split(".")
    owner: Any = module
    for part in path:
        owner = getattr(owner, part)
    function: Callable[..., Any] = getattr(owner, last)

    @wraps(function)
    def busy(*args: Any, **kwargs: Any) -> Any:
        until = time.perf_counter() + us / 1e6
        result = function(*args, **kwargs)
        while time.perf_counter() < until:
            pass
        return result

    setattr(owner, last, busy)
