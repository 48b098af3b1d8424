"""How far measured work is from a lab's targets, and whether a target is safe on all machines it
was tried on.

Pure: verdicts go in, distances come out. A distance is how many times as good as the target asks: 1
is the target itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from bottleneck_lab.catalog import CriterionSpec, Device
from bottleneck_lab.grading.verdict import Verdict

CLEAR, SHORT = 1.1, 0.9
"""Correct work must be above the first, slow work below the second: there a verdict is as reliable
as docs/statistics.md states. A count is sure at its target.
"""

Part = Literal["starter", "capture", "solution", "variants", "mutants"]
"""The parts of a lab that are proved."""


class Margin(msgspec.Struct, frozen=True):
    """One measured criterion. `bar` is the target, or the share of it that `margin` asks for; `low`
    and `high` bound the value, which may be `exact`.
    """

    criterion: str
    value: float
    low: float
    high: float
    bar: float
    at_least: bool
    unit: str = ""
    exact: bool = False

    @property
    def least(self) -> float:
        """The distance that is sure: of the bound on the bad side."""
        if self.at_least:
            return _distance(self.low, self.bar)
        return _distance(self.bar, self.high)

    @property
    def most(self) -> float:
        """The distance that may be: of the bound on the good side."""
        if self.at_least:
            return _distance(self.high, self.bar)
        return _distance(self.bar, self.low)


def _distance(good: float, target: float) -> float:
    """Return good over target; large, but finite, where the target is 0."""
    if target > 0:
        return good / target
    return 1.0 if good <= 0 else 1e9


def margins_of(verdict: Verdict, criteria: Sequence[CriterionSpec]) -> list[Margin]:
    """Return the criteria of a verdict that have a target and were measured. An exact value is its
    own bounds.
    """
    bars = {spec.id: spec.target * spec.margin for spec in criteria if spec.target is not None}
    return [
        Margin(
            result.id,
            result.value,
            result.value if result.low is None else result.low,
            result.value if result.high is None else result.high,
            bars[result.id],
            result.direction == "at_least",
            result.unit,
            exact=result.low is None and result.high is None,
        )
        for result in verdict.criteria
        if result.id in bars and result.value is not None
    ]


class Proof(msgspec.Struct, frozen=True):
    """One thing of a lab that was measured: right work, with all its margins, or wrong work, with
    those of the targets that it must miss.
    """

    part: Part
    name: str
    device: Device
    outcome: str
    margins: list[Margin]
    machine: str
    right: bool


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of `lab dev check`."""

    lab: str
    what: str
    problems: list[str]
    proof: Proof | None = None


class Distance(NamedTuple):
    """How many times as good as a target some work is, and which work, on which machine."""

    ratio: float
    work: str


class TargetSafety(msgspec.Struct, frozen=True):
    """The figures of all machines for one target. `problems` is empty if it is safe; `safe_from` to
    `safe_to` are the targets that would be, if any are.
    """

    lab: str
    device: str
    criterion: str
    bar: float
    unit: str
    at_least: bool
    right: list[Distance]
    slow: list[Distance]
    problems: list[str]
    safe_from: float | None
    safe_to: float | None


def judge_targets(rows: Iterable[Row]) -> list[TargetSafety]:
    """Return every target in the rows, by lab, device and criterion, compared with all work that
    was to meet it and all that was to miss it.
    """
    # One target may be met on one machine and missed on another: all of them count together.
    groups: dict[tuple[str, str, str], list[tuple[Row, Proof, Margin]]] = {}
    for row in rows:
        for margin in row.proof.margins if row.proof else []:
            assert row.proof is not None
            groups.setdefault((row.lab, row.proof.device, margin.criterion), []).append(
                (row, row.proof, margin)
            )
    return [_safety(key, group) for key, group in sorted(groups.items())]


def _safety(key: tuple[str, str, str], group: list[tuple[Row, Proof, Margin]]) -> TargetSafety:
    lab, device, criterion = key
    right, slow = [], []
    for row, proof, margin in group:
        work = f"{row.what}, {proof.machine}"
        if proof.right:
            right.append(Distance(margin.least, work))
        else:
            slow.append(Distance(margin.most, work))
    nearest, fastest = min(right, default=None), max(slow, default=None)
    bar, at_least = group[0][2].bar, group[0][2].at_least
    clear, short = (1.0, 1.0) if all(margin.exact for _, _, margin in group) else (CLEAR, SHORT)
    return TargetSafety(
        lab,
        device,
        criterion,
        bar,
        group[0][2].unit,
        at_least,
        sorted(right),
        sorted(slow, reverse=True),
        _unsafe(nearest, fastest, clear, short),
        *_safe_targets(bar, at_least, nearest, fastest, clear, short),
    )


def _unsafe(
    nearest: Distance | None, fastest: Distance | None, clear: float, short: float
) -> list[str]:
    """Return why a target is not safe: both sides must have been tried, and be clear of it."""
    problems = []
    if nearest is None:
        problems.append("no correct solution was measured.")
    elif nearest.ratio < clear:
        problems.append(
            f"right work is {nearest.ratio:.2f} times as good as required; {clear:g} is safe"
            f" ({nearest.work})."
        )
    if fastest is None:
        problems.append("nothing was measured that should miss it.")
    elif fastest.ratio > short or fastest.ratio >= 1:
        safe = f"{short:g}" if short < 1 else "less than 1"
        problems.append(
            f"slow work is {fastest.ratio:.2f} times as good as required; {safe} is safe"
            f" ({fastest.work})."
        )
    return problems


def _safe_targets(
    bar: float,
    at_least: bool,
    nearest: Distance | None,
    fastest: Distance | None,
    clear: float,
    short: float,
) -> tuple[float | None, float | None]:
    """Return the lowest and the highest target that leave both sides clear; None for both where
    there is none.
    """
    if nearest is None or fastest is None or fastest.ratio / short > nearest.ratio / clear:
        return None, None
    # Distances are to the present bar, so its product with one is the bar that would be as near. A
    # figure that must be small is the other way round.
    factors = (fastest.ratio / short, nearest.ratio / clear)
    low, high = (bar * factor if at_least else bar / max(factor, 1e-9) for factor in factors)
    return min(low, high), max(low, high)
