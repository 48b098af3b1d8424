"""The timeline as the page draws it: lanes of rows without overlap, packed into a few typed columns.

Every recorded row is in it. What makes a large capture open quickly is the form, not an excerpt: per row of a lane,
the distance to the event before, the duration, the name's index and the category, as gzipped binary columns
that the page turns into arrays without parsing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from isal import igzip
from numpy.typing import NDArray

from bottleneck_lab.trace.timeline import DeviceTable, HostTable, Kind, Timeline, take

MAX_ROWS = 48
"""Deeper nesting than this is drawn on the lane's last row."""

MAX_NAME = 300
"""A longer name is cut in the page; C++ kernel names of several kilobytes are common."""

CATEGORIES: dict[str, tuple[str, str]] = {
    "kernel": ("kernel", "cat-kernel"),
    "copy": ("copy", "cat-copy"),
    "memset": ("memset", "cat-copy"),
    "communication": ("communication", "cat-communication"),
    "wait": ("wait on the stream", "cat-wait"),
    "range": ("range", "cat-range"),
    "operator": ("operator", "cat-operator"),
    "runtime": ("runtime call", "cat-runtime"),
    "python": ("Python", "cat-python"),
    "input": ("idle: input", "gap-input"),
    "launch": ("idle: launch", "gap-launch"),
    "sync": ("idle: synchronisation", "gap-sync"),
    "copying": ("idle: copy", "gap-copy"),
    "communicating": ("idle: communication", "gap-communication"),
    "unknown": ("idle: unknown", "gap-unknown"),
}
"""What an event is → what the legend calls it and which colour it has in page.css."""

KIND_CATEGORIES = {
    Kind.KERNEL: "kernel",
    Kind.COPY: "copy",
    Kind.MEMSET: "memset",
    Kind.COMMUNICATION: "communication",
    Kind.SYNC: "wait",
}

Column = NDArray[Any]
_CODES = {name: code for code, name in enumerate(CATEGORIES)}


@dataclass(frozen=True)
class Events:
    """Rows of one lane before they are spread over its rows: sorted by start, a parent before its children."""

    start: Column
    end: Column
    name: Column
    category: Column

    def __len__(self) -> int:
        return len(self.start)

    def pick(self, rows: Column) -> Events:
        """The given rows, in their order."""
        return Events(self.start[rows], self.end[rows], self.name[rows], self.category[rows])


@dataclass(frozen=True)
class Lane:
    """One line of the timeline. `gaps` marks a device's idle time, `overview` what the small picture of all shows."""

    group: str
    label: str
    events: Events
    emulated: bool = False
    gaps: bool = False
    overview: bool = False


@dataclass(frozen=True)
class PackedTimeline:
    """`head` is JSON for the page; `data` its columns, gzipped and in base64."""

    head: dict[str, Any]
    data: str = field(repr=False)

    @property
    def categories(self) -> list[str]:
        """The categories that occur, in the order of CATEGORIES."""
        return [each["id"] for each in self.head["categories"] if each["used"]]


def pack_timeline(
    timeline: Timeline, gaps: Iterable[Lane] = (), steps: Iterable[tuple[int, int]] = ()
) -> PackedTimeline:
    """The capture with its idle `gaps` (a lane a device, in the group that `device_group` names) and `steps` (ns)."""
    origin, end = timeline.extent
    lanes = _order([*gaps, *device_lanes(timeline), *host_lanes(timeline)])
    rows = [(index, row) for index, lane in enumerate(lanes) for row in split_rows(lane.events)]
    names, used = _used_names(timeline.strings, [row for _, row in rows])
    columns, packed = _pack_columns([row for _, row in rows], used, origin)
    found = {int(code) for lane in lanes for code in np.unique(lane.events.category)}
    categories = [
        {"id": key, "label": label, "colour": colour, "gap": colour.startswith("gap-"), "used": _CODES[key] in found}
        for key, (label, colour) in CATEGORIES.items()
    ]
    head = {
        "span_ns": max(1, end - origin),
        "names": names,
        "categories": categories,
        "lanes": [_lane_head(index, lane) for index, lane in enumerate(lanes)],
        "rows": [_row_head(index, lanes[index], len(row)) for index, row in rows],
        "steps": [[start - origin, stop - origin] for start, stop in steps],
        "columns": columns,
    }
    return PackedTimeline(head, base64.b64encode(igzip.compress(packed, compresslevel=1)).decode())


def device_group(timeline: Timeline, rank: int, device: int) -> str:
    """The heading above a device's lanes."""
    names = {(info.rank, info.index): info.name for info in timeline.devices}
    parts = [f"Rank {rank}" if len(timeline.ranks) > 1 else "", f"Device {device}", names.get((rank, device), "")]
    return " · ".join(filter(None, parts)) + (" · emulated" if timeline.emulated else "")


def device_lanes(timeline: Timeline) -> Iterator[Lane]:
    """One lane a stream of every device."""
    table = timeline.device
    for rank, device in _pairs(table.rank, table.device):
        on_device = take(table, (table.rank == rank) & (table.device == device))
        for stream in np.unique(on_device.stream).tolist():
            rows = take(on_device, on_device.stream == stream)
            group = device_group(timeline, rank, device)
            yield Lane(group, f"stream {stream}", _device_events(rows), emulated=timeline.emulated, overview=True)


