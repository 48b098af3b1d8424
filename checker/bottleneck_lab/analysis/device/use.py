"""The use of each device's time: computing, copying, communicating, or standing idle, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import OUTSIDE, Cause
from bottleneck_lab.analysis.device.gaps import (
    PATTERNS,
    TOGETHER_NS,
    Gap,
    GapCause,
    attribute,
    explain_gaps,
)
from bottleneck_lab.analysis.device.unrecorded import (
    Unrecorded,
    find_unrecorded,
    lost_launches,
    waiting_in_queue,
)
from bottleneck_lab.analysis.host.view import HostView, named, union_of, view_host
from bottleneck_lab.analysis.ranks.matching import match_collectives
from bottleneck_lab.analysis.steps.window import Window, find_window, step_rows
from bottleneck_lab.analysis.what_if import Arrival, Program, make_program
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceTable,
    Direction,
    HostTable,
    Ints,
    SmallInts,
    Timeline,
    TinyInts,
    different,
    make_table,
    take,
)

STRIP = 240
"""Parts of the window in a device's strip: more than a terminal has columns, and a multiple of most
numbers of steps.
"""

BLOCKING_COPY_NS = 20_000
"""A copy call that takes longer than this waits for the copy."""

BLOCKED_LAUNCH_NS, BUSY_SHARE, QUEUE_ROWS = 20_000, 0.9, 250
"""A launch call that takes longer, while the device works for this share (0-1) of it, waits for
room in the queue, which holds about a thousand launches; that of a graph, where so many rows wait.
"""
CPU = -1
"""The device number of the host's processor in a capture that has no accelerator."""


class DeviceUse(msgspec.Struct, frozen=True):
    """One device's time. compute + exposed_communication + exposed_copy = busy; busy + idle = wall;
    the gap causes sum to idle: exactly, in ns.

    *Exposed* time is not hidden behind computation. Copies count as busy and hold memsets too.
    """

    rank: int
    device: int
    name: str
    emulated: bool
    is_cpu: bool
    wall_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    streams: int
    gap_causes: list[GapCause]
    largest_gaps: list[Gap]
    launching_ns: int = 0
    """How long the host was at launching, one thing after another and without its waits. A host
    that needs less than the device works would be ahead.
    """
    unseen_ns: int = 0
    """Idle time in which the device must have worked: work was waiting or being waited for."""
    busy_strip: list[float] = []
    """Share (0-1) of each of `STRIP` equal parts of the window in which the device was busy."""
    outlasting_waits: int = 0
    """Waits of the host that went on after all recorded work had ended."""
    contradicted_waits: int = 0
    """Waits of the host that returned before the work that was launched before them had ended."""
    waits: int = 0
    """Waits of the host for an event, a stream or the whole device."""
    early_rows: int = 0
    """Kernels and copies that start before the call that launched them; 0 if they are few."""

    @property
    def busy_share(self) -> float:
        """Share (0–1) of the wall time in which anything ran on the device."""
        return self.busy_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def working_share(self) -> float:
        """Share (0–1) of the wall time in which the device computed or copied: waiting in
        collectives is no work.
        """
        working = self.busy_ns - self.exposed_communication_ns
        return working / self.wall_ns if self.wall_ns else 0.0

    @property
    def working_ns(self) -> int:
        """The wall time without what lies before the first and after the last work, where no steps
        say what belongs to the program's loop, ns.
        """
        return self.wall_ns - sum(part.idle_ns for part in self.gap_causes if part.cause in OUTSIDE)

    @property
    def overlap_share(self) -> float:
        """Share (0–1) of the communication that is hidden behind computation; 1 without any."""
        if not self.communication_ns:
            return 1.0
        return 1 - self.exposed_communication_ns / self.communication_ns


