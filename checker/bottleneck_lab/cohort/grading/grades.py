"""Grades, computed on reading: verdicts under the grading rules, minus late penalties, unless an
instructor has overridden them.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, select

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.grading.credit import GRADED, Basis, basis_of, credit, only_answers
from bottleneck_lab.cohort.grading.rules import Rules, all_rules, rules_for, set_rules
from bottleneck_lab.cohort.members.people import Person, in_order, known_as, same_learner
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.settings import (
    LatePolicy,
    Scoring,
    Weights,
    change_settings,
    load_settings,
)
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.grading.verdict import Outcome

DAY_S = 86400.0
MAX_COMMENT = 500
"""Characters of the comment on an override."""


def to_points(amount: float) -> float:
    """Return points as pages, terminals, exports and evidence all give them: to the hundredth."""
    return round(amount, 2)


def final_points(
    raw_score: float, penalty: float, override: Override | None, max_score: float
) -> float:
    """Return the points that count: the override if there is one, else those by the rules.

    An override stays on record when a lab is made worth less, but gives no more than that.
    """
    if override is None:
        return to_points(raw_score - penalty)
    return min(override.points, max_score)


class Student(msgspec.Struct, frozen=True):
    """A learner as a gradebook knows them.

    `student_id` is the one of one's own table, the others are those that platforms gave; whoever is
    not on the roster has none.
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
    canvas_id: str = ""

    @property
    def known_as(self) -> str:
        """Return the id by which people know the learner."""
        return known_as(self)

    @property
    def institution_id(self) -> str:
        """Return the id at the institution: Canvas's SIS id is one, its own number and a login are
        none, and might be somebody else's id.
        """
        return self.student_id or self.sis_id

    @property
    def on_roster(self) -> bool:
        """Return True for whoever has an id by which some platform knows them."""
        return bool(self.student_id or self.sis_id or self.canvas_id)


class Override(msgspec.Struct, frozen=True):
    """Points that an instructor gave in place of those computed, at a time since the epoch."""

    points: float
    comment: str
    author: str
    at: float


class GradingRules(msgspec.Struct, frozen=True):
    """All that decides how verdicts become points. `points` by lab."""

    scoring: Scoring
    partial_credit: bool
    weights: Weights
    late: LatePolicy
    points: dict[str, float]


class Grade(msgspec.Struct, frozen=True):
    """One learner in one lab. Times in seconds since the epoch.

    `submissions` are all that were measured, oldest first, and `submission` the one of them that
    counts; without one, the score is 0. `verdict_sha256` names its signed document, of which all
    but lateness follows; `late_s` is how long after the due date its receipt says that it came.
    `altered` are submissions whose record is not what was signed. `copied`: the code of the one
    that counts is the reference solution's. `reason` says why it earns fewer points than the lab is
    worth, lateness aside; empty if it earns all.
    """

    student: Student
    lab: str
    due: float | None
    submission: str | None = None
    received: float | None = None
    outcome: str | None = None
    held: int = 0
    total: int = 0
    raw_score: float = 0.0
    penalty: float = 0.0
    max_score: float = 0.0
    submissions: list[str] = []
    late_s: float = 0.0
    verdict_sha256: str = ""
    checker: str = ""
    override: Override | None = None
    altered: list[str] = []
    copied: bool = False
    reason: str = ""

    @property
    def attempts(self) -> int:
        """Return how many submissions were measured."""
        return len(self.submissions)

    @property
    def computed(self) -> float:
        """Return the points by the rules: `raw_score` without the late penalty."""
        return to_points(self.raw_score - self.penalty)

    @property
    def score(self) -> float:
        """Return the points that count."""
        return final_points(self.raw_score, self.penalty, self.override, self.max_score)

    @property
    def explanation(self) -> str:
        """Return why the points that count are these; empty if the rules give all."""
        return "overridden" if self.override else self.reason

    @property
    def graded(self) -> bool:
        """Return True if there is anything to grade by, a submission or an override."""
        return self.submission is not None or self.override is not None


