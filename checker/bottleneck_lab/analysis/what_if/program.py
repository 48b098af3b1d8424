"""One rank of a program as it was recorded: the tasks of its devices, what each of them had to wait
for, and the host beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.ranks.matching import Arrival
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.analysis.what_if.host import Host
from bottleneck_lab.trace.timeline import Ints, SmallInts, Timeline, different

LAUNCH_NS = 10_000
"""A kernel starts at most this long after its launch where its stream is free. Launched work that
starts later had to wait for other work.
"""
MOST_TASKS = 40_000
"""Of a rank with more tasks, the first so many are replayed: a loop is like its beginning."""
MOST_ROWS = 2 * MOST_TASKS
"""Its first tasks are looked for in so many rows of the device."""
ROUNDING_NS = 1_000
"""Formats in microseconds place the end of one row after the start of the next."""


class Tasks(NamedTuple):
    """Stretches in which a stream worked without a pause, in the order of their launches. Columns
    of one entry a task: its stream's number, and its start, end and launch, ns.

    A collective is two tasks: one of no length where the rank joins it, and the transfer, which
    begins when the last rank has joined. `joins` and `transfers` hold its number there, and
    `needs` the position of the task on another stream that a task had to wait for; -1: none.
    """

    stream: Ints
    start: Ints
    end: Ints
    launch: Ints
    joins: Ints
    transfers: Ints
    needs: Ints


class Program(NamedTuple):
    """A rank of a program in a window.

    `rows` are its rows of the device table, each on the stream that `streams` numbers; `devices`
    are the streams' devices.
    """

    window: Window
    rows: NDArray[np.intp]
    streams: SmallInts
    devices: Ints
    tasks: Tasks
    host: Host


def find_beginning(timeline: Timeline, rank: int, window: Window) -> Window:
    """Return the part of a window that holds what is replayed of it."""
    device = timeline.device
    rows = np.flatnonzero((device.rank == rank) & (device.start >= window.start))
    if len(rows) <= MOST_ROWS:
        return window
    return Window(window.start, min(window.end, int(device.start[rows[MOST_ROWS]])))


def make_program(
    timeline: Timeline, rank: int, window: Window, host: Host, arrivals: Sequence[Arrival] = ()
) -> Program:
    """Return a rank, ready to be replayed. `arrivals` are its parts in collectives."""
    rows, streams, devices = _number_streams(timeline, rank, window)
    # A collective of the host, or one that the window cuts, has no arrival to replay.
    arrivals = [
        each
        for each in arrivals
        if each.row >= 0 and window.start <= each.start and each.end <= window.end
    ]
    joined = np.array([each.row for each in arrivals], dtype=np.int64)
    work = ~np.isin(rows, joined)
    tasks = _order(
        np.hstack(
            [
                _find_work(timeline, rows[work], streams[work], window),
                _find_collectives(timeline, arrivals, streams[np.searchsorted(rows, joined)]),
            ]
        )
    )
    if len(tasks.start) == MOST_TASKS:
        window = Window(window.start, int(tasks.end.max()))
        inside = timeline.device.start[rows] < window.end
        rows, streams = rows[inside], streams[inside]
    host = host._replace(waits=iv.clip(host.waits, *window), end=min(host.end, window.end))
    return Program(window, rows, streams, devices, tasks, host)


def _number_streams(
    timeline: Timeline, rank: int, window: Window
) -> tuple[NDArray[np.intp], SmallInts, Ints]:
    """Return a rank's rows in the window, the number of each one's stream, and the streams'
    devices.
    """
    device = timeline.device
    rows = np.flatnonzero(
        (device.rank == rank)
        & device.works
        & (device.start < window.end)
        & (device.end > window.start)
    )
    # Each pair of device and stream as one number: to sort pairs takes thirty times as long.
    devices, streams = different(device.device[rows]), different(device.stream[rows])
    pairs = np.searchsorted(devices, device.device[rows]) * len(streams)
    pairs += np.searchsorted(streams, device.stream[rows])
    used = different(pairs)
    numbers = np.searchsorted(used, pairs).astype(np.int32)
    return rows, numbers, devices[used // max(len(streams), 1)].astype(np.int64)


def on_one_axis(moments: Ints, streams: Ints | SmallInts, window: Window) -> Ints:
    """Return moments (ns, clipped to the window) on one axis on which the streams lie behind one
    another, so that sets of intervals never mix two of them.
    """
    behind = streams.astype(np.int64) * (window.length + 1) - window.start
    return np.clip(moments, *window) + behind


def time_by_stream(
    timeline: Timeline, rows: NDArray[np.intp], streams: SmallInts, window: Window
) -> iv.Intervals:
    """Return the time that rows of the device table cover, as `on_one_axis` places it."""
    device = timeline.device
    return iv.union(
        on_one_axis(device.start[rows], streams, window),
        on_one_axis(device.end[rows], streams, window),
    )


def _find_work(
    timeline: Timeline, rows: NDArray[np.intp], streams: SmallInts, window: Window
) -> Ints:
    """Return the work of the rows as columns of tasks."""
    work = time_by_stream(timeline, rows, streams, window)
    stream = work.start // (window.length + 1)
    behind = stream * (window.length + 1) - window.start
    start, end = work.start - behind, work.end - behind
    # A task counts as launched when its first row was.
    begun = on_one_axis(timeline.device.start[rows], streams, window)
    order = np.argsort(begun, kind="stable")
    first = order[np.searchsorted(begun, work.start, sorter=order)]
    none = np.full(len(start), -1)
    return np.stack([stream, start, end, _launches(timeline, rows[first], start), none, none])


def _find_collectives(timeline: Timeline, arrivals: Sequence[Arrival], streams: SmallInts) -> Ints:
    """Return collectives as columns of tasks, two for each."""
    columns = np.array([(a.row, a.number, a.start, a.last, a.end) for a in arrivals]).T
    row, number, start, last, end = columns.reshape(5, -1).astype(np.int64)
    launch, none = _launches(timeline, row, start), np.full(len(row), -1)
    # Waiting for other ranks is no work: the transfer begins when the last rank has joined.
    joins = np.stack([streams, start, start, launch, number, none])
    transfers = np.stack([streams, np.minimum(last, end), end, launch, none, number])
    return np.hstack([joins, transfers])


def _launches(timeline: Timeline, rows: NDArray[np.intp], start: Ints) -> Ints:
    """Return when the rows were launched; `start` where no call was recorded, or a later one."""
    launch = start.copy()
    if len(timeline.runtime):
        call = timeline.launched_by[rows]
        known = call >= 0
        launch[known] = np.minimum(timeline.runtime.start[call[known]], start[known])
    return launch


def _order(columns: Ints) -> Tasks:
    """Return tasks in the order of their launches, the first `MOST_TASKS`."""
    stream, start, _, launch, _, transfers = columns
    # A stream works in the order of launches: what has no recorded call was launched, at the
    # latest, before what came after it.
    in_turn = np.lexsort((transfers >= 0, start, stream))
    last = int(start.max(initial=0))
    apart = stream[in_turn] * (last - int(launch.min(initial=last)) + 1)
    launch[in_turn] = np.minimum.accumulate((launch[in_turn] + apart)[::-1])[::-1] - apart
    order = np.lexsort((transfers >= 0, start, launch))[:MOST_TASKS]
    tasks = Tasks._make([*columns[:, order], np.full(len(order), -1)])
    return tasks._replace(needs=_find_needs(tasks))


def previous_ends(tasks: Tasks, first: int) -> Ints:
    """Return when each task's stream had done what came before it, ns; `first` if nothing did."""
    by_stream = np.argsort(tasks.stream, kind="stable")
    later, earlier = by_stream[1:], by_stream[:-1]
    ends = np.full(len(tasks.start), first)
    same = tasks.stream[later] == tasks.stream[earlier]
    ends[later[same]] = tasks.end[earlier[same]]
    return ends


