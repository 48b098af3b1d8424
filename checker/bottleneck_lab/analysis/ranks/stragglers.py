"""Several ranks side by side: which one works longest."""

from __future__ import annotations

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.view import COLLECTIVE_RANGE
from bottleneck_lab.analysis.rows import named, union_of
from bottleneck_lab.analysis.steps.window import find_window, step_rows
from bottleneck_lab.trace.timeline import ActivityKind, Timeline


class Straggler(msgspec.Struct, frozen=True):
    """One rank's own work (computation, without waiting in collectives) a step, against the median
    rank's (of an even number, the quicker of the two in the middle). `excess_ns` is never negative.
    Without steps, all of the capture is one.
    """

    rank: int
    work_ns: int
    excess_ns: int
    share_of_step: float


def find_stragglers(timeline: Timeline) -> list[Straggler]:
    """Return one entry per rank of several that communicate.

    In a collective the slow rank waits least, so the time in collectives tells the opposite of who
    is slow. Where the collectives of the ranks can be matched, `ranks.collectives` tells more.
    """
    ranks, device = timeline.ranks, timeline.device
    communicating = device.kind == ActivityKind.COMMUNICATION
    on_cpu = named(timeline, timeline.ranges, COLLECTIVE_RANGE).any()
    if len(ranks) < 2 or not (communicating.any() or on_cpu):
        return []  # nobody waits for anybody
    steps = step_rows(timeline)
    work, length = [], []
    for rank in ranks:
        count = max(int((steps.rank == rank).sum()), 1)
        mine = (device.rank == rank) & device.works
        window = find_window(timeline, rank)
        exposed = iv.subtract(
            union_of(device, mine & communicating), union_of(device, mine & ~communicating)
        )
        waiting = iv.clip(exposed, *window).total
        work.append((window.length - waiting) // count)
        length.append(window.length // count)
    median, step = sorted(work)[(len(work) - 1) // 2], max(int(np.median(length)), 1)
    return [
        Straggler(rank, own, max(own - median, 0), max(own - median, 0) / step)
        for rank, own in zip(ranks, work, strict=True)
    ]
