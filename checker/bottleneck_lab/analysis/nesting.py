"""Which row encloses which: call trees from start and end alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.timeline import HostTable, Ints, SmallInts


@dataclass(frozen=True, slots=True)
class Tree:
    """Row i of a table in order is called by row `parent[i]` (-1: by none), at `depth[i]`."""

    parent: SmallInts
    depth: SmallInts

    def self_time(self, duration: Ints) -> Ints:
        """Each row's duration without its children's, ns, never negative."""
        has = self.parent >= 0
        inside = np.bincount(self.parent[has], weights=duration[has], minlength=len(duration)).astype(np.int64)
        result: Ints = np.maximum(duration - inside, 0)
        return result

    def with_children(self, value: Ints) -> Ints:
        """Each row's value plus those of all rows under it."""
        total = value.astype(np.int64).copy()
        for level in range(int(self.depth.max(initial=0)), 0, -1):
            rows = np.flatnonzero(self.depth == level)
            np.add.at(total, self.parent[rows], total[rows])
        return total


def nest(table: HostTable) -> Tree:
    """The call tree of a table whose rows are in order. Every thread has its own number, whatever its rank.

    The depth of a row is the number of rows of its thread that began before it and have not ended; its parent is the latest row one level up.
    """
    lane = table.thread.astype(np.int64)
    low = int(table.start.min(initial=0)) if len(table) else 0
    span = int(table.end.max(initial=0)) - low + 2 if len(table) else 1
    begin = lane * span + (table.start - low)
    stop = lane * span + np.maximum(table.end - low, table.start - low + 1)
    stop.sort()
    order = np.argsort(begin, kind="stable")
    ended = np.searchsorted(stop, begin[order], side="right")
    del lane, stop
    depth = np.empty(len(table), dtype=np.int32)
    depth[order] = np.arange(len(table)) - ended
    del order, ended
    return Tree(_parents(begin, depth), depth)


def _parents(begin: Ints, depth: SmallInts) -> SmallInts:
    parent = np.full(len(begin), -1, dtype=np.int32)
    by_depth: NDArray[np.intp] = np.lexsort((begin, depth))
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    for level in range(1, len(edges) - 1):
        above, rows = by_depth[edges[level - 1] : edges[level]], by_depth[edges[level] : edges[level + 1]]
        parent[rows] = above[np.searchsorted(begin[above], begin[rows], side="right") - 1]
    return parent
