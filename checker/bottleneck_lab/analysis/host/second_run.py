"""Frames and lines of Python from a second run of a program, laid over the timeline of a first.

Recording frames makes Python several times as slow. A program is therefore run twice: all times are
from the run without frames, and the frames of the other run are moved onto its clock. What both
runs did in the same order, their operators and ranges, are the points at which the two clocks meet;
between two of them time is stretched evenly.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.host.nesting import outermost
from bottleneck_lab.analysis.rows import named
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.trace.timeline import (
    HostTable,
    Ints,
    SmallInts,
    Thread,
    Timeline,
    concatenate,
    take,
)

FRAMES_OF = "frames"
SECOND_RUN = "a second run"
"""The fact, and its value, of a timeline whose frames cost its times nothing."""

WHOLE_SHARE = 0.9
_LAUNCHER = re.compile(
    r"bottleneck_lab/capture/script\.py\(|^<frozen runpy>|^<built-in function exec>"
)

# Runs that share fewer of their operators (0-1) than this did not do the same.
COMMON_SHARE = 0.5


class _Clock(NamedTuple):
    """Moments at which two runs of a thread were at the same point, ns, ascending in both."""

    framed: Ints
    plain: Ints

    @property
    def ratio(self) -> float:
        """How many times as long the framed run took."""
        took, plain = (int(each[-1] - each[0]) for each in self)
        return took / max(plain, 1)

    def moved(self, moments: Ints) -> Ints:
        """Return moments of the framed run on the plain run's clock; beyond the ends as fast."""
        origin, target = int(self.framed[0]), int(self.plain[0])
        # Interpolation is in floating point, which has no room for nanoseconds since 1970.
        between = np.interp(moments - origin, self.framed - origin, self.plain - target)
        before = np.minimum(moments - origin, 0)
        after = np.maximum(moments - self.framed[-1], 0)
        moved: Ints = np.rint(between).astype(np.int64) + target + before + after
        return moved


def overlay_frames(timeline: Timeline, framed: Timeline) -> Timeline | None:
    """Return the timeline of a run without frames, with those of a run that recorded them.

    None if the two runs did not do the same.
    """
    strings = {text: number for number, text in enumerate(timeline.strings)}
    names = np.array(
        [strings.setdefault(text, len(strings)) for text in framed.strings], dtype=np.int32
    )
    frames = take(framed.python, ~_starts_program(framed))
    threads, tables, ratios = list(timeline.threads), [], []
    for thread in np.flatnonzero(np.bincount(framed.python.thread)).tolist():
        source = framed.threads[thread]
        of_lines = source.tid.startswith(LINES_OF)
        ran = thread
        if of_lines:
            ran = framed.thread_number(source.rank, source.pid, source.tid.removeprefix(LINES_OF))
        clock, target = _shared_clock(timeline, framed, names, ran)
        if clock is None:
            continue
        own = timeline.threads[target]
        if of_lines:
            target = len(threads)
            threads.append(Thread(own.rank, own.pid, f"{LINES_OF}{own.tid}", source.name))
        ratios.append(clock.ratio)
        rows = take(frames, frames.thread == thread)
        start, end = (
            np.clip(clock.moved(each), *timeline.extent) for each in (rows.start, rows.end)
        )
        moved = HostTable(
            start=start,
            end=end,
            name=names[rows.name],
            rank=np.full(len(rows), own.rank, dtype=np.int32),
            thread=np.full(len(rows), target, dtype=np.int32),
            correlation=rows.correlation,
        )
        tables.append(take(moved, end > start))
    if not tables:
        return None
    longer = max(ratios)
    slowed = f", which took {longer:.1f}x as long" if longer > 1 else ""
    note = (
        f"Lines and frames of Python are from a second run{slowed}, and scaled to the first; all"
        " other times are from the first run, without frames"
    )
    return replace(
        timeline,
        strings=tuple(strings),
        threads=tuple(threads),
        python=concatenate(tables),
        notes=(*timeline.notes, note),
        facts={**timeline.facts, FRAMES_OF: SECOND_RUN},
    )


def _starts_program(framed: Timeline) -> NDArray[np.bool_]:
    """Return a mask of the frames that start the program: they are open all along, and not its
    own.
    """
    length = framed.extent[1] - framed.extent[0]
    whole = framed.python.end - framed.python.start > WHOLE_SHARE * length
    return named(framed, framed.python, _LAUNCHER) & whole


def _shared_clock(
    timeline: Timeline, framed: Timeline, names: SmallInts, thread: int
) -> tuple[_Clock | None, int]:
    """Return the clock that a thread of the framed run shares with the one of the plain run that
    did most of the same, and that one's number; None if none did. `names`: the numbers of the
    framed run's strings in the plain run.
    """
    events = _outermost(framed, thread)
    keys = _numbered(names[events.name])
    best: tuple[int, int, Ints, Ints] = (0, -1, keys[:0], keys[:0])
    for number, candidate in enumerate(timeline.threads):
        if thread < 0 or candidate.rank != framed.threads[thread].rank:
            continue
        others = _outermost(timeline, number)
        _, here, there = np.intersect1d(
            keys, _numbered(others.name), assume_unique=True, return_indices=True
        )
        if len(here) > best[0] and len(here) > COMMON_SHARE * max(len(events), len(others)):
            moments = np.concatenate([events.start[here], events.end[here]])
            same = np.concatenate([others.start[there], others.end[there]])
            best = (len(here), number, moments, same)
    common, number, moments, same = best
    if not common:
        return None, -1
    order = np.lexsort((same, moments))
    moments, same = moments[order], same[order]
    rising = _longest_rise(same.tolist())
    moments, first = np.unique(moments[rising], return_index=True)
    return _Clock(moments, same[rising][first]), number


def _outermost(timeline: Timeline, thread: int) -> HostTable:
    """Return a thread's operators that no other encloses, and its ranges."""
    operators = take(timeline.operators, timeline.operators.thread == thread)
    ranges = take(timeline.ranges, timeline.ranges.thread == thread)
    return concatenate([take(operators, outermost(operators)), ranges])


def _numbered(names: SmallInts) -> Ints:
    """Return a key for each name in turn: its number, and how often it has come before."""
    order = np.argsort(names, kind="stable")
    in_order = names[order]
    times = np.empty(len(names), dtype=np.int64)
    times[order] = np.arange(len(names)) - np.searchsorted(in_order, in_order)
    return names.astype(np.int64) << 32 | times


def _longest_rise(values: list[int]) -> list[int]:
    """Return the positions of the longest subsequence that never falls.

    Where one run called an operator more often, its later calls pair with the wrong ones: they
    fall out of the order of all others.
    """
    tails: list[int] = []  # the smallest last value of a rise of each length
    last: list[int] = []  # its position
    before = [-1] * len(values)
    for position, value in enumerate(values):
        length = bisect_right(tails, value)
        before[position] = last[length - 1] if length else -1
        if length == len(tails):
            tails.append(value)
            last.append(position)
        else:
            tails[length], last[length] = value, position
    rise = []
    at = last[-1] if last else -1
    while at >= 0:
        rise.append(at)
        at = before[at]
    return rise[::-1]
