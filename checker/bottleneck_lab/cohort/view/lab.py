"""One lab over the whole cohort: measured figures against the target."""

from __future__ import annotations

from collections import Counter

import msgspec
from sqlalchemy import Connection

from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader

BINS = 20


class Distribution(msgspec.Struct, frozen=True):
    """Each learner's best measured figure, in bins (one edge more than counts), and the target."""

    edges: list[float]
    counts: list[int]
    target: float | None
    unit: str
    outcomes: dict[str, int]
    reasons: dict[str, int]
    learners: int


def load_distribution(connection: Connection, judge: VerdictReader, lab: str) -> Distribution:
    """Return the distribution over learners' verdicts of a lab; altered ones are left out."""
    judged = [
        one
        for one in judge.latest(
            connection, tables.submissions.c.lab == lab, tables.people.c.role == "learner"
        )
        if one.problem is None
    ]
    # Each learner's best attempt: passed before failed, then the better figure.
    best: dict[int, CheckedVerdict] = {}
    for one in judged:
        if one.value is None:
            continue
        if one.person not in best or _rank(one) > _rank(best[one.person]):
            best[one.person] = one
    shown = next((one for one in judged if one.target is not None), None)
    target = shown.target if shown else None
    edges, counts = _histogram(
        [one.value for one in best.values() if one.value is not None], target
    )
    return Distribution(
        edges,
        counts,
        target,
        shown.unit if shown else "",
        dict(sorted(Counter(str(one.outcome) for one in judged).items())),
        dict(sorted(Counter(one.reason for one in judged if one.reason).items())),
        len({one.person for one in judged}),
    )


def _rank(one: CheckedVerdict) -> tuple[bool, float]:
    value = one.value or 0.0
    return one.passed, value if one.direction == "at_least" else -value


def _histogram(values: list[float], target: float | None) -> tuple[list[float], list[int]]:
    """Return the edges of `BINS` equal bins, one more than counts, and the counts.

    Values that are all alike are one narrow bin: its width is a twentieth of the way to the target.
    """
    if not values:
        return [], []
    low, high = min(values), max(values)
    if low == high:
        half = (abs(low - target) if target is not None else abs(low)) / (2 * BINS) or 0.5 / BINS
        return [low - half, low + half], [len(values)]
    step = (high - low) / BINS
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / step))] += 1  # the largest lies on the last edge
    return [low + step * at for at in range(BINS + 1)], counts
