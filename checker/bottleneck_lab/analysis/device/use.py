"""What each device did with its time: computed, copied, communicated, or stood idle, and why it
stood idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import OUTSIDE, Cause
from bottleneck_lab.analysis.device.gaps import PATTERNS, Gap, GapCause, attribute, explain_gaps
from bottleneck_lab.analysis.host.view import HostView, named, union_of, view_host
from bottleneck_lab.analysis.steps.window import Window, find_window, step_rows
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceTable,
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
    """Idle time, of unknown cause, in which work was waiting: longer than any device pauses."""
    busy_strip: list[float] = []
    """Share (0-1) of each of `STRIP` equal parts of the window in which the device was busy."""

    @property
    def busy_share(self) -> float:
        """Share (0–1) of the wall time in which anything ran on the device."""
        return self.busy_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def working_share(self) -> float:
        """Share (0–1) of the wall time in which the device computed or copied: waiting in
        collectives is no work.
        """
        return (
            (self.busy_ns - self.exposed_communication_ns) / self.wall_ns if self.wall_ns else 0.0
        )

    @property
    def working_ns(self) -> int:
        """The wall time without what lies before the first and after the last work, where no steps
        say what belongs to the program's loop, ns.
        """
        return self.wall_ns - sum(part.idle_ns for part in self.gap_causes if part.cause in OUTSIDE)

    @property
    def overlap_share(self) -> float:
        """Share (0–1) of the communication that is hidden behind computation; 1 when there is
        none.
        """
        return (
            1 - self.exposed_communication_ns / self.communication_ns
            if self.communication_ns
            else 1.0
        )


_COLLECTIVE = re.compile(r"^c10d::|^(?:gloo|mpi|ucc):")


def cpu_rows(timeline: Timeline, host: HostView, rank: int) -> DeviceTable:
    """The operators (or, without any, the ranges) of a rank without an accelerator, as the work of
    the CPU, and its collectives.

    What runs inside input ranges is input, not work.
    """
    work: HostTable = timeline.operators
    if not len(work):
        work = take(timeline.ranges, ~np.isin(timeline.ranges.name, step_rows(timeline).name))
    work = take(work, (work.rank == rank) & ~named(timeline, work, _COLLECTIVE))
    busy = iv.subtract(iv.union(work.start, work.end), host.doing["input"])
    parts = (busy, host.collectives)
    kinds = np.repeat(
        (ActivityKind.KERNEL, ActivityKind.COMMUNICATION), [len(part.start) for part in parts]
    )
    start, end = (
        np.concatenate([getattr(part, edge) for part in parts]) for edge in ("start", "end")
    )
    return make_table(
        DeviceTable, len(start), start=start, end=end, kind=kinds, device=np.full(len(start), CPU)
    )


class DeviceRows(NamedTuple):
    """What is needed of one device's rows: as in `DeviceTable`."""

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


class _Recorded(NamedTuple):
    """What a device's time was found from: its rows and the host beside it. `missing` as `_waiting`
    gives it.
    """

    rows: DeviceRows
    host: HostView
    missing: iv.Intervals


LONGEST_PAUSE_NS = 1_000_000
"""A device with work in its queue pauses for microseconds. Where it seems to for longer, something
that ran was not recorded.
"""


def _devices(timeline: Timeline) -> Iterator[tuple[DeviceTime, _Recorded]]:
    """One entry per device and rank, in order; the CPU stands in where no accelerator was
    recorded.
    """
    for rank in timeline.ranks:
        window = find_window(timeline, rank)
        table, mine = timeline.device, timeline.device.rank == rank
        host = view_host(timeline, rank, PATTERNS)
        if not mine.any():
            table = cpu_rows(timeline, host, rank)
            mine = np.ones(len(table), dtype=bool)
        for device in _working(table, mine):
            chosen = np.flatnonzero(mine & (table.device == device))
            rows = _rows(table, chosen)
            time, queued, missing = _device_time(rank, device, rows, window), iv.NONE, iv.NONE
            if device != CPU:
                queued, missing = _waiting(timeline, chosen, rows, time)
            causes = attribute(time.idle, queued, missing, host, window)
            yield time._replace(causes=causes), _Recorded(rows, host, missing)
        del host  # before the next rank's is made


