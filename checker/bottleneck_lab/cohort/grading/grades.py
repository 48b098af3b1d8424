"""Grades, computed on reading: each learner's best submission in each lab, minus the late penalty."""

from __future__ import annotations

import math

import msgspec
from sqlalchemy import Connection, select

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.grading.rules import Rules, rules_for
from bottleneck_lab.cohort.settings import LatePolicy, Settings, load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader

DAY_S = 86400.0


class Student(msgspec.Struct, frozen=True):
    """A learner as a gradebook knows them; `student_id` falls back to the handle where there is no
    roster.
    """

    id: int
    handle: str
    name: str
    student_id: str
    first_name: str
    last_name: str
    email: str
    section: str
    sis_id: str
    sis_login: str


class Grade(msgspec.Struct, frozen=True):
    """One learner in one lab; without a submission the score is 0 and `submission` None. Times in
    seconds since the epoch.
    """

    student: Student
    lab: str
    due: float | None
    submission: str | None
    received: float | None
    outcome: str | None
    held: int
    total: int
    raw_score: float
    penalty: float
    max_score: float
    attempts: int

    @property
    def score(self) -> float:
        """The points that count: `raw_score` without the penalty for being late."""
        return self.raw_score - self.penalty


def load_students(connection: Connection) -> list[Student]:
    """All learners, by last name."""
    people = tables.people
    query = select(people).where(people.c.role == "learner", people.c.removed.is_(None))
    rows = connection.execute(
        query.order_by(people.c.last_name, people.c.first_name, people.c.name, people.c.id)
    )
    return [
        Student(
            row.id,
            row.handle,
            row.name,
            row.student_id or row.handle,
            row.first_name,
            row.last_name or row.name,
            row.email,
            row.section,
            row.sis_id,
            row.sis_login,
        )
        for row in rows
    ]


def load_grades(connection: Connection, judge: VerdictReader) -> list[Grade]:
    """Every learner in every lab, in the order of learners and of the course."""
    students, settings = load_students(connection), load_settings(connection)
    rules = rules_for(connection, [student.id for student in students])
    judged: dict[tuple[int, str], list[CheckedVerdict]] = {}
    for one in judge.latest(connection):
        judged.setdefault((one.person, one.lab), []).append(one)
    return [
        _grade(student, rules(lab, student.id), judged.get((student.id, lab), []), settings)
        for student in students
        for lab in load_labs()
    ]


def _grade(
    student: Student, rules: Rules, judged: list[CheckedVerdict], settings: Settings
) -> Grade:
    scored = [(one, *_scores(one, rules, settings)) for one in judged]
    if not scored:
        return Grade(
            student, rules.lab, rules.due, None, None, None, 0, 0, 0.0, 0.0, rules.points, 0
        )
    one, raw, penalty = max(scored, key=lambda each: (each[1] - each[2], -each[0].received))
    outcome = "ALTERED" if one.problem else str(one.outcome)
    return Grade(
        student,
        rules.lab,
        rules.due,
        one.submission,
        one.received,
        outcome,
        one.held,
        one.total,
        raw,
        penalty,
        rules.points,
        len(judged),
    )


def _scores(one: CheckedVerdict, rules: Rules, settings: Settings) -> tuple[float, float]:
    """Points before and off for being late."""
    share = one.share if settings.partial_credit or one.passed else 0.0
    raw = round(rules.points * share, 4)
    return raw, round(raw * late_share(one.received, rules.due, settings.late), 4)


def late_share(received: float, due: float | None, policy: LatePolicy) -> float:
    """The share (0–1) of the points that a submission loses: a part for each day begun after the
    due date.
    """
    if due is None or received <= due + policy.grace_s:
        return 0.0
    return min(policy.most, policy.per_day * math.ceil((received - due) / DAY_S))
