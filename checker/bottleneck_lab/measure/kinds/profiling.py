"""Run a lab's code under torch.profiler, in the learner's own folder and without a sandbox: nothing
it reports reaches a verdict.

The first half is for the parent (`profile` in a kind's run.py), the second for the child
(child_profiled.py).
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

_PACKAGE = Path(__file__).parents[2]

SCHEDULE = {"wait": 1, "warmup": 2, "active": 8}
"""Steps of torch.profiler's schedule."""


def schedule(device: Device) -> dict[str, int]:  # noqa: ARG001 - a plugin shortens it on some
    """Return the steps of torch.profiler's schedule on a device."""
    return SCHEDULE


def child_command(module: str, context: Context[Any], options: list[str]) -> list[str]:
    """Return the command line of the process that runs the learner's code.

    `module` is the kind's child_profiled.py, `options` are those it has besides `--entry`.
    """
    entry = context.workspace / context.lab.spec.entry
    return [sys.executable, "-u", "-m", module, "--entry", str(entry), *options]


def trace_options(trace: Path, device: Device) -> list[str]:
    """Return the options of a child that have it write a trace."""
    return ["--trace", str(trace), "--schedule", json.dumps(schedule(device))]


def child_parser() -> argparse.ArgumentParser:
    """Return a parser with the options that the children of every kind have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entry", type=Path, required=True)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--schedule", type=json.loads)
    return parser


def run_child(work: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Do the work. An exception is shown as the learner's own, and this process ends."""
    try:
        work(options)
    except Exception as error:
        print_learners(error, options.entry.parent)
        sys.exit(1)


@contextlib.contextmanager
def profiling(trace: Path | None, schedule: dict[str, int] | None) -> Iterator[Callable[[], None]]:
    """Record the body of the `with` with torch.profiler, and write `trace`; without one, do
    nothing.

    Yields the function to call after each step, which moves `schedule` on. CUDA activity is
    recorded if there is a GPU.
    """
    if trace is None:
        yield lambda: None
        return
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler import schedule as schedule_of

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    plan = None
    if schedule:
        plan = schedule_of(**schedule, repeat=1)
    with profile(
        activities=activities,
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda finished: export(finished, trace),
    ) as profiler:
        yield profiler.step if schedule else lambda: None


def export(profiler: Any, trace: Path) -> None:
    """Write what torch.profiler has recorded to `trace` (.json.gz)."""
    # Given a name that ends in .gz, torch compresses line by line with Python's gzip, at its
    # slowest level: longer than the recording took. So the plain file is compressed here.
    plain = trace.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    with plain.open("rb") as source, igzip.open(trace, "wb", compresslevel=1) as out:  # type: ignore[no-untyped-call]  # isal has no types for it
        shutil.copyfileobj(source, out, 4 << 20)
    plain.unlink()


@contextlib.contextmanager
def edited_trace(trace: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of a trace (.json.gz), to be changed in place; it is written when the block
    has ended well.
    """
    plain = igzip.decompress(trace.read_bytes())  # type: ignore[no-untyped-call]  # as above
    content: dict[str, Any] = json.loads(plain)
    yield content
    trace.write_bytes(igzip.compress(json.dumps(content).encode(), compresslevel=1))


def print_learners(error: Exception, folder: Path) -> None:
    """Print a traceback from the first frame in the learner's `folder` on, without those of this
    package, such as the virtual GPU's.
    """
    # How this program came to call their code, and what it does below it, is of no use to them.
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent != folder:
        trace = trace.tb_next
    shown = traceback.TracebackException(type(error), error, trace)
    theirs = [frame for frame in shown.stack if not Path(frame.filename).is_relative_to(_PACKAGE)]
    shown.stack = traceback.StackSummary.from_list(theirs)
    sys.stderr.writelines(shown.format())
