"""The host's waits for the device, and what made it wait."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.calls import PYTHON_NS
from bottleneck_lab.analysis.host.lines import lines_at
from bottleneck_lab.analysis.host.nesting import innermost_at
from bottleneck_lab.analysis.host.operators import OPERATOR, RUNTIME, CallTree
from bottleneck_lab.analysis.host.view import HostView
from bottleneck_lab.analysis.host.waits import waiting_calls
from bottleneck_lab.analysis.rows import look_up
from bottleneck_lab.analysis.steps.window import host_window, step_rows
from bottleneck_lab.trace.timeline import Ints, SmallInts, Timeline, take


class SyncRow(msgspec.Struct, frozen=True):
    """Calls of one waiting function, from one place. `caused_by` is the outermost operator or range
    around it ("" when it was called directly).

    `line` is the user's own line that waited, and `awaited` the work on the device that most of the
    waiting was for, with the line that launched it in `awaited_line`, and for how long of the
    waiting it ran: a wait is charged to the line that waits, not to the line whose work it waits
    for. Lines are "" where the capture has none. For `busy_ns` of the waiting, the rank's devices
    worked.
    """

    name: str
    caused_by: str
    calls: int
    calls_per_step: float
    total_ns: int
    line: str = ""
    awaited: str = ""
    awaited_line: str = ""
    awaited_ns: int = 0
    busy_ns: int = 0


def find_causes(timeline: Timeline, calls: CallTree, waiting: NDArray[np.bool_]) -> list[str]:
    """Return the outermost operator around each call that is `waiting`, "" where there is none."""
    waits = calls.rows(RUNTIME)[np.flatnonzero(waiting)]
    above = calls.tree.parent[waits]
    outermost = np.full(len(above), -1)
    while (above >= 0).any():
        outermost = np.where((above >= 0) & (calls.layer[above] == OPERATOR), above, outermost)
        above = np.where(above >= 0, calls.tree.parent[above], -1)
    names = timeline.operators.name[
        np.searchsorted(calls.rows(OPERATOR), outermost[outermost >= 0])
    ]
    numbers = np.full(len(outermost), -1)
    numbers[outermost >= 0] = names
    return [timeline.strings[name] if name >= 0 else "" for name in numbers.tolist()]


def find_waits(timeline: Timeline, causes: Sequence[str]) -> tuple[NDArray[np.intp], list[str]]:
    """Return the rows of `runtime` in which the program waits for the device, and for each its
    cause, of those that `find_causes` returns.

    Those outside every operator and every step of their rank are left out: the profiler waits
    there, at its start and stop, and the program once its last step is done.
    """
    waits = np.flatnonzero(waiting_calls(timeline))
    if not len(waits):
        return waits, []
    waiting, steps = take(timeline.runtime, waits), step_rows(timeline)
    kept = np.array([bool(cause) for cause in causes]) | (len(steps) == 0)
    # A wait after a step may begin a rounded nanosecond before its end: most of it lies outside.
    middle = waiting.start + (waiting.end - waiting.start) // 2
    for rank in np.unique(steps.rank):
        start, end = steps.start[steps.rank == rank], steps.end[steps.rank == rank]
        order = np.argsort(start, kind="stable")
        index = np.searchsorted(start[order], middle, side="right") - 1
        inside = (index >= 0) & (middle < end[order][np.maximum(index, 0)])
        kept |= inside & (waiting.rank == rank)
    return waits[kept], list(itertools.compress(causes, kept))


def find_syncs(timeline: Timeline, causes: Sequence[str]) -> list[SyncRow]:
    """Return the program's waits by function, cause and line, longest first. `causes`: see
    `find_causes`.
    """
    waits, causes = find_waits(timeline, causes)
    waiting, steps = take(timeline.runtime, waits), step_rows(timeline)
    lines = lines_at(timeline, waiting)
    groups: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for row, group in enumerate(zip(waiting.name.tolist(), causes, lines.tolist(), strict=True)):
        groups[group].append(row)
    launching_lines = lines_at(timeline, timeline.runtime)
    work = {
        rank: _Work(timeline, rank, launching_lines) for rank in np.unique(waiting.rank).tolist()
    }
    texts = (*timeline.strings, "")  # -1 stands for none
    syncs = []
    for (name, cause, line), rows in groups.items():
        starts, ends = waiting.start[rows], waiting.end[rows]
        # By the name and the launching line of what ran meanwhile.
        times: Counter[tuple[int, int]] = Counter({(-1, -1): 0})
        ranks = waiting.rank[rows]
        for rank, start, end in zip(ranks.tolist(), starts.tolist(), ends.tolist(), strict=True):
            work[rank].add_times(start, end, times)
        (awaited, awaited_line), awaited_ns = max(times.items(), key=lambda item: item[1])
        syncs.append(
            SyncRow(
                name=texts[name],
                caused_by=cause,
                calls=len(rows),
                calls_per_step=len(rows) / max(len(steps), 1),
                total_ns=int((ends - starts).sum()),
                line=texts[line],
                awaited=texts[awaited],
                awaited_line=texts[awaited_line],
                awaited_ns=awaited_ns,
                busy_ns=sum(
                    one.busy_ns(starts[ranks == rank], ends[ranks == rank])
                    for rank, one in work.items()
                ),
            )
        )
    return sorted(syncs, key=lambda row: -row.total_ns)


def idle_after_waits(
    timeline: Timeline, stretches: iv.Intervals, rank: int, host: HostView
) -> list[tuple[str, int]]:
    """Return who waited before these stretches, each with how long they are together, ns, longest
    first: the user's own line, where none was recorded the outermost operator, else the call. A
    stretch follows the last wait of a launching thread that began before it.
    """
    mine = waiting_calls(timeline) & (timeline.runtime.rank == rank)
    waits = take(timeline.runtime, mine & look_up(host.threads, timeline.runtime.thread))
    ns = since_last(waits.start, stretches)
    some = np.flatnonzero(ns)
    waits = take(waits, some)
    names = lines_at(timeline, waits)
    if (names < 0).any():
        outermost = take(host.operators, _around(waits.start, host))
        rows = innermost_at(outermost, waits.start, waits.thread)
        around = waits.name.copy()
        around[rows >= 0] = outermost.name[rows[rows >= 0]]
        names = np.where(names < 0, around, names)
    times: Counter[str] = Counter()
    for name, each in zip(names.tolist(), ns[some].tolist(), strict=True):
        times[timeline.strings[name]] += each
    return times.most_common()


def _around(moments: Ints, host: HostView) -> SmallInts:
    """Return the outermost operators that were open at one of the moments, in order, or more."""
    start, end, open_rows = host.operators.start, host.operators.end, [host.outermost[:0]]
    for block in iv.blocks(len(host.outermost)):  # all at once would take as much as a table
        rows = host.outermost[block]
        begun, ended = (np.searchsorted(moments, times[rows]) for times in (start, end))
        open_rows.append(rows[begun < ended])
    return np.concatenate(open_rows)


def since_last(moments: Ints, stretches: iv.Intervals) -> Ints:
    """Return how long the stretches are together, ns, for each of the moments, in order, that is
    the last one before them.
    """
    ns = np.zeros(len(moments) + 1, dtype=np.int64)  # the last is of what lies before all moments
    for part in iv.parts(stretches):
        last = np.searchsorted(moments, part.start, side="right") - 1
        np.add.at(ns, last, part.lengths)
    return ns[:-1]


def waits_by_line(syncs: Iterable[SyncRow]) -> Counter[str]:
    """Return the time that the host waited on each line, ns; where no lines were recorded, in each
    operator, or call outside of operators.
    """
    times: Counter[str] = Counter()
    for row in syncs:
        times[row.line or row.caused_by or row.name] += row.total_ns
    return times


def longest_waiting_line(timeline: Timeline, rank: int, syncs: Iterable[SyncRow]) -> iv.Intervals:
    """Return when a rank's host was on the line that waits longest within its steps: waiting there,
    or at work on what it waits for next. `syncs` are the capture's.

    Where no lines were recorded, that is from one wait in the same operator to the next, unless the
    host does something else in between, for PYTHON_NS or longer.
    """
    for line, _ in waits_by_line(syncs).most_common(1):
        named_so = np.array([name == line for name in timeline.strings], dtype=bool)
        for table in (timeline.python, timeline.operators, timeline.runtime):
            mine = named_so[table.name] & (table.rank == rank)
            if mine.any():
                times = iv.union(table.start[mine], table.end[mine])
                if table is not timeline.python:
                    times = iv.close_holes(times, PYTHON_NS)
                return iv.clip(times, *host_window(timeline, rank))
    return iv.NONE


class _Work:
    """The work of a rank's devices, with the line that launched each row."""

    def __init__(self, timeline: Timeline, rank: int, launching_lines: SmallInts) -> None:
        device = timeline.device
        mine = (device.rank == rank) & device.works
        # Without others, the columns are the table's own: no copies.
        rows = slice(None) if mine.all() else np.flatnonzero(mine)
        self._start, self._end, self._name = device.start[rows], device.end[rows], device.name[rows]
        self._busy = iv.union(self._start, self._end)
        self._reached = np.maximum.accumulate(self._end)
        call = timeline.launched_by[rows]
        self._line = np.full(len(call), -1, dtype=np.int32)
        self._line[call >= 0] = launching_lines[call[call >= 0]]

    def add_times(self, start: int, end: int, times: Counter[tuple[int, int]]) -> None:
        """Add the time of the work that ran in a stretch, ns, by (name, line)."""
        low = np.searchsorted(self._reached, start, side="right")
        rows = slice(low, np.searchsorted(self._start, end))
        shared = np.minimum(self._end[rows], end) - np.maximum(self._start[rows], start)
        for name, line, ns in zip(
            self._name[rows].tolist(), self._line[rows].tolist(), shared.tolist(), strict=True
        ):
            times[name, line] += max(0, ns)

    def busy_ns(self, start: Ints, end: Ints) -> int:
        """Return for how long of these stretches any of the work ran, ns."""
        return int(iv.covered_within(self._busy, start, end).sum())