def load_students(connection: Connection, person: int | None = None) -> list[Student]:
    """Return all learners in their order, or the one whose number is `person`.

    Who was merged into somebody else is left out: their submissions count for the other, who keeps
    whatever id either of them has.
    """
    people = tables.people
    query = select(people).where(
        people.c.role == "learner", people.c.removed.is_(None), people.c.merged_into.is_(None)
    )
    if person is not None:
        query = select(people).where(people.c.id == person)
    merged = _merged(connection)
    return [
        Student(
            id=row.id,
            handle=row.handle,
            name=row.name,
            first_name=row.first_name,
            # A name that nobody took apart is not given twice, as in "Eve, Eve".
            last_name=row.last_name or ("" if row.first_name else row.name),
            **{
                field: next(iter(values), "")
                for field, values in _identity([row, *merged.get(row.id, [])]).items()
            },
        )
        for row in in_order(connection.execute(query))
    ]


_IDS = {
    "student_id": "student id",
    "sis_id": "SIS id",
    "sis_login": "SIS login",
    "canvas_id": "Canvas id",
}
"""Ids by which platforms know a learner, as pages call them."""


def _merged(connection: Connection) -> dict[int, list[Row[Any]]]:
    """Return the rows of people who were merged into somebody else, by the number of the other."""
    people = tables.people
    query = select(people).where(people.c.merged_into.is_not(None), people.c.removed.is_(None))
    groups: dict[int, list[Row[Any]]] = {}
    for row in connection.execute(query.order_by(people.c.id)):
        groups.setdefault(row.merged_into, []).append(row)
    return groups


def _identity(rows: list[Row[Any]]) -> dict[str, list[str]]:
    """Return the different ids, addresses and sections of one learner's rows, theirs first."""
    return {
        field: list(dict.fromkeys(each for row in rows if (each := getattr(row, field))))
        for field in (*_IDS, "email", "section")
    }


def differing_ids(connection: Connection) -> list[str]:
    """Say of every learner with somebody merged into them which ids differ, and which one counts.

    Exports can give only one. A table's student id and Canvas's SIS id, each of another row, may
    be two people's.
    """
    people = tables.people
    sentences = []
    for number, merged in _merged(connection).items():
        row = connection.execute(select(people).where(people.c.id == number)).one()
        identity = _identity([row, *merged])
        student, sis = (next(iter(identity[field]), "") for field in ("student_id", "sis_id"))
        of_one = any((each.student_id, each.sis_id) == (student, sis) for each in [row, *merged])
        if student and sis and student != sis and not of_one:
            sentences.append(
                f"Exports give {row.name} the student id {student} and the SIS id {sis}, which two"
                " different people may have."
            )
        for field, values in identity.items():
            if field in _IDS and len(values) > 1:
                kept, *others = values
                sentences.append(
                    f"Exports give {kept} as the {_IDS[field]} of {row.name}, no longer"
                    f" {' or '.join(others)}. To keep another, merge the other way round."
                )
    return sentences


def load_grading(connection: Connection) -> GradingRules:
    """Return the grading rules as they are now."""
    settings, rules = load_settings(connection), all_rules(connection)
    points = {lab: rules.get(lab, Rules(lab)).points for lab in workshop_labs(connection)}
    return GradingRules(
        settings.scoring, settings.partial_credit, settings.weights, settings.late, points
    )


def change_grading(connection: Connection, grading: GradingRules, at: float) -> None:
    """Put other grading rules in force."""
    change_settings(
        connection,
        scoring=grading.scoring,
        partial_credit=grading.partial_credit,
        weights=msgspec.to_builtins(grading.weights),
        late=msgspec.to_builtins(grading.late),
    )
    current = load_grading(connection).points
    for lab, points in grading.points.items():
        if points != current[lab]:
            set_rules(connection, lab, at, points=points)
    note(connection, at, "settings", "The grading rules were changed.")


