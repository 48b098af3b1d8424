"""The time of a data loader's worker processes, where a capture looked inside them."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.trace.timeline import Timeline

LINES = 12
"""So many lines are listed of a worker."""

_WORKER = re.compile(r"^DataLoader worker (\d+)$")


class WorkerLine(msgspec.Struct, frozen=True):
    """A line of the data set's own code, with all that it calls: sampled time, and its share (0-1)
    of the worker's batches.
    """

    line: str
    time_ns: int
    share: float


class WorkerUse(msgspec.Struct, frozen=True):
    """One worker process: how many batches it made, how long one took, and the part of the time in
    which it was at work on one.
    """

    rank: int
    worker: str
    batches: int
    batch_ns: int
    busy_share: float
    lines: list[WorkerLine]


def find_workers(timeline: Timeline, window: Window) -> list[WorkerUse]:
    """Return every worker that made a batch in the window, the busiest first."""
    workers = []
    for thread, info in enumerate(timeline.threads):
        if not _WORKER.match(info.name or ""):
            continue
        mine = (timeline.ranges.thread == thread) & (timeline.ranges.end > window.start)
        busy = iv.clip(iv.union(timeline.ranges.start[mine], timeline.ranges.end[mine]), *window)
        if busy.total:
            count = int(mine.sum())
            rank = int(timeline.ranges.rank[mine][0])
            lines = _lines(timeline, thread, busy)
            share = busy.total / max(window.length, 1)
            workers.append(
                WorkerUse(rank, str(info.name), count, busy.total // count, share, lines)
            )
    return sorted(workers, key=lambda use: -use.busy_share)


def _lines(timeline: Timeline, thread: int, busy: iv.Intervals) -> list[WorkerLine]:
    """Return the outermost sampled lines by time; what lies in another counts to that."""
    table = timeline.python
    rows = np.flatnonzero(table.thread == thread)
    if not len(rows):
        return []
    rows = rows[np.lexsort((-table.end[rows], table.start[rows]))]
    reached = np.maximum.accumulate(table.end[rows])
    outer = rows[np.concatenate(([True], table.start[rows][1:] >= reached[:-1]))]
    times = {}
    for name in np.unique(table.name[outer]).tolist():
        mine = outer[table.name[outer] == name]
        ran = iv.union(table.start[mine], table.end[mine])
        times[timeline.strings[name]] = iv.intersect(ran, busy).total
    longest = sorted(times.items(), key=lambda item: -item[1])[:LINES]
    return [WorkerLine(name, time, time / busy.total) for name, time in longest]
