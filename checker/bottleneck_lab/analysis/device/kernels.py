"""The kernels that a device's time goes to, and how well its queue is kept filled."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.steps.window import (
    host_window,
    launch_times,
    queued_before,
    step_rows,
)
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceTable,
    Ints,
    Timeline,
    devices_of,
    different,
)

SHORT_NS = 10_000
"""A kernel below 10 us costs about as much to launch as to run."""


LEAST_STEPS = 4
INTERRUPTION_NS = 100_000
"""A kernel that takes longer than in other steps by less than this was not interrupted: a time
slice of a GPU is about two milliseconds.
"""
SAME_WORK = 1.25
"""In steps that do the same work, most kernels take as long as in the others, up to this factor:
beyond it inputs have other sizes, or the device has another clock. Measured: up to 1.04 in captures
with interruptions, 0.14 to 2.7 where requests differ in size.
"""


class Interruptions(NamedTuple):
    """Kernels that took more than 1.5 times as long as the same ones in other steps: how many, and
    the time beyond what they usually take.
    """

    kernels: int
    excess_ns: int


class KernelRow(msgspec.Struct, frozen=True):
    """All runs of the kernels of one name. `share` is of the summed time of all kernels; occupancy
    is the tool's estimate in %, -1 when not given.
    """

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
    """The way that kernels reach a device. `delay` runs from the start of the launching call to the
    start of the kernel; `queue_depth` counts, at each launch, the kernels launched and not yet
    started. `kernels` ran in the window; `launched_before` of them were launched before the first
    step, which is no part of `kernels_per_step`.
    """

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
    launched_before: int = 0


def find_kernels(timeline: Timeline, top: int = 50) -> list[KernelRow]:
    """Return kernels by total time; each name has its own figures, however many names there are."""
    device = timeline.device
    rows = kernel_rows(device)
    if not len(rows):
        return []
    duration = (device.end - device.start)[rows]
    names = device.name[rows]
    used = different(names)
    # Numbers of two bytes are sorted in one pass.
    number = np.zeros(int(used[-1]) + 1, dtype=np.min_scalar_type(len(used)))
    number[used] = np.arange(len(used))
    inverse = number[names]
    # Sorted by kernel, all of one lie side by side: one pass sums them, without a mask for each.
    order = np.argsort(inverse, kind="stable")
    duration = duration[order]
    calls = np.bincount(inverse, minlength=len(used))
    edges = np.cumsum(calls) - calls
    total, low, high = (of.reduceat(duration, edges) for of in (np.add, np.minimum, np.maximum))
    first = rows[order[edges]]
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
            communication=bool(device.kind[first[i]] == ActivityKind.COMMUNICATION),
            occupancy=float(np.nan_to_num(device.occupancy[first[i]], nan=-1.0)),
        )
        for i in np.argsort(-total, kind="stable")[:top].tolist()
    ]


def find_interruptions(timeline: Timeline) -> Interruptions:
    """Return how many kernels were interrupted, and the time that this cost."""
    rows, excess_ns = find_interrupted(timeline)
    return Interruptions(len(rows), int(excess_ns.sum()))


def find_interrupted(timeline: Timeline) -> tuple[NDArray[np.intp], Ints]:
    """Return the rows of kernels that took more than 1.5 times as long as the same ones usually do
    in other steps, and how much longer, ns.

    Only steps with the same work are compared: the same sequence of kernels, most of which take as
    long as in the other steps. There must be four of a rank or more.
    """
    steps, device = step_rows(timeline), timeline.device
    rows = kernel_rows(device)
    rows = rows[(device.kind[rows] == ActivityKind.KERNEL) & (timeline.launched_by[rows] >= 0)]
    interrupted_rows, excess_ns = [rows[:0]], [np.zeros(0, dtype=np.int64)]
    for rank, number in devices_of(device, rows):
        own = rows[(device.rank[rows] == rank) & (device.device[rows] == number)]
        launched = timeline.runtime.start[timeline.launched_by[own]]
        own = own[np.argsort(launched, kind="stable")]
        begins = np.sort(steps.start[steps.rank == rank])
        edges = np.append(np.searchsorted(np.sort(launched), begins), len(own))
        parts = [own[low:high] for low, high in pairwise(edges.tolist())]
        names = [device.name[part] for part in parts]
        if len(parts) < LEAST_STEPS or not all(np.array_equal(each, names[0]) for each in names):
            continue
        kernels = np.array(parts)
        lengths = device.end[kernels] - device.start[kernels]
        same = _have_same_work(lengths)
        if same.sum() < LEAST_STEPS:
            continue
        kernels, lengths = kernels[same], lengths[same]
        usual = np.quantile(lengths, 0.25, axis=0)
        longer = lengths - usual
        interrupted = longer > np.maximum(usual / 2, INTERRUPTION_NS)
        interrupted_rows.append(kernels[interrupted])
        excess_ns.append(longer[interrupted].astype(np.int64))
    return np.concatenate(interrupted_rows), np.concatenate(excess_ns)


def _have_same_work(lengths: Ints) -> NDArray[np.bool_]:
    """Return a mask of the steps whose typical kernel takes as long as it usually does. `lengths`:
    of each step's kernels, ns.
    """
    usual = np.maximum(np.quantile(lengths, 0.25, axis=0), 1)
    typical = np.median(lengths / usual, axis=1)
    return (typical <= SAME_WORK) & (SAME_WORK * typical >= 1)


def kernel_rows(device: DeviceTable) -> NDArray[np.intp]:
    """Return the rows of computing and communicating kernels, by number; no copies, memsets or
    waits.
    """
    return np.flatnonzero(
        (device.kind == ActivityKind.KERNEL) | (device.kind == ActivityKind.COMMUNICATION)
    )


def find_launches(timeline: Timeline, whole: Timeline) -> list[LaunchUse]:
    """Return one entry per device that ran kernels in the window, of which `timeline` is; `whole`
    is the capture, which knows of launches before the window.
    """
    uses = []
    table, kernels = timeline.device, kernel_rows(timeline.device)
    for rank, device in devices_of(table, kernels):
        rows = kernels[(table.rank[kernels] == rank) & (table.device[kernels] == device)]
        before = _launched_before(whole, rank, device)
        uses.append(_launch_use(timeline, rows, rank, device, before))
    return uses


def _launched_before(timeline: Timeline, rank: int, device: int) -> int:
    """Return how many kernels that ran in the window were launched before the first step, be it
    before the recording began.
    """
    if not len(step_rows(timeline)):
        return 0
    table, begin = timeline.device, host_window(timeline, rank).start
    rows = kernel_rows(table)
    rows = rows[int(np.searchsorted(table.start[rows], begin)) :]
    rows = rows[(table.rank[rows] == rank) & (table.device[rows] == device)]
    queued = np.isin(rows, queued_before(timeline, rank))
    return int((queued | (launch_times(timeline, rows) < begin)).sum())


def _launch_use(
    timeline: Timeline, rows: NDArray[np.intp], rank: int, device: int, before: int
) -> LaunchUse:
    count, duration = len(rows), timeline.device.end[rows] - timeline.device.start[rows]
    median_kernel_ns, short_share = int(np.median(duration)), float((duration < SHORT_NS).mean())
    # Only kernels whose call was recorded tell how they were launched.
    call = timeline.launched_by[rows]
    rows, call = rows[call >= 0], call[call >= 0]
    called, started = timeline.runtime.start[call], timeline.device.start[rows]
    call_length = timeline.runtime.end[call] - called
    launch_call_ns = int(np.median(call_length)) if len(call_length) else 0
    del duration, rows, call, call_length  # of a large capture, each is as large as a column
    steps = max(int((step_rows(timeline).rank == rank).sum()), 1)
    depth = queue_depth(called, started)
    return LaunchUse(
        rank=rank,
        device=device,
        kernels=count,
        kernels_per_step=(count - before) / steps,
        median_kernel_ns=median_kernel_ns,
        short_share=short_share,
        launch_call_ns=launch_call_ns,
        median_delay_ns=int(np.median(started - called)) if len(called) else 0,
        median_queue_depth=float(np.median(depth)) if len(depth) else 0.0,
        max_queue_depth=int(depth.max(initial=0)),
        launched_before=before,
    )


def queue_depth(called: Ints, started: Ints) -> Ints:
    """Return, for each launch, how many kernels have been launched and have not started: a number
    that never goes below zero, since a kernel starts after its call.
    """
    # At the nth call n are launched; of those, as many have begun as have started by then. Clocks
    # of host and device may put a start before its call.
    begun = np.searchsorted(np.sort(np.maximum(started, called)), np.sort(called), side="left")
    depth = np.arange(1, len(called) + 1)
    depth -= begun
    return np.maximum(depth, 0, out=depth)
