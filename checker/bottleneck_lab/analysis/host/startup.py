"""The time before a device gets its first work, and the call that took most of it."""

from __future__ import annotations

import msgspec
import numpy as np

from bottleneck_lab.analysis.steps.window import step_rows
from bottleneck_lab.trace.names import STEP, STEP_NAME
from bottleneck_lab.trace.timeline import Timeline

# A start-up is named where it is long, and one call was most of it (0-1).
LEAST_NS = 5_000_000
MOST_OF_IT = 0.3
ALIKE = 0.5
"""A later call of the same name that takes this share (0-1) of the first makes both a loop's."""


class StartUp(msgspec.Struct, frozen=True):
    """The stretch before the first work of a rank's devices, and the call that took most of it:
    the first call of CUDA makes its context, whatever it is called.
    """

    rank: int
    ns: int
    call: str
    call_ns: int


def find_startup(timeline: Timeline) -> StartUp | None:
    """Return the longest start-up of all ranks; None where none is long, or no one call of the
    runtime was much of it. A recording that began after earlier steps holds no first call.
    """
    device, calls = timeline.device, timeline.runtime
    longest = None
    for rank in timeline.ranks:
        works = (device.rank == rank) & device.works
        tables = (calls, timeline.operators, timeline.ranges, timeline.python)
        # Rows are in order: the first of each table begins first.
        begins = [
            int(table.start[mine.argmax()])
            for table in tables
            if (mine := table.rank == rank).any()
        ]
        if not works.any() or not begins or _follows_steps(timeline, rank):
            continue
        first = int(device.start[works.argmax()])
        length = first - min(begins)
        rows = np.flatnonzero((calls.rank == rank) & (calls.start < first))
        if length < LEAST_NS or not len(rows):
            continue
        inside = np.minimum(calls.end[rows], first) - calls.start[rows]
        most = int(inside.argmax())
        name = timeline.strings[int(calls.name[rows[most]])]
        started = StartUp(rank, length, name, int(inside[most]))
        if started.call_ns < MOST_OF_IT * length or _recurs(timeline, int(rows[most])):
            continue
        if longest is None or started.ns > longest.ns:
            longest = started
    return longest


def _follows_steps(timeline: Timeline, rank: int) -> bool:
    """Return True if the first recorded step is not the program's first, by its number."""
    steps = step_rows(timeline)
    mine = steps.rank == rank
    name = timeline.strings[int(steps.name[mine.argmax()])] if mine.any() else ""
    number = STEP_NAME.match(name)
    # torch.profiler counts from 0; programs count their own steps from 0 or 1.
    return number is not None and int(number[1]) > (0 if name.startswith(STEP) else 1)


def _recurs(timeline: Timeline, call: int) -> bool:
    """Return True if a later call of the same name takes nearly as long: no start-up does."""
    calls = timeline.runtime
    alike = (calls.name == calls.name[call]) & (calls.rank == calls.rank[call])
    alike &= calls.start > calls.start[call]
    lengths = (calls.end - calls.start)[alike]
    return bool(len(lengths)) and int(lengths.max()) >= ALIKE * int(
        calls.end[call] - calls.start[call]
    )
