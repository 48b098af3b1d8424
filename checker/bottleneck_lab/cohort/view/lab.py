"""One lab over the whole cohort: what was measured, against the target."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader

BINS = 20


class Distribution(msgspec.Struct, frozen=True):
    """The best measured figure of each learner: bin edges (one more than counts), and the target."""

    edges: list[float]
    counts: list[int]
    target: float | None
    unit: str
    outcomes: dict[str, int]
    reasons: dict[str, int]
    learners: int


def load_distribution(connection: Connection, judge: VerdictReader, lab: str) -> Distribution:
    """Of all verdicts of a lab; those that were altered are left out."""
    judged = [
        one
        for one in judge.latest(connection, tables.submissions.c.lab == lab)
        if one.problem is None
    ]
    best = _best(judged)
    edges, counts = _histogram([one.value for one in best if one.value is not None])
    shown = next((one for one in judged if one.target is not None), None)
    return Distribution(
        edges,
        counts,
        shown.target if shown else None,
        shown.unit if shown else "",
        _count([str(one.outcome) for one in judged]),
        _count([one.reason for one in judged if one.reason]),
        len({one.person for one in judged}),
    )


def _best(judged: list[CheckedVerdict]) -> list[CheckedVerdict]:
    """Each learner's best attempt: passed before failed, then the better figure."""
    best: dict[int, CheckedVerdict] = {}
    for one in judged:
        if one.value is not None and (
            one.person not in best or _rank(one) > _rank(best[one.person])
        ):
            best[one.person] = one
    return list(best.values())


def _rank(one: CheckedVerdict) -> tuple[bool, float]:
    value = one.value or 0.0
    return one.passed, value if one.direction == "at_least" else -value


def _histogram(values: list[float]) -> tuple[list[float], list[int]]:
    if not values:
        return [], []
    low, high = min(values), max(values)
    step = (high - low) / BINS or 1.0
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / step))] += 1
    return [low + step * at for at in range(BINS + 1)], counts


def _count(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}
