"""The lanes of the page's timeline, each a list of events with a name and a category."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.causes import CAUSES, IDLE_CAUSES
from bottleneck_lab.analysis.device.time import CPU, DeviceTime
from bottleneck_lab.report import capture_words
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.trace.timeline import ActivityKind, Timeline, take


class CategoryStyle(NamedTuple):
    """A category's label in the legend, its colour (in page.css), and its explanation next to an
    event.
    """

    label: str
    colour: str
    means: str

    @property
    def gap(self) -> bool:
        """True for idle time, which is hatched."""
        return self.colour.startswith("gap-")


CATEGORIES: dict[str, CategoryStyle] = {
    "kernel": CategoryStyle("kernel", "cat-kernel", "kernel"),
    "copy": CategoryStyle("copy", "cat-copy", "copy"),
    "memset": CategoryStyle("memset", "cat-memset", "memset"),
    "communication": CategoryStyle("communication", "cat-communication", "communication"),
    "wait": CategoryStyle(
        "wait on the stream", "cat-wait", "wait on the stream, the device is idle"
    ),
    "range": CategoryStyle("range", "cat-range", "range"),
    "operator": CategoryStyle("operator", "cat-operator", "operator"),
    "runtime": CategoryStyle("runtime call", "cat-runtime", "runtime call"),
    "python": CategoryStyle("Python", "cat-python", "Python"),
    **{
        f"idle-{cause.id}": CategoryStyle(f"idle: {cause.label}", cause.colour, cause.sentence)
        for cause in IDLE_CAUSES
    },
    "idle": CategoryStyle("idle", "gap-idle", "the device is idle"),
}


def category_styles(*, on_cpu: bool) -> dict[str, CategoryStyle]:
    """Return the categories in their order, with the words for idle time that fit where no
    accelerator was recorded: nothing is launched there.
    """
    if not on_cpu:
        return CATEGORIES
    own = {
        f"idle-{cause.id}": CategoryStyle(cause.cpu_label, cause.colour, cause.cpu_sentence)
        for cause in IDLE_CAUSES
        if cause.cpu_label
    }
    return {**CATEGORIES, **own}


KIND_CATEGORIES = {
    ActivityKind.KERNEL: "kernel",
    ActivityKind.COPY: "copy",
    ActivityKind.MEMSET: "memset",
    ActivityKind.COMMUNICATION: "communication",
    ActivityKind.SYNC: "wait",
}

_HOST_LABELS = {
    "range": "ranges",
    "operator": "operators",
    "runtime": "runtime calls",
    "python": "Python",
}

Column = NDArray[Any]
CODES = {name: code for code, name in enumerate(CATEGORIES)}


@dataclass(frozen=True)
class Events:
    """Rows of one lane before they are spread over its rows: sorted by start, a parent before its
    children.
    """

    start: Column
    end: Column
    name: Column
    category: Column

    def __len__(self) -> int:
        return len(self.start)

    def pick(self, rows: Column) -> Events:
        """Return the given rows, in their order."""
        return Events(self.start[rows], self.end[rows], self.name[rows], self.category[rows])


@dataclass(frozen=True)
class Lane:
    """One line of the timeline. `gaps` marks a device's idle time, `overview` what the small
    picture of all shows.
    """

    group: str
    label: str
    events: Events
    emulated: bool = False
    gaps: bool = False
    overview: bool = False


def find_lanes(
    timeline: Timeline, times: Iterable[DeviceTime], *, blind: bool = False
) -> tuple[tuple[str, ...], list[Lane]]:
    """Return the lanes in the order they are drawn, and the names that their events point into.
    `blind`: gaps without their causes.
    """
    names: tuple[str, ...] = ("idle",) if blind else CAUSES
    find = gap_lanes
    if blind:
        find = plain_gap_lanes
    gaps = find(timeline, times, first_name=len(timeline.strings))
    # Lanes of one group together, groups and lanes in the order they come.
    drawn = [*gaps, *device_lanes(timeline), *host_lanes(timeline)]
    groups: dict[str, list[Lane]] = {}
    for lane in drawn:
        groups.setdefault(lane.group, []).append(lane)
    lanes = [lane for group in groups.values() for lane in group]
    return timeline.strings + names, lanes


def plain_gap_lanes(
    timeline: Timeline, times: Iterable[DeviceTime], *, first_name: int
) -> Iterator[Lane]:
    """Yield the idle time of every device, each gap one event of the same name."""
    for time in times:
        start, end = time.idle
        name = np.full(len(start), first_name)
        events = Events(start, end, name, np.full(len(start), CODES["idle"], dtype=np.uint8))
        yield Lane(
            device_group(timeline, time.rank, time.device),
            "idle",
            events,
            timeline.emulated,
            True,
            True,
        )


def gap_lanes(
    timeline: Timeline, times: Iterable[DeviceTime], *, first_name: int
) -> Iterator[Lane]:
    """Yield the idle time of every device by cause, as the analysis attributes it. Causes are named
    from `first_name` on.
    """
    for time in times:
        group = device_group(timeline, time.rank, time.device)
        start = np.concatenate([part.start for part in time.causes.values()])
        end = np.concatenate([part.end for part in time.causes.values()])
        cause = np.repeat(
            [CAUSES.index(cause) for cause in time.causes],
            [len(part.start) for part in time.causes.values()],
        )
        # Categories of idle causes follow each other in the order of CAUSES.
        order = np.argsort(start, kind="stable")
        code = (CODES[f"idle-{CAUSES[0]}"] + cause).astype(np.uint8)
        yield Lane(
            group,
            "idle, by cause",
            Events(start, end, first_name + cause, code).pick(order),
            timeline.emulated,
            True,
            True,
        )


def device_group(timeline: Timeline, rank: int, device: int) -> str:
    """Return the heading above a device's lanes."""
    names = {(info.rank, info.index): info.name for info in timeline.devices}
    called = f"Device {device}"
    if device == CPU:
        called = "CPU"
    parts = [
        f"Rank {rank}" if len(timeline.ranks) > 1 else "",
        called,
        names.get((rank, device), ""),
    ]
    label = " · ".join(filter(None, parts))
    if timeline.emulated and "emulated" not in label:
        return f"{label} · emulated"
    return label


