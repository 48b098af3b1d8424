"""Several ranks side by side: which one keeps the others waiting."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.steps.window import Window, find_window, step_rows
from bottleneck_lab.trace.timeline import ActivityKind, Timeline


class Straggler(msgspec.Struct, frozen=True):
    """One rank's own work (computation, without waiting in collectives) a step, against the median
    rank's. `excess_ns` is never negative.
    """

    rank: int
    work_ns: int
    excess_ns: int
    share_of_step: float


def find_stragglers(timeline: Timeline) -> list[Straggler]:
    """One entry per rank when there are several. In a collective the slow rank waits least, so the
    time in collectives tells the opposite of who is slow.
    """
    ranks = timeline.ranks
    if len(ranks) < 2:
        return []
    steps = step_rows(timeline)
    work, length = [], []
    for rank in ranks:
        mine = steps.rank == rank
        count = max(int(mine.sum()), 1)
        rows = (timeline.device.rank == rank) & (timeline.device.kind != ActivityKind.SYNC)
        communicating = rows & (timeline.device.kind == ActivityKind.COMMUNICATION)
        window = find_window(timeline, rank)
        work.append((window.length - _waiting(timeline, communicating, rows, window)) // count)
        length.append(window.length // count)
    median, step = int(np.median(work)), max(int(np.median(length)), 1)
    return [
        Straggler(r, w, max(w - median, 0), max(w - median, 0) / step)
        for r, w in zip(ranks, work, strict=True)
    ]


def _waiting(
    timeline: Timeline, communicating: NDArray[np.bool_], rows: NDArray[np.bool_], window: Window
) -> int:
    """Exposed communication of a rank in its window, ns."""
    device = timeline.device
    other = rows & ~communicating
    exposed = iv.subtract(
        iv.union(device.start[communicating], device.end[communicating]),
        iv.union(device.start[other], device.end[other]),
    )
    return iv.clip(exposed, *window).total
