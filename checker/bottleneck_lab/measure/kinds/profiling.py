"""Runs a lab's code under torch.profiler, in the learner's own folder and without a sandbox:
nothing it reports reaches a verdict.

What a kind's `profile` starts, and what the process that it starts shares with those of other
kinds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from isal import igzip

from bottleneck_lab.catalog import Device
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.rehearsal import rehearsing
from bottleneck_lab.measure.rehearsed import stand_in

SCHEDULE = {"wait": 1, "warmup": 2, "active": 8}
"""Steps of torch.profiler's schedule."""
REHEARSED_SCHEDULE = {"wait": 1, "warmup": 1, "active": 3}


def schedule(device: Device) -> dict[str, int]:
    """Steps of torch.profiler's schedule on a device."""
    return REHEARSED_SCHEDULE if device == "cuda" and rehearsing() else SCHEDULE


def child_command(module: str, context: Context[Any], options: list[str]) -> list[str]:
    """The command line of the process that runs the learner's code."""
    entry = context.workspace / context.lab.spec.entry
    return [sys.executable, "-u", "-m", module, "--entry", str(entry), *options]


def trace_options(trace: Path, device: Device) -> list[str]:
    """Options of the child that have it write a trace."""
    return ["--trace", str(trace), "--schedule", json.dumps(schedule(device))]


def child_parser() -> argparse.ArgumentParser:
    """The options that the children of every kind have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entry", type=Path, required=True)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--schedule", type=json.loads)
    return parser


def run_child(work: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Does the work; what it raises is shown as the learner's, and ends this process."""
    stand_in(getattr(options, "device", "cpu"))
    try:
        work(options)
    except Exception as error:
        print_learners(error, options.entry.parent)
        sys.exit(1)


@contextlib.contextmanager
def profiling(trace: Path | None, schedule: dict[str, int] | None) -> Iterator[Callable[[], None]]:
    """torch.profiler around what follows, with a function to call after each step; no profiler
    without `trace`.

    CUDA activity is recorded where there is a GPU.
    """
    if trace is None:
        yield lambda: None
        return
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler import schedule as schedule_of

    activities = [ProfilerActivity.CPU] + (
        [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    )
    plan = schedule_of(**schedule, repeat=1) if schedule else None
    with profile(
        activities=activities,
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda finished: export(finished, trace),
    ) as profiler:
        yield profiler.step if schedule else lambda: None


def export(profiler: Any, trace: Path) -> None:
    """Writes what torch.profiler has recorded to `trace` (.json.gz). Its own way there compresses
    as slowly as gzip can, line by line.
    """
    plain = trace.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    with plain.open("rb") as source, igzip.open(trace, "wb", compresslevel=1) as out:  # type: ignore[no-untyped-call]  # isal has no types for it
        shutil.copyfileobj(source, out, 4 << 20)
    plain.unlink()


def print_learners(error: Exception, folder: Path) -> None:
    """The traceback from the first frame of the learner's own on: how this program came to call it
    is of no use to them.
    """
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent != folder:
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))
