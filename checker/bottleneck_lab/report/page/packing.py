"""The timeline's lanes packed into a few typed columns that the page turns into arrays without
parsing.

Every recorded row is in it. What makes a large capture open quickly is the form, not an excerpt:
per row of a lane, the distance to the event before, the duration, the name's index and the
category, gzipped.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from isal import igzip

from bottleneck_lab.analysis.device.time import CPU
from bottleneck_lab.analysis.steps.window import find_window, step_costs, step_rows
from bottleneck_lab.analysis.summary import Analysis
from bottleneck_lab.report.kernel_names import cut_name, short_names
from bottleneck_lab.report.page.lanes import (
    CODES,
    CategoryStyle,
    Column,
    Events,
    Lane,
    category_styles,
    find_lanes,
)
from bottleneck_lab.trace.timeline import Timeline

# Deeper nesting than this is drawn on the lane's last row.
MAX_ROWS = 48

# A longer name is cut in the page; C++ kernel names of several kilobytes are common.
MAX_NAME = 300


@dataclass(frozen=True)
class PackedTimeline:
    """`head` is JSON for the page; `data` its columns, gzipped and in base64."""

    head: dict[str, Any]
    data: str = field(repr=False)

    @property
    def categories(self) -> list[dict[str, Any]]:
        """The categories that occur, in the order of CATEGORIES."""
        return [each for each in self.head["categories"] if each["used"]]


def pack_timeline(capture: Analysis, *, blind: bool = False) -> PackedTimeline:
    """Return the whole capture: devices with their idle time first, then the host's threads,
    busiest first. `blind`: gaps without their causes.
    """
    timeline = capture.timeline
    origin, end = timeline.extent
    strings, lanes = find_lanes(timeline, capture.times, blind=blind)
    styles = category_styles(on_cpu=_on_cpu(capture))
    return _packed(strings, lanes, origin, end, _steps(timeline, origin), styles)


def _on_cpu(*captures: Analysis) -> bool:
    """Return True if no capture is of an accelerator."""
    return all(time.device == CPU for capture in captures for time in capture.times)


def pack_timelines(pair: tuple[Analysis, Analysis], *, blind: bool = False) -> PackedTimeline:
    """Pack two captures in one, each with its lanes under its own headings; the second is moved so
    that both windows begin together.
    """
    timelines = [capture.timeline for capture in pair]
    begins = [find_window(timeline).start for timeline in timelines]
    strings: tuple[str, ...] = ()
    lanes: list[Lane] = []
    for capture, begin, when in zip(pair, begins, ("before", "after"), strict=True):
        names, own_lanes = find_lanes(capture.timeline, capture.times, blind=blind)
        moved_lanes = []
        for lane in own_lanes:
            shift_ns = begins[0] - begin
            events = lane.events
            moved = Events(
                events.start + shift_ns,
                events.end + shift_ns,
                events.name.astype(np.int32) + len(strings),
                events.category,
            )
            moved_lanes.append(replace(lane, group=f"{when} · {lane.group}", events=moved))
        lanes += moved_lanes
        strings += names
    extents = [
        (start + begins[0] - begin, end + begins[0] - begin)
        for (start, end), begin in zip((t.extent for t in timelines), begins, strict=True)
    ]
    origin, end = min(start for start, _ in extents), max(end for _, end in extents)
    styles = category_styles(on_cpu=_on_cpu(*pair))
    return _packed(strings, lanes, origin, end, _steps(timelines[0], origin), styles)


def _packed(
    strings: tuple[str, ...],
    lanes: list[Lane],
    origin: int,
    end: int,
    steps: list[list[int]],
    styles: Mapping[str, CategoryStyle],
) -> PackedTimeline:
    rows = [(index, row) for index, lane in enumerate(lanes) for row in split_rows(lane.events)]
    names, used = _used_names(strings, [row for _, row in rows])
    columns, packed = _pack_columns([row for _, row in rows], used, origin)
    occurring = {int(code) for lane in lanes for code in np.unique(lane.events.category)}
    categories = [
        {
            "id": key,
            "label": look.label,
            "means": look.means,
            "colour": look.colour,
            "gap": look.gap,
            "used": CODES[key] in occurring,
        }
        for key, look in styles.items()
    ]
    lane_heads = []
    for index, lane in enumerate(lanes):
        busy = int((lane.events.end - lane.events.start).sum())
        about = {"group": lane.group, "label": lane.label, "emulated": lane.emulated}
        lane_heads.append({"index": index, **about, "events": len(lane.events), "busy_ns": busy})
    row_heads = []
    for index, row in rows:
        row_lane = lanes[index]
        row_heads.append(
            {"lane": index, "count": len(row), "gaps": row_lane.gaps, "overview": row_lane.overview}
        )
    # What is drawn of a name, where it has a shorter form. Pointing at it shows all of it.
    short = short_names(names)
    head = {
        "span_ns": max(1, end - origin),
        "names": names,
        "labels": {at: short[name] for at, name in enumerate(names) if short[name] != name},
        "categories": categories,
        "lanes": lane_heads,
        "rows": row_heads,
        "steps": steps,
        "columns": columns,
    }
    return PackedTimeline(head, base64.b64encode(igzip.compress(packed, compresslevel=1)).decode())


def split_rows(events: Events) -> list[Events]:
    """Return `events` spread over rows in which nothing overlaps, outermost first.

    An event goes on the first row if everything before it has ended; the rest is spread likewise
    over the rows below.
    """
    rows: list[Events] = []
    while len(events):
        if len(rows) == MAX_ROWS - 1:
            # All of `events` on one row: each ends where the next one starts.
            end = events.end.copy()
            end[:-1] = np.minimum(end[:-1], events.start[1:])
            return [*rows, Events(events.start, end, events.name, events.category)]
        # An event is outermost if all before it, at any depth, have ended.
        reached = np.maximum.accumulate(events.end)
        outermost = np.empty(len(events), dtype=bool)
        outermost[0] = True
        outermost[1:] = events.start[1:] >= reached[:-1]
        rows.append(events.pick(np.flatnonzero(outermost)))
        events = events.pick(np.flatnonzero(~outermost))
    return rows


def _steps(timeline: Timeline, origin: int) -> list[list[int]]:
    """Return start and end of every step of the first rank that marks any, ns after the capture's
    start. A step begins when the one before is done on host and device: a host that runs ahead
    would begin them all at once.
    """
    rows = step_rows(timeline)
    mine = np.flatnonzero(rows.rank == (rows.rank[0] if len(rows) else 0))
    lengths = step_costs(timeline, rows)[mine]
    ends = np.cumsum(lengths) + (rows.start[mine[:1]] - origin)
    return np.stack([ends - lengths, ends], axis=1).tolist() if len(mine) else []


def _used_names(strings: tuple[str, ...], rows: list[Events]) -> tuple[list[str], Column]:
    """Return the names that are used, cut to MAX_NAME, and for every index in `strings` its index
    among them.
    """
    # The page carries only names that are drawn. Unused ones get an index too, of no meaning.
    used = np.zeros(len(strings), dtype=bool)
    for row in rows:
        used[row.name] = True
    new_index = np.cumsum(used) - 1
    names = [strings[index] for index in np.flatnonzero(used).tolist()]
    return [cut_name(name, MAX_NAME) for name in names], new_index


def _pack_columns(
    rows: list[Events], new_index: Column, origin: int
) -> tuple[list[dict[str, Any]], bytes]:
    """Return each column's type, offset and length, and all columns as bytes, each at a multiple of
    8, widest first.
    """
    columns = {
        # Distances instead of times: small numbers, which fit narrow types and compress.
        "gap": _smallest([row.start - np.concatenate([[origin], row.end[:-1]]) for row in rows]),
        "dur": _smallest([row.end - row.start for row in rows]),
        "name": _smallest([new_index[row.name] for row in rows]),
        "category": _smallest([row.category for row in rows]),
    }
    heads, parts, offset = [], [], 0
    for name, column in columns.items():
        data = column.tobytes()
        # Typed arrays of the browser need offsets that are multiples of their width.
        data += bytes(-len(data) % 8)
        heads.append(
            {"name": name, "type": _TYPES[column.dtype.str], "offset": offset, "count": len(column)}
        )
        parts.append(data)
        offset += len(data)
    return heads, b"".join(parts)


_TYPES = {"|u1": "u8", "<u2": "u16", "<u4": "u32", "<f8": "f64"}


def _smallest(parts: list[Column]) -> Column:
    """Return one little-endian column in the narrowest type that holds it. A float64 is exact up to
    2^53 ns, 104 days.
    """
    column = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    top = int(column.max(initial=0))
    for bits, type_ in ((8, "|u1"), (16, "<u2"), (32, "<u4")):
        if top < 1 << bits:
            return column.astype(type_)
    return column.astype("<f8")