def numbered_gaps(devices: Sequence[DeviceUse]) -> list[tuple[DeviceUse, Gap]]:
    """Return the largest gaps of all devices, longest first: the N-th is `lab report --gap N`."""
    gaps = [(use, gap) for use in devices for gap in use.largest_gaps]
    return sorted(gaps, key=lambda pair: (pair[1].start_ns - pair[1].end_ns, pair[1].start_ns))


class DeviceRows(NamedTuple):
    """The columns of one device's rows that its time follows from: as in `DeviceTable`."""

    start: Ints
    end: Ints
    name: SmallInts
    kind: TinyInts
    stream: Ints


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


_COLLECTIVE = re.compile(r"^c10d::|^(?:gloo|mpi|ucc):")


def cpu_rows(timeline: Timeline, host: HostView, rank: int) -> DeviceTable:
    """Return the operators (or, without any, the ranges) of a rank without an accelerator, as the
    work of the CPU, and its collectives.
    """
    work: HostTable = timeline.operators
    if not len(work):
        work = take(timeline.ranges, ~np.isin(timeline.ranges.name, step_rows(timeline).name))
    work = take(work, (work.rank == rank) & ~named(timeline, work, _COLLECTIVE))
    # What runs inside input ranges is input, not work.
    busy = iv.subtract(iv.union(work.start, work.end), host.doing["input"])
    start = np.concatenate([busy.start, host.collectives.start])
    end = np.concatenate([busy.end, host.collectives.end])
    kinds = np.repeat(
        (ActivityKind.KERNEL, ActivityKind.COMMUNICATION),
        (len(busy.start), len(host.collectives.start)),
    )
    return make_table(
        DeviceTable, len(start), start=start, end=end, kind=kinds, device=np.full(len(start), CPU)
    )


def find_device_uses(timeline: Timeline) -> Iterator[tuple[DeviceUse, DeviceTime]]:
    """Yield the use of each device's time, and the time itself: one entry per device and rank, in
    order. The CPU stands in where no accelerator was recorded.
    """
    arrivals = match_collectives(timeline)
    for rank in timeline.ranks:
        window = find_window(timeline, rank)
        table, mine = timeline.device, timeline.device.rank == rank
        host = view_host(timeline, rank, PATTERNS)
        if not mine.any() and lost_launches(timeline, rank)[0]:
            yield _nothing_recorded(timeline, rank, host, window)
            continue
        if not mine.any():
            table = cpu_rows(timeline, host, rank)
            mine = np.ones(len(table), dtype=bool)
        # A process often touches the first device without using it: one that only copies counts
        # where no device computes.
        computing = mine & np.isin(table.kind, (ActivityKind.KERNEL, ActivityKind.COMMUNICATION))
        own: list[tuple[DeviceUse, DeviceTime]] = []
        for device in different(table.device[computing if computing.any() else mine]).tolist():
            chosen = np.flatnonzero(mine & (table.device == device))
            rows = DeviceRows(*(getattr(table, column)[chosen] for column in DeviceRows._fields))
            time = _device_time(rank, device, rows, window)
            queued, unrecorded, elsewhere = iv.NONE, Unrecorded(iv.NONE), iv.NONE
            if device != CPU:
                queued, waited = waiting_in_queue(timeline, rank, device, chosen, time.idle)
                unrecorded = find_unrecorded(timeline, rank, chosen, time.idle)
                # A gap before queued work in which rows are missing was no gap.
                stretches = iv.join(unrecorded.stretches, waited)
                queued = iv.subtract(queued, stretches)
                unrecorded = unrecorded._replace(stretches=stretches)
                elsewhere = _elsewhere(timeline, rank, device, queued)
            causes = attribute(time.idle, queued, unrecorded.stretches, host, window, elsewhere)
            time = time._replace(causes=causes)
            own.append((_use(timeline, time, rows, host, unrecorded), time))
        if own and not own[0][0].is_cpu:
            use, time = own[0]
            program = _program(timeline, [each for _, each in own], host, arrivals.get(rank, ()))
            own[0] = use, time._replace(program=program)
        yield from own
        del host  # before the next rank's is made: of a large capture it is large too


