"""Look into one stretch of a capture: what every device and every thread did in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.device.time import CPU, DeviceTime
from bottleneck_lab.analysis.device.transfers import largest_messages
from bottleneck_lab.analysis.host.lines import longest_line
from bottleneck_lab.analysis.host.syncs import SyncRow, longest_waiting_line
from bottleneck_lab.analysis.host.waits import waiting_calls
from bottleneck_lab.analysis.rows import union_of
from bottleneck_lab.analysis.steps.window import Window, step_rows
from bottleneck_lab.trace.timeline import ActivityKind, HostTable, Timeline

NAMES = 6
"""So many names are listed of a thread."""

_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "μs": 10**3, "ns": 1}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|µs|μs|ns)?"
_STRETCH = re.compile(rf"^\s*{_NUMBER}\s*(?:-|–|to)\s*{_NUMBER}\s*$")


def parse_stretch(text: str) -> Window | None:
    """Parse `12.5-14 ms` into ns from the capture's start; a unit holds for both ends, and is ms
    where none is given. None for anything else.
    """
    match = _STRETCH.match(text)
    # Numbers of any length would match, and thousands of digits take long to convert.
    if not match or len(text) > 80:
        return None
    low, low_unit, high, high_unit = match.groups()
    unit = high_unit or "ms"
    start, end = float(low) * _UNITS[low_unit or unit], float(high) * _UNITS[unit]
    return Window(round(start), round(end)) if start < end < 2**62 else None


class NamedTime(msgspec.Struct, frozen=True):
    """Time inside the stretch under one name, ns; what overlaps itself counts once. `kind`: range,
    operator, runtime call or Python. `start_ns` and `end_ns`: of the row with most time inside,
    from the capture's start; it may begin before the stretch and end after it.
    """

    kind: str
    name: str
    time_ns: int
    rows: int
    start_ns: int = 0
    end_ns: int = 0


class ThreadUse(msgspec.Struct, frozen=True):
    """One thread in the stretch: its rows by name, the longest first. `busy_ns` is the time with
    anything recorded of it.
    """

    rank: int
    thread: int
    busy_ns: int
    names: list[NamedTime]


class DeviceWork(msgspec.Struct, frozen=True):
    """Work of one device under one name inside the stretch, ns; messages of collectives of
    different sizes (`bytes`, else 0) stand apart.
    """

    name: str
    bytes: int
    time_ns: int
    rows: int


class DeviceStretch(msgspec.Struct, frozen=True):
    """One device in the stretch; the parts sum to its length. `longest_idle_ns` is its longest
    single gap, `work` what it ran, the longest first.
    """

    rank: int
    device: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int
    longest_idle_ns: int
    work: list[DeviceWork] = []


class Selection(msgspec.Struct, frozen=True):
    """A stretch of a capture, in ns from the capture's start."""

    start_ns: int
    end_ns: int
    devices: list[DeviceStretch]
    threads: list[ThreadUse]


def select(timeline: Timeline, times: Iterable[DeviceTime], stretch: Window) -> Selection:
    """Return the sums of everything inside `stretch` (ns from the capture's start), clipped at its
    ends. `times`: the capture's, one entry per device.
    """
    origin = timeline.extent[0]
    inside = Window(origin + stretch.start, origin + stretch.end)
    devices = []
    for time in times:
        parts, gaps = _parts(time, inside), iv.clip(time.idle, *inside)
        devices.append(
            DeviceStretch(
                rank=time.rank,
                device=time.device,
                compute_ns=parts["compute_share"],
                exposed_communication_ns=parts["exposed_communication_share"],
                exposed_copy_ns=parts["exposed_copy_share"],
                idle_ns=parts["idle_share"],
                longest_idle_ns=int((gaps.end - gaps.start).max(initial=0)),
                work=[] if time.device == CPU else _work(timeline, time, inside),
            )
        )
    return Selection(stretch.start, stretch.end, devices, _threads(timeline, inside))


def _work(timeline: Timeline, time: DeviceTime, inside: Window) -> list[DeviceWork]:
    """Return what one device ran in the stretch, the longest first."""
    device = timeline.device
    mine = (device.rank == time.rank) & (device.device == time.device) & device.works
    rows = np.flatnonzero(mine & (device.start < inside.end) & (device.end > inside.start))
    sizes = np.where(device.kind[rows] == ActivityKind.COMMUNICATION, device.bytes[rows], 0)
    lengths = np.minimum(device.end[rows], inside.end) - np.maximum(
        device.start[rows], inside.start
    )
    keys, number = np.unique(np.stack([device.name[rows], sizes]), axis=1, return_inverse=True)
    times, counts = np.bincount(number.ravel(), lengths), np.bincount(number.ravel())
    work = [
        DeviceWork(timeline.strings[name], size, int(times[i]), int(counts[i]))
        for i, (name, size) in enumerate(keys.T.tolist())
    ]
    return sorted(work, key=lambda row: -row.time_ns)[:NAMES]