def load_grades(
    connection: Connection,
    judge: VerdictReader,
    person: int | None = None,
) -> list[Grade]:
    """Return every learner's grade in every lab, in the order of learners and of the workshop.

    `person` limits it to one learner.
    """
    grading = load_grading(connection)
    students = load_students(connection, person)
    rules = rules_for(connection, [student.id for student in students])
    overrides, labs = _overrides(connection), workshop_labs(connection)
    judged: dict[tuple[int, str], list[CheckedVerdict]] = {}
    # What somebody submitted under a second name counts for the one that it was merged into.
    learner = func.coalesce(tables.people.c.merged_into, tables.people.c.id)
    for one in judge.latest(connection, *([] if person is None else [learner == person])):
        judged.setdefault((one.person, one.lab), []).append(one)
    grades = []
    # Every pair, also without a submission: an export has a line for whoever did nothing.
    for student in students:
        for lab in labs:
            key = (student.id, lab)
            grade = _grade(student, rules(lab, student.id), judged.get(key, []), grading)
            grades.append(msgspec.structs.replace(grade, override=overrides.get(key)))
    return grades


class Scored(msgspec.Struct, frozen=True):
    """A submission with its points before lateness, which are a `share` (0–1) of the lab's, and the
    penalty for lateness. `late_s` is how long after the due date it came.
    """

    work: CheckedVerdict
    share: float
    raw: float
    penalty: float
    late_s: float


def score_work(
    judged: list[CheckedVerdict],
    points: float,
    due: float | None,
    grading: GradingRules,
    basis: Basis,
) -> list[Scored]:
    """Return what submissions to one lab are worth, in their order, oldest first.

    Nothing but what is given here decides: an export of evidence holds all of it.
    """
    scored = []
    for one in judged:
        share = 0.0
        if grading.partial_credit or one.passed:
            share = credit(one, basis, grading.weights)
        # To the second, as on its receipt, so that lateness follows from what was signed.
        received = math.floor(one.received)
        # Rounded before they are compared: a sum of points that differs in its last bit decides
        # nothing.
        raw = to_points(points * share)
        penalty = to_points(raw * late_share(received, due, grading.late))
        late_s = 0.0 if due is None else max(0.0, received - due)
        scored.append(Scored(one, share, raw, penalty, late_s))
    return scored


def counting(scored: list[Scored], scoring: Scoring) -> Scored | None:
    """Return the submission that counts; None without any."""
    if not scored:
        return None
    if scoring == "latest":
        # A machine that could not decide takes nothing from anybody.
        undecided = (Outcome.INCONCLUSIVE, Outcome.ERROR)
        decided = [each for each in scored if each.work.outcome not in undecided]
        return (decided or scored)[-1]
    # Of equals a PASS, which says itself why it earns no more; else the first.
    return max(scored, key=lambda each: (to_points(each.raw - each.penalty), each.work.passed))


def _grade(
    student: Student, rules: Rules, judged: list[CheckedVerdict], grading: GradingRules
) -> Grade:
    points = grading.points[rules.lab]
    submissions = [one.submission for one in judged]
    grade = Grade(student, rules.lab, rules.due, max_score=points, submissions=submissions)
    basis = basis_of(find_lab(rules.lab))
    works = score_work(judged, points, rules.due, grading, basis)
    scored = counting(works, grading.scoring)
    if scored is None:
        return grade
    one = scored.work
    return msgspec.structs.replace(
        grade,
        submission=one.submission,
        received=one.received,
        outcome="ALTERED" if one.problem else str(one.outcome),
        held=one.held,
        total=len(one.criteria),
        raw_score=scored.raw,
        penalty=scored.penalty,
        late_s=scored.late_s,
        verdict_sha256=one.document_sha256,
        checker=one.checker,
        altered=[each.submission for each in judged if each.problem],
        copied=one.copied,
        reason=_reason(one, scored.share, grading, basis),
    )


_UNDECIDED = "in part, for what was sure: the measurement could not decide the rest"
_ANSWERS_ALONE = (
    "none: answers alone earn nothing; credit begins where the work beats the shipped code"
)


