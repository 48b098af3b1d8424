"""Set the clocks of several ranks: machines disagree on the time of day by up to milliseconds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.names import STEP, STEP_NAME
from bottleneck_lab.trace.timeline import TABLES, ActivityKind, Ints, Timeline, sort_table

TOLERATED_NS = 50_000
"""Clocks that differ by less are left as they are."""
SCATTER_NS = 100_000
"""The moments at which two ranks leave the same collectives differ by the same time, give or take
this; else they were not the same collectives.
"""
MOST_NS = 60_000_000_000
"""Clocks that differ by more than this, as those of machines do that nothing sets, are not
believed: the captures are of different runs.
"""
LEAST_COLLECTIVES = 3
# The root of a broadcast or reduction leaves before the others.
_LEFT_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|generic", re.I)
# Ranges of the libraries on the CPU last until a collective is done, and so does a barrier. A range
# around `all_reduce` may only launch it: its end says nothing about the other ranks.
_ON_HOST = re.compile(r"^(?:gloo|mpi|ucc):|barrier", re.I)
_ROOTED = re.compile(r":(?:broadcast|send|recv\w*|reduce|gather|scatter)$", re.I)
Key = tuple[int, ...]
"""The features that tell a collective from others: its step, process group, name, type and size."""
_HOST = -2
"""The process group, in a key, of a collective on the host."""


def clock_base(timeline: Timeline) -> int:
    """Return the time of day at which a capture's clock began, ns; 0 if it does not say."""
    text = timeline.facts.get("baseTimeNanoseconds", "0")
    return int(text) if text.isdecimal() else 0


def set_clocks(timeline: Timeline) -> Timeline:
    """Return the timeline with the clock of each rank set to the lowest rank's, by the collectives
    that both leave at the same moment; ranks without such collectives keep their clock.
    """
    moments = _collective_times(timeline)
    first, *others = timeline.ranks
    offsets = {first: 0}
    while True:
        # Ranks of another process group are set by one that has been set.
        known = {
            rank: offset
            for rank in others
            if rank not in offsets and (offset := _offset(moments, rank, offsets)) is not None
        }
        if not known:
            break
        offsets |= known
    moved = {rank: ns for rank, ns in offsets.items() if abs(ns) > TOLERATED_NS}
    if not moved:
        return timeline
    ahead = np.zeros(max(timeline.ranks) + 1, dtype=np.int64)
    ahead[list(moved)] = list(moved.values())
    tables: dict[str, Any] = {}
    for name in TABLES:
        table = getattr(timeline, name)
        columns = ("start", "end") if hasattr(table, "end") else ("start",)
        shifted = {column: getattr(table, column) - ahead[table.rank] for column in columns}
        tables[name] = sort_table(replace(table, **shifted))
    words = ", ".join(
        f"rank {rank}'s was {abs(ns) / 1e6:.2f} ms {'ahead' if ns > 0 else 'behind'}"
        for rank, ns in list(moved.items())[:4]
    )
    more = f" and {len(moved) - 4} more" if len(moved) > 4 else ""
    note = (
        "the ranks' clocks differ, as the moments at which they leave the same collectives show;"
        f" they have been set to rank {first}'s: {words}{more}"
    )
    return replace(timeline, notes=(*timeline.notes, note), **tables)


def _collective_times(timeline: Timeline) -> dict[Key, dict[int, Ints]]:
    """Return (start, end) of each rank's collectives, by step, process group, name, type and size;
    nothing for what was not launched in a marked step, which tells which is which.
    """
    device, ranges, strings = timeline.device, timeline.ranges, timeline.strings
    torch_steps = _mask(name.startswith(STEP) for name in strings)
    marks = torch_steps if torch_steps.any() else _mask(STEP_NAME.match(name) for name in strings)
    together = _mask(_LEFT_TOGETHER.search(name) for name in strings)
    on_host = _mask(_ON_HOST.search(name) and not _ROOTED.search(name) for name in strings)
    launched = (device.kind == ActivityKind.COMMUNICATION) & (timeline.launched_by >= 0)
    rows = np.flatnonzero(launched & together[device.name])
    waits = np.flatnonzero(on_host[ranges.name])
    steps = np.flatnonzero(marks[ranges.name])
    columns = (device.process_group, device.name, device.dtype, device.bytes)
    lists: dict[Key, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for rank in timeline.ranks:
        mine = steps[ranges.rank[steps] == rank]
        own = rows[device.rank[rows] == rank]
        launches = timeline.runtime.start[timeline.launched_by[own]]
        for row, step in _in_steps(own, launches, mine, ranges.start[mine]):
            key = int(ranges.name[step]), *(int(column[row]) for column in columns)
            lists[key][rank].append((int(device.start[row]), int(device.end[row])))
        own = waits[ranges.rank[waits] == rank]
        for row, step in _in_steps(own, ranges.start[own], mine, ranges.start[mine]):
            key = int(ranges.name[step]), _HOST, int(ranges.name[row])
            lists[key][rank].append((int(ranges.start[row]), int(ranges.end[row])))
    return {
        key: {rank: np.array(times, dtype=np.int64) for rank, times in by_rank.items()}
        for key, by_rank in lists.items()
    }


def _mask(matches: Iterable[object]) -> NDArray[np.bool_]:
    """Return which names match, never empty: tables without rows look nothing up in it."""
    return np.array([bool(match) for match in matches] or [False])


def _in_steps(
    rows: NDArray[np.intp], moments: Ints, steps: NDArray[np.intp], begins: Ints
) -> Iterator[tuple[int, int]]:
    """Yield each row with the step that its moment lies in, but for those before the first."""
    at = np.searchsorted(begins, moments, side="right") - 1
    yield from zip(rows[at >= 0].tolist(), steps[at[at >= 0]].tolist(), strict=True)


def _offset(moments: dict[Key, dict[int, Ints]], rank: int, offsets: dict[int, int]) -> int | None:
    """Return how far the clock of a rank is ahead, by the ranks whose clocks are known, ns; None
    if that cannot be told.
    """
    ahead: list[Ints] = []
    least, most = -MOST_NS, MOST_NS
    for key, by_rank in moments.items():
        own = by_rank.get(rank)
        other = next((known for known in offsets if known in by_rank), None)
        # A step that one capture holds only in part has fewer: then the n-th is another.
        if own is None or other is None or len(own) != len(by_rank[other]):
            continue
        theirs = by_rank[other] - offsets[other]
        ahead.append(own[:, 1] - theirs[:, 1])
        if key[1] == _HOST:
            # No rank leaves before every other has come.
            least = max(least, int((own[:, 0] - theirs[:, 1]).max()))
            most = min(most, int((own[:, 1] - theirs[:, 0]).min()))
    if sum(map(len, ahead)) < LEAST_COLLECTIVES:
        return None
    times = np.concatenate(ahead)
    offset = int(np.median(times))
    scattered = float(np.median(np.abs(times - offset))) > SCATTER_NS
    if scattered and least <= most and not least <= 0 <= most:
        # Processes wake up late where a machine is busy, but the clocks cannot be as they are.
        return int(np.clip(offset, least, most))
    if scattered or abs(offset) > MOST_NS:
        return None
    return offset
