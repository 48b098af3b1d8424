"""How one learner's points in one lab came about, step by step: one page for both of them."""

from __future__ import annotations

import math

import msgspec
from sqlalchemy import Connection

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.grading.credit import basis_of, parts
from bottleneck_lab.cohort.grading.grades import (
    DAY_S,
    Grade,
    GradingRules,
    Scored,
    late_share,
    load_grades,
    load_grading,
    score_work,
)
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
    before lateness; empty unless these are partial credit. Of those, the part `late_share` (0–1)
    is lost, for `late_days` that had begun.
    """

    grade: Grade
    grading: GradingRules
    works: list[Scored]
    lines: list[Line]
    late_share: float
    late_days: int
    altered: list[CheckedVerdict]


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
    lines: list[Line] = []
    # What partial credit is worked out from; nothing else is a sum.
    if 0 < grade.raw_score < grade.max_score:
        counts = next(one.work for one in works if one.work.submission == grade.submission)
        summands = parts(counts, basis, grading.weights)
        unit = grade.max_score / sum(part.weight for part in summands)
        scales = basis.scales.get(counts.device, {})
        lines = [
            Line(
                part.criterion,
                unit * part.weight * part.share,
                unit * part.weight,
                scales.get(part.criterion.id),
            )
            for part in summands
        ]
    lost = 0.0
    if grade.received is not None:
        lost = late_share(math.floor(grade.received), grade.due, grading.late)
    return Explanation(
        grade,
        grading,
        works,
        lines,
        lost,
        math.ceil(grade.late_s / DAY_S),
        [one for one in judged if one.problem],
    )
