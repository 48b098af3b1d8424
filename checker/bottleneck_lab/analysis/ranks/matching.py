"""Match the collectives of several ranks: the n-th of each process group is the same on all."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.host.view import COLLECTIVE_RANGE
from bottleneck_lab.analysis.rows import named
from bottleneck_lab.analysis.steps.window import launch_times, step_rows
from bottleneck_lab.trace.timeline import ActivityKind, Ints, SmallInts, Timeline

JITTER_NS = 50_000
"""How far the ranks' clocks may differ."""
MATCHED_SHARE = 0.9
"""The rows of a collective overlap. Where fewer of the matches do, the captures are of different
stretches, or their clocks differ, and nothing is matched.
"""


class Arrival(NamedTuple):
    """One rank's part in a collective that several ranks' captures hold: when its row started and
    ended, and when the last rank's did start, ns. `number` is the same on all ranks; `row` is the
    one of the device table, -1 for a collective of the host.
    """

    number: int
    start: int
    end: int
    last: int
    row: int


def match_collectives(timeline: Timeline) -> dict[int, list[Arrival]]:
    """Return each rank's collectives that other ranks' captures hold too, in order.

    Empty for one rank, and where the rows that should be one collective do not overlap: the ranks
    share no clock, then, or their captures are of different stretches.
    """
    collectives = _on_devices(timeline)
    if not len(collectives.start):
        collectives = _on_hosts(timeline)
    if len(timeline.ranks) < 2 or not len(collectives.start):
        return {}
    start, end = collectives.start, collectives.end
    ranks, kinds = collectives.rank.tolist(), collectives.kind.tolist()
    steps = _step_numbers(timeline, collectives)
    # Which members belong to one collective: the n-th of its kind in a step, on every rank.
    earlier: Counter[tuple[int, ...]] = Counter()
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, (rank, step, kind) in enumerate(zip(ranks, steps, kinds, strict=True)):
        if step is not None:
            members[step, *kind, earlier[rank, step, *kind]].append(i)
            earlier[rank, step, *kind] += 1
    shared = [each for each in members.values() if len(each) > 1]
    arrivals: dict[int, list[Arrival]] = defaultdict(list)
    overlapping = 0
    for number, together in enumerate(sorted(shared, key=lambda each: int(start[each[0]]))):
        last = int(start[together].max())
        overlapping += bool((end[together] + JITTER_NS >= last).all())
        for i in together:
            row = int(collectives.row[i])
            arrivals[ranks[i]].append(Arrival(number, int(start[i]), int(end[i]), last, row))
    if overlapping < MATCHED_SHARE * len(shared):
        return {}
    return dict(arrivals)


class _Collectives(NamedTuple):
    """Collectives by start: the row of the device table (-1: of the host), what tells one kind from
    another, and when each was launched (`called`: by a call that was recorded).
    """

    row: NDArray[np.intp]
    rank: SmallInts
    start: Ints
    end: Ints
    kind: Ints
    launched: Ints
    called: NDArray[np.bool_]


def _on_devices(timeline: Timeline) -> _Collectives:
    device = timeline.device
    rows = np.flatnonzero(device.kind == ActivityKind.COMMUNICATION)
    # Sizes and types tell groups apart where their names were not recorded.
    columns = (device.process_group, device.name, device.dtype, device.bytes)
    return _Collectives(
        rows,
        device.rank[rows],
        device.start[rows],
        device.end[rows],
        np.stack([column[rows].astype(np.int64) for column in columns], axis=1),
        launch_times(timeline, rows),
        timeline.launched_by[rows] >= 0,
    )


def _on_hosts(timeline: Timeline) -> _Collectives:
    """Return the ranges of libraries for collectives on the CPU, each from its queueing to its
    end.
    """
    ranges = timeline.ranges
    rows = np.flatnonzero(named(timeline, ranges, COLLECTIVE_RANGE))
    start = ranges.start[rows]
    kind = ranges.name[rows].astype(np.int64)[:, np.newaxis]
    none, called = np.full(len(rows), -1), np.ones(len(rows), dtype=bool)
    return _Collectives(none, ranges.rank[rows], start, ranges.end[rows], kind, start, called)


def _step_numbers(timeline: Timeline, collectives: _Collectives) -> list[int | None]:
    """Return, for each row, the name of the step that launched it; -1 without steps; None for a row
    that was launched before a rank's first step, or before its capture began.

    Captures of two ranks need not begin with the same collective, but steps of one name are the
    same step.
    """
    steps = step_rows(timeline)
    numbers: list[int | None] = [-1] * len(collectives.row)
    launched, called = collectives.launched, collectives.called
    for rank in np.unique(steps.rank).tolist():
        own = steps.rank == rank
        begins, names = steps.start[own], steps.name[own]
        # Steps without numbers (an optimizer's) are told apart by their order.
        if len(np.unique(names)) < len(names):
            names = np.arange(len(names))
        mine = np.flatnonzero(collectives.rank == rank)
        at = np.searchsorted(begins, launched[mine], side="right") - 1
        # Where calls were recorded, a row without one was launched before recording began.
        known = (at >= 0) & (called[mine] | ~called[mine].any())
        for row, step, sure in zip(mine.tolist(), at.tolist(), known.tolist(), strict=True):
            numbers[row] = int(names[step]) if sure else None
    return numbers