def _elsewhere(timeline: Timeline, rank: int, device: int, queued: iv.Intervals) -> iv.Intervals:
    """Return when a rank's other devices worked in the gaps that are longer than a pause."""
    table = timeline.device
    others = (table.rank == rank) & (table.device != device) & (table.kind != ActivityKind.SYNC)
    long = queued.end - queued.start > TOGETHER_NS
    gaps = iv.Intervals(queued.start[long], queued.end[long])
    return iv.intersect(gaps, union_of(table, others))


def _nothing_recorded(
    timeline: Timeline, rank: int, host: HostView, window: Window
) -> tuple[DeviceUse, DeviceTime]:
    """Return the device of a rank that launched kernels of which none was recorded."""
    rows = DeviceRows(*(getattr(timeline.device, column)[:0] for column in DeviceRows._fields))
    time = _device_time(rank, 0, rows, window)
    unrecorded = Unrecorded(time.idle)
    time = time._replace(causes=attribute(time.idle, iv.NONE, time.idle, host, window))
    return _use(timeline, time, rows, host, unrecorded), time


def _program(
    timeline: Timeline, devices: Sequence[DeviceTime], host: HostView, arrivals: Sequence[Arrival]
) -> Program:
    """Return a rank's devices and its host as a replay needs them."""
    rank, window = devices[0].rank, devices[0].window
    everything = iv.union(np.array([window.start]), np.array([window.end]))
    outside, busy = everything, iv.NONE
    for time in devices:
        outside = iv.intersect(outside, iv.join(*(time.causes[cause] for cause in OUTSIDE)))
        busy = iv.join(busy, time.busy)
    # Start-up and end happen once: a replay of the loop would blame every step for them.
    if outside.total:
        work = iv.subtract(everything, outside)
        window = Window(int(work.start[0]), int(work.end[-1]))
        everything = iv.union(np.array([window.start]), np.array([window.end]))
    long = host.copy_calls.end - host.copy_calls.start > BLOCKING_COPY_NS
    table, calls = timeline.device, timeline.launched_by
    sent = calls[(table.rank == rank) & (table.direction == Direction.H2D) & (calls >= 0)]
    sending = iv.union(timeline.runtime.start[sent], timeline.runtime.end[sent])
    # A launch for which the queue has no room takes long, while the device works.
    start, end = host.launches.start, host.launches.end
    working = iv.covered_before(busy, end) - iv.covered_before(busy, start)
    full = (end - start > BLOCKED_LAUNCH_NS) & (working > BUSY_SHARE * (end - start))
    # A graph's launch takes long by itself.
    rows = np.bincount(calls[calls >= 0], minlength=len(timeline.runtime))
    graphs = union_of(timeline.runtime, (rows > 1) & (timeline.runtime.rank == rank))
    graph = iv.covered_before(graphs, end) > iv.covered_before(graphs, start)
    full &= ~graph | (_queued(timeline, rank, start) >= QUEUE_ROWS)
    # It blocks the host like a wait; and so does a pageable copy, until the device has made it, and
    # the driver, which lets the device run dry before it gives memory or takes it back.
    calling = (
        iv.Intervals(host.copy_calls.start[long], host.copy_calls.end[long]),
        host.allocation,
        iv.Intervals(start[full], end[full]),
    )
    blocking = iv.separate(*(np.concatenate([each[i] for each in calling]) for i in (0, 1)))
    # Each begins after its own launch, for which it may be, and is no part of a wait beside it.
    blocking = iv.subtract(blocking, host.sync)
    waits = iv.separate(
        np.concatenate([host.sync.start, blocking.start + 1]),
        np.concatenate([host.sync.end, blocking.end]),
    )
    doing = attribute(everything, iv.NONE, iv.NONE, host, window)
    # `.item()` is a copy call and then a wait: without the wait there is no call either.
    short = iv.Intervals(host.copy_calls.start[~long], host.copy_calls.end[~long])
    if len(host.sync.start):
        follows = np.searchsorted(host.sync.start, short.end)
        wait = host.sync.start[np.minimum(follows, len(host.sync.start) - 1)]
        asks = (wait >= short.end) & (wait - short.end < TOGETHER_NS)
        asking = iv.Intervals(short.start[asks], short.end[asks])
        doing["synchronisation"] = iv.join(doing["synchronisation"], asking)
    return make_program(timeline, rank, window, waits, sending, doing, host.known, arrivals)


