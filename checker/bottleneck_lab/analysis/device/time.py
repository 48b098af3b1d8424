"""When a device did what: the time in which it computed, communicated, copied or stood idle."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import Cause
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.analysis.what_if.program import Program
from bottleneck_lab.trace.timeline import ActivityKind, DeviceTable, Ints, SmallInts, TinyInts

CPU = -1
"""The device number of the host's processor in a capture that has no accelerator."""


class DeviceRows(NamedTuple):
    """The columns of one device's rows that its time follows from: as in `DeviceTable`."""

    start: Ints
    end: Ints
    name: SmallInts
    kind: TinyInts
    stream: Ints

    @classmethod
    def of(cls, table: DeviceTable, rows: NDArray[np.intp] | slice) -> DeviceRows:
        """Return some rows of a table."""
        return cls(*(getattr(table, column)[rows] for column in cls._fields))


class DeviceTime(NamedTuple):
    """When one device of one rank did what inside that rank's window, and the stretches in which it
    did nothing.

    `busy` is everything that it did; `idle` is the rest of the window, and `causes` the same by
    cause.
    """

    rank: int
    device: int
    window: Window
    compute: iv.Intervals
    communication: iv.Intervals
    copy: iv.Intervals
    busy: iv.Intervals
    idle: iv.Intervals
    causes: dict[Cause, iv.Intervals]
    program: Program | None = None
    """The rank's work for a replay, at its first device; None for a CPU that stands in for one."""

    @property
    def exposed_communication(self) -> iv.Intervals:
        """Communication that is not hidden behind computation."""
        return iv.subtract(self.communication, self.compute)

    @property
    def exposed_copy(self) -> iv.Intervals:
        """Copies that are hidden neither behind computation nor behind communication."""
        return iv.subtract(self.copy, iv.join(self.compute, self.communication))


def device_time(rank: int, device: int, rows: DeviceRows, window: Window) -> DeviceTime:
    """Return the time of a device inside the window, its idle time without causes."""

    def covered(*kinds: ActivityKind) -> iv.Intervals:
        """Return the time in which a row of these kinds ran."""
        # Streams overlap, so durations are never summed.
        mask = np.isin(rows.kind, kinds)
        return iv.clip(iv.union(rows.start[mask], rows.end[mask]), *window)

    compute = covered(ActivityKind.KERNEL)
    communication = covered(ActivityKind.COMMUNICATION)
    copy = covered(ActivityKind.COPY, ActivityKind.MEMSET)
    busy = iv.join(compute, communication, copy)
    idle = iv.complement(busy, *window)
    return DeviceTime(rank, device, window, compute, communication, copy, busy, idle, causes={})
