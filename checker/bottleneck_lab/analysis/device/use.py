"""The use of each device's time: computing, copying, communicating, or standing idle, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import OUTSIDE, PATTERNS
from bottleneck_lab.analysis.device.attribution import TOGETHER_NS, attribute
from bottleneck_lab.analysis.device.gaps import Gap, GapCause, explain_gaps
from bottleneck_lab.analysis.device.time import CPU, DeviceRows, DeviceTime, idle_time, loop_window
from bottleneck_lab.analysis.device.unrecorded import (
    Unrecorded,
    find_unrecorded,
    lost_launches,
    waiting_in_queue,
)
from bottleneck_lab.analysis.footprint import release_freed
from bottleneck_lab.analysis.host.startup import find_startup_of
from bottleneck_lab.analysis.host.view import HostView, find_outermost, view_host
from bottleneck_lab.analysis.ranks.matching import Arrival, match_collectives
from bottleneck_lab.analysis.rows import named, union_of
from bottleneck_lab.analysis.steps.window import Window, find_window, step_rows
from bottleneck_lab.analysis.what_if.host import find_host
from bottleneck_lab.analysis.what_if.program import Program, find_beginning, make_program
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceTable,
    HostTable,
    Timeline,
    different,
    make_table,
    take,
)

SHORT_GAP_NS = 100_000
"""Most gaps between the launches of a late host are shorter."""
STRIP = 240
"""Parts of the window in a device's strip: more than a terminal has columns, and a multiple of most
numbers of steps.
"""


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
    gaps: int = 0
    short_gaps: int = 0
    short_gaps_ns: int = 0
    """Stretches of idle time; those below SHORT_GAP_NS, and how long these are together."""
    busy_strip: list[float] = []
    """Share (0-1) of each of `STRIP` equal parts of the window in which the device was busy."""
    exposed_strip: list[float] = []
    """The same of the time in which it only communicated; empty where it never did."""
    outlasting_waits: int = 0
    """Waits of the host that went on after all recorded work had ended."""
    contradicted_waits: int = 0
    """Waits of the host that returned before the work that was launched before them had ended."""
    waits: int = 0
    """Waits of the host for an event, a stream or the whole device."""
    early_rows: int = 0
    """Kernels and copies that start before the call that launched them; 0 if they are few."""
    disordered_rows: int = 0
    """Kernels and copies that start after later ones of their stream; 0 if they are few."""

    @property
    def busy_share(self) -> float:
        """Share (0–1) of the wall time in which anything ran on the device."""
        return self.busy_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def compute_share(self) -> float:
        """Share (0–1) of the wall time in which the device computed."""
        return self.compute_ns / self.wall_ns if self.wall_ns else 0.0

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


def find_device_uses(timeline: Timeline) -> Iterator[tuple[DeviceUse, DeviceTime]]:
    """Yield the use of each device's time, and the time itself: one entry per device and rank, in
    order. The CPU stands in where no accelerator was recorded.
    """
    arrivals = match_collectives(timeline)
    outermost = find_outermost(timeline)
    for rank in timeline.ranks:
        host = view_host(timeline, rank, PATTERNS, outermost)
        if (timeline.device.rank == rank).any():
            devices = _accelerators(timeline, rank, host, arrivals.get(rank, ()))
        elif lost_launches(timeline, rank)[0]:
            devices = _nothing_recorded(timeline, rank, host)
        else:
            devices = _processor(timeline, rank, host)
        del host  # before anybody goes on: of a large capture it is large too
        yield from devices
        del devices  # before the next rank's are made


def _accelerators(
    timeline: Timeline, rank: int, host: HostView, arrivals: Sequence[Arrival]
) -> list[tuple[DeviceUse, DeviceTime]]:
    """Return the use and the time of each of a rank's devices; the first one's has its program."""
    table, window = timeline.device, find_window(timeline, rank)
    mine = table.rank == rank
    # A process often touches the first device without using it: one that only copies counts where
    # no device computes.
    computing = mine & np.isin(table.kind, (ActivityKind.KERNEL, ActivityKind.COMMUNICATION))
    started = find_startup_of(timeline, rank)
    uses: list[DeviceUse] = []
    times: list[DeviceTime] = []
    for device in different(table.device[computing if computing.any() else mine]).tolist():
        chosen = np.flatnonzero(mine & (table.device == device))
        # Without others, the columns are the table's own: no copies.
        rows = DeviceRows.of(table, chosen if len(chosen) < len(table) else slice(None))
        idle = idle_time(rows, window)
        # When the rank's other devices worked.
        others = union_of(table, mine & table.works & (table.device != device))
        queued, waited = waiting_in_queue(timeline, chosen, idle, others)
        unrecorded = find_unrecorded(timeline, rank, chosen, idle)
        # The causes take most memory: nothing else is kept meanwhile.
        del chosen
        # A gap before queued work in which rows are missing was no gap.
        missing = iv.join(unrecorded.stretches, waited)
        queued = iv.subtract(queued, missing)
        elsewhere = iv.intersect(queued.where(queued.lengths > TOGETHER_NS), others)
        causes = attribute(
            idle,
            host,
            window,
            queued=queued,
            elsewhere=elsewhere,
            missing=missing,
            for_ranks=_waiting_for_ranks(rows, arrivals),
            starts_up=started is not None and started.first_work_ns >= window.start,
        )
        times.append(DeviceTime(rank, device, window, rows, idle, causes))
        unrecorded = unrecorded._replace(stretches=missing)
        del queued, waited, elsewhere, missing, rows, idle
        release_freed(timeline)
        uses.append(_use(timeline, times[-1], host, unrecorded))
    times[0] = times[0]._replace(program=_program(timeline, times, host, arrivals))
    return list(zip(uses, times, strict=True))


def _waiting_for_ranks(rows: DeviceRows, arrivals: Sequence[Arrival]) -> iv.Intervals:
    """Return when a device only waited for other ranks to join a collective."""
    if not arrivals:
        return iv.NONE
    joined = np.array([(each.start, min(each.last, each.end)) for each in arrivals])
    start, until = joined[joined[:, 1] > joined[:, 0]].T
    return iv.subtract(iv.union(start, until), union_of(rows, rows.kind == ActivityKind.KERNEL))


def _program(
    timeline: Timeline, times: Sequence[DeviceTime], view: HostView, arrivals: Sequence[Arrival]
) -> Program:
    """Return a rank's devices and its host as a replay needs them."""
    rank = times[0].rank
    # Start-up and end happen once: a replay of the loop would blame every step for them.
    window = loop_window(times)
    window = find_beginning(timeline, rank, window)
    host = find_host(timeline, rank, window, view, iv.join(*(time.busy for time in times)))
    return make_program(timeline, rank, window, host, arrivals)


