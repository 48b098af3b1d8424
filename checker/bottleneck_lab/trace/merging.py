"""Put several captures into one timeline: those of ranks side by side, and those of one process one
after another, as a profiler writes them whose schedule repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bottleneck_lab.trace.clocks import clock_base, set_clocks
from bottleneck_lab.trace.one_run import refuse_unrelated
from bottleneck_lab.trace.timeline import (
    TABLES,
    ActivityKind,
    AutogradTable,
    DeviceInfo,
    SmallInts,
    Thread,
    Timeline,
    WorkTable,
    concatenate,
)

OVERLAP_SHARE = 0.1
"""Captures of one process may overlap by this share (0-1) of the shorter: stopping one takes time
while the next begins.
"""
HOLDING_TIMES = ("device", "runtime", "operators", "ranges")
"""The tables by which a capture is told from its copy."""
NO_COMMON_CLOCK = (
    "rank {rank}: the report does not record when it began, so the ranks share no clock and there"
    " is no telling which was late"
)


def merge_ranks(timelines: list[Timeline]) -> Timeline:
    """Return one timeline of several ranks' captures on one clock. Two captures that both say rank
    0 are numbered in the order given.

    If one of them does not say when its clock began, each keeps its own: an old Kineto trace has
    the time of day, an nsys report counts from its own start. Raises CaptureError for captures that
    cannot be of one run.
    """
    timelines = _without_copies(timelines)
    refuse_unrelated(timelines)
    timelines = _join_cycles(timelines)
    if len(timelines) == 1:
        return timelines[0]
    ranks = [(timeline.ranks or (0,))[0] for timeline in timelines]
    if len(set(ranks)) < len(ranks):
        ranks = list(range(len(timelines)))
    bases = [clock_base(timeline) for timeline in timelines]
    first = min(bases) if all(bases) else None
    merged = _Merged()
    notes: list[str] = []
    lost: list[str] = []
    for timeline, rank, base in zip(timelines, ranks, bases, strict=True):
        merged.add(timeline, 0 if first is None else base - first, rank=rank)
        notes += [f"rank {rank}: {note}" for note in timeline.notes]
        # An nsys report that lacks the time of its start counts from its own.
        if timeline.format == "nsys" and not base:
            lost.append(NO_COMMON_CLOCK.format(rank=rank))
    return set_clocks(merged.joined(notes + lost))


def _without_copies(timelines: Sequence[Timeline]) -> list[Timeline]:
    """Return the captures without those that repeat another one: a file that lies there twice is no
    second rank.
    """
    kept: list[Timeline] = []
    for timeline in timelines:
        first = next((at for at, each in enumerate(kept) if _is_copy(timeline, each)), None)
        if first is None:
            kept.append(timeline)
            continue
        names = [Path(each.source).name for each in (timeline, kept[first])]
        note = f"{names[0]} is the same capture as {names[1]}: it is counted once"
        kept[first] = replace(kept[first], notes=(*kept[first].notes, note))
    return kept


def _is_copy(timeline: Timeline, other: Timeline) -> bool:
    """Return True if both are of the same threads and hold the same rows at the same times."""
    if not timeline.events or clock_base(timeline) != clock_base(other):
        return False
    if (timeline.threads, timeline.strings) != (other.threads, other.strings):
        return False
    tables = [(getattr(timeline, name), getattr(other, name)) for name in HOLDING_TIMES]
    return all(
        np.array_equal(getattr(mine, column), getattr(theirs, column))
        for mine, theirs in tables
        for column in ("start", "end", "name", "rank")
    )


def _join_cycles(timelines: list[Timeline]) -> list[Timeline]:
    """Return the captures with those of one process, taken one after another, made one."""
    cycles: list[list[Timeline]] = []
    for timeline in sorted(timelines, key=lambda each: each.extent[0]):
        for earlier in cycles:
            if _is_next_cycle(earlier[-1], timeline):
                earlier.append(timeline)
                break
        else:
            cycles.append([timeline])
    if len(cycles) == len(timelines):
        return timelines  # in the order given
    return [_in_a_row(each) if len(each) > 1 else each[0] for each in cycles]


def _is_next_cycle(before: Timeline, after: Timeline) -> bool:
    """Return True if the second capture began when the first had ended, and both are of one rank:
    of one process, or of two runs of a program whose ranks send each other nothing.
    """
    rank, other = (before.ranks or (0,))[0], (after.ranks or (0,))[0]
    (begin, end), (start, stop) = before.extent, after.extent
    if rank != other or end - start > OVERLAP_SHARE * min(end - begin, stop - start):
        return False
    processes = {thread.pid for thread in before.threads} & {thread.pid for thread in after.threads}
    alone = not any(
        (each.device.kind == ActivityKind.COMMUNICATION).any() for each in (before, after)
    )
    return bool(processes) or (alone and end <= start)


def _in_a_row(timelines: Sequence[Timeline]) -> Timeline:
    """Return one timeline of several captures of one process, in order, without the time between
    them.
    """
    merged, end = _Merged(), timelines[0].extent[0]
    for timeline in timelines:
        shift_ns = end - timeline.extent[0]
        end = timeline.extent[1] + shift_ns
        # Each cycle may count its launches from one again.
        merged.add(timeline, shift_ns, first_number=merged.next_number)
    of = "one process"
    if not set.intersection(*({thread.pid for thread in t.threads} for t in timelines)):
        of = "one rank in different processes (`lab compare` sets two runs against each other)"
    note = (
        f"{len(timelines)} captures of {of}, taken one after another: their steps follow each other"
        " here, without the time in between"
    )
    notes = dict.fromkeys(each for timeline in timelines for each in timeline.notes)
    return merged.joined([*notes, note])


Item = TypeVar("Item")
Unordered = TypeVar("Unordered", WorkTable, AutogradTable)
_UNORDERED = ("work", "autograd")
"""The tables of a timeline whose rows have no times and are in no order."""


def _numbers_in(common: dict[Item, int], items: Sequence[Item]) -> SmallInts:
    """Return the number of each item among all, to which new ones are added; never empty."""
    numbers = [common.setdefault(item, len(common)) for item in items]
    return np.array(numbers or [0], dtype=np.int32)


def _end_to_end(tables: Sequence[Unordered]) -> Unordered:
    """Return one table of all rows of several that are in no order."""
    kind = type(tables[0])
    columns = [field.name for field in fields(kind)]
    return kind(
        **{name: np.concatenate([getattr(table, name) for table in tables]) for name in columns}
    )


class _Merged:
    """Timelines on one clock, with their names and threads numbered in common."""

    def __init__(self) -> None:
        self.parts: list[Timeline] = []
        self.next_number = 0
        """Above all those that join device work to what launched it."""
        self._strings: dict[str, int] = {}
        self._threads: dict[Thread, int] = {}
        self._devices: dict[tuple[int, int], DeviceInfo] = {}

    def add(
        self, timeline: Timeline, shift_ns: int, *, rank: int | None = None, first_number: int = 0
    ) -> None:
        """Add a timeline, later by `shift_ns`, as the given rank, and with launches that are
        numbered from another number on.
        """
        threads, devices = timeline.threads, timeline.devices
        if rank is not None:
            threads = tuple(replace(each, rank=rank) for each in threads)
            devices = tuple(replace(each, rank=rank) for each in devices)
        for device in devices:
            self._devices.setdefault((device.rank, device.index), device)
        names = _numbers_in(self._strings, timeline.strings)
        numbers = {
            "name": names,
            "shapes": names,
            "thread": _numbers_in(self._threads, threads),
        }
        tables = {}
        for name in (*TABLES, *_UNORDERED):
            table = getattr(timeline, name)
            changes: dict[str, Any] = {}
            for column in (field.name for field in fields(table)):
                values = getattr(table, column)
                if column in ("start", "end"):
                    changes[column] = values + shift_ns
                elif column in numbers:
                    changes[column] = numbers[column][values]
                elif column == "rank" and rank is not None:
                    changes[column] = np.full(len(values), rank, dtype=np.int32)
                elif column in ("correlation", "external"):
                    if first_number:
                        values = values.astype(np.int64)
                        values = np.where(values < 0, values, values + first_number)
                        changes[column] = values
                    self.next_number = max(self.next_number, int(values.max(initial=-1)) + 1)
            tables[name] = replace(table, **changes)
        self.parts.append(replace(timeline, **tables))

    def joined(self, notes: Sequence[str]) -> Timeline:
        """Return all as one timeline."""
        parts = self.parts
        return replace(
            parts[0],
            source=", ".join(part.source for part in parts),
            strings=tuple(self._strings),
            threads=tuple(self._threads),
            devices=tuple(self._devices.values()),
            emulated=any(part.emulated for part in parts),
            notes=tuple(notes),
            **{name: _end_to_end([getattr(part, name) for part in parts]) for name in _UNORDERED},
            **{name: concatenate([getattr(part, name) for part in parts]) for name in TABLES},
        )
