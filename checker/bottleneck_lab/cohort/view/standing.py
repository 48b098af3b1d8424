"""The cohort as one learner may see it: own submissions, points, how many are left; feedback only
once released.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Row, select

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.grading.grades import Grade, load_grades
from bottleneck_lab.cohort.grading.rules import Rules, load_rules, rules_for
from bottleneck_lab.cohort.members.calls import call_of
from bottleneck_lab.cohort.members.people import Person, learner_of, same_learner
from bottleneck_lab.cohort.moments import iso, spoken
from bottleneck_lab.cohort.protocol import LabStanding, Me, Standing
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.running.forecast import load_forecast
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.room import announcements
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader
from bottleneck_lab.cohort.workshop import workshop_labs

SHOWN = 50
"""How many of the latest submissions are listed."""


def load_standing(
    connection: Connection, judge: VerdictReader, person: Person, handle: str, now: float
) -> Standing:
    """Return one submission of this learner.

    Raises RefusedError for one that is somebody else's, just as for one that is nobody's.
    """
    table = tables.submissions
    row = connection.execute(
        select(table).where(
            table.c.handle == handle, table.c.person.in_(same_learner(connection, person))
        )
    ).first()
    if row is None:
        raise RefusedError(
            "not-found", "You have no submission with that name.", "`lab status` lists them."
        )
    # One that is measured again has a verdict of an earlier round, which no longer counts.
    measured = row.state in ("done", "failed")
    judged = judge.latest(connection, table.c.handle == handle) if measured else []
    rules = load_rules(connection, row.lab, person.id)
    standing = _standing(connection, row, judged[0] if judged else None, rules, now)
    standing = replace(standing, timezone=load_settings(connection).timezone)
    # A verdict that somebody has altered is not handed on.
    if rules.hidden(now) or not judged or judged[0].problem:
        return standing
    return replace(standing, verdict=judge.all_of(connection, handle)[-1].document)


def _standing(
    connection: Connection, row: Row[Any], judged: CheckedVerdict | None, rules: Rules, now: float
) -> Standing:
    standing = Standing(
        row.handle, row.lab, row.state, row.version, 0, None, iso(row.received), note=row.note
    )
    if row.state == "queued":
        forecast = load_forecast(connection, now)
        ahead, wait_s = forecast.ahead_of(row.handle), forecast.waits_s.get(row.handle)
        return replace(standing, ahead=ahead, wait_s=wait_s, paused=forecast.paused)
    if row.state == "captured":
        return replace(standing, note=f"The {row.tool} capture was made.")
    if judged is None:
        return standing
    if rules.hidden(now):
        zone = load_settings(connection).timezone
        released = spoken(rules.feedback_at or now, zone)
        return replace(standing, note=f"Measured. Feedback is released at {released}.")
    if judged.problem:
        return replace(
            standing, outcome="ERROR", summary=judged.problem, note="Tell your instructor."
        )
    return replace(standing, outcome=str(judged.outcome or "ERROR"), summary=judged.summary)


def load_me(connection: Connection, judge: VerdictReader, person: Person, now: float) -> Me:
    """Return everything on a learner's own page."""
    table, people = tables.submissions, tables.people
    cohort = connection.execute(select(tables.cohort)).one()
    merged = same_learner(connection, person)
    rows = connection.execute(
        select(table).where(table.c.person.in_(merged)).order_by(table.c.id.desc())
    ).all()
    judged = {
        one.submission: one
        for one in judge.latest(connection, table.c.handle.in_([row.handle for row in rows]))
    }
    # Rules and grades are those of the one that this name was merged into.
    learner = learner_of(connection, person)
    of = rules_for(connection, [learner])
    chosen = workshop_labs(connection)
    rules = {slug: of(slug, learner) for slug in {*chosen, *(row.lab for row in rows)}}
    grades = {grade.lab: grade for grade in load_grades(connection, judge, person=learner)}
    labs = []
    for slug in chosen:
        mine = [judged.get(row.handle) for row in rows if row.lab == slug and row.tool is None]
        passed = any(one.passed for one in mine if one)
        left = rules[slug].left(connection, merged)
        labs.append(_lab(slug, rules[slug], len(mine), passed, left, grades.get(slug), now))
    submissions = []
    for row in rows[:SHOWN]:
        measured = row.state in ("done", "failed")
        verdict = judged.get(row.handle) if measured else None
        submissions.append(_standing(connection, row, verdict, rules[row.lab], now))
    settings = load_settings(connection)
    call = call_of(connection.execute(select(people).where(people.c.id.in_(merged))))
    return Me(
        cohort.id,
        cohort.name,
        person.handle,
        person.name,
        settings.paused,
        [text for _, text in announcements(connection)],
        labs,
        submissions,
        iso(call.at) if call else None,
        settings.timezone,
    )


def _lab(
    slug: str,
    rules: Rules,
    submissions: int,
    passed: bool,
    left: int | None,
    grade: Grade | None,
    now: float,
) -> LabStanding:
    spec = load_labs()[slug].spec
    hints, opened = len(spec.hints), rules.hints_open_at(now)
    standing = LabStanding(
        slug,
        spec.title,
        iso(rules.due) if rules.due else None,
        left,
        hints if opened is None else min(hints, opened),
        passed and not rules.hidden(now),
        submissions,
        opens=iso(rules.opens) if rules.opens and now < rules.opens else None,
    )
    if grade is None:
        return standing
    standing = replace(standing, max_points=grade.max_score, late_s=grade.late_s)
    if rules.hidden(now) or not grade.graded:
        return standing
    return replace(
        standing,
        points=grade.score,
        penalty=grade.penalty if grade.override is None else 0.0,
        comment=grade.override.comment if grade.override else "",
        reason="" if grade.override else grade.reason,
    )
