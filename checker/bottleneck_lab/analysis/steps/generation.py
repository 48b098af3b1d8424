"""Why a token is slow: what the host and the device take for each token that a model generates."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.view import launching_threads
from bottleneck_lab.analysis.host.waits import waiting_calls
from bottleneck_lab.analysis.rows import named, names_in, union_of
from bottleneck_lab.trace.timeline import Ints, Timeline, take

LEAST = 4
"""Fewer tokens show no loop."""
PAUSE = 5.0
"""A token that takes so many times as long as the median one lies between two sequences."""

_RANGE = re.compile(
    r"^(?:decode|decoding|generate|generation|token)(?:[ _-]?(?:step|token))?[ _#:-]*\d*$",
    re.IGNORECASE,
)
_SAMPLING = re.compile(r"^aten::(?:argmax|multinomial)$")
_OF_TOKENS = re.compile(r"^aten::(?:embedding|multinomial|index_select)$")
_TRAINING = re.compile(r"^autograd::engine::|^Optimizer\.step#|^aten::\w+_backward")


class GenerationUse(msgspec.Struct, frozen=True):
    """The cost of one token (`unit`: or of one prediction, without tokens), medians in ns.

    `token_ns` is the time from one to the next; `host_ns` of it the launching thread's own time,
    without its waits; `device_ns` the device's work (operators, where there is no accelerator).

    `launches`: kernels per token. `growth`: how many times as long the last quarter of the tokens
    takes as the first.
    """

    rank: int
    tokens: int
    token_ns: int
    host_ns: int
    wait_ns: int
    device_ns: int
    launches: float
    growth: float
    on_cpu: bool
    unit: Literal["token", "prediction"] = "token"


def find_generation(timeline: Timeline) -> GenerationUse | None:
    """Return what a token of the first rank with a loop takes, by its marked ranges (`token 3`,
    `decode`), or from one call of a sampling operator to the next; None where nothing is generated.
    """
    used = [*names_in(timeline, timeline.operators), *names_in(timeline, timeline.ranges)]
    names = {timeline.strings[i] for i in used}
    if any(_TRAINING.match(name) for name in names):
        return None
    unit: Literal["token", "prediction"] = "prediction"
    if any(_OF_TOKENS.match(name) or _RANGE.match(name) for name in names):
        unit = "token"
    for rank in timeline.ranks:
        starts = _starts(timeline, rank)
        if len(starts) > LEAST:
            return _use(timeline, rank, starts, unit)
    return None


def _starts(timeline: Timeline, rank: int) -> Ints:
    """Return when each token began, ns, on one thread."""
    for table, pattern in ((timeline.ranges, _RANGE), (timeline.operators, _SAMPLING)):
        rows = np.flatnonzero(named(timeline, table, pattern) & (table.rank == rank))
        if len(rows) > LEAST:
            rows = rows[table.thread[rows] == np.bincount(table.thread[rows]).argmax()]
            if table is timeline.operators:  # multinomial calls argmax itself
                return iv.union(table.start[rows], table.end[rows]).start
            return np.unique(table.start[rows])
    return np.empty(0, dtype=np.int64)


def _use(
    timeline: Timeline, rank: int, starts: Ints, unit: Literal["token", "prediction"]
) -> GenerationUse | None:
    device, runtime = timeline.device, timeline.runtime
    work = take(device, (device.rank == rank) & device.works)
    busy, launched = iv.union(work.start, work.end), work.start
    if not len(work):
        operators = take(timeline.operators, timeline.operators.rank == rank)
        busy, launched = iv.union(operators.start, operators.end), operators.start
    launching = np.isin(runtime.thread, launching_threads(timeline, rank))
    waits = union_of(runtime, waiting_calls(timeline) & launching)
    lengths = np.diff(starts)
    one = lengths < PAUSE * np.median(lengths)  # the rest is a prompt, or what lies between two
    if one.sum() < LEAST:
        return None
    waited = np.diff(iv.covered_before(waits, starts))[one]
    quarter = max(int(one.sum()) // 4, 1)
    first, last = lengths[one][:quarter], lengths[one][-quarter:]
    return GenerationUse(
        rank=rank,
        tokens=int(one.sum()),
        token_ns=int(np.median(lengths[one])),
        host_ns=int(np.median(lengths[one] - waited)),
        wait_ns=int(np.median(waited)),
        device_ns=int(np.median(np.diff(iv.covered_before(busy, starts))[one])),
        launches=float(np.median(np.diff(np.searchsorted(launched, starts))[one])),
        growth=float(np.median(last) / max(np.median(first), 1)),
        on_cpu=not len(work),
        unit=unit,
    )