def _reason(judged: CheckedVerdict, share: float, grading: GradingRules, basis: Basis) -> str:
    """Say why work earns this share (0–1) of the points; empty if it earns all."""
    alone = grading.partial_credit and only_answers(judged, basis, grading.weights)
    reasons = [
        (bool(judged.problem), "the record was altered, so it scores nothing"),
        (judged.copied, "none: the code is the reference solution's"),
        (share == 1, ""),
        (share > 0 and judged.outcome is Outcome.INCONCLUSIVE, _UNDECIDED),
        (judged.passed, "all but answers that were corrected after a report had shown the figure"),
        (share > 0 and alone, "in part, for right answers, which count alone here"),
        (alone, _ANSWERS_ALONE),
        (judged.outcome is not Outcome.FAIL, f"none: the check's outcome was {judged.outcome}"),
        (not grading.partial_credit, "none: only a PASS earns points here"),
        (share > 0, "in part, for what is better than the shipped code"),
        (judged.reason not in GRADED, f"none: {judged.reason}"),
    ]
    nothing = "none: it is better than the shipped code in nothing that has a weight"
    return next((text for applies, text in reasons if applies), nothing)


def late_share(received: float, due: float | None, policy: LatePolicy) -> float:
    """Return the share (0–1) of the points that a submission loses.

    A part for each day begun after the due date.
    """
    # Within the grace nothing is lost; after it, days count from the due date itself.
    if due is None or received <= due + policy.grace_s:
        return 0.0
    return min(policy.most, policy.per_day * math.ceil((received - due) / DAY_S))


def _overrides(connection: Connection) -> dict[tuple[int, str], Override]:
    """Return overrides by learner and lab: of several who are one learner, the latest."""
    table, people = tables.overrides, tables.people
    author = people.alias()
    query = (
        select(table, author.c.name, func.coalesce(people.c.merged_into, people.c.id).label("who"))
        .join(people, people.c.id == table.c.person)
        .join(author, author.c.id == table.c.author)
        .order_by(table.c.at)
    )
    return {
        (row.who, row.lab): Override(row.points, row.comment, row.name, row.at)
        for row in connection.execute(query)
    }


def _without_override(connection: Connection, person: Person, lab: str) -> None:
    """Delete the overrides of a lab of all who are this learner."""
    table = tables.overrides
    group = same_learner(connection, person)
    connection.execute(table.delete().where(table.c.person.in_(group), table.c.lab == lab))


def override_log(connection: Connection, person: Person) -> list[tuple[float, str]]:
    """Return when points of this learner were set or put back, and what was done, newest first."""
    table = tables.events
    query = select(table.c.at, table.c.text).where(
        table.c.kind == "graded", table.c.person == person.id
    )
    return [(row.at, row.text) for row in connection.execute(query.order_by(table.c.id.desc()))]


def override_grade(
    connection: Connection,
    person: Person,
    lab: str,
    points: float,
    comment: str,
    author: Person,
    at: float,
) -> None:
    """Give points in place of those computed, in place of an earlier override.

    The log of events keeps every override. Raises RefusedError without a comment, which learners
    read, and for points outside of what the lab can earn.
    """
    most = load_grading(connection).points.get(lab, 0.0)
    if not comment.strip():
        raise RefusedError(
            "bad-request", "An override needs a comment.", "Write why; the learner sees it."
        )
    if not 0 <= points <= most:
        raise RefusedError(
            "bad-request",
            f"{lab} is worth {most:g} points, so nobody can be given {points:g}.",
            f"Write a number from 0 to {most:g}; the grading rules say what a lab is worth.",
        )
    # Deleted and written anew: SQLAlchemy has no upsert for both databases.
    points = to_points(points)
    _without_override(connection, person, lab)
    connection.execute(
        tables.overrides.insert().values(
            person=person.id,
            lab=lab,
            points=points,
            comment=comment[:MAX_COMMENT],
            author=author.id,
            at=at,
        )
    )
    text = f"{author.name} set {lab} to {points:g} points: {comment[:MAX_COMMENT]}"
    note(connection, at, "graded", text, person=person.id)


def withdraw_override(
    connection: Connection, person: Person, lab: str, author: Person, at: float
) -> None:
    """Let the computed points count again."""
    _without_override(connection, person, lab)
    note(
        connection,
        at,
        "graded",
        f"{author.name} withdrew the override of {lab}.",
        person=person.id,
    )
