"""Which operators, and which lines of Python, the time goes to."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.nesting import Tree, nest
from bottleneck_lab.trace.join import join_rows
from bottleneck_lab.trace.timeline import Ints, Kind, SmallInts, Timeline, order_of

_LIBRARY = re.compile(
    r"(?:^|/)(?:torch|torchvision|numpy|threading|contextlib|site-packages|dist-packages|lib/python3)[/.(]|^<|^nn\.Module|^built-in"
)


class OperatorRow(msgspec.Struct, frozen=True):
    """Calls of one operator. *self* leaves out what it calls; *total* holds it once, however deep it calls itself. Device times are of the work launched."""

    name: str
    calls: int
    self_ns: int
    total_ns: int
    device_self_ns: int
    device_total_ns: int
    share: float
    """Of all device self time; of all operators' self time where the CPU is the device."""


class LineRow(msgspec.Struct, frozen=True):
    """A place in the user's own Python, "file.py(line): function", with the operator and device time under it and not under a deeper such place."""

    line: str
    calls: int
    host_ns: int
    device_ns: int


@dataclass(frozen=True, slots=True)
class CallTable:
    """What is needed of a row once it has its place in the tree."""

    start: Ints
    end: Ints
    name: SmallInts

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class CallTree:
    """Operators, runtime calls and Python frames of all threads nested together. `layer` says which a row is."""

    table: CallTable
    layer: NDArray[np.int8]
    tree: Tree
    device_ns: Ints
    """Per row, the duration of the device work that this very row launched."""


OPERATOR, RUNTIME, PYTHON = range(3)


def build_calls(timeline: Timeline, *, python: bool) -> CallTree:
    """Nests the host's rows and hangs every device activity on the runtime call that launched it, or on its operator where no call was recorded."""
    parts = [timeline.operators, timeline.runtime, *([timeline.python] if python else [])]
    start, end = (np.concatenate([getattr(part, column) for part in parts]) for column in ("start", "end"))
    order = order_of(start, end)
    start, end = start[order], end[order]
    name, thread = (np.concatenate([getattr(part, column) for part in parts])[order] for column in ("name", "thread"))
    layer = np.repeat(np.arange(len(parts), dtype=np.int8), [len(part) for part in parts])[order]
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    del order  # a large trace's columns are held no longer than they are needed
    device_ns = _launched(timeline, place)
    del place
    return CallTree(CallTable(start, end, name), layer, nest(start, end, thread), device_ns)


def _launched(timeline: Timeline, place: SmallInts) -> Ints:
    """Per row of the call tree the duration of the device work that it launched. `place` holds the rows of the operators, then those of the calls."""
    device, operators = timeline.device, timeline.operators
    duration = np.where(device.kind != Kind.SYNC, device.end - device.start, 0)
    owner = np.where(timeline.launched_by >= 0, timeline.launched_by + len(operators), -1)
    missing = owner < 0
    owner[missing] = join_rows(operators.correlation, operators.rank, device.external[missing], device.rank[missing])
    found = owner >= 0
    return np.bincount(place[owner[found]], weights=duration[found], minlength=len(place)).astype(np.int64)


def find_operators(timeline: Timeline, calls: CallTree, top: int = 50) -> list[OperatorRow]:
    """The operators by device self time, or by self time on the host where there is no device; the largest `top`."""
    is_operator = calls.layer == OPERATOR
    if not is_operator.any():
        return []
    parent = _nearest(calls, OPERATOR)
    outermost = is_operator & ~_inside_same_name(calls, parent)
    duration = calls.table.end - calls.table.start
    count = len(timeline.strings)

    def by_name(values: Ints, wanted: NDArray[np.bool_]) -> Ints:
        """Sums by name; whole numbers below 2⁵³ are exact in the doubles of bincount. One column at a time is all that is ever held."""
        return np.bincount(calls.table.name[wanted], weights=values[wanted], minlength=count).astype(np.int64)

    total = by_name(duration, outermost)
    child = is_operator & (parent >= 0)
    np.subtract.at(duration, parent[child], (calls.table.end - calls.table.start)[child])
    own = by_name(np.maximum(duration, 0), is_operator)
    del duration, child
    device_own = by_name(_gathered(calls, parent), is_operator)
    sums = [own, total, device_own, by_name(calls.tree.with_children(calls.device_ns), outermost)]
    times = np.bincount(calls.table.name[is_operator], minlength=count)
    ranking = sums[2] if len(timeline.device) else sums[0]
    whole = max(int(ranking.sum()), 1)
    best = [i for i in np.lexsort((-sums[0], -sums[3], -ranking))[:top].tolist() if times[i]]
    return [
        OperatorRow(
            name=timeline.strings[i],
            calls=int(times[i]),
            self_ns=int(sums[0][i]),
            total_ns=int(sums[1][i]),
            device_self_ns=int(sums[2][i]),
            device_total_ns=int(sums[3][i]),
            share=int(ranking[i]) / whole,
        )
        for i in best
    ]


