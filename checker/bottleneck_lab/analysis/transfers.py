"""Copies between host and device: how much, which way, from what memory, how fast."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np

from bottleneck_lab.trace.timeline import Direction, HostMemory, Kind, Timeline


class CopyRow(msgspec.Struct, frozen=True):
    """All copies of one direction and kind of host memory. `gb_per_s` is bytes over summed duration (0 when sizes were not recorded)."""

    direction: str
    host_memory: str
    calls: int
    bytes: int
    total_ns: int
    largest_ns: int
    gb_per_s: float


def find_copies(timeline: Timeline) -> list[CopyRow]:
    """Copies by direction and host memory, longest total first. Memsets are none."""
    device = timeline.device
    copies = device.kind == Kind.COPY
    found = []
    for direction, memory in itertools.product(Direction, HostMemory):
        mine = np.flatnonzero(copies & (device.direction == direction) & (device.host_memory == memory))
        if not len(mine):
            continue
        duration = device.end[mine] - device.start[mine]
        total, moved = int(duration.sum()), int(device.bytes[mine].sum())
        found.append(
            CopyRow(
                direction=direction.name.lower(),
                host_memory=memory.name.lower(),
                calls=len(mine),
                bytes=moved,
                total_ns=total,
                largest_ns=int(np.max(duration)),
                gb_per_s=moved / total if total else 0.0,
            )
        )
    return sorted(found, key=lambda row: -row.total_ns)
