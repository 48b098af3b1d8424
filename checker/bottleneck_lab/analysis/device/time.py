"""When a device did what: the time in which it computed, communicated, copied or stood idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import OUTSIDE, Cause
from bottleneck_lab.analysis.rows import union_of
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

    `idle` is all of the window in which none of its `rows` ran, and `causes` the same by cause.
    What it did instead follows from the rows: in a large capture, each kind of it takes as much
    memory as a column of the table, so none is kept.
    """

    rank: int
    device: int
    window: Window
    rows: DeviceRows
    idle: iv.Intervals
    causes: dict[Cause, iv.Intervals]
    program: Program | None = None
    """The rank's work for a replay, at its first device; None for a CPU that stands in for one."""

    @property
    def busy(self) -> iv.Intervals:
        """Everything that the device did."""
        return iv.complement(self.idle, *self.window)

    @property
    def compute(self) -> iv.Intervals:
        """Kernels, but for those of collectives."""
        return self._covered(ActivityKind.KERNEL)

    @property
    def communication(self) -> iv.Intervals:
        """Collectives."""
        return self._covered(ActivityKind.COMMUNICATION)

    @property
    def copy(self) -> iv.Intervals:
        """Copies and memsets."""
        return self._covered(ActivityKind.COPY, ActivityKind.MEMSET)

    @property
    def exposed_communication(self) -> iv.Intervals:
        """Communication that is not hidden behind computation."""
        return iv.subtract(self.communication, self.compute)

    @property
    def exposed_copy(self) -> iv.Intervals:
        """Copies that are hidden neither behind computation nor behind communication."""
        return iv.subtract(iv.subtract(self.copy, self.compute), self.communication)

    def _covered(self, *kinds: ActivityKind) -> iv.Intervals:
        """Return the time in which a row of these kinds ran."""
        mask = np.zeros(len(self.rows.kind), dtype=bool)
        for kind in kinds:
            mask |= self.rows.kind == kind
        # Streams overlap, so durations are never summed.
        return iv.clip(union_of(self.rows, mask), *self.window)


def loop_window(times: Sequence[DeviceTime]) -> Window:
    """Return the window of a rank's devices without its start-up and its end, which no device's
    work is a part of.
    """
    window = times[0].window
    outside = iv.stretch(*window)
    for time in times:
        outside = iv.intersect(outside, iv.join(*(time.causes[cause] for cause in OUTSIDE)))
    if not outside.total:
        return window
    loop = iv.subtract(iv.stretch(*window), outside)
    return Window(int(loop.start[0]), int(loop.end[-1]))


def idle_time(rows: DeviceRows, window: Window) -> iv.Intervals:
    """Return the time in the window in which the device did nothing."""
    return iv.complement(union_of(rows, rows.kind != ActivityKind.SYNC), *window)
