"""Where the host waited for the device, and what made it wait."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.host import SYNC_CALL, named
from bottleneck_lab.analysis.operators import OPERATOR, RUNTIME, CallTree
from bottleneck_lab.analysis.window import step_rows
from bottleneck_lab.trace.timeline import HostTable, SmallInts, Timeline, take


class SyncRow(msgspec.Struct, frozen=True):
    """Calls of one waiting function, from one place. `caused_by` is the outermost operator or range around it ("" when it was called directly)."""

    name: str
    caused_by: str
    calls: int
    calls_per_step: float
    total_ns: int


def find_syncs(timeline: Timeline, calls: CallTree) -> list[SyncRow]:
    """Waits by function and cause, longest first. Those inside the profiler's own start and stop, outside every operator and step, are the profiler's."""
    waits = np.flatnonzero(named(timeline, timeline.runtime, SYNC_CALL))
    if not len(waits):
        return []
    waiting = take(timeline.runtime, waits)
    causes = _causes(timeline, calls, calls.rows(RUNTIME)[waits])
    steps = step_rows(timeline)
    inside = _within(waiting, steps)
    times: dict[tuple[str, str], int] = defaultdict(int)
    counts: Counter[tuple[str, str]] = Counter()
    for keep, name, start, end, cause in zip(
        inside.tolist(),
        [timeline.strings[i] for i in waiting.name.tolist()],
        waiting.start.tolist(),
        waiting.end.tolist(),
        causes,
        strict=True,
    ):
        if keep or cause:
            times[name, cause] += end - start
            counts[name, cause] += 1
    per = max(len(steps), 1)
    found = [
        SyncRow(name, cause, counts[name, cause], counts[name, cause] / per, total)
        for (name, cause), total in times.items()
    ]
    return sorted(found, key=lambda row: -row.total_ns)


def _causes(timeline: Timeline, calls: CallTree, waits: SmallInts) -> list[str]:
    """For each wait, given by its row in the tree, the outermost operator above it."""
    above = calls.tree.parent[waits]
    outermost = np.full(len(above), -1)
    while (above >= 0).any():
        outermost = np.where((above >= 0) & (calls.layer[above] == OPERATOR), above, outermost)
        above = np.where(above >= 0, calls.tree.parent[above], -1)
    names = timeline.operators.name[np.searchsorted(calls.rows(OPERATOR), outermost[outermost >= 0])]
    found = np.full(len(outermost), -1)
    found[outermost >= 0] = names
    return [timeline.strings[name] if name >= 0 else "" for name in found.tolist()]


def _within(rows: HostTable, steps: HostTable) -> NDArray[np.bool_]:
    """Whether a row starts inside a step; everything does where there are no steps."""
    if not len(steps):
        return np.ones(len(rows), dtype=bool)
    order = np.argsort(steps.start, kind="stable")
    index = np.searchsorted(steps.start[order], rows.start, side="right") - 1
    return (index >= 0) & (rows.start < steps.end[order][np.maximum(index, 0)])
