"""Sets of half-open time intervals, as two arrays of integers. All results are sorted and disjoint,
so their lengths add up exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        """Return the masked ones."""
        return Intervals(self.start[mask], self.end[mask])


BLOCK = 1 << 15
"""Rows that are worked on at once: few enough to stay in a core's cache. Of millions of rows, each
step would take as much memory as the result.
"""

NONE = Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of up to BLOCK rows, which together are all `count`."""
    for at in range(0, count, BLOCK):
        yield slice(at, at + BLOCK)


def stretch(start: int, end: int) -> Intervals:
    """Return one interval, or none if it would be empty."""
    return union(np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """Return the time covered by any of the given rows, in any order; rows that touch are
    joined.
    """
    keep = end > start
    return _united(start[keep], end[keep])


def _united(start: Ints, end: Ints) -> Intervals:
    """Return the time covered by rows of which none is empty; the arrays may be changed."""
    if not len(start):
        return NONE
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start = start[order]
        end = end[order]
        del order
    np.maximum.accumulate(end, out=end)
    begins = np.append(True, start[1:] > end[:-1])
    return Intervals(start[begins], end[np.append(begins[1:], True)])


def separate(start: Ints, end: Ints) -> Intervals:
    """Return the given rows, in any order, each without what an earlier one covers: rows that touch
    stay apart.
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    covered = np.maximum.accumulate(end)
    start[1:] = np.maximum(start[1:], covered[:-1])
    return Intervals(start, end).where(end > start)


def clip(intervals: Intervals, low: int, high: int) -> Intervals:
    """Return the part inside [low, high)."""
    start, end = np.maximum(intervals.start, low), np.minimum(intervals.end, high)
    return Intervals(start, end).where(end > start)


def complement(intervals: Intervals, low: int, high: int) -> Intervals:
    """Return the part of [low, high) that `intervals` leaves free."""
    inside = clip(intervals, low, high)
    start = np.concatenate(([low], inside.end)).astype(np.int64)
    end = np.concatenate((inside.start, [high])).astype(np.int64)
    return Intervals(start, end).where(end > start)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the time in both."""
    if len(b.start) < len(a.start):
        a, b = b, a
    # Each of `a` meets a run of `b`: from the first that ends after it begins to the last that
    # begins before it ends.
    first = np.searchsorted(b.end, a.start, side="right")
    count = np.searchsorted(b.start, a.end) - first
    own = np.repeat(np.arange(len(first)), count)
    other = np.repeat(first - np.cumsum(count) + count, count)
    other += np.arange(len(own))
    del first, count
    start, end = a.start[own], a.end[own]
    np.maximum(start, b.start[other], out=start)
    np.minimum(end, b.end[other], out=end)
    return Intervals(start, end)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the time in `a` and not in `b`."""
    if not len(a.start) or not len(b.start):
        return a
    before, behind = min(a.start[0], b.start[0]) - 1, max(a.end[-1], b.end[-1]) + 1
    free = Intervals(np.append(before, b.end), np.append(b.start, behind))
    free = free.where(free.end > free.start)
    return intersect(a, free)


def join(*parts: Intervals) -> Intervals:
    """Return the time in any of the parts."""
    return _united(
        np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts])
    )


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
    if not len(intervals.start):
        return np.zeros(len(times), dtype=np.int64)
    lengths = np.concatenate(([0], np.cumsum(intervals.end - intervals.start)))
    result = np.empty(len(times), dtype=np.int64)
    for rows in blocks(len(times)):
        block = times[rows]
        index = np.searchsorted(intervals.start, block, side="right")
        last = np.maximum(index - 1, 0)
        inside = np.minimum(block, intervals.end[last]) - intervals.start[last]
        result[rows] = np.where(index > 0, lengths[last] + inside, 0)
    return result


def covered_within(intervals: Intervals, start: Ints, end: Ints) -> Ints:
    """Return how much of `intervals` lies within each [start, end), ns."""
    covered = covered_before(intervals, end)
    covered -= covered_before(intervals, start)
    return covered
