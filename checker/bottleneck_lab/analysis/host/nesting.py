"""Nest rows into call trees from start and end alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.timeline import HostTable, Ints, SmallInts


@dataclass(frozen=True, slots=True)
class Tree:
    """Row i of a table in order is called by row `parent[i]` (-1: by none), at `depth[i]`."""

    parent: SmallInts
    depth: NDArray[Any]

    def with_children(self, value: Ints) -> Ints:
        """Return each row's value plus those of all rows under it."""
        total = value.astype(np.int64).copy()
        for level in range(int(self.depth.max(initial=0)), 0, -1):
            rows = np.flatnonzero(self.depth == level)
            np.add.at(total, self.parent[rows], total[rows])
        return total


def nest(start: Ints, end: Ints, thread: NDArray[Any]) -> Tree:
    """Return the call tree of rows that are in order. Every thread has its own number, whatever its
    rank, and is nested by itself.

    The depth of a row is the number of rows of its thread that began before it and have not ended;
    its parent is the latest row one level up.
    """
    depth, parent = np.zeros(len(start), dtype=np.int32), np.full(len(start), -1, dtype=np.int32)
    block = 1 << 16  # what a search returns takes eight bytes a row: not for all rows at once
    for number in np.flatnonzero(np.bincount(thread)).tolist():
        rows = np.flatnonzero(thread == number).astype(np.int32)
        stop = end[rows]
        own = np.arange(len(rows), dtype=np.int32)
        for at in range(0, len(rows), block):
            begin = start[rows[at : at + block]]
            # A row of no length still ends after it began.
            stop[at : at + block] = np.maximum(stop[at : at + block], begin + 1)
        stop.sort()
        for at in range(0, len(rows), block):
            begin = start[rows[at : at + block]]
            own[at : at + block] -= np.searchsorted(stop, begin, side="right").astype(np.int32)
        del stop
        depth[rows] = own
        above = _parents(own)
        parent[rows] = np.where(above >= 0, rows[above], -1)
    return Tree(parent, narrow(depth))


def narrow(numbers: SmallInts) -> NDArray[Any]:
    """Return numbers from 0 on in the fewest bytes: up to two, they are sorted in one pass for
    each.
    """
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _parents(depth: SmallInts) -> SmallInts:
    """Return the nearest row before each that is one level up."""
    parent = np.full(len(depth), -1, dtype=np.int32)
    order = np.argsort(narrow(depth), kind="stable").astype(np.int32)
    levels = np.split(order, np.cumsum(np.bincount(depth))[:-1])
    # Within a level rows are in order, so the parent is the last row of the level above that began
    # before.
    for above, rows in itertools.pairwise(levels):
        parent[rows] = above[np.searchsorted(above, rows) - 1]
    return parent


def innermost_at(table: HostTable, moments: Ints, threads: SmallInts) -> SmallInts:
    """Return the row that is open at each moment (ns) on its thread and began last, -1 where none
    is open.
    """
    innermost = np.full(len(moments), -1, dtype=np.int32)
    for thread in np.unique(threads).tolist():
        rows, mine = np.flatnonzero(table.thread == thread), np.flatnonzero(threads == thread)
        at = np.searchsorted(table.start[rows], moments[mine], side="right") - 1
        innermost[mine[at >= 0]] = rows[at[at >= 0]]
    parent = nest(table.start, table.end, table.thread).parent
    begun = np.flatnonzero(innermost >= 0)
    while len(begun):  # where a row has ended, the one that encloses it may be open
        begun = begun[table.end[innermost[begun]] <= moments[begun]]
        innermost[begun] = parent[innermost[begun]]
        begun = begun[innermost[begun] >= 0]
    return innermost
