"""The time of a data loader's worker processes, where a capture looked inside them."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.rows import union_of
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.trace.timeline import Timeline, different

LINES = 12
"""So many lines are listed of a worker."""

_ROUNDED_NS = 1000
"""Rows that follow each other may overlap by what rounding leaves."""

_START = re.compile(r"^DataLoader starts its workers: (\d+) on (\d+) cores, (kept|ended)")
_IN_WORKERS = re.compile(r"^enumerate\(DataLoader\)#_MultiProcessing")
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
    which it was at work on one. Batches that the window cuts count only where none is whole.
    """

    rank: int
    worker: str
    batches: int
    batch_ns: int
    busy_share: float
    lines: list[WorkerLine]


class LoaderUse(msgspec.Struct, frozen=True):
    """A data loader with worker processes: how many there are and how many cores (0: not recorded),
    whether they outlive an epoch, how often they were started in the window, and how long that
    took, ns.
    """

    workers: int
    cores: int
    kept: bool
    starts: int
    starting_ns: int

    @property
    def crowded(self) -> bool:
        """True if its workers are known to share cores among themselves."""
        return 0 < self.cores < self.workers


def find_loader(timeline: Timeline, window: Window) -> LoaderUse | None:
    """Return the loader with worker processes whose starts took longest; None without such."""
    ranges = timeline.ranges
    loaders: dict[str, LoaderUse] = {}
    in_workers = False
    for name in different(ranges.name).tolist():
        text = timeline.strings[name]
        in_workers |= bool(_IN_WORKERS.match(text))
        match = _START.match(text)
        if match:
            rows = ranges.name == name
            starts = iv.clip(union_of(ranges, rows), *window)
            workers, cores = int(match[1]), int(match[2])
            kept, count = match[3] == "kept", len(starts.start)
            loaders[text] = LoaderUse(workers, cores, kept, count, starts.total)
    if loaders:
        return max(loaders.values(), key=lambda use: use.starting_ns)
    return LoaderUse(0, 0, False, 0, 0) if in_workers else None


def worker_threads(timeline: Timeline) -> list[int]:
    """Return the numbers of the threads of loaders' worker processes."""
    return [
        thread for thread, info in enumerate(timeline.threads) if _WORKER.match(info.name or "")
    ]


def find_workers(timeline: Timeline, window: Window) -> list[WorkerUse]:
    """Return every worker that made a batch in the window, the busiest first. Of a worker that was
    started anew, as each epoch does unless workers are kept, each process stands by itself.
    """
    workers = []
    threads = worker_threads(timeline)
    processes = Counter(
        (timeline.threads[each].rank, timeline.threads[each].name) for each in threads
    )
    begun = Counter[tuple[int, str]]()
    for thread in threads:
        info = timeline.threads[thread]
        worker, key = str(info.name), (info.rank, info.name)
        begun[key] += 1
        if processes[key] > 1:
            worker += f", process {begun[key]} of {processes[key]} (epochs start their own)"
        mine = (timeline.ranges.thread == thread) & (timeline.ranges.end > window.start)
        busy = iv.clip(union_of(timeline.ranges, mine), *window)
        if busy.total:
            starts, ends = timeline.ranges.start[mine], timeline.ranges.end[mine]
            whole = (starts >= window.start) & (ends < window.end)
            count, spent = int(mine.sum()), busy.total
            if whole.any():
                count, spent = int(whole.sum()), int((ends - starts)[whole].sum())
            rank = int(timeline.ranges.rank[mine][0])
            lines = _lines(timeline, thread, busy)
            share = busy.total / max(window.length, 1)
            workers.append(WorkerUse(rank, worker, count, spent // count, share, lines))
    return sorted(workers, key=lambda use: -use.busy_share)


def _lines(timeline: Timeline, thread: int, busy: iv.Intervals) -> list[WorkerLine]:
    """Return the outermost sampled lines by time; what lies in another counts to that."""
    table = timeline.python
    rows = np.flatnonzero(table.thread == thread)
    if not len(rows):
        return []
    rows = rows[np.lexsort((-table.end[rows], table.start[rows]))]
    reached = np.maximum.accumulate(table.end[rows])
    outer = rows[np.concatenate(([True], table.start[rows][1:] >= reached[:-1] - _ROUNDED_NS))]
    times = {}
    for name in np.unique(table.name[outer]).tolist():
        mine = outer[table.name[outer] == name]
        ran = iv.union(table.start[mine], table.end[mine])
        times[timeline.strings[name]] = iv.intersect(ran, busy).total
    longest = sorted(times.items(), key=lambda item: -item[1])[:LINES]
    return [WorkerLine(name, time, time / busy.total) for name, time in longest]
