"""The process that answers a lab's calls under torch.profiler: `python -m bottleneck_lab.measure.kinds.speedup.profiled …`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.channel.wire import unpack_message
from bottleneck_lab.measure.kinds.profiling import child_parser, profiling, run_child
from bottleneck_lab.measure.worker import as_values, load_module

MOST_BYTES = 80_000_000
"""Of a trace, before it is compressed: about 250,000 events. More take longer to write and to read than to record."""
LEAST_CALLS = 3


def calls(options: argparse.Namespace) -> None:
    """The function of a lab that answers calls, on inputs that lie ready in files."""
    from torch.profiler import record_function

    function = load_module(options.entry).load(options.device)
    files = sorted(options.inputs.glob("*.call"), key=lambda path: int(path.stem))
    schedule = as_short_as_needed(options.schedule, lambda: _answer(function, files[0]), options.trace)
    with profiling(options.trace, schedule) as step:
        for file in files[: sum(schedule.values())]:
            with record_function("call"):
                _answer(function, file)
            step()


def _answer(function: Callable[..., Any], file: Path) -> None:
    as_values(function(*unpack_message(file.read_bytes()).values()))


def as_short_as_needed(schedule: dict[str, int], call: Callable[[], None], trace: Path) -> dict[str, int]:
    """The schedule with fewer calls recorded, where a trace of all would be larger than MOST_BYTES: one call, recorded beforehand, says so.

    Its operators' shapes, half of what is written, are left out of that.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    weighed = trace.with_name("one-call.json")
    profiler.export_chrome_trace(str(weighed))
    fits = MOST_BYTES // (2 * weighed.stat().st_size)
    weighed.unlink()
    return schedule | {"active": min(schedule["active"], max(LEAST_CALLS, fits))}


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
