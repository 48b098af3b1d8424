"""The calls in which the host waits for a device: by their names, and by what they copied."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.host.calls import BLOCKING_COPY_NS, COPY_CALL, SYNC_CALL
from bottleneck_lab.analysis.rows import named
from bottleneck_lab.trace.timeline import ActivityKind, Direction, HostMemory, Timeline


def waiting_calls(timeline: Timeline) -> NDArray[np.bool_]:
    """Return a mask of the runtime's calls that wait: those named so, and copies from a device that
    return only when they are done, as those into pageable memory do whatever their name.

    A call that sends data stages it: that is a copy, whatever its name.
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
    return waiting


def copying_calls(timeline: Timeline, waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the runtime's calls that copy without waiting for what came before."""
    calls = timeline.runtime
    return (named(timeline, calls, COPY_CALL) | named(timeline, calls, SYNC_CALL)) & ~waiting
