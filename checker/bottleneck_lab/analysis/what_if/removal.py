"""Time that is taken out of a program before it is replayed."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import Cause
from bottleneck_lab.analysis.rows import named, union_of
from bottleneck_lab.analysis.what_if.program import Program, on_one_axis, time_by_stream
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    Direction,
    Ints,
    SmallInts,
    Timeline,
    different,
)

VALUE_BYTES = 4096
"""A copy to the host of at most so much is of values that the program asks for."""


class Removal(NamedTuple):
    """Time that is taken out: the host's for these causes, its waits for devices (but not until a
    copy to one is made), and that of devices in copies, in collectives, or in kernels whose names
    match (but for the share `left`) or that `operators` of such names launch, or in waiting for
    other `devices` of their process; `results`: in copies to the host, but for values; `scopes`:
    all that the host does on these lines or in ranges, operators and calls of these names, and what
    it starts there.
    Kernels that match `halved` then take half as long, and of those in a row that match `fused`,
    only the longest remains.
    """

    causes: tuple[Cause, ...] = ()
    waits: bool = False
    copies: bool = False
    communication: bool = False
    devices: bool = False
    results: bool = False
    scopes: tuple[str, ...] = ()
    kernels: re.Pattern[str] | None = None
    operators: re.Pattern[str] | None = None
    halved: re.Pattern[str] | None = None
    fused: re.Pattern[str] | None = None
    left: float = 0.0


NOTHING = Removal()


def removed_from_tasks(timeline: Timeline, program: Program, removal: Removal) -> Ints:
    """Return how much of each task is removed, ns."""
    table, rows, window = timeline.device, program.rows, program.window
    kind = table.kind[rows]
    removed = np.zeros(len(rows), dtype=bool)

    def kernels(pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = kind == ActivityKind.KERNEL
        mask &= named(timeline, table, pattern)[rows]
        return mask

    if removal.copies:
        removed |= (kind == ActivityKind.COPY) | (kind == ActivityKind.MEMSET)
    if removal.results:
        removed |= (table.direction[rows] == Direction.D2H) & (table.bytes[rows] > VALUE_BYTES)
    if removal.communication:
        removed |= kind == ActivityKind.COMMUNICATION
    if removal.kernels is not None:
        removed |= kernels(removal.kernels)
    if removal.fused is not None:
        length = table.end[rows] - table.start[rows]
        removed |= _but_longest(kernels(removal.fused), program.streams, length)
    if removal.operators is not None:
        removed |= _launched_in(timeline, rows, removal.operators)
    if removal.scopes:
        calls = timeline.launched_by[rows]
        begun = timeline.runtime.start[calls]
        removed |= (calls >= 0) & iv.meets(time_in(timeline, program, removal), begun, begun + 1)
    parts = [(removed, removal.left)]
    if removal.halved is not None:
        parts.append((kernels(removal.halved) & ~removed, 0.5))
    tasks = program.tasks
    start, end = (on_one_axis(each, tasks.stream, window) for each in (tasks.start, tasks.end))
    total = np.zeros(len(tasks.start), dtype=np.int64)
    for part, left in parts:
        if part.any():
            # What runs beside other work of its stream, in a graph, takes no time of its own.
            gone, rest = (
                time_by_stream(timeline, rows[mask], program.streams[mask], window)
                for mask in (part, ~part)
            )
            covered = iv.covered_within(iv.subtract(gone, rest), start, end)
            total += (covered * (1 - left)).astype(np.int64)
    return total


def time_in(timeline: Timeline, program: Program, removal: Removal) -> iv.Intervals:
    """Return when the host was in the `scopes` that are taken out."""
    if not removal.scopes or not len(program.rows):
        return iv.NONE
    rank = timeline.device.rank[program.rows[0]]
    names = [i for i, name in enumerate(timeline.strings) if name in removal.scopes]
    return iv.join(
        *(
            union_of(table, np.isin(table.name, names) & (table.rank == rank))
            for table in (timeline.python, timeline.ranges, timeline.operators, timeline.runtime)
        )
    )


def _but_longest(mask: NDArray[np.bool_], streams: SmallInts, length: Ints) -> NDArray[np.bool_]:
    """Return a mask of the masked rows but for the longest of those that follow each other on one
    stream. Rows are in the order of their start.
    """
    order = np.argsort(streams, kind="stable")
    chosen, stream = mask[order], streams[order]
    begins = chosen & ~np.concatenate(([False], chosen[:-1] & (stream[1:] == stream[:-1])))
    rows = order[chosen]
    chain = np.cumsum(begins)[chosen]
    longest_first = np.lexsort((-length[rows], chain))
    _, firsts = np.unique(chain[longest_first], return_index=True)
    rest = mask.copy()
    rest[rows[longest_first[firsts]]] = False
    return rest


def _launched_in(
    timeline: Timeline, rows: NDArray[np.intp], operators: re.Pattern[str]
) -> NDArray[np.bool_]:
    """Return a mask of the rows of the device that were launched in operators of such names."""
    table, calls = timeline.operators, timeline.launched_by[rows]
    mine = named(timeline, table, operators)
    launched = np.zeros(len(rows), dtype=bool)
    for thread in different(table.thread[mine]).tolist():
        ran = union_of(table, mine & (table.thread == thread))
        own = np.flatnonzero((calls >= 0) & (timeline.runtime.thread[calls] == thread))
        begun = timeline.runtime.start[calls[own]]
        launched[own] = iv.meets(ran, begun, begun + 1)
    return launched
