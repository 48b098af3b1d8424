"""Match the collectives of several ranks: the n-th of each process group is the same on all."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from bottleneck_lab.analysis.steps.window import launch_times, step_rows
from bottleneck_lab.analysis.what_if import Arrival
from bottleneck_lab.trace.timeline import ActivityKind, Timeline

JITTER_NS = 50_000
"""How far the ranks' clocks may differ."""
MATCHED_SHARE = 0.9
"""The rows of a collective overlap. Where fewer of the matches do, the captures are of different
stretches, or their clocks differ, and nothing is matched.
"""


def match_collectives(timeline: Timeline) -> dict[int, list[Arrival]]:
    """Return each rank's collectives that other ranks' captures hold too, in order.

    Empty for one rank, and where the rows that should be one collective do not overlap: the ranks
    share no clock, then, or their captures are of different stretches.
    """
    device = timeline.device
    rows = np.flatnonzero(device.kind == ActivityKind.COMMUNICATION)
    if len(timeline.ranks) < 2 or not len(rows):
        return {}
    step = _step_numbers(timeline, rows)
    counts: Counter[tuple[int, ...]] = Counter()
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, number in zip(rows.tolist(), step, strict=True):
        if number is None:
            continue
        # Sizes and types tell groups apart where their names were not recorded.
        kind = (
            number,
            int(device.process_group[row]),
            int(device.name[row]),
            int(device.dtype[row]),
            int(device.bytes[row]),
        )
        count = counts[(int(device.rank[row]), *kind)]
        counts[(int(device.rank[row]), *kind)] += 1
        members[(*kind, count)].append(row)
    shared = [each for each in members.values() if len(each) > 1]
    arrivals: dict[int, list[Arrival]] = defaultdict(list)
    overlapping = 0
    for number, together in enumerate(sorted(shared, key=lambda each: int(device.start[each[0]]))):
        last = int(device.start[together].max())
        overlapping += bool((device.end[together] + JITTER_NS >= last).all())
        for row in together:
            arrivals[int(device.rank[row])].append(
                Arrival(number, int(device.start[row]), int(device.end[row]), last, row)
            )
    if overlapping < MATCHED_SHARE * len(shared):
        return {}
    return dict(arrivals)


def _step_numbers(timeline: Timeline, rows: np.ndarray) -> list[int | None]:
    """Return, for each row, the name of the step that launched it; -1 without steps; None for a row
    that was launched before a rank's first step, or before its capture began.

    Captures of two ranks need not begin with the same collective, but steps of one name are the
    same step.
    """
    steps = step_rows(timeline)
    numbers: list[int | None] = [-1] * len(rows)
    launched = launch_times(timeline, rows)
    called = timeline.launched_by[rows] >= 0
    for rank in np.unique(steps.rank).tolist():
        own = steps.rank == rank
        begins, names = steps.start[own], steps.name[own]
        # Steps without numbers (an optimizer's) are told apart by their order.
        if len(np.unique(names)) < len(names):
            names = np.arange(len(names))
        mine = np.flatnonzero(timeline.device.rank[rows] == rank)
        at = np.searchsorted(begins, launched[mine], side="right") - 1
        # Where calls were recorded, a row without one was launched before recording began.
        known = (at >= 0) & (called[mine] | ~called[mine].any())
        for row, step, sure in zip(mine.tolist(), at.tolist(), known.tolist(), strict=True):
            numbers[row] = int(names[step]) if sure else None
    return numbers