def find_self_times(timeline: Timeline, calls: CallTree) -> dict[str, Ints]:
    """Nanoseconds of each single call without what it calls, by operator, in the order of the calls: of the device, or of the CPU where that is the device."""
    parent = _nearest(calls, OPERATOR)
    if len(timeline.device):
        own = _gathered(calls, parent)
    else:
        own = calls.table.end - calls.table.start
        child = (calls.layer == OPERATOR) & (parent >= 0)
        np.subtract.at(own, parent[child], (calls.table.end - calls.table.start)[child])
    rows = np.flatnonzero(calls.layer == OPERATOR)
    rows = rows[np.argsort(calls.table.name[rows], kind="stable")]
    names, firsts = np.unique(calls.table.name[rows], return_index=True)
    parts = np.split(np.maximum(own[rows], 0), firsts[1:])
    return {timeline.strings[name]: part for name, part in zip(names.tolist(), parts, strict=True)}


def _nearest(calls: CallTree, layer: int) -> NDArray[np.int32]:
    """For every row the nearest row above it of the given layer, -1 where there is none."""
    parent, result = calls.tree.parent, np.full(len(calls.table), -1, dtype=np.int32)
    for rows in _levels(calls.tree):
        above = parent[rows]
        result[rows] = np.where(calls.layer[above] == layer, above, result[above])
    return result


def _levels(tree: Tree) -> list[NDArray[np.intp]]:
    """The rows of each depth from 1 down."""
    order = np.argsort(tree.depth, kind="stable")
    edges = np.searchsorted(tree.depth[order], np.arange(1, int(tree.depth.max(initial=0)) + 2))
    return [order[edges[i] : edges[i + 1]] for i in range(len(edges) - 1)]


def _gathered(calls: CallTree, nearest: NDArray[np.int32]) -> Ints:
    """Device time on each operator: what it launched itself and what its runtime calls launched."""
    total = np.where(calls.layer == OPERATOR, calls.device_ns, 0)
    below = (calls.layer != OPERATOR) & (nearest >= 0) & (calls.device_ns > 0)
    np.add.at(total, nearest[below], calls.device_ns[below])
    return total


def _inside_same_name(calls: CallTree, parent: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether an operator of the same name encloses the row."""
    inside = np.zeros(len(calls.table), dtype=bool)
    rows = np.flatnonzero((calls.layer == OPERATOR) & (parent >= 0))
    above = parent[rows]
    while len(rows):
        same = calls.table.name[rows] == calls.table.name[above]
        inside[rows[same]] = True
        rows, above = rows[~same], parent[above[~same]]
        rows, above = rows[above >= 0], above[above >= 0]
    return inside


def find_lines(timeline: Timeline, calls: CallTree, top: int = 30) -> list[LineRow]:
    """The user's own lines by device time and then host time. Empty unless the capture was made with stacks."""
    table = calls.table
    frames = calls.layer == PYTHON
    if not frames.any():
        return []
    own = np.array([not _LIBRARY.search(name) for name in timeline.strings], dtype=bool)
    layer = np.where(frames & own[table.name], PYTHON, -1).astype(np.int8)
    user = CallTree(table, layer, calls.tree, calls.device_ns)
    nearest = _nearest(user, PYTHON)
    duration = table.end - table.start
    inside = np.bincount(
        nearest[nearest >= 0], weights=(duration * (layer == PYTHON))[nearest >= 0], minlength=len(table)
    )
    host = np.maximum(duration - inside.astype(np.int64), 0)
    device = np.zeros(len(table), dtype=np.int64)
    launched = (calls.device_ns > 0) & (nearest >= 0)
    np.add.at(device, nearest[launched], calls.device_ns[launched])
    rows = np.flatnonzero(layer == PYTHON)
    count = len(timeline.strings)
    host_by, device_by = (
        np.bincount(table.name[rows], weights=v[rows], minlength=count).astype(np.int64) for v in (host, device)
    )
    times = np.bincount(table.name[rows], minlength=count)
    best = [i for i in np.lexsort((-host_by, -device_by))[:top].tolist() if times[i]]
    return [LineRow(timeline.strings[i], int(times[i]), int(host_by[i]), int(device_by[i])) for i in best]
