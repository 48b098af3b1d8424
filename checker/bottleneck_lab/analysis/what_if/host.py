"""The host beside a program's devices: what it did with its own time, and when it stood still until
they had done something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import Cause
from bottleneck_lab.analysis.device.attribution import attribute
from bottleneck_lab.analysis.host.calls import BLOCKING_COPY_NS
from bottleneck_lab.analysis.host.view import HostView
from bottleneck_lab.analysis.rows import union_of
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.trace.timeline import Direction, Ints, Timeline

BUSY_SHARE, QUEUE_ROWS = 0.9, 250
"""A long launch call, while the device works for this share (0-1) of it, waits for room in the
queue, which holds about a thousand launches; that of a graph, where so many rows wait.
"""


class Host(NamedTuple):
    """A program's host.

    `waits` are its waits for devices, `sending` its calls that copy to them and `fetching` those
    that copy back, `doing` its time by cause over the whole window; `fixed` is the part of that
    which no change of the program removes; `end`: of what is known of it in the window, ns.
    """

    waits: iv.Intervals
    sending: iv.Intervals
    fetching: iv.Intervals
    doing: Mapping[Cause, iv.Intervals]
    fixed: iv.Intervals
    end: int


def find_host(
    timeline: Timeline, rank: int, window: Window, view: HostView, busy: iv.Intervals
) -> Host:
    """Return the host of a rank whose devices are `busy`."""
    waits = _waits(timeline, rank, view, busy)
    del busy  # of a large capture it is large, too
    return Host(
        waits=waits,
        sending=_copy_calls(timeline, rank, Direction.H2D),
        fetching=_copy_calls(timeline, rank, Direction.D2H),
        doing=attribute(iv.stretch(*window), view, window),
        fixed=view.fixed,
        end=min(int(view.known.end[-1]), window.end) if len(view.known.end) else window.start,
    )


def _copy_calls(timeline: Timeline, rank: int, direction: Direction) -> iv.Intervals:
    """Return a rank's calls that copy this way."""
    table, calls = timeline.device, timeline.launched_by
    copying = calls[(table.rank == rank) & (table.direction == direction) & (calls >= 0)]
    return iv.union(timeline.runtime.start[copying], timeline.runtime.end[copying])


def _waits(timeline: Timeline, rank: int, view: HostView, busy: iv.Intervals) -> iv.Intervals:
    """Return all that blocks the host like a wait: pageable copies, until the device has made them;
    the driver, which lets the device run dry before it gives memory or takes it back; and launches
    for which the queue has no room.
    """
    blocking = (
        view.copy_calls.where(view.copy_calls.lengths > BLOCKING_COPY_NS),
        view.allocation,
        _blocked_launches(timeline, rank, view, busy),
    )
    calls = iv.separate(*(np.concatenate(column) for column in zip(*blocking, strict=True)))
    calls = iv.subtract(calls, view.sync)
    # Each begins after its own launch, for which it may be, and is no part of a wait beside it.
    return iv.separate(
        np.concatenate([view.sync.start, calls.start + 1]),
        np.concatenate([view.sync.end, calls.end]),
    )


def _blocked_launches(
    timeline: Timeline, rank: int, view: HostView, busy: iv.Intervals
) -> iv.Intervals:
    """Return launches that took long because the queue had no room: the device works meanwhile."""
    launches = view.long_launches
    blocked = iv.covered_within(busy, *launches) > BUSY_SHARE * launches.lengths
    if not blocked.any():
        return iv.NONE
    launches = launches.where(blocked)
    # A graph's launch takes long by itself.
    of_graph = iv.meets(_graph_launches(timeline, rank), *launches)
    full = _queued(timeline, rank, launches.start) >= QUEUE_ROWS
    return launches.where(~of_graph | full)


def _graph_launches(timeline: Timeline, rank: int) -> iv.Intervals:
    """Return the calls of a rank that launched more than one row."""
    calls = np.sort(timeline.launched_by)
    several = np.zeros(len(timeline.runtime), dtype=bool)
    several[calls[1:][(calls[1:] == calls[:-1]) & (calls[1:] >= 0)]] = True
    return union_of(timeline.runtime, several & (timeline.runtime.rank == rank))


def _queued(timeline: Timeline, rank: int, moments: Ints) -> Ints:
    """Return how many rows of a rank had been launched at each moment, but had not started."""
    table, calls = timeline.device, timeline.launched_by
    mine = (table.rank == rank) & (calls >= 0)
    # Calls are in order of their start: their numbers stand for it, in half the memory.
    launched = np.searchsorted(np.sort(calls[mine]), timeline.runtime.start.searchsorted(moments))
    rows = table.start.searchsorted(moments)
    begun = np.where(rows > 0, np.cumsum(mine, dtype=np.int32)[rows - 1], 0)
    waiting: Ints = launched - begun
    return waiting
