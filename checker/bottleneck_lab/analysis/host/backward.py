"""Trace the operators of a backward to those of the forward whose nodes of autograd they undo."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.host.operators import OPERATOR, CallTree, nearest_above
from bottleneck_lab.trace.join import join_rows
from bottleneck_lab.trace.timeline import Ints, SmallInts, Timeline, different

_NODE = re.compile(r"^(?:autograd::engine::evaluate_function: )?(\w+?)Backward\d*$")
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NUMBERS = (1 << 31) - 1
"""Numbers of nodes are told apart by their last 31 bits: a capture holds fewer nodes."""


class Backward(NamedTuple):
    """For each row of a call tree, by row of that tree (-1: none): the operator of the backward
    in which it ran (or which it is), and the operator of the forward that this one undoes.
    """

    node: SmallInts
    forward: SmallInts

    @property
    def rows(self) -> SmallInts:
        """The rows that are operators of the backward."""
        return np.flatnonzero(self.node == np.arange(len(self.node))).astype(np.int32)

    def undone(self, own: NDArray[np.bool_]) -> SmallInts:
        """Return, for each row, the one of the forward that it counts to; most are their own. So
        are the `own` rows, a mask, though they ran in a backward.

        What a forward made while it was in a backward itself (a checkpoint's second forward, a
        gradient of a gradient) counts to the first forward.
        """
        # An operator begins after the one that it undoes, so that every chain has an end.
        target = np.arange(len(self.forward), dtype=np.int32)
        moving = np.flatnonzero((self.forward >= 0) & ~own)
        while len(moving):
            target[moving] = self.forward[target[moving]]
            at = target[moving]
            moving = moving[(self.forward[at] >= 0) & ~own[at]]
        return target


def trace_backward(timeline: Timeline, calls: CallTree) -> Backward:
    """Return what each row of the call tree undoes, by the numbers that PyTorch gives the nodes of
    its graph.
    """
    rows, undone = undone_operators(timeline)
    operators = calls.rows(OPERATOR)
    undoing = operators[rows]
    forward = np.full(len(calls.layer), -1, dtype=np.int32)
    forward[undoing] = np.where(undone >= 0, operators[undone], np.int32(-1))
    # The nearest row of the backward, which is the row itself where it is one.
    layer = np.full(len(calls.layer), -1, dtype=np.int8)
    layer[undoing] = OPERATOR
    node = nearest_above(replace(calls, layer=layer), OPERATOR)
    node[undoing] = undoing
    return Backward(node, np.where(node >= 0, forward[node], np.int32(-1)))


def forward_operator(name: str) -> str:
    """Return the operator whose node a backward's name tells, as far as names do: `aten::mul` for
    MulBackward0; "" for another name.
    """
    node = _NODE.match(name)
    return f"aten::{_WORD.sub('_', node[1]).lower()}" if node else ""


def undone_operators(timeline: Timeline) -> tuple[SmallInts, SmallInts]:
    """Return the operators that undo a node, and for each the operator that made it (-1: that is
    not in the capture), both as rows of the operators' table.
    """
    table, operators = timeline.autograd, timeline.operators
    rows = join_rows(operators.correlation, operators.rank, table.external, table.rank)
    known = rows >= 0
    # Two processes in one file give their operators the same numbers.
    known[known] = operators.thread[rows[known]] == table.thread[known]
    rows, forward = rows[known], table.forward[known]
    sequence = table.sequence[known].astype(np.int64) & _NUMBERS
    # Rows are in the order of their start: of several operators with one number before a node is
    # undone, the last has the largest key.
    keys, making = sequence << 32 | rows, forward == 0
    made = {
        thread: np.sort(keys[making & (operators.thread[rows] == thread)])
        for thread in different(operators.thread[rows[making]]).tolist()
    }
    undoing = np.flatnonzero(~making)
    undone = np.full(len(undoing), -1, dtype=np.int32)
    for group, threads in _groups(timeline, operators.thread[rows[undoing]], forward[undoing]):
        wanted, undoers = keys[undoing[group]], rows[undoing[group]]
        candidates = [_latest(made[each], wanted) for each in threads if each in made]
        if candidates:
            undone[group] = max(candidates, key=lambda each: _likeness(timeline, undoers, each))
    return rows[undoing], undone


def _groups(
    timeline: Timeline, threads: SmallInts, forward: SmallInts
) -> Iterator[tuple[Ints, list[int]]]:
    """Yield the rows of each thread of a forward, by PyTorch's own number for it, with the threads
    that it may be: those of the same process.
    """
    processes = [(thread.rank, thread.pid) for thread in timeline.threads]
    numbers = {process: number for number, process in enumerate(dict.fromkeys(processes))}
    process_of = np.array([numbers[each] for each in processes] or [0], dtype=np.int64)
    keys = process_of[threads] << 32 | forward
    for key in np.unique(keys).tolist():
        yield np.flatnonzero(keys == key), np.flatnonzero(process_of == key >> 32).tolist()


def _latest(made: Ints, wanted: Ints) -> SmallInts:
    """Return, for each key of a node's number and a row, the last row before that with the same
    number, -1 where there is none.
    """
    at = np.searchsorted(made, wanted) - 1
    latest = made[np.maximum(at, 0)]
    same = (at >= 0) & (latest >> 32 == wanted >> 32)
    return np.where(same, latest & 0xFFFFFFFF, -1).astype(np.int32)


def _likeness(timeline: Timeline, undoers: SmallInts, undone: SmallInts) -> tuple[int, int]:
    """Return by how many names, and of how many rows, a thread explains what was undone."""
    numbers = {text: number for number, text in enumerate(timeline.strings)}
    names, known = timeline.operators.name, undone >= 0
    expected = np.full(len(timeline.strings), -1)
    for name in different(names[undoers]).tolist():
        expected[name] = numbers.get(forward_operator(timeline.strings[name]), -1)
    alike = names[undone[known]] == expected[names[undoers[known]]]
    return int(alike.sum()), int(known.sum())
