"""Set the clocks of several ranks: machines disagree on the time of day by up to milliseconds."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from bottleneck_lab.trace.processes import STEP
from bottleneck_lab.trace.timeline import ActivityKind, Ints, Timeline, sort_table

TOLERATED_NS = 50_000
"""Clocks that differ by less are left as they are."""
SCATTER_NS = 100_000
"""The moments at which two ranks leave the same collectives differ by the same time, give or take
this; else they were not the same collectives.
"""
MOST_NS = 1_000_000_000
"""Clocks that differ by more than this are no clocks set over a network: the captures are of
different runs.
"""
LEAST_COLLECTIVES = 3
# The root of a broadcast or reduction leaves before the others.
_LEFT_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|generic", re.I)


def set_clocks(timeline: Timeline) -> Timeline:
    """Return the timeline with the clock of each rank set to the lowest rank's, by the collectives
    that both leave at the same moment; ranks without such collectives keep their clock.
    """
    ends = _collective_ends(timeline)
    first, *others = timeline.ranks
    offsets = {first: 0}
    while True:
        # Ranks of another process group are set by one that has been set.
        known = {
            rank: offset
            for rank in others
            if rank not in offsets and (offset := _offset(ends, rank, offsets)) is not None
        }
        if not known:
            break
        offsets |= known
    moved = {rank: ns for rank, ns in offsets.items() if abs(ns) > TOLERATED_NS}
    if not moved:
        return timeline
    ahead = np.zeros(max(timeline.ranks) + 1, dtype=np.int64)
    ahead[list(moved)] = list(moved.values())
    tables: dict[str, Any] = {}
    for name in ("device", "runtime", "operators", "ranges", "python", "memory"):
        table = getattr(timeline, name)
        columns = ("start", "end") if hasattr(table, "end") else ("start",)
        shifted = {column: getattr(table, column) - ahead[table.rank] for column in columns}
        tables[name] = sort_table(replace(table, **shifted))
    words = ", ".join(
        f"rank {rank}'s was {abs(ns) / 1e6:.2f} ms {'ahead' if ns > 0 else 'behind'}"
        for rank, ns in list(moved.items())[:4]
    )
    more = f" and {len(moved) - 4} more" if len(moved) > 4 else ""
    note = (
        "the ranks' clocks differ, as the moments at which they leave the same collectives show;"
        f" they have been set to rank {first}'s: {words}{more}"
    )
    return replace(timeline, notes=(*timeline.notes, note), **tables)


def _collective_ends(timeline: Timeline) -> dict[tuple[int, ...], dict[int, Ints]]:
    """Return when each rank leaves its collectives, by step, process group, name, type and size;
    nothing for what was not launched in a marked step, which tells which is which.
    """
    device, ranges = timeline.device, timeline.ranges
    together = np.array([bool(_LEFT_TOGETHER.search(name)) for name in timeline.strings] or [False])
    chosen = (device.kind == ActivityKind.COMMUNICATION) & (timeline.launched_by >= 0)
    rows = np.flatnonzero(chosen & together[device.name])
    marks = np.array([name.startswith(STEP) for name in timeline.strings] or [False])
    steps = np.flatnonzero(marks[ranges.name])
    lists: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in timeline.ranks:
        own = rows[device.rank[rows] == rank]
        mine = steps[ranges.rank[steps] == rank]
        launched = timeline.runtime.start[timeline.launched_by[own]]
        at = np.searchsorted(ranges.start[mine], launched, side="right") - 1
        for row, step in zip(own[at >= 0].tolist(), mine[at[at >= 0]].tolist(), strict=True):
            columns = (device.process_group, device.name, device.dtype, device.bytes)
            key = int(ranges.name[step]), *(int(column[row]) for column in columns)
            lists[key][rank].append(int(device.end[row]))
    return {
        key: {rank: np.array(ends, dtype=np.int64) for rank, ends in by_rank.items()}
        for key, by_rank in lists.items()
    }


def _offset(
    ends: dict[tuple[int, ...], dict[int, Ints]], rank: int, offsets: dict[int, int]
) -> int | None:
    """Return how far the clock of a rank is ahead, by the ranks whose clocks are known, ns; None
    if that cannot be told.
    """
    ahead: list[Ints] = []
    for by_rank in ends.values():
        own = by_rank.get(rank)
        other = next((known for known in offsets if known in by_rank), None)
        # A step that one capture holds only in part has fewer: then the n-th is another.
        if own is not None and other is not None and len(own) == len(by_rank[other]):
            ahead.append(own - by_rank[other] + offsets[other])
    if sum(map(len, ahead)) < LEAST_COLLECTIVES:
        return None
    times = np.concatenate(ahead)
    offset = int(np.median(times))
    if float(np.median(np.abs(times - offset))) > SCATTER_NS or abs(offset) > MOST_NS:
        return None
    return offset
