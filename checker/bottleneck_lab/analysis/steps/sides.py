"""The two sides of a step: what it would take on the host and on the device if nothing waited."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from bottleneck_lab.analysis.device.use import DeviceUse
from bottleneck_lab.analysis.host.lines import lines_at, undone_lines
from bottleneck_lab.analysis.host.syncs import SyncRow
from bottleneck_lab.analysis.steps.window import begun_inside, host_window
from bottleneck_lab.trace.timeline import ActivityKind, Timeline


class Sides(msgspec.Struct, frozen=True):
    """Means over all steps and ranks: the host's time without waits, the devices' without idle
    time, and the kernels and copies that are launched, with the line that launches most of them
    ("" where no lines were recorded). The backward counts for the line of the forward where that is
    known. The same figures as in the answer to `budget`.
    """

    host_ns: float
    device_ns: float
    launches: float = 0.0
    line: str = ""
    line_launches: float = 0.0


def find_sides(
    whole: Timeline, devices: Sequence[DeviceUse], syncs: Sequence[SyncRow], steps: int
) -> Sides | None:
    """Return both sides of a step; None without steps or without an accelerator."""
    busy_ns = sum(use.busy_ns for use in devices if not use.is_cpu)
    if not steps or not busy_ns:
        return None
    host_ns = sum(host_window(whole, rank).length for rank in whole.ranks)
    host_ns -= sum(row.total_ns for row in syncs)
    timeline = begun_inside(whole)
    work = np.flatnonzero(timeline.device.kind != ActivityKind.SYNC)
    sides = Sides(host_ns / steps, busy_ns / steps, len(work) / steps)
    undone = undone_lines(timeline)
    lines = np.where(undone >= 0, undone, lines_at(timeline, timeline.runtime))
    call = timeline.launched_by[work]
    own = lines[call[call >= 0]]
    counts = np.bincount(own[own >= 0], minlength=1)
    line = int(counts.argmax())
    if not counts[line]:
        return sides
    return msgspec.structs.replace(
        sides, line=timeline.strings[line], line_launches=float(counts[line]) / steps
    )