def device_lanes(timeline: Timeline) -> Iterator[Lane]:
    """Yield one lane per stream of every device."""
    table = timeline.device
    if len(table.rank):
        pairs = np.unique(np.stack([table.rank, table.device]), axis=1)
    else:
        pairs = np.empty((2, 0), dtype=int)
    for rank, device in [(int(a), int(b)) for a, b in pairs.T]:
        on_device = take(table, (table.rank == rank) & (table.device == device))
        for stream in np.unique(on_device.stream).tolist():
            rows = take(on_device, on_device.stream == stream)
            group = device_group(timeline, rank, device)
            codes = np.zeros(max(KIND_CATEGORIES) + 1, dtype=np.uint8)
            for kind, category in KIND_CATEGORIES.items():
                codes[kind] = CODES[category]
            yield Lane(
                group,
                f"stream {stream}",
                Events(rows.start, rows.end, rows.name, codes[rows.kind]),
                emulated=timeline.emulated,
                overview=True,
            )


def host_lanes(timeline: Timeline) -> Iterator[Lane]:
    """Yield for every thread its ranges, operators, runtime calls and Python frames, each where
    there are any.
    """
    tables = {
        "range": timeline.ranges,
        "operator": timeline.operators,
        "runtime": timeline.runtime,
        "python": timeline.python,
    }
    busy = sum(
        np.bincount(table.thread, minlength=len(timeline.threads) or 1)
        for table in tables.values()
        if len(table)
    )
    # The busiest thread first: the launching one, most likely. Without any rows `busy` is 0.
    processes = {info.pid for info in timeline.threads}
    for thread in np.argsort(-np.atleast_1d(busy), kind="stable").tolist():
        process, name = "host", f"thread {thread}"
        if thread < len(timeline.threads):
            info = timeline.threads[thread]
            name = info.name or f"thread {info.tid}"
            if info.tid.startswith(LINES_OF):
                name = capture_words.name_lines_track(info, timeline.threads)
            if len(processes) > 1:
                process = f"process {info.pid}"
        for category, table in tables.items():
            rows = take(table, table.thread == thread)
            if not len(rows):
                continue
            heading = [process, name]
            if len(timeline.ranks) > 1:
                heading.insert(0, f"Rank {int(rows.rank[0])}")
            codes = np.full(len(rows), CODES[category], dtype=np.uint8)
            events = Events(rows.start, rows.end, rows.name, codes)
            yield Lane(" · ".join(heading), _HOST_LABELS[category], events)
