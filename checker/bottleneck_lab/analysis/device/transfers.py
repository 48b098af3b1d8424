"""Copies between host and device, and what ranks send each other: how much, which way, how fast."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.device.time import DeviceTime
from bottleneck_lab.analysis.rows import union_of
from bottleneck_lab.analysis.steps.window import step_rows
from bottleneck_lab.trace.names import DTYPES, collective_of
from bottleneck_lab.trace.timeline import ActivityKind, Direction, HostMemory, Timeline


class CopyRow(msgspec.Struct, frozen=True):
    """All copies of one direction and kind of host memory. `gb_per_s` is bytes over summed duration
    (0 when sizes were not recorded).
    """

    direction: str
    host_memory: str
    calls: int
    bytes: int
    total_ns: int
    largest_ns: int
    gb_per_s: float


class CollectiveRow(msgspec.Struct, frozen=True):
    """All runs of collectives of one kind, type and size. `bytes` are of one run, the larger of
    what goes in and comes out (0: not recorded), and `gb_per_s` is that over the mean duration,
    waiting for other ranks included. `exposed_ns` is the part of `total_ns` in which the device did
    not compute; of collectives side by side, the first to begin has it.
    """

    collective: str
    dtype: str
    bytes: int
    calls: int
    calls_per_step: float
    total_ns: int
    gb_per_s: float
    exposed_ns: int = 0


Message = tuple[int, int, int]
"""A collective's name, type and size, as the device table has them."""
Sizes = Counter[Message]
"""Time by message, ns."""
_REDUCING = ("all-reduce", "reduce-scatter", "reduce")


def exposed_by_size(timeline: Timeline, time: DeviceTime) -> Sizes:
    """Return the time in which one device only communicated, by what it sent: together its
    `exposed_communication_ns`.
    """
    device = timeline.device
    rows = np.flatnonzero(_collectives_of(timeline, time))
    if not len(rows):
        return Counter()
    # Rows are in order of their start: each counts from where those before it have all ended.
    end = np.clip(device.end[rows], *time.window)
    before = np.maximum.accumulate(np.concatenate([[time.window.start], end]))[:-1]
    start = np.minimum(np.maximum(device.start[rows], before), end)
    beside = iv.covered_within(time.compute, start, end)
    messages, number = _messages(timeline, rows)
    exposed = np.bincount(number, weights=end - start - beside, minlength=len(messages))
    return Counter({message: int(ns) for message, ns in zip(messages, exposed, strict=True)})


def _messages(timeline: Timeline, rows: NDArray[np.intp]) -> tuple[list[Message], NDArray[np.intp]]:
    """Return (the different messages of some rows; which of them each row sent)."""
    device = timeline.device
    # The kernel's name tells the collective and its algorithm, the size which bucket it is.
    keys = np.stack([device.name[rows], device.dtype[rows], device.bytes[rows]])
    different, number = np.unique(keys, axis=1, return_inverse=True)
    return [(name, dtype, size) for name, dtype, size in different.T.tolist()], number.reshape(-1)


def largest_messages(timeline: Timeline, time: DeviceTime) -> iv.Intervals:
    """Return when one device exchanged messages of the largest size in its window."""
    device = timeline.device
    mine = _collectives_of(timeline, time)
    mine &= (device.start >= time.window.start) & (device.start < time.window.end)
    mine &= device.bytes == device.bytes[mine].max(initial=0)
    return union_of(device, mine)


def _collectives_of(timeline: Timeline, time: DeviceTime) -> NDArray[np.bool_]:
    device = timeline.device
    mine: NDArray[np.bool_] = (device.rank == time.rank) & (device.device == time.device)
    mine &= device.kind == ActivityKind.COMMUNICATION
    return mine


def reduces(timeline: Timeline) -> NDArray[np.bool_]:
    """Return which rows of the device table are collectives that reduce, as gradients are sent."""
    reducing = [collective_of(name) in _REDUCING for name in timeline.strings]
    mine: NDArray[np.bool_] = np.array(reducing, dtype=bool)[timeline.device.name]
    mine &= timeline.device.kind == ActivityKind.COMMUNICATION
    return mine


def find_collectives(
    timeline: Timeline, exposed: Mapping[Message, int], top: int = 30
) -> list[CollectiveRow]:
    """Sum up what was sent between ranks, longest total first. Rows of the same size may be the
    same bucket of DDP. `exposed` is `exposed_by_size` of all devices together.
    """
    device = timeline.device
    rows = np.flatnonzero(device.kind == ActivityKind.COMMUNICATION)
    steps = max(len(step_rows(timeline)), 1)
    messages, number = _messages(timeline, rows)
    calls = np.bincount(number, minlength=len(messages))
    times = np.bincount(number, (device.end - device.start)[rows], len(messages))
    collectives = []
    for i in np.argsort(-times, kind="stable")[:top].tolist():
        (name, dtype, size), count, total_ns = messages[i], int(calls[i]), int(times[i])
        collectives.append(
            CollectiveRow(
                collective=collective_of(timeline.strings[name]),
                dtype=DTYPES[dtype],
                bytes=size,
                calls=count,
                calls_per_step=count / steps,
                total_ns=total_ns,
                gb_per_s=size * count / total_ns if total_ns else 0.0,
                exposed_ns=exposed.get(messages[i], 0),
            )
        )
    return collectives


def find_copies(timeline: Timeline) -> list[CopyRow]:
    """Sum up copies by direction and host memory, longest total first. Memsets are none."""
    device = timeline.device
    copies = device.kind == ActivityKind.COPY
    copy_rows = []
    for direction, memory in itertools.product(Direction, HostMemory):
        mine = np.flatnonzero(
            copies & (device.direction == direction) & (device.host_memory == memory)
        )
        if not len(mine):
            continue
        duration = device.end[mine] - device.start[mine]
        total, moved = int(duration.sum()), int(device.bytes[mine].sum())
        copy_rows.append(
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
    return sorted(copy_rows, key=lambda row: -row.total_ns)