def _waiting(
    timeline: Timeline, rows: NDArray[np.intp], recorded: DeviceRows, time: DeviceTime
) -> tuple[iv.Intervals, iv.Intervals]:
    """(gaps before work that had been launched when they began; the stretches in which work waited
    for longer than a device pauses).

    In neither is the host why the device did nothing. Of the second, what another device of the
    rank was busy in is a wait for that one.
    """
    gaps = time.idle
    after = np.searchsorted(recorded.start, gaps.end)
    ended = np.flatnonzero(after < len(rows))
    call = timeline.launched_by[rows[after[ended]]]
    ended, call = ended[call >= 0], call[call >= 0]
    since = np.maximum(timeline.runtime.end[call], gaps.start[ended])
    long = gaps.end[ended] - since > LONGEST_PAUSE_NS
    waited = iv.Intervals(since[long], gaps.end[ended[long]])
    if long.any():
        others = (timeline.device.rank == time.rank) & (timeline.device.device != time.device)
        missing = iv.subtract(
            waited, union_of(timeline.device, others & (timeline.device.kind != ActivityKind.SYNC))
        )
    else:
        missing = iv.NONE
    early = ended[(timeline.runtime.end[call] <= gaps.start[ended]) & ~long]
    queued = iv.join(iv.Intervals(gaps.start[early], gaps.end[early]), iv.subtract(waited, missing))
    return queued, missing


def _rows(table: DeviceTable, rows: NDArray[np.intp]) -> DeviceRows:
    return DeviceRows(*(getattr(table, column)[rows] for column in DeviceRows._fields))


def _working(table: DeviceTable, mine: NDArray[np.bool_]) -> list[int]:
    """The devices that ran a kernel. A process often touches the first device without using it; one
    that only copies counts where no device computes.
    """
    computing = table.device[
        mine & ((table.kind == ActivityKind.KERNEL) | (table.kind == ActivityKind.COMMUNICATION))
    ]
    found: list[int] = different(computing if len(computing) else table.device[mine]).tolist()
    return found


def _device_time(rank: int, device: int, rows: DeviceRows, window: Window) -> DeviceTime:
    compute = _covered(rows, window, ActivityKind.KERNEL)
    communication = _covered(rows, window, ActivityKind.COMMUNICATION)
    copy = _covered(rows, window, ActivityKind.COPY, ActivityKind.MEMSET)
    busy = iv.join(iv.join(compute, communication), copy)
    idle = iv.complement(busy, window.start, window.end)
    return DeviceTime(rank, device, window, compute, communication, copy, busy, idle, causes={})


def _covered(rows: DeviceRows, window: Window, *kinds: ActivityKind) -> iv.Intervals:
    """The time inside the window in which a row of one of these kinds ran. Streams overlap:
    durations are never summed.
    """
    mask = np.isin(rows.kind, kinds)
    return iv.clip(iv.union(rows.start[mask], rows.end[mask]), window.start, window.end)


def find_device_uses(timeline: Timeline) -> Iterator[tuple[DeviceUse, DeviceTime]]:
    """What became of each device's time, summed up, and the time itself: one entry per device and
    rank, in order.
    """
    return ((_use(timeline, *found), found[0]) for found in _devices(timeline))


def _use(timeline: Timeline, time: DeviceTime, recorded: _Recorded) -> DeviceUse:
    is_cpu = time.device == CPU
    names = None if is_cpu else recorded.rows.name
    causes, largest = explain_gaps(
        timeline, recorded.rows.start, names, time.idle, time.causes, recorded.host, time.window
    )
    return DeviceUse(
        rank=time.rank,
        device=time.device,
        name="CPU" if is_cpu else _device_name(timeline, time.rank, time.device),
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
        streams=len(different(recorded.rows.stream)),
        gap_causes=causes,
        largest_gaps=largest,
        launching_ns=_launching(recorded.host, time.window),
        unseen_ns=recorded.missing.total,
        busy_strip=_strip(time.busy, time.window),
    )


def _strip(busy: iv.Intervals, window: Window) -> list[float]:
    edges = np.linspace(window.start, window.end, STRIP + 1).astype(np.int64)
    covered, lengths = np.diff(iv.covered_before(busy, edges)), np.maximum(np.diff(edges), 1)
    return [round(share, 3) for share in (covered / lengths).tolist()]


def _launching(host: HostView, window: Window) -> int:
    return iv.clip(
        iv.subtract(host.launching, iv.join(host.sync, host.doing["copy"], host.allocation)),
        *window,
    ).total


def _device_name(timeline: Timeline, rank: int, device: int) -> str:
    return next((d.name for d in timeline.devices if d.rank == rank and d.index == device), "")