def _find_needs(tasks: Tasks) -> Ints:
    """Return, for each task, the position of the one on another stream that it waited for; -1 where
    it began as soon as it was launched and its own stream was free.

    No tool records what a stream waits for. It is what was launched before, and ended last before
    the task began; or, where nothing ended shortly before, what was then running: a task is many
    rows, of which one may have been the one.
    """
    needs = tasks.needs.copy()
    if len(needs) < 2:
        return needs
    start, end = tasks.start, tasks.end
    ready = np.maximum(tasks.launch, previous_ends(tasks, int(tasks.launch.min())))
    late = np.flatnonzero((start - ready > LAUNCH_NS) & (tasks.transfers < 0))
    ended, running = np.full((2, len(late)), -1, dtype=np.int64)
    for number in range(int(tasks.stream.max()) + 1):
        # To join a collective is no work that anything could wait for.
        own = np.flatnonzero((tasks.stream == number) & (tasks.joins < 0))
        other = tasks.stream[late] != number
        if not len(own):
            continue
        # The last one of that stream that had ended, of those launched before; then the next.
        before = np.searchsorted(own, late) - 1
        last = np.searchsorted(end[own], start[late] + ROUNDING_NS, side="right") - 1
        last = np.minimum(last, before)
        candidate = own[np.maximum(last, 0)]
        good = other & (last >= 0) & (end[candidate] > ready[late])
        good &= (ended < 0) | (end[candidate] > end[ended])
        ended[good] = candidate[good]
        candidate = own[np.minimum(last + 1, len(own) - 1)]
        good = other & (last < before) & (start[candidate] < start[late])
        good &= (running < 0) | (start[candidate] > start[running])
        running[good] = candidate[good]
    just = (ended >= 0) & (start[late] - end[ended] <= LAUNCH_NS)
    needs[late] = np.where(just | (running < 0), ended, running)
    return needs
