"""The process that answers a lab's calls under torch.profiler: `python -m
bottleneck_lab.measure.kinds.speedup.child_profiled …`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.channel.wire import unpack_message
from bottleneck_lab.measure.kinds.profiling import child_parser, export, profiling, run_child
from bottleneck_lab.measure.worker import as_values, load_module

MOST_BYTES = 80_000_000
"""Of a trace, before it is compressed: about 250,000 events. More take longer to write and to read
than to record.
"""
LEAST_CALLS = 3
Call = Callable[[], None]


def calls(options: argparse.Namespace) -> None:
    """Call the lab's function on the inputs that lie ready in files, and record it."""
    function = load_module(options.entry).load(options.device)
    files = sorted(options.inputs.glob("*.call"), key=lambda path: int(path.stem))
    record = record_on_gpu if options.device == "cuda" else record_on_cpu
    record([partial(_answer, function, file) for file in files], options.schedule, options.trace)


def _answer(function: Callable[..., Any], file: Path) -> None:
    from torch.profiler import record_function

    inputs = unpack_message(file.read_bytes()).values()
    with record_function("call"):
        as_values(function(*inputs))


def record_on_gpu(calls: Sequence[Call], schedule: dict[str, int], trace: Path) -> None:
    """Record as many calls as the schedule says."""
    with profiling(trace, schedule) as step:
        for call in calls:
            call()
            step()


def record_on_cpu(calls: Sequence[Call], schedule: dict[str, int], trace: Path) -> None:
    """Record as many calls as the schedule says, or as fit into a trace of MOST_BYTES.

    The backend of torch.profiler does it alone: there is no GPU whose recorder must warm up, and
    the front imports TorchInductor, which takes two seconds.
    """
    from torch.autograd.profiler import profile, record_function

    first = schedule["wait"] + schedule["warmup"]
    for call in calls[: first - 1]:
        call()
    active = min(schedule["active"], as_many_as_fit(calls[first - 1], trace))
    with profile(use_kineto=True, record_shapes=True) as profiler:
        for number, call in enumerate(calls[first : first + active], first):
            with record_function(f"ProfilerStep#{number}"):
                call()
    export(profiler, trace)


def as_many_as_fit(call: Call, trace: Path) -> int:
    """Return the number of calls like this one that fit into a trace of MOST_BYTES, at least
    LEAST_CALLS: one is recorded and weighed.
    """
    from torch.autograd.profiler import profile

    with profile(use_kineto=True) as profiler:
        call()
    weighed = trace.with_name("one-call.json")
    profiler.export_chrome_trace(str(weighed))
    # Shapes were left out of this one, and are half of what is written.
    fits = MOST_BYTES // (2 * weighed.stat().st_size)
    weighed.unlink()
    return max(LEAST_CALLS, fits)


def main() -> None:
    """Entry point."""
    parser = child_parser()
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    run_child(calls, parser.parse_args())
    sys.stdout.flush()
    os._exit(0)  # freeing a million events one by one takes seconds


if __name__ == "__main__":
    main()
