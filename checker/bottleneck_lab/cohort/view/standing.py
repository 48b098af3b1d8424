"""The cohort as one learner may see it: their own submissions, how many are left, announcements;
feedback only once released.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Row, select

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.grading.rules import Rules, load_rules, rules_for
from bottleneck_lab.cohort.members.people import Person
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import LabStanding, Me, Standing
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.running.queue_order import load_pace, load_queue
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.room import announcements
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader

SHOWN = 50
"""How many of the latest submissions are listed."""


def load_standing(
    connection: Connection, judge: VerdictReader, person: Person, handle: str, now: float
) -> Standing:
    """One submission of this learner. Raises RefusedError for one that is somebody else's, just as
    for one that is nobody's.
    """
    table = tables.submissions
    row = connection.execute(
        select(table).where(table.c.handle == handle, table.c.person == person.id)
    ).first()
    if row is None:
        raise RefusedError(
            "not-found", "You have no submission with that name.", "`lab status` lists them."
        )
    rounds = judge.all_of(connection, handle)
    shown = rounds[-1] if rounds and row.state in ("done", "failed") else None
    rules = load_rules(connection, row.lab, person.id)
    standing = _standing(connection, row, shown[0] if shown else None, rules, now)
    hidden = rules.hidden(now) or shown is None or shown[0].problem is not None
    return standing if hidden or shown is None else _with_document(standing, shown[2])


def _with_document(standing: Standing, document: str) -> Standing:

    return replace(standing, verdict=document)


def _standing(
    connection: Connection, row: Row[Any], judged: CheckedVerdict | None, rules: Rules, now: float
) -> Standing:
    ahead = (
        next((place for place, one in enumerate(load_queue(connection)) if one.id == row.id), 0)
        if row.state == "queued"
        else 0
    )
    wait_s = load_pace(connection, now).wait_s(ahead) if row.state == "queued" else None
    outcome, summary, note = (
        (str(judged.outcome or "ERROR"), judged.summary, row.note)
        if judged
        else (None, None, row.note)
    )
    if judged and judged.problem:
        summary, note = judged.problem, "Tell your instructor."
    if judged and rules.hidden(now):
        outcome, summary, note = (
            None,
            None,
            f"Measured. Feedback is released at {iso(rules.feedback_at or now)}.",
        )
    return Standing(
        row.handle,
        row.lab,
        row.state,
        row.version,
        ahead,
        wait_s,
        iso(row.received),
        outcome,
        summary,
        None,
        note,
    )


def load_me(connection: Connection, judge: VerdictReader, person: Person, now: float) -> Me:
    """Everything on a learner's own page."""
    table, cohort = tables.submissions, connection.execute(select(tables.cohort)).one()
    rows = connection.execute(
        select(table).where(table.c.person == person.id).order_by(table.c.id.desc())
    ).all()
    judged = {one.submission: one for one in judge.latest(connection, table.c.person == person.id)}
    of = rules_for(connection, [person.id])
    rules = {slug: of(slug, person.id) for slug in {*load_labs(), *(row.lab for row in rows)}}
    settled = {
        row.handle: judged.get(row.handle) if row.state in ("done", "failed") else None
        for row in rows
    }
    return Me(
        cohort.id,
        cohort.name,
        person.handle,
        person.name,
        load_settings(connection).paused,
        [text for _, text in announcements(connection)],
        [_lab(connection, slug, rules[slug], person, rows, judged, now) for slug in load_labs()],
        [
            _standing(connection, row, settled[row.handle], rules[row.lab], now)
            for row in rows[:SHOWN]
        ],
    )


def _lab(
    connection: Connection,
    slug: str,
    rules: Rules,
    person: Person,
    rows: Any,
    judged: dict[str, CheckedVerdict],
    now: float,
) -> LabStanding:
    lab = load_labs()[slug]
    mine = [judged.get(row.handle) for row in rows if row.lab == slug]
    passed = any(one.passed for one in mine if one) and not rules.hidden(now)
    hints = len(lab.spec.hints)
    open_hints = hints if rules.hints_open is None else min(hints, rules.hints_open)
    left = rules.left(connection, person.id)
    return LabStanding(
        slug,
        lab.spec.title,
        iso(rules.due) if rules.due else None,
        left,
        open_hints,
        passed,
        len(mine),
    )