def figures_within(
    timeline: Timeline, times: Sequence[DeviceTime], syncs: Sequence[SyncRow], stretch: Window
) -> dict[str, float]:
    """Return the shares (0-1) of the stretch that `grading.figures.figures_of` names for a whole
    capture, over all devices together. `times` and `syncs` are the whole capture's.
    """
    origin = timeline.extent[0]
    inside = Window(origin + stretch.start, origin + stretch.end)
    shares: dict[str, float] = {}
    whole = inside.length * len(times)
    for time in times:
        largest = iv.subtract(largest_messages(timeline, time), time.compute)
        parts = _parts(time, inside)
        parts["largest_message_share"] = iv.clip(largest, *inside).total
        for name, part in parts.items():
            shares[name] = shares.get(name, 0.0) + part / whole
    lines = {
        "longest_line_share": [longest_line(timeline, rank) for rank in timeline.ranks],
        "waiting_line_share": [
            longest_waiting_line(timeline, rank, syncs) for rank in timeline.ranks
        ],
    }
    for name, on_line in lines.items():
        on_line_ns = sum(iv.clip(part, *inside).total for part in on_line)
        shares[name] = on_line_ns / (inside.length * len(timeline.ranks))
    waits = waiting_calls(timeline)
    shares["host_wait_share"] = _covered(timeline.runtime, waits, inside).total / inside.length
    return shares | _range_shares(timeline, inside)


def longest_gap_ns(times: Iterable[DeviceTime]) -> int:
    """Return the longest stretch in which a device of the capture did nothing, ns; 0 for none."""
    return max((int((t.idle.end - t.idle.start).max(initial=0)) for t in times), default=0)


def _parts(time: DeviceTime, inside: Window) -> dict[str, int]:
    """Return a device's time inside the stretch by what it did, ns."""
    parts = {
        "busy_share": time.busy,
        "idle_share": time.idle,
        "compute_share": time.compute,
        "communication_share": time.communication,
        "copy_share": time.copy,
        "exposed_communication_share": time.exposed_communication,
        "exposed_copy_share": time.exposed_copy,
    }
    causes = {f"idle_{cause}_share": part for cause, part in time.causes.items()}
    return {name: iv.clip(part, *inside).total for name, part in (parts | causes).items()}


def _range_shares(timeline: Timeline, inside: Window) -> dict[str, float]:
    """Return, for each marked range, the share of the stretch that it covers on the steps' thread,
    as a mean over the ranks.
    """
    # A loader's threads have ranges of the same names, beside which the steps go on.
    ranges, steps = timeline.ranges, step_rows(timeline)
    threads = np.unique(steps.thread if len(steps) else ranges.thread)
    totals: dict[str, int] = {}
    for thread in threads.tolist():
        for row in _named_times("range", timeline, ranges, thread, inside):
            totals[row.name] = totals.get(row.name, 0) + row.time_ns
    shares = {
        f"{name}_share": total / inside.length / len(threads) for name, total in totals.items()
    }
    return shares | ({"data_wait_share": shares["data_share"]} if "data_share" in shares else {})


def _threads(timeline: Timeline, inside: Window) -> list[ThreadUse]:
    """Return every thread of which anything is recorded in the stretch, the busiest first."""
    tables = {
        "range": timeline.ranges,
        "operator": timeline.operators,
        "runtime call": timeline.runtime,
        "Python": timeline.python,
    }
    uses = []
    for thread in sorted(
        {int(each) for table in tables.values() for each in np.unique(table.thread)}
    ):
        names = [
            row
            for kind, table in tables.items()
            for row in _named_times(kind, timeline, table, thread, inside)
        ]
        if names:
            rank = next(
                int(table.rank[table.thread == thread][0])
                for table in tables.values()
                if thread in table.thread
            )
            busy = iv.join(
                *(_covered(table, table.thread == thread, inside) for table in tables.values())
            )
            longest = sorted(names, key=lambda row: -row.time_ns)[:NAMES]
            uses.append(ThreadUse(rank, thread, busy.total, longest))
    return sorted(uses, key=lambda use: -use.busy_ns)


def _named_times(
    kind: str, timeline: Timeline, table: HostTable, thread: int, inside: Window
) -> list[NamedTime]:
    mine = (table.thread == thread) & (table.start < inside.end) & (table.end > inside.start)
    times = []
    for name in np.unique(table.name[mine]).tolist():
        rows = np.flatnonzero(mine & (table.name == name))
        start, end = table.start[rows].clip(min=inside.start), table.end[rows].clip(max=inside.end)
        longest = int((end - start).argmax())
        times.append(
            NamedTime(
                kind,
                timeline.strings[name],
                iv.union(start, end).total,
                len(rows),
                int(table.start[rows[longest]]) - timeline.extent[0],
                int(table.end[rows[longest]]) - timeline.extent[0],
            )
        )
    return times


def _covered(table: HostTable, mask: np.ndarray, inside: Window) -> iv.Intervals:
    return iv.clip(union_of(table, mask), *inside)
