"""The operators that the time goes to, and the call tree they stand in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.nesting import Tree, nest
from bottleneck_lab.trace.join import join_rows
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    HostTable,
    Ints,
    SmallInts,
    Timeline,
    take,
)


class OperatorRow(msgspec.Struct, frozen=True):
    """Calls of one operator. *self* leaves out what it calls; *total* holds it once, however deep
    it calls itself. Device times are of the work launched.
    """

    name: str
    calls: int
    self_ns: int
    total_ns: int
    device_self_ns: int
    device_total_ns: int
    share: float
    """Of all device self time; of all operators' self time where the CPU is the device."""


OPERATOR, RUNTIME, PYTHON = range(3)

PART_ROWS = 1 << 15
"""Calls whose tree is made at once, about: what it takes stays in a core's cache."""


@dataclass(frozen=True, slots=True)
class CallTree:
    """Operators, runtime calls and Python frames of all threads nested together, in order. `layer`
    says which a row is.
    """

    layer: NDArray[np.int8]
    firsts: tuple[int, ...]
    """Where each layer's rows begin in `tree.position`, and where the last one's end."""
    tree: Tree
    device_ns: Ints
    """Per row, the duration of the device work that this very row launched."""

    def rows(self, layer: int) -> SmallInts:
        """Return the rows of one layer, in the order of their own table."""
        if layer + 1 >= len(self.firsts):
            return self.tree.position[:0]
        return self.tree.position[self.firsts[layer] : self.firsts[layer + 1]]


def build_calls(timeline: Timeline, *, python: bool) -> CallTree:
    """Nest the host's rows and hang every device activity on the runtime call that launched it, or
    on its operator where no call was recorded.
    """
    parts = [timeline.operators, timeline.runtime, *([timeline.python] if python else [])]
    tree = nest(*parts)
    layer = np.empty(len(tree.position), dtype=np.int8)
    firsts = (0, *itertools.accumulate(map(len, parts)))
    for number, (first, end) in enumerate(itertools.pairwise(firsts)):
        layer[tree.position[first:end]] = number
    return CallTree(layer, firsts, tree, _launched(timeline, tree.position))


def _launched(timeline: Timeline, position: SmallInts) -> Ints:
    """Return, for each row of the call tree, the duration of the device work that it launched.
    `position` holds the rows of the operators, then those of the calls.
    """
    device, owner = timeline.device, _owners(timeline)
    duration = np.where(device.kind != ActivityKind.SYNC, device.end - device.start, 0)
    known = owner >= 0
    launched = np.zeros(len(position), dtype=np.int64)
    np.add.at(launched, position[owner[known]], duration[known])
    return launched


def _owners(timeline: Timeline) -> SmallInts:
    """Return, for each row of the device, what launched it: the operators are numbered first, then
    the calls; -1 where neither is known.
    """
    device, operators = timeline.device, timeline.operators
    calls = timeline.launched_by
    owner = np.where(calls >= 0, calls + np.int32(len(operators)), np.int32(-1))
    missing = calls < 0
    if missing.any():
        owner[missing] = join_rows(
            operators.correlation, operators.rank, device.external[missing], device.rank[missing]
        )
    return owner


