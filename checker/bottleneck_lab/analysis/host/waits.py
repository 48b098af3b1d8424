"""The calls in which the host waits for a device: by their names, and by what they copied."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.host.calls import BLOCKING_COPY_NS, COPY_CALL, SYNC_CALL
from bottleneck_lab.analysis.rows import named
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    Direction,
    HostMemory,
    Ints,
    SmallInts,
    Timeline,
)

ROWS_BEFORE = 64
"""So many rows are looked at for the one that a stream had before a copy."""


def waiting_calls(timeline: Timeline) -> NDArray[np.bool_]:
    """Return a mask of the runtime's calls that wait: those named so, and copies from a device that
    return only when they are done, as those into pageable memory do whatever their name.

    A call that sends data stages it: that is a copy, whatever its name, unless it waits for longer
    until the device has come to it.
    """
    calls, device = timeline.runtime, timeline.device
    waiting = named(timeline, calls, SYNC_CALL)
    copies = np.flatnonzero(device.kind == ActivityKind.COPY)
    launched_by = timeline.launched_by[copies]
    copies, launched_by = copies[launched_by >= 0], launched_by[launched_by >= 0]
    direction = device.direction[copies]
    waiting[launched_by[direction == Direction.H2D]] = False
    fetched = direction == Direction.D2H
    fetched &= device.host_memory[copies] != HostMemory.PINNED
    fetched &= calls.end[launched_by] - calls.start[launched_by] > BLOCKING_COPY_NS
    fetched &= calls.end[launched_by] >= device.end[copies]
    waiting[launched_by[fetched]] = True
    sending, reached = queued_copies(timeline)
    waiting[sending] = 2 * (reached - calls.start[sending]) > (calls.end - calls.start)[sending]
    # A framework's call after such a copy has nothing left to wait for: both are one wait.
    waited = sending[waiting[sending] & (sending + 1 < len(calls))]
    after = waited + 1
    one = calls.thread[after] == calls.thread[waited]
    one &= calls.start[after] - calls.end[waited] < BLOCKING_COPY_NS
    one &= calls.end[after] - calls.start[after] < BLOCKING_COPY_NS
    waiting[after[one]] = False
    return waiting


def queued_copies(timeline: Timeline) -> tuple[SmallInts, Ints]:
    """Return the runtime's calls that send pageable memory and wait until the device has done what
    its stream had before, and when it had, ns: only then do they stage the data.
    """
    calls, device = timeline.runtime, timeline.device
    sends = (device.direction == Direction.H2D) & (device.host_memory == HostMemory.PAGEABLE)
    copies = np.flatnonzero(sends & (timeline.launched_by >= 0))
    # What takes a stream's place before a copy is in one of the rows right before it.
    before, seeking = copies - 1, np.arange(len(copies))
    for _ in range(ROWS_BEFORE):
        other = device.stream[before[seeking]] != device.stream[copies[seeking]]
        other |= device.device[before[seeking]] != device.device[copies[seeking]]
        other |= device.rank[before[seeking]] != device.rank[copies[seeking]]
        seeking = seeking[other]
        before[seeking] -= 1
        seeking = seeking[before[seeking] >= 0]
        if not len(seeking):
            break
    before[seeking] = -1
    launched_by = timeline.launched_by[copies]
    reached = np.where(before >= 0, device.end[before], 0)
    # The host was in the call until the device had come to the copy.
    waited = reached - calls.start[launched_by] > BLOCKING_COPY_NS
    waited &= calls.end[launched_by] >= reached
    return launched_by[waited], reached[waited]


def copying_calls(timeline: Timeline, waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the runtime's calls that copy without waiting for what came before, or
    after that.
    """
    calls = timeline.runtime
    copying = (named(timeline, calls, COPY_CALL) | named(timeline, calls, SYNC_CALL)) & ~waiting
    copying[queued_copies(timeline)[0]] = True
    return copying
