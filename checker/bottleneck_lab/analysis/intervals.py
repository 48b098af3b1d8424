"""Sets of half-open time intervals, as two arrays of integers. All results are sorted and disjoint,
so their lengths add up exactly.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

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


# Rows that are worked on at once.
BLOCK = 1 << 15

NONE = Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


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
    first = np.flatnonzero(np.concatenate(([True], start[1:] > end[:-1])))
    last = np.concatenate((first[1:] - 1, [len(start) - 1]))
    return Intervals(start[first], end[last])


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
    if not len(a.start) or not len(b.start):
        return NONE
    starts, ends = [], []
    # What both cover begins where one of them begins inside the other; where both begin at once,
    # "left" leaves it to the first pass.
    passes: tuple[tuple[Intervals, Intervals, Literal["left", "right"]], ...] = (
        (a, b, "right"),
        (b, a, "left"),
    )
    for one, other, side in passes:
        at = np.searchsorted(other.start, one.start, side=side) - 1
        rows = np.flatnonzero((at >= 0) & (other.end[at] > one.start))
        starts.append(one.start[rows])
        ends.append(np.minimum(one.end[rows], other.end[at[rows]]))
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    return Intervals(start[order], end[order])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the time in `a` and not in `b`."""
    if not len(a.start) or not len(b.start):
        return a
    low, high = int(a.start[0]), int(a.end[-1])
    return intersect(a, complement(b, low, high))


def join(*parts: Intervals) -> Intervals:
    """Return the time in any of the parts."""
    start, end = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    return _united(start, end)


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
    # In blocks that stay in a core's cache: of millions of times, each step would take as much
    # memory as the result.
    for at in range(0, len(times), BLOCK):
        block = times[at : at + BLOCK]
        index = np.searchsorted(intervals.start, block, side="right")
        last = np.maximum(index - 1, 0)
        inside = np.minimum(block, intervals.end[last]) - intervals.start[last]
        result[at : at + BLOCK] = np.where(index > 0, lengths[last] + inside, 0)
    return result


def covered_within(intervals: Intervals, start: Ints, end: Ints) -> Ints:
    """Return how much of `intervals` lies within each [start, end), ns."""
    return covered_before(intervals, end) - covered_before(intervals, start)
