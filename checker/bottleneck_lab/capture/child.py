"""The process that runs a learner's code for `lab run` and `lab profile`: `python -m bottleneck_lab.capture.child train|calls …`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from bottleneck_lab.measure.accelerator import Accelerator
from bottleneck_lab.measure.machine import loading_cores
from bottleneck_lab.measure.wire import Arena, Channel, unpack_message
from bottleneck_lab.measure.worker import as_values, load_module


@contextlib.contextmanager
def profiling(trace: Path | None, schedule: dict[str, int] | None) -> Iterator[Callable[[], None]]:
    """torch.profiler around what follows, with a function to call after each step; no profiler without `trace`.

    CUDA activity is recorded where there is a GPU.
    """
    if trace is None:
        yield lambda: None
        return
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler import schedule as schedule_of

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    plan = schedule_of(**schedule, repeat=1) if schedule else None
    with profile(
        activities=activities,
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda finished: finished.export_chrome_trace(str(trace)),
        acc_events=True,
    ) as profiler:
        yield profiler.step if schedule else lambda: None


def train(options: argparse.Namespace) -> None:
    """A training script against the device at the other end of the socket."""
    import torch

    os.sched_setaffinity(0, loading_cores())
    module = load_module(options.entry)
    cache = options.entry.parent / ".lab" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    if hasattr(module, "prepare"):
        module.prepare(options.photos, cache)
    channel = Channel(socket.socket(fileno=options.socket))
    with profiling(options.trace, options.schedule) as step:
        accelerator = Accelerator(channel, Arena.attach(options.arena), torch.profiler.record_function, step)
        module.train(accelerator, options.photos, cache)
    accelerator.finish()


def calls(options: argparse.Namespace) -> None:
    """The function of a lab that answers calls, on inputs that lie ready in files."""
    from torch.profiler import record_function

    function = load_module(options.entry).load(options.device)
    files = sorted(options.inputs.glob("*.call"), key=lambda path: int(path.stem))
    with profiling(options.trace, options.schedule) as step:
        for file in files:
            inputs = unpack_message(file.read_bytes())
            with record_function("call"):
                as_values(function(*inputs))
            step()


def print_learners(error: Exception, folder: Path) -> None:
    """The traceback from the first frame of the learner's own on: how this program came to call it is of no use to them."""
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent != folder:
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["train", "calls"])
    parser.add_argument("--entry", type=Path, required=True)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--schedule", type=json.loads)
    parser.add_argument("--socket", type=int, default=-1)
    parser.add_argument("--arena", type=int, default=-1)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    try:
        {"train": train, "calls": calls}[options.mode](options)
    except Exception as error:
        print_learners(error, options.entry.parent)
        sys.exit(1)


if __name__ == "__main__":
    main()