def in_parts(timeline: Timeline) -> Iterator[Timeline]:
    """Yield the host's side of a capture in parts, one after another, each with the device work
    that was launched in it.

    No operator and no call is open between two of them, so that the call trees of the parts are
    together that of the whole, and only one of them is in memory at a time. Frames of Python are
    open all along: with them there is only one part.
    """
    operators, runtime = timeline.operators, timeline.runtime
    tables = [table for table in (operators, runtime) if len(table)]
    longest = max(tables, key=len, default=operators)
    if len(timeline.python) or len(longest) <= PART_ROWS:
        yield timeline
        return
    begin, end = timeline.extent
    cuts = [begin]
    # Of each table, how many rows begin before the moments that were looked at, and the last end
    # of these.
    rows, reached = [0] * len(tables), [begin] * len(tables)
    for first in range(PART_ROWS, len(longest), PART_ROWS):
        moments = longest.start[first : first + PART_ROWS // 8]
        closed = np.ones(len(moments), dtype=bool)
        for i, table in enumerate(tables):
            more = slice(rows[i], int(np.searchsorted(table.start, moments[-1])))
            ends = np.maximum.accumulate(np.append(reached[i], table.end[more]))
            closed &= ends[np.searchsorted(table.start[more], moments)] <= moments
            rows[i], reached[i] = more.stop, int(ends[-1])
        cuts += moments[closed][:1].tolist()
    launched = _launch_times(timeline)
    for low, high in itertools.pairwise([*cuts, end + 1]):
        yield replace(
            timeline,
            device=take(timeline.device, (launched >= low) & (launched < high)),
            operators=_between(operators, low, high),
            runtime=_between(runtime, low, high),
        )


def _launch_times(timeline: Timeline) -> Ints:
    """Return, for each row of the device, when the call or the operator that launched it began; a
    moment before the capture where neither is known.
    """
    operators, runtime = timeline.operators, timeline.runtime
    owner = _owners(timeline)
    launched = np.full(len(owner), timeline.extent[0] - 1)
    for rows in iv.blocks(len(owner)):
        own = owner[rows]
        by_call, by_operator = own >= len(operators), (own >= 0) & (own < len(operators))
        launched[rows][by_call] = runtime.start[own[by_call] - len(operators)]
        launched[rows][by_operator] = operators.start[own[by_operator]]
    return launched


def _between(table: HostTable, low: int, high: int) -> HostTable:
    return take(table, slice(*np.searchsorted(table.start, (low, high)).tolist()))


def find_operators(timeline: Timeline, calls: CallTree, top: int = 50) -> list[OperatorRow]:
    """Return the operators by device self time, or by self time on the host where there is no
    device; the largest `top`.
    """
    return rank_operators(timeline, sum_operators(timeline, calls), top)


def sum_operators(timeline: Timeline, calls: CallTree) -> NDArray[np.int64]:
    """Return, by name, what an `OperatorRow` holds of its calls: how many there are, and the sums
    of their self and total time on the host, then on the device, ns. Shape: five, names.
    """
    operators = timeline.operators
    nearest = nearest_above(calls, OPERATOR)
    parent = _operator_above(calls, nearest)
    # A recursive operator's total counts once.
    outermost = ~_inside_same_name(operators.name, parent)
    count = len(timeline.strings)

    def by_name(values: Ints) -> Ints:
        """Return sums by name; whole numbers below 2⁵³ are exact in the doubles of bincount. One
        column at a time is all that is ever held.
        """
        return np.bincount(operators.name, weights=values, minlength=count).astype(np.int64)

    device_own = by_name(_gathered(calls, nearest))
    del nearest
    return np.stack(
        [
            np.bincount(operators.name, minlength=count),
            by_name(_own_times(operators, parent)),
            by_name((operators.end - operators.start) * outermost),
            device_own,
            by_name(calls.tree.with_children(calls.device_ns)[calls.rows(OPERATOR)] * outermost),
        ]
    )


def rank_operators(timeline: Timeline, sums: NDArray[np.int64], top: int = 50) -> list[OperatorRow]:
    """Return the largest `top` operators, from what `sum_operators` returns."""
    times, own, total, device_own, device_total = sums
    ranking = device_own if device_own.any() else own
    whole = max(int(ranking.sum()), 1)
    best = [i for i in np.lexsort((-own, -device_total, -ranking))[:top].tolist() if times[i]]
    return [
        OperatorRow(
            name=timeline.strings[i],
            calls=int(times[i]),
            self_ns=int(own[i]),
            total_ns=int(total[i]),
            device_self_ns=int(device_own[i]),
            device_total_ns=int(device_total[i]),
            share=int(ranking[i]) / whole,
        )
        for i in best
    ]


def find_self_times(timeline: Timeline, calls: CallTree) -> dict[str, Ints]:
    """Return nanoseconds of each single call without what it calls, by operator, in the order of
    the calls: of the device, or of the CPU where that is the device.
    """
    operators = timeline.operators
    own = own_times(timeline, calls, on_device=len(timeline.device) > 0)
    rows = np.argsort(operators.name, kind="stable")
    names, firsts = np.unique(operators.name[rows], return_index=True)
    parts = np.split(own[rows], firsts[1:])
    return {timeline.strings[name]: part for name, part in zip(names.tolist(), parts, strict=True)}


def own_times(timeline: Timeline, calls: CallTree, *, on_device: bool) -> Ints:
    """Return, for each operator call, the time of what it launched itself on the device, or its own
    time without what it calls on the host, ns.
    """
    nearest = nearest_above(calls, OPERATOR)
    if on_device:
        return _gathered(calls, nearest)
    return _own_times(timeline.operators, _operator_above(calls, nearest))


def _own_times(operators: HostTable, parent: SmallInts) -> Ints:
    """Return each operator's duration without that of the operators right under it, ns, never
    negative.
    """
    duration = operators.end - operators.start
    own, child = duration.copy(), np.flatnonzero(parent >= 0)
    np.subtract.at(own, parent[child], duration[child])
    own[own < 0] = 0  # clocks of microseconds let a child end after its parent
    return own


def _operator_above(calls: CallTree, nearest: SmallInts) -> SmallInts:
    """Return, for every operator, the nearest one above it, -1 where there is none: as numbers of
    the operators' own table, where `nearest` has rows of the tree.
    """
    above = nearest[calls.rows(OPERATOR)]
    return np.where(above >= 0, _numbers(calls)[above], np.int32(-1))


def _numbers(calls: CallTree) -> SmallInts:
    """Return which operator a row of the tree is, where it is one."""
    numbers = np.zeros(len(calls.layer), dtype=np.int32)
    rows = calls.rows(OPERATOR)
    numbers[rows] = np.arange(len(rows), dtype=np.int32)
    return numbers


def nearest_above(calls: CallTree, layer: int) -> NDArray[np.int32]:
    """Return, for every row, the nearest row above it of the given layer, -1 where there is
    none.
    """
    # All rows climb at once, a level at a time: as many rounds as the tree is deep, not as many as
    # it has rows.
    parent, result = calls.tree.parent, calls.tree.parent.copy()
    rows = np.flatnonzero((calls.layer[result] != layer) & (result >= 0))
    while len(rows):
        result[rows] = parent[result[rows]]
        rows = rows[(result[rows] >= 0) & (calls.layer[result[rows]] != layer)]
    return result


def _gathered(calls: CallTree, nearest: SmallInts) -> Ints:
    """Return device time on each operator: what it launched itself and what its runtime calls
    launched.
    """
    total = calls.device_ns[calls.rows(OPERATOR)]
    below = np.flatnonzero((calls.layer != OPERATOR) & (nearest >= 0) & (calls.device_ns > 0))
    np.add.at(total, _numbers(calls)[nearest[below]], calls.device_ns[below])
    return total


def _inside_same_name(name: SmallInts, parent: SmallInts) -> NDArray[np.bool_]:
    """Return a mask of the operators that one of the same name encloses."""
    inside = np.zeros(len(name), dtype=bool)
    rows = np.flatnonzero(parent >= 0).astype(np.int32)
    above = parent[rows]
    while len(rows):
        same = name[rows] == name[above]
        inside[rows[same]] = True
        rows, above = rows[~same], parent[above[~same]]
        rows, above = rows[above >= 0], above[above >= 0]
    return inside
