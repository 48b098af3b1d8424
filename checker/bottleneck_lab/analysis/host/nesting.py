"""Nest rows into call trees from start and end alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.timeline import HostTable, Ints, SmallInts, order_of

# What a search returns takes eight bytes a row: not for all rows at once.
BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows of tables, all in one order: row i is called by row `parent[i]` (-1: by none), at
    `depth[i]`.
    """

    position: SmallInts
    """Where the rows of the tables, one table after the other, stand in the tree: rising within
    each table.
    """
    parent: SmallInts
    depth: NDArray[Any]

    def with_children(self, value: Ints) -> Ints:
        """Return each row's value plus those of all rows under it."""
        total = value.astype(np.int64).copy()
        for level in range(int(self.depth.max(initial=0)), 0, -1):
            rows = np.flatnonzero(self.depth == level)
            np.add.at(total, self.parent[rows], total[rows])
        return total


def nest(*tables: HostTable) -> Tree:
    """Return the call tree of the rows of all tables. Every thread has its own number, whatever its
    rank, and is nested by itself.

    The depth of a row is the number of rows of its thread that began before it and have not ended;
    its parent is the latest row one level up.
    """
    position = _merged(tables)
    firsts = np.cumsum([0, *map(len, tables)])
    depth: NDArray[Any] = np.zeros(len(position), dtype=np.uint8)
    parent = np.full(len(position), -1, dtype=np.int32)
    threads = [narrow(table.thread) for table in tables]
    numbers = np.concatenate([np.flatnonzero(np.bincount(thread)) for thread in threads])
    for number in np.unique(numbers).tolist():
        chosen = [np.flatnonzero(thread == number) for thread in threads]
        # Sorted on their own, starts and ends need no copy of the tables in the tree's order.
        stop = np.concatenate(
            # A row of no length still ends after it began.
            [
                np.maximum(table.end[mine], table.start[mine] + 1)
                for table, mine in zip(tables, chosen, strict=True)
            ]
        )
        stop.sort()
        begin = np.concatenate(
            [table.start[mine] for table, mine in zip(tables, chosen, strict=True)]
        )
        begin.sort()
        own = np.arange(len(begin), dtype=np.int32)
        for at in range(0, len(begin), BLOCK_ROWS):
            ended = np.searchsorted(stop, begin[at : at + BLOCK_ROWS], side="right")
            own[at : at + BLOCK_ROWS] -= ended.astype(np.int32)
        del stop, begin
        rows = np.concatenate(
            [position[first + mine] for first, mine in zip(firsts[:-1], chosen, strict=True)]
        )
        del chosen
        rows.sort()
        if int(own.max()) > np.iinfo(depth.dtype).max:
            depth = depth.astype(np.int32)
        depth[rows] = own
        above = _parents(own)
        parent[rows] = np.where(above >= 0, rows[above], np.int32(-1))
    return Tree(position, parent, narrow(depth))


def _merged(tables: Sequence[HostTable]) -> SmallInts:
    """Return where each row of the tables stands when the rows of all are in order."""
    count = sum(map(len, tables))
    position = np.arange(count, dtype=np.int32)
    if len(tables) > 1:
        start, end = (
            np.concatenate([getattr(table, column) for table in tables])
            for column in ("start", "end")
        )
        position[order_of(start, end)] = np.arange(count, dtype=np.int32)
    return position


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


def outermost(table: HostTable) -> NDArray[np.bool_]:
    """Return a mask of the rows that no other of their thread encloses: those of depth 0 in `nest`,
    without making the tree.
    """
    mask = np.ones(len(table), dtype=bool)
    for number in np.flatnonzero(np.bincount(table.thread)).tolist():
        rows = np.flatnonzero(table.thread == number)
        ended = np.maximum(table.end[rows], table.start[rows] + 1)
        np.maximum.accumulate(ended, out=ended)
        mask[rows[1:]] = ended[:-1] <= table.start[rows[1:]]
    return mask


def innermost_at(table: HostTable, moments: Ints, threads: SmallInts) -> SmallInts:
    """Return the row that is open at each moment (ns) on its thread and began last, -1 where none
    is open.
    """
    innermost = np.full(len(moments), -1, dtype=np.int32)
    for thread in np.unique(threads).tolist():
        rows, mine = np.flatnonzero(table.thread == thread), np.flatnonzero(threads == thread)
        at = np.searchsorted(table.start[rows], moments[mine], side="right") - 1
        innermost[mine[at >= 0]] = rows[at[at >= 0]]
    parent = nest(table).parent
    begun = np.flatnonzero(innermost >= 0)
    while len(begun):  # where a row has ended, the one that encloses it may be open
        begun = begun[table.end[innermost[begun]] <= moments[begun]]
        innermost[begun] = parent[innermost[begun]]
        begun = begun[innermost[begun] >= 0]
    return innermost