def host_lanes(timeline: Timeline) -> Iterator[Lane]:
    """For every thread: its ranges, operators, runtime calls and Python frames, each where there are any."""
    tables = {
        "range": timeline.ranges,
        "operator": timeline.operators,
        "runtime": timeline.runtime,
        "python": timeline.python,
    }
    busy = sum(
        np.bincount(table.thread, minlength=len(timeline.threads) or 1) for table in tables.values() if len(table)
    )
    for thread in np.argsort(-np.atleast_1d(busy), kind="stable").tolist():
        for category, table in tables.items():
            rows = take(table, table.thread == thread)
            if len(rows):
                label = f"{category}s" if category != "python" else "Python"
                group = _thread_group(timeline, thread, int(rows.rank[0]))
                yield Lane(group, label, _host_events(rows, category), overview=False)


def split_rows(events: Events) -> list[Events]:
    """`events` spread over rows in which nothing overlaps, outermost first.

    An event goes on the first row if everything before it has ended; the rest is spread likewise over the rows below.
    """
    rows: list[Events] = []
    while len(events):
        if len(rows) == MAX_ROWS - 1:
            return [*rows, _flatten(events)]
        reached = np.maximum.accumulate(events.end)
        outermost = np.empty(len(events), dtype=bool)
        outermost[0] = True
        outermost[1:] = events.start[1:] >= reached[:-1]
        rows.append(events.pick(np.flatnonzero(outermost)))
        events = events.pick(np.flatnonzero(~outermost))
    return rows


def _flatten(events: Events) -> Events:
    """All of `events` on one row: each ends where the next one starts."""
    end = events.end.copy()
    end[:-1] = np.minimum(end[:-1], events.start[1:])
    return Events(events.start, end, events.name, events.category)


def _device_events(rows: DeviceTable) -> Events:
    codes = np.zeros(max(KIND_CATEGORIES) + 1, dtype=np.uint8)
    for kind, category in KIND_CATEGORIES.items():
        codes[kind] = _CODES[category]
    return Events(rows.start, rows.end, rows.name, codes[rows.kind])


def _host_events(rows: HostTable, category: str) -> Events:
    return Events(rows.start, rows.end, rows.name, np.full(len(rows), _CODES[category], dtype=np.uint8))


def _thread_group(timeline: Timeline, thread: int, rank: int) -> str:
    info = timeline.threads[thread] if thread < len(timeline.threads) else None
    name = (info.name or f"thread {info.tid}") if info else f"thread {thread}"
    process = f"process {info.pid}" if info and len({each.pid for each in timeline.threads}) > 1 else "host"
    return " · ".join(filter(None, [f"Rank {rank}" if len(timeline.ranks) > 1 else "", process, name]))


def _pairs(first: Column, second: Column) -> list[tuple[int, int]]:
    pairs = np.unique(np.stack([first, second]), axis=1) if len(first) else np.empty((2, 0), dtype=int)
    return [(int(a), int(b)) for a, b in pairs.T]


def _order(lanes: list[Lane]) -> list[Lane]:
    """Lanes of one group together, groups in the order in which they first appear; an idle lane leads its group."""
    groups: dict[str, list[Lane]] = {}
    for lane in lanes:
        groups.setdefault(lane.group, []).append(lane)
    return [lane for group in groups.values() for lane in group]


def _used_names(strings: tuple[str, ...], rows: list[Events]) -> tuple[list[str], Column]:
    """The names that are used, cut to MAX_NAME, and for every index in `strings` its index among them."""
    used = np.zeros(len(strings), dtype=bool)
    for row in rows:
        used[row.name] = True
    place = np.cumsum(used) - 1
    names = [strings[index] for index in np.flatnonzero(used).tolist()]
    return [name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…" for name in names], place


def _pack_columns(rows: list[Events], place: Column, origin: int) -> tuple[list[dict[str, Any]], bytes]:
    """Each column as bytes at a multiple of 8, widest first; `head` says type, offset and length."""
    columns = {
        "gap": _smallest([row.start - np.concatenate([[origin], row.end[:-1]]) for row in rows]),
        "dur": _smallest([row.end - row.start for row in rows]),
        "name": _smallest([place[row.name] for row in rows]),
        "category": _smallest([row.category for row in rows]),
    }
    heads, parts, offset = [], [], 0
    for name, column in columns.items():
        data = column.tobytes()
        data += bytes(-len(data) % 8)
        heads.append({"name": name, "type": _TYPES[column.dtype.str], "offset": offset, "count": len(column)})
        parts.append(data)
        offset += len(data)
    return heads, b"".join(parts)


_TYPES = {"|u1": "u8", "<u2": "u16", "<u4": "u32", "<f8": "f64"}


def _smallest(parts: list[Column]) -> Column:
    """One little-endian column in the narrowest type that holds it. A float64 is exact up to 2^53 ns, 104 days."""
    column = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    top = int(column.max(initial=0))
    for bits, type_ in ((8, "|u1"), (16, "<u2"), (32, "<u4")):
        if top < 1 << bits:
            return column.astype(type_)
    return column.astype("<f8")


def _lane_head(index: int, lane: Lane) -> dict[str, Any]:
    busy = int((lane.events.end - lane.events.start).sum())
    about = {"group": lane.group, "label": lane.label, "emulated": lane.emulated}
    return {"index": index, **about, "events": len(lane.events), "busy_ns": busy}


def _row_head(index: int, lane: Lane, count: int) -> dict[str, Any]:
    return {"lane": index, "count": count, "gaps": lane.gaps, "overview": lane.overview}
