"""Which kernels the device's time goes to, and how well its queue is kept filled."""

from __future__ import annotations

import msgspec
import numpy as np

from bottleneck_lab.analysis.join import join_rows
from bottleneck_lab.analysis.window import step_rows
from bottleneck_lab.trace.timeline import DeviceTable, Ints, Kind, Timeline, devices_of, different, take

SHORT_NS = 10_000
"""A kernel below 10 us costs about as much to launch as to run."""


class KernelRow(msgspec.Struct, frozen=True):
    """All runs of the kernels of one name. `share` is of the summed time of all kernels; occupancy is the tool's estimate in %, -1 when not given."""

    name: str
    calls: int
    total_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int
    share: float
    communication: bool
    occupancy: float = -1.0


class LaunchUse(msgspec.Struct, frozen=True):
    """How kernels reach a device. `delay` runs from the start of the launching call to the start of the kernel; `queue_depth` counts, at each launch,
    the kernels launched and not yet started."""

    rank: int
    device: int
    kernels: int
    kernels_per_step: float
    median_kernel_ns: int
    short_share: float
    launch_call_ns: int
    median_delay_ns: int
    median_queue_depth: float
    max_queue_depth: int


def find_kernels(timeline: Timeline, top: int = 50) -> list[KernelRow]:
    """Kernels by total time; each name has its own figures, however many names there are."""
    rows = kernel_rows(timeline.device)
    if not len(rows):
        return []
    duration = rows.end - rows.start
    used = different(rows.name)
    number = np.zeros(
        int(used[-1]) + 1, dtype=np.min_scalar_type(len(used))
    )  # Numbers of two bytes are sorted in one pass.
    number[used] = np.arange(len(used))
    inverse = number[rows.name]
    order = np.argsort(inverse, kind="stable")
    calls = np.bincount(inverse, minlength=len(used))
    edges = np.cumsum(calls) - calls
    total = np.add.reduceat(duration[order], edges)
    low, high = np.minimum.reduceat(duration[order], edges), np.maximum.reduceat(duration[order], edges)
    whole = max(int(total.sum()), 1)
    return [
        KernelRow(
            name=timeline.strings[int(used[i])],
            calls=int(calls[i]),
            total_ns=int(total[i]),
            mean_ns=int(total[i] // calls[i]),
            min_ns=int(low[i]),
            max_ns=int(high[i]),
            share=int(total[i]) / whole,
            communication=bool(rows.kind[order[edges[i]]] == Kind.COMMUNICATION),
            occupancy=_occupancy(rows, order[edges[i]]),
        )
        for i in np.argsort(-total, kind="stable")[:top].tolist()
    ]


def kernel_rows(device: DeviceTable) -> DeviceTable:
    """Computing and communicating kernels; no copies, memsets or waits."""
    return take(device, (device.kind == Kind.KERNEL) | (device.kind == Kind.COMMUNICATION))


def _occupancy(rows: DeviceTable, index: int) -> float:
    value = float(rows.occupancy[index])
    return -1.0 if np.isnan(value) else value


def find_launches(timeline: Timeline) -> list[LaunchUse]:
    """One entry a device that ran kernels."""
    found = []
    kernels = kernel_rows(timeline.device)
    for rank, device in devices_of(kernels):
        rows = take(kernels, (kernels.rank == rank) & (kernels.device == device))
        found.append(_launch_use(timeline, rows, rank, device))
    return found


def _launch_use(timeline: Timeline, rows: DeviceTable, rank: int, device: int) -> LaunchUse:
    duration = rows.end - rows.start
    called, call_length, started = _launch_times(timeline, rows)
    steps = max(int((step_rows(timeline).rank == rank).sum()), 1)
    depth = queue_depth(called, started)
    return LaunchUse(
        rank=rank,
        device=device,
        kernels=len(rows),
        kernels_per_step=len(rows) / steps,
        median_kernel_ns=int(np.median(duration)),
        short_share=float((duration < SHORT_NS).mean()),
        launch_call_ns=int(np.median(call_length)) if len(call_length) else 0,
        median_delay_ns=int(np.median(started - called)) if len(called) else 0,
        median_queue_depth=float(np.median(depth)) if len(depth) else 0.0,
        max_queue_depth=int(depth.max(initial=0)),
    )


def _launch_times(timeline: Timeline, rows: DeviceTable) -> tuple[Ints, Ints, Ints]:
    """(start of the call, its length, start of the kernel) of every kernel whose call was recorded, ns."""
    runtime = timeline.runtime
    call = join_rows(runtime.correlation, runtime.rank, rows.correlation, rows.rank)
    known = call >= 0
    call = call[known]
    return runtime.start[call], runtime.end[call] - runtime.start[call], rows.start[known]


def queue_depth(called: Ints, started: Ints) -> Ints:
    """At each launch, how many kernels have been launched and have not started: a number that never goes below zero, since a kernel starts after its call."""
    launched = np.arange(1, len(called) + 1)
    begun = np.searchsorted(np.sort(np.maximum(started, called)), np.sort(called), side="left")
    depth: Ints = np.maximum(launched - begun, 0)
    return depth
