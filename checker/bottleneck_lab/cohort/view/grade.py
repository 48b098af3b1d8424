"""How one learner's points in one lab came about, step by step: one page for both of them."""

from __future__ import annotations

import math

import msgspec
from sqlalchemy import Connection

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.grading.credit import Basis, basis_of, parts
from bottleneck_lab.cohort.grading.grades import (
    DAY_S,
    Grade,
    GradingRules,
    Scored,
    late_share,
    load_grades,
    load_grading,
    score_work,
    to_points,
)
from bottleneck_lab.cohort.grading.rules import load_rules
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader
from bottleneck_lab.grading.verdict import CriterionResult


class Line(msgspec.Struct, frozen=True):
    """A criterion with the points that it earned, and the most that it can; 0 if it cannot any.

    `scale` are the shipped code's figure and the target, if the lab knows both.
    """

    criterion: CriterionResult
    earned: float
    most: float
    scale: tuple[float, float] | None


class Explanation(msgspec.Struct, frozen=True):
    """A grade with all that it follows from.

    `works` are the submissions with what each is worth, oldest first. `lines` add up to the points
    before lateness, but for `rounding`; empty where these are not partial credit, or no sum. Of
    those points, the part `late_share` (0–1) is lost, for `late_days` that had begun. `due_for_all`
    is the due date without an extension.
    """

    grade: Grade
    grading: GradingRules
    works: list[Scored]
    lines: list[Line]
    late_share: float
    late_days: int
    due_for_all: float | None
    altered: list[CheckedVerdict]

    @property
    def rounding(self) -> float:
        """Return what the lines lack to the points that they earn, or have too much: each figure is
        rounded by itself, so that one criterion has one figure everywhere.
        """
        return to_points(self.grade.raw_score - sum(line.earned for line in self.lines))


def explain_grade(
    connection: Connection, judge: VerdictReader, person: int, lab: str
) -> Explanation:
    """Return how points came about. Raises RefusedError for a lab outside of the workshop."""
    grading = load_grading(connection)
    own = load_grades(connection, judge, person=person)
    grade = next((each for each in own if each.lab == lab), None)
    if grade is None:
        raise RefusedError(
            "not-found", f"'{lab}' is not part of this workshop.", "Choose it again under Workshop."
        )
    basis = basis_of(find_lab(lab))
    judged = judge.latest(connection, tables.submissions.c.handle.in_(grade.submissions))
    works = score_work(judged, grade.max_score, grade.due, grading, basis)
    counts = next((one.work for one in works if one.work.submission == grade.submission), None)
    lost = 0.0
    if grade.received is not None:
        lost = late_share(math.floor(grade.received), grade.due, grading.late)
    return Explanation(
        grade,
        grading,
        works,
        _lines(grade, counts, basis, grading),
        lost,
        math.ceil(grade.late_s / DAY_S),
        load_rules(connection, lab).due,
        [one for one in judged if one.problem],
    )


def _lines(
    grade: Grade, counts: CheckedVerdict | None, basis: Basis, grading: GradingRules
) -> list[Line]:
    """Return what each criterion earned; nothing where points are no sum of criteria."""
    if counts is None or counts.copied or grade.raw_score >= grade.max_score:
        return []
    summands = parts(counts, basis, grading.weights) if grading.partial_credit else []
    whole = sum(part.weight for part in summands)
    if not whole:
        return []
    most = grade.max_score / whole
    # Where nothing was earned, what holds did not count: answers alone are no work yet.
    worth = most if grade.raw_score else 0.0
    scales = basis.scales.get(counts.device, {})
    return [
        Line(
            part.criterion,
            to_points(worth * part.weight * part.share),
            to_points(most * part.weight),
            scales.get(part.criterion.id),
        )
        for part in summands
    ]