def _nothing_recorded(
    timeline: Timeline, rank: int, host: HostView
) -> list[tuple[DeviceUse, DeviceTime]]:
    """Return the device of a rank that launched kernels of which none was recorded."""
    window, rows = find_window(timeline, rank), DeviceRows.of(timeline.device, slice(0))
    idle = idle_time(rows, window)
    causes = attribute(idle, host, window, missing=idle)
    time = DeviceTime(rank, 0, window, rows, idle, causes)
    return [(_use(timeline, time, host, Unrecorded(idle)), time)]


def _processor(timeline: Timeline, rank: int, host: HostView) -> list[tuple[DeviceUse, DeviceTime]]:
    """Return the CPU of a rank without an accelerator; nothing if it did nothing."""
    window, table = find_window(timeline, rank), cpu_rows(timeline, host, rank)
    if not len(table):
        return []
    rows = DeviceRows.of(table, slice(None))
    idle = idle_time(rows, window)
    time = DeviceTime(rank, CPU, window, rows, idle, attribute(idle, host, window))
    return [(_use(timeline, time, host, Unrecorded(iv.NONE)), time)]


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


def _use(timeline: Timeline, time: DeviceTime, host: HostView, unrecorded: Unrecorded) -> DeviceUse:
    name = "CPU"
    if time.device != CPU:
        infos = [d for d in timeline.devices if d.rank == time.rank and d.index == time.device]
        name = infos[0].name if infos else ""
    causes, largest = explain_gaps(timeline, time, host)
    launching = iv.subtract(host.launching, iv.join(host.sync, host.doing["copy"], host.allocation))
    exposed = time.exposed_communication
    exposed_ns, exposed_strip = exposed.total, _strip(exposed, time.window)
    del exposed  # of a large capture it is large, too
    short = time.idle.lengths[time.idle.lengths < SHORT_GAP_NS]
    return DeviceUse(
        rank=time.rank,
        device=time.device,
        name=name,
        emulated=timeline.emulated,
        is_cpu=time.device == CPU,
        wall_ns=time.window.length,
        busy_ns=time.window.length - time.idle.total,
        idle_ns=time.idle.total,
        compute_ns=time.compute.total,
        communication_ns=time.communication.total,
        copy_ns=time.copy.total,
        exposed_communication_ns=exposed_ns,
        exposed_copy_ns=time.exposed_copy.total,
        streams=len(different(time.rows.stream)),
        gap_causes=causes,
        largest_gaps=largest,
        launching_ns=iv.clip(launching, *time.window).total,
        unseen_ns=unrecorded.stretches.total,
        gaps=len(time.idle.start),
        short_gaps=len(short),
        short_gaps_ns=int(short.sum()),
        busy_strip=_strip(time.idle, time.window, outside=True),
        exposed_strip=exposed_strip if exposed_ns else [],
        outlasting_waits=unrecorded.outlasting,
        contradicted_waits=unrecorded.contradicted,
        waits=unrecorded.waits,
        early_rows=unrecorded.early,
        disordered_rows=unrecorded.disordered,
    )


def _strip(intervals: iv.Intervals, window: Window, *, outside: bool = False) -> list[float]:
    """Return the share (0-1) of each of `STRIP` equal parts of the window that lies in the
    intervals, or `outside`.
    """
    edges = np.linspace(*window, STRIP + 1).astype(np.int64)
    covered = np.diff(iv.covered_before(intervals, edges))
    if outside:
        # Rounding may put the last edge a little behind the window's end.
        covered = np.diff(np.clip(edges, *window)) - covered
    # In a window of fewer ns than parts, some parts have no length.
    shares = covered / np.maximum(np.diff(edges), 1)
    return [round(share, 3) for share in shares.tolist()]
