"""The ranges that the program marked (NVTX, record_function) or the profiler did, by name."""

from __future__ import annotations

import msgspec
import numpy as np

from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.trace.timeline import Timeline


class RangeRow(msgspec.Struct, frozen=True):
    """All ranges of one name. `share_of_wall` is the summed time over the wall time: above 1 where
    threads or ranks overlap.
    """

    name: str
    calls: int
    total_ns: int
    mean_ns: int
    share_of_wall: float


def find_ranges(timeline: Timeline, window: Window, top: int = 50) -> list[RangeRow]:
    """Return ranges by total time, of each the part in the window."""
    ranges = timeline.ranges
    start, end = np.maximum(ranges.start, window.start), np.minimum(ranges.end, window.end)
    inside = end >= start
    used, inverse = np.unique(ranges.name[inside], return_inverse=True)
    calls = np.bincount(inverse.reshape(-1), minlength=len(used))
    total = np.zeros(len(used), dtype=np.int64)
    np.add.at(total, inverse.reshape(-1), (end - start)[inside])
    wall = max(window.length, 1)
    return [
        RangeRow(
            timeline.strings[int(used[i])],
            int(calls[i]),
            int(total[i]),
            int(total[i] // calls[i]),
            int(total[i]) / wall,
        )
        for i in np.argsort(-total, kind="stable")[:top].tolist()
    ]