def _queued(timeline: Timeline, rank: int, moments: Ints) -> Ints:
    """Return how many rows of a rank had been launched at each moment, but had not started."""
    table, calls = timeline.device, timeline.launched_by
    rows = np.flatnonzero((table.rank == rank) & (calls >= 0))
    launched = np.sort(timeline.runtime.start[calls[rows]])
    waiting: Ints = np.searchsorted(launched, moments) - np.searchsorted(table.start[rows], moments)
    return waiting


def _device_time(rank: int, device: int, rows: DeviceRows, window: Window) -> DeviceTime:
    def covered(*kinds: ActivityKind) -> iv.Intervals:
        """Return the time in which a row of these kinds ran."""
        # Streams overlap, so durations are never summed.
        mask = np.isin(rows.kind, kinds)
        return iv.clip(iv.union(rows.start[mask], rows.end[mask]), window.start, window.end)

    compute = covered(ActivityKind.KERNEL)
    communication = covered(ActivityKind.COMMUNICATION)
    copy = covered(ActivityKind.COPY, ActivityKind.MEMSET)
    busy = iv.join(iv.join(compute, communication), copy)
    idle = iv.complement(busy, window.start, window.end)
    return DeviceTime(rank, device, window, compute, communication, copy, busy, idle, causes={})


def _use(
    timeline: Timeline, time: DeviceTime, rows: DeviceRows, host: HostView, unrecorded: Unrecorded
) -> DeviceUse:
    is_cpu = time.device == CPU
    name = "CPU"
    if not is_cpu:
        infos = [d for d in timeline.devices if d.rank == time.rank and d.index == time.device]
        name = infos[0].name if infos else ""
    causes, largest = explain_gaps(
        timeline,
        time.rank,
        rows.start,
        None if is_cpu else rows.name,
        time.idle,
        time.causes,
        host,
        time.window,
    )
    launching = iv.subtract(host.launching, iv.join(host.sync, host.doing["copy"], host.allocation))
    # In a window of fewer ns than parts, some parts have no length.
    edges = np.linspace(time.window.start, time.window.end, STRIP + 1).astype(np.int64)
    covered, lengths = np.diff(iv.covered_before(time.busy, edges)), np.maximum(np.diff(edges), 1)
    return DeviceUse(
        rank=time.rank,
        device=time.device,
        name=name,
        emulated=timeline.emulated,
        is_cpu=is_cpu,
        wall_ns=time.window.length,
        busy_ns=time.busy.total,
        idle_ns=time.idle.total,
        compute_ns=time.compute.total,
        communication_ns=time.communication.total,
        copy_ns=time.copy.total,
        exposed_communication_ns=iv.subtract(time.communication, time.compute).total,
        exposed_copy_ns=iv.subtract(time.copy, iv.join(time.compute, time.communication)).total,
        streams=len(different(rows.stream)),
        gap_causes=causes,
        largest_gaps=largest,
        launching_ns=iv.clip(launching, *time.window).total,
        unseen_ns=unrecorded.stretches.total,
        busy_strip=[round(share, 3) for share in (covered / lengths).tolist()],
        outlasting_waits=unrecorded.outlasting,
        contradicted_waits=unrecorded.contradicted,
        waits=unrecorded.waits,
        early_rows=unrecorded.early,
    )
