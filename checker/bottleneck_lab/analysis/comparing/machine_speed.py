"""Tell from two captures alone that the machine, not the program, was slower on one side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from bottleneck_lab.analysis.comparing.comparability import Difference
from bottleneck_lab.analysis.host.operators import build_calls, in_parts, own_times
from bottleneck_lab.analysis.steps.window import begun_inside
from bottleneck_lab.trace.timeline import Ints, SmallInts, Timeline

MOST_CALLS = 1 << 18
"""Of more calls, the first are looked at."""
LEAST_CALLS = 5
LEAST_OPERATORS = 8
LEAST_FACTOR = 1.15
"""Typical calls of two quiet runs differ by less."""
AROUND = 1.4
"""An operator is slower like the others up to this factor from their median, either way."""
ALIKE = 0.8
"""So many (0-1) of the operators have to be slower alike. An edit, other shapes or fewer threads
change some of them: what only looks at a tensor takes as long as before.
"""
SHORT_NS = 50_000
"""An operator that typically takes less hardly depends on the program's data."""
INTERRUPTED = 1.5
"""So many times as much of the time of short operators has to be beyond their typical times."""

Side = Literal["before", "after"]


class CallTimes(NamedTuple):
    """Calls of an operator on the host, without what it calls: their median and their sum, ns."""

    typical_ns: float
    calls: int
    whole_ns: float


def find_call_times(timeline: Timeline) -> dict[str, CallTimes]:
    """Return how long the calls of each operator took that is called more than a few times."""
    names: list[SmallInts] = []
    times: list[Ints] = []
    for part in in_parts(begun_inside(timeline)):
        names.append(part.operators.name)
        times.append(own_times(part, build_calls(part, python=False), on_device=False))
        if sum(map(len, names)) > MOST_CALLS:
            break
    name, own_ns = np.concatenate(names), np.concatenate(times)
    if not len(name):
        return {}
    order = np.argsort(name, kind="stable")
    different, firsts = np.unique(name[order], return_index=True)
    calls = np.split(own_ns[order], firsts[1:])
    return {
        timeline.strings[number]: CallTimes(float(np.median(each)), len(each), float(each.sum()))
        for number, each in zip(different.tolist(), calls, strict=True)
        if len(each) >= LEAST_CALLS and np.median(each) > 0
    }


def find_slower_machine(
    before: Mapping[str, CallTimes], after: Mapping[str, CallTimes]
) -> list[Difference]:
    """Return a difference where the machine was busier with other programs on one side, or slower:
    short operators were interrupted far more often there, or typical calls of nearly all operators
    take longer by about the same factor.
    """
    common = [name for name in before if name in after]
    if len(common) < LEAST_OPERATORS:
        return []
    interrupted = _interruptions(*([side[name] for name in common] for side in (before, after)))
    if interrupted:
        return interrupted
    ratios = np.array([after[name].typical_ns / before[name].typical_ns for name in common])
    factor = float(np.median(ratios))
    alike = float((np.abs(np.log(ratios / factor)) <= np.log(AROUND)).mean())
    longer = max(factor, 1 / factor)
    if longer >= LEAST_FACTOR and alike >= ALIKE:
        slower: Side = "after" if factor > 1 else "before"
        other = "before" if factor > 1 else "after"
        sentence = (
            f"nearly all operators take about {longer:.1f}x as long {slower} as {other}, small ones"
            " like large ones: the machine was slower or busier, and hardly the program"
        )
        return [Difference("load", sentence, slower, longer * AROUND)]
    return []


def _interruptions(before: Sequence[CallTimes], after: Sequence[CallTimes]) -> list[Difference]:
    """Return a difference where short operators took much longer in sum than their typical calls
    would, on one side more than on the other. Each operator has the same place on both sides.
    """
    pairs = [pair for pair in zip(before, after, strict=True) if max(pair).typical_ns < SHORT_NS]
    if len(pairs) < LEAST_OPERATORS:
        return []
    old, new = (
        sum(each.whole_ns for each in side) / sum(each.typical_ns * each.calls for each in side)
        for side in zip(*pairs, strict=True)
    )
    if max(old, new) < INTERRUPTED * min(old, new):
        return []
    sentence = (
        f"short operators took {old:.1f}x their typical time before, all calls together, and"
        f" {new:.1f}x after: something interrupted them, as other programs on a busy machine do"
    )
    slower: Side = "after" if new > old else "before"
    # Long operators, and threads that wait for each other, are delayed more than short ones, which
    # mostly fit between two interruptions.
    up_to = 2 * (max(old, new) / min(old, new)) ** 2
    return [Difference("load", sentence, slower, up_to)]
