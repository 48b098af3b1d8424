"""Sets of half-open time intervals, as two arrays of integers. All results are sorted and disjoint,
so their lengths add up exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.timeline import Ints


class Intervals(NamedTuple):
    """`[start[i], end[i])`, sorted, disjoint, none empty."""

    start: Ints
    end: Ints

    @property
    def lengths(self) -> Ints:
        """The length of each, ns."""
        return self.end - self.start

    @property
    def total(self) -> int:
        """Their summed length, ns."""
        return int(self.lengths.sum())

    def where(self, mask: NDArray[np.bool_]) -> Intervals:
        """Return the masked ones: these themselves, where that is all of them."""
        return self if mask.all() else Intervals(self.start[mask], self.end[mask])


BLOCK = 1 << 15
"""Rows that are worked on at once: few enough to stay in a core's cache. Of millions of rows, each
step would take as much memory as the result.
"""

NONE = Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of up to BLOCK rows, which together are all `count`."""
    for at in range(0, count, BLOCK):
        yield slice(at, at + BLOCK)


def parts(intervals: Intervals) -> Iterator[Intervals]:
    """Yield up to BLOCK intervals at a time."""
    for rows in blocks(len(intervals.start)):
        yield Intervals(intervals.start[rows], intervals.end[rows])


def stretch(start: int, end: int) -> Intervals:
    """Return one interval, or none if it would be empty."""
    return union(np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """Return the time covered by any of the given rows, in any order; rows that touch are
    joined.
    """
    start, end = _in_order(start, end)
    return chain((start[rows], end[rows]) for rows in blocks(len(start)))


def chain(rows: Iterable[tuple[Ints, Ints]]) -> Intervals:
    """Return the time covered by any of the rows, which come in blocks of (start, end): in any
    order within one, but none begins before those of the blocks before it.
    """

    def united() -> Iterator[Intervals]:
        last = NONE
        for start, end in rows:
            # What comes next may begin before the last one ends: it goes with the next block.
            part = _united(np.append(last.start, start), np.append(last.end, end))
            last = Intervals(part.start[-1:], part.end[-1:])
            yield Intervals(part.start[:-1], part.end[:-1])
        yield last

    return end_to_end(united())


def _united(start: Ints, end: Ints) -> Intervals:
    """Return the time covered by the given rows; the arrays may be changed."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return NONE
    start, end = _in_order(start, end)
    np.maximum.accumulate(end, out=end)
    begins = np.append(True, start[1:] > end[:-1])
    return Intervals(start[begins], end[np.append(begins[1:], True)])


def _in_order(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return rows by their start: the given arrays, where they are so already."""
    if not (start[1:] < start[:-1]).any():
        return start, end
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def end_to_end(pieces: Iterable[Intervals]) -> Intervals:
    """Return the intervals of all pieces, one piece after the other."""
    starts, ends = [NONE.start], [NONE.end]
    for start, end in pieces:
        starts.append(start)
        ends.append(end)
    start = np.concatenate(starts)
    starts.clear()  # so that only one column is held twice at a time
    return Intervals(start, np.concatenate(ends))


def separate(start: Ints, end: Ints) -> Intervals:
    """Return the given rows, in any order, each without what an earlier one covers: rows that touch
    stay apart.
    """
    start, end = _in_order(start, end)

    def uncovered() -> Iterator[Intervals]:
        reached = start[:1]
        for rows in blocks(len(start)):
            covered = np.maximum.accumulate(np.append(reached, end[rows]))
            part = Intervals(np.maximum(start[rows], covered[:-1]), end[rows])
            yield part.where(part.end > part.start)
            reached = covered[-1:]

    return end_to_end(uncovered())


def clip(intervals: Intervals, low: int, high: int) -> Intervals:
    """Return the part inside [low, high)."""
    if high <= low:
        return NONE
    start, end = _near(intervals, low, high)
    if len(start) and (start[0] < low or end[-1] > high):
        start, end = np.maximum(start, low), np.minimum(end, high)
    return Intervals(start, end)


def _near(intervals: Intervals, low: int, high: int) -> Intervals:
    """Return those that have time in [low, high), whole; as a slice they take no memory."""
    rows = slice(
        int(np.searchsorted(intervals.end, low, side="right")),
        int(np.searchsorted(intervals.start, high)),
    )
    return Intervals(intervals.start[rows], intervals.end[rows])


def complement(intervals: Intervals, low: int, high: int) -> Intervals:
    """Return the part of [low, high) that `intervals` leaves free."""
    inside = clip(intervals, low, high)
    free = Intervals(np.append(low, inside.end), np.append(inside.start, high))
    return free.where(free.end > free.start)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the time in both."""
    if len(a.start) < len(b.start):
        a, b = b, a
    return end_to_end(itertools.starmap(_meet, _beside(a, b)))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the time in `a` and not in `b`."""
    if not len(b.start):
        return a

    def without(part: Intervals, near: Intervals) -> Intervals:
        if not len(near.start):
            return part
        return _meet(part, complement(near, int(part.start[0]), int(part.end[-1])))

    return end_to_end(itertools.starmap(without, _beside(a, b)))


def _beside(a: Intervals, b: Intervals) -> Iterator[tuple[Intervals, Intervals]]:
    """Yield `a` in parts, each with those of `b` that have time between its start and its end."""
    for part in parts(a):
        yield part, _near(b, int(part.start[0]), int(part.end[-1]))


def _meet(a: Intervals, b: Intervals) -> Intervals:
    """Return the time in both, of sets that are small enough to be worked on at once."""
    if len(b.start) < len(a.start):
        a, b = b, a
    # Each of `a` meets a run of `b`: from the first that ends after it begins to the last that
    # begins before it ends.
    first = np.searchsorted(b.end, a.start, side="right")
    count = np.searchsorted(b.start, a.end) - first
    own = np.repeat(np.arange(len(first)), count)
    other = np.repeat(first - np.cumsum(count) + count, count)
    other += np.arange(len(own))
    return Intervals(np.maximum(a.start[own], b.start[other]), np.minimum(a.end[own], b.end[other]))


def join(*sets: Intervals) -> Intervals:
    """Return the time in any of the sets."""
    filled = [each for each in sets if len(each.start)]
    if len(filled) == 1 and (filled[0].start[1:] > filled[0].end[:-1]).all():
        return filled[0]
    longest = max(filled, key=lambda each: len(each.start), default=NONE)
    moments = longest.start[BLOCK::BLOCK]
    # What begins before each of these moments, of all sets together.
    return chain(map(end_to_end, zip(*(_cut(each, moments) for each in filled), strict=True)))


def _cut(intervals: Intervals, moments: Ints) -> Iterator[Intervals]:
    """Yield the intervals that begin before each moment in turn, then the rest."""
    edges = [0, *np.searchsorted(intervals.start, moments).tolist(), len(intervals.start)]
    for low, high in itertools.pairwise(edges):
        yield Intervals(intervals.start[low:high], intervals.end[low:high])


def close_holes(intervals: Intervals, longest_ns: int) -> Intervals:
    """Return the intervals with holes of up to `longest_ns` between them filled."""
    if not len(intervals.start):
        return intervals
    wide = intervals.start[1:] - intervals.end[:-1] > longest_ns
    return Intervals(
        intervals.start[np.concatenate(([True], wide))],
        intervals.end[np.concatenate((wide, [True]))],
    )


def covered_before(intervals: Intervals, times: Ints) -> Ints:
    """Return how much of `intervals` lies before each of `times`, ns."""
    before = _lengths_before(intervals)
    covered = np.zeros(len(times), dtype=np.int64)
    for rows in blocks(len(times)):
        covered[rows] = _covered(intervals, before, times[rows])
    return covered


def covered_within(intervals: Intervals, start: Ints, end: Ints) -> Ints:
    """Return how much of `intervals` lies within each [start, end), ns."""
    covered = np.zeros(len(start), dtype=np.int64)
    for rows, near in _beside_rows(intervals, start, end):
        before = _lengths_before(near)
        covered[rows] = _covered(near, before, end[rows])
        covered[rows] -= _covered(near, before, start[rows])
    return covered


def covered_until(intervals: Intervals, start: Ints, end: Ints, amount: Ints) -> Ints:
    """Return the moment in each [start, end) by which `amount` of `intervals`, ns, has passed: at
    least so much of them lies in it.
    """
    moments = start.copy()
    for rows, near in _beside_rows(intervals, start, end):
        if len(near.start):
            before = _lengths_before(near)
            passed = _covered(near, before, start[rows]) + amount[rows]
            last = np.maximum(np.searchsorted(before, passed) - 1, 0)
            moments[rows] = near.start[last] + passed - before[last]
    return moments


def meets(intervals: Intervals, start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Return a mask of the rows [start, end) of which some time is in `intervals`."""
    mask = np.zeros(len(start), dtype=bool)
    for rows, near in _beside_rows(intervals, start, end):
        # Of those that begin before a row ends, some have not ended when it begins.
        begun = np.searchsorted(near.start, end[rows])
        mask[rows] = begun > np.searchsorted(near.end, start[rows], side="right")
        mask[rows] &= start[rows] < end[rows]
    return mask


def _beside_rows(intervals: Intervals, start: Ints, end: Ints) -> Iterator[tuple[slice, Intervals]]:
    """Yield blocks of the rows [start, end), each with the intervals that have time between its
    first start and its last end: mostly few, since rows are nearly in order.
    """
    for rows in blocks(len(start)):
        yield rows, _near(intervals, int(start[rows].min()), int(end[rows].max()))


def _lengths_before(intervals: Intervals) -> Ints:
    """Return the summed length of those before each interval, ns, and that of all."""
    before = np.zeros(len(intervals.start) + 1, dtype=np.int64)
    np.subtract(intervals.end, intervals.start, out=before[1:])
    return np.cumsum(before, out=before)


def _covered(intervals: Intervals, before: Ints, times: Ints) -> Ints:
    """Return how much lies before each of a few times, ns; `before`: see `_lengths_before`."""
    if not len(intervals.start):
        return np.zeros(len(times), dtype=np.int64)
    index = np.searchsorted(intervals.start, times, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.minimum(times, intervals.end[last]) - intervals.start[last]
    return np.where(index > 0, before[last] + inside, 0)
