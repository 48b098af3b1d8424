"""The room at a glance: everybody's progress, who is stuck or asks for help, and the queue."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select

from bottleneck_lab.cohort.members.calls import call_of
from bottleneck_lab.cohort.members.people import in_order, told_apart
from bottleneck_lab.cohort.running.leases import queue_length
from bottleneck_lab.cohort.running.queue_order import load_queue
from bottleneck_lab.cohort.running.workers import RunnerStatus, load_runners
from bottleneck_lab.cohort.settings import Settings, load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.grading.verdict import Outcome

STUCK_FAILED = 3
"""Failed attempts since the last progress after which a learner is shown as stuck."""
STUCK_MIN = 20.0
"""Or minutes since then, where the latest attempt failed."""

MARKS = {
    "pass": "✓",
    "copied": "=",
    "fail": "✗",
    "undecided": "?",
    "error": "!",
    "queued": "…",
    "running": "▶",
    "altered": "⚠",
    "none": "",
}


class Cell(msgspec.Struct, frozen=True):
    """One learner in one lab: the best that was reached, or what is under way."""

    lab: str
    state: str = "none"
    attempts: int = 0
    submission: str | None = None

    @property
    def mark(self) -> str:
        """Return a sign for the state, so that it does not rest on colour alone."""
        return MARKS[self.state]


class Row(msgspec.Struct, frozen=True):
    """One learner."""

    handle: str
    name: str
    cells: list[Cell]
    passed: int
    lab: str | None
    failed: int
    idle_min: float
    hints: int
    stuck: bool
    gone: bool
    needs_help: float | None = None
    help_text: str = ""


class Queued(msgspec.Struct, frozen=True):
    """A submission that waits or is measured."""

    submission: str
    name: str
    lab: str
    device: str
    state: str
    since: float


class AlteredRecord(msgspec.Struct, frozen=True):
    """A submission whose record in the database is not what the cohort's key signed."""

    submission: str
    name: str
    lab: str
    problem: str
    remedy: str


class Claim(msgspec.Struct, frozen=True):
    """Somebody who says to be a learner who has joined before."""

    handle: str
    name: str
    joined: float
    earlier: str
    earlier_joined: float | None


class Room(msgspec.Struct, frozen=True):
    """Everything on the instructor's first page.

    `stranded` says in sentences which waiting submissions no runner can measure.
    """

    settings: Settings
    labs: list[str]
    rows: list[Row]
    queue: list[Queued]
    states: dict[str, int]
    runners: list[RunnerStatus]
    announcements: list[tuple[int, str]]
    stranded: list[str]
    version: int
    now: float
    altered: list[AlteredRecord] = []
    claims: list[Claim] = []
    withdrawn: list[tuple[int, str]] = []

    @property
    def stuck(self) -> list[Row]:
        """Return who is stuck, those who tried most first."""
        return sorted(
            (row for row in self.rows if row.stuck), key=lambda row: (-row.failed, -row.idle_min)
        )

    @property
    def asking_for_help(self) -> list[Row]:
        """Return who asks for help, those who have waited longest first."""
        return sorted(
            (row for row in self.rows if row.needs_help is not None),
            key=lambda row: row.needs_help or 0.0,
        )

    @property
    def joined(self) -> int:
        """Return how many learners have joined; the others are only on the roster so far."""
        return sum(not row.gone for row in self.rows)

    @property
    def passed(self) -> int:
        """Return how many labs were passed by anybody, all counted."""
        return sum(row.passed for row in self.rows)


def load_room(connection: Connection, judge: VerdictReader, now: float) -> Room:
    """Return the room as it is at this moment."""
    labs = workshop_labs(connection)
    runners = load_runners(connection)
    queue = _queue(connection)
    alive = [runner for runner in runners if runner.alive(now)]
    judged = judge.latest(connection)
    return Room(
        settings=load_settings(connection),
        labs=labs,
        rows=_rows(connection, judged, labs, now),
        queue=queue,
        states=queue_length(connection),
        runners=[_for_workshop(runner, labs) for runner in runners],
        announcements=announcements(connection),
        stranded=_stranded([one for one in queue if one.state == "queued"], alive),
        version=latest_event(connection),
        now=now,
        altered=altered_records(connection, judged),
        claims=_claims(connection),
        withdrawn=announcements(connection, withdrawn=True)[:5],
    )


def _for_workshop(runner: RunnerStatus, labs: list[str]) -> RunnerStatus:
    """Return a runner without the missing data sets that no lab of the workshop needs."""
    needed = {name for lab in labs for name in runner.lacks_for(lab)}
    return msgspec.structs.replace(runner, missing=sorted(needed))


def _stranded(waiting: list[Queued], alive: list[RunnerStatus]) -> list[str]:
    """Say which of the waiting no runner can measure, and what would help."""
    slots = [slot.name for runner in alive for slot in runner.slots]
    has_gpu = any(name.startswith(("gpu", "cluster")) for name in slots)
    sentences = [
        f"No runner measures on {device}, so those submissions wait."
        for device in sorted({one.device for one in waiting})
        if not alive or (device == "cuda" and not has_gpu)
    ]
    for lab in sorted({one.lab for one in waiting}):
        lacking = [runner.lacks_for(lab) for runner in alive]
        if lacking and all(lacking):
            names = " and ".join(lacking[0])
            sentences.append(
                f"No runner has the data set {names}, so submissions to {lab} wait: run `lab data"
                f" {names}` on a runner's machine, as the user that it runs as."
            )
    return sentences


def latest_event(connection: Connection) -> int:
    """Return the number of the last event."""
    return connection.execute(select(func.max(tables.events.c.id))).scalar() or 0


def announcements(connection: Connection, *, withdrawn: bool = False) -> list[tuple[int, str]]:
    """Return the announcements in force, newest first, with their numbers; or those withdrawn."""
    table = tables.announcements
    chosen = table.c.withdrawn.is_not(None) if withdrawn else table.c.withdrawn.is_(None)
    query = select(table.c.id, table.c.text).where(chosen).order_by(table.c.id.desc())
    return [(row.id, row.text) for row in connection.execute(query)]


def altered_records(connection: Connection, judged: list[CheckedVerdict]) -> list[AlteredRecord]:
    """Return the records among `judged` that are not to be believed, with their learners."""
    people = tables.people
    names = {row.id: row.name for row in connection.execute(select(people.c.id, people.c.name))}
    return [
        AlteredRecord(one.submission, names[one.person], one.lab, one.problem, one.remedy)
        for one in judged
        if one.problem
    ]


def _claims(connection: Connection) -> list[Claim]:
    people, earlier = tables.people, tables.people.alias()
    query = (
        select(
            people.c.handle,
            people.c.name,
            people.c.joined,
            earlier.c.name.label("earlier"),
            earlier.c.joined.label("earlier_joined"),
        )
        .join(earlier, earlier.c.id == people.c.claims)
        .where(people.c.removed.is_(None), people.c.merged_into.is_(None))
        .order_by(people.c.id)
    )
    return [Claim(*row) for row in connection.execute(query)]


def _queue(connection: Connection) -> list[Queued]:
    table, people, leases = tables.submissions, tables.people, tables.leases
    names = {row.id: row.name for row in connection.execute(select(people.c.id, people.c.name))}
    query = (
        select(table.c.handle, table.c.person, table.c.lab, table.c.device, leases.c.taken)
        .join(leases, leases.c.submission == table.c.id)
        .where(leases.c.state == "active")
        .order_by(leases.c.id)
    )
    running = [
        Queued(row.handle, names[row.person], row.lab, row.device, "running", row.taken)
        for row in connection.execute(query)
    ]
    waiting = [
        Queued(one.handle, names[one.person], one.lab, one.device, "queued", one.queued)
        for one in load_queue(connection)
    ]
    return running + waiting


def _rows(
    connection: Connection, judged: list[CheckedVerdict], labs: list[str], now: float
) -> list[Row]:
    verdicts = {one.submission: one for one in judged}
    submitted: dict[int, list[Any]] = defaultdict(list)
    table, people = tables.submissions, tables.people
    query = (
        select(
            func.coalesce(people.c.merged_into, people.c.id).label("person"),
            table.c.handle,
            table.c.lab,
            table.c.state,
            table.c.received,
            table.c.circumstances,
        )
        .join(people, people.c.id == table.c.person)
        .where(table.c.tool.is_(None))  # captures are no attempts
        .order_by(table.c.id)
    )
    # One query for all learners: a query each would take seconds for a full room.
    for submission in connection.execute(query):
        submitted[submission.person].append(submission)
    learners = in_order(
        connection.execute(
            select(people).where(people.c.role == "learner", people.c.removed.is_(None))
        )
    )
    groups: dict[int, list[Any]] = defaultdict(list)
    for person in learners:
        groups[person.merged_into or person.id].append(person)
    own = [person for person in learners if person.merged_into is None]
    names = told_apart(own)
    return [
        msgspec.structs.replace(
            _row(person, groups[person.id], submitted[person.id], verdicts, labs, now),
            name=names[person.id],
        )
        for person in own
    ]


def _row(
    person: Any,
    group: list[Any],
    submitted: list[Any],
    verdicts: dict[str, CheckedVerdict],
    labs: list[str],
    now: float,
) -> Row:
    """Return the row of a learner who is `person`, and whoever of the `group` was merged."""
    joined = min((one.joined for one in group if one.joined is not None), default=None)
    call = call_of(group)
    judged = [verdicts[one.handle] for one in submitted if one.handle in verdicts]
    failed, since, failing = _since_progress(judged, joined or person.created)
    idle_min = (now - since) / 60
    cells = [_cell(lab, [one for one in submitted if one.lab == lab], verdicts) for lab in labs]
    passed = sum(cell.state == "pass" for cell in cells)
    # Each submission counts all hints so far in its lab, so the latest one counts.
    hints = {one.lab: msgspec.json.decode(one.circumstances).get("hints", 0) for one in submitted}
    stuck = failed >= STUCK_FAILED or (failing and idle_min >= STUCK_MIN)
    return Row(
        person.handle,
        person.name,
        cells,
        passed,
        lab=submitted[-1].lab if submitted else None,
        failed=failed,
        idle_min=idle_min,
        hints=sum(hints.values()),
        stuck=stuck and passed < len(labs),
        gone=joined is None,
        needs_help=call.at if call else None,
        help_text=call.text if call else "",
    )


def _since_progress(judged: list[CheckedVerdict], joined: float) -> tuple[int, float, bool]:
    """Return how many attempts have failed since the last progress, when that was, and whether the
    latest attempt failed.

    Progress is a lab handed in for the first time, passed, or with more of its criteria met than
    ever before. Whoever tries a lab again that is passed already does not fail by it.
    """
    failed, since, failing = 0, joined, False
    best: dict[str, int] = {}
    passed: set[str] = set()
    for one in judged:
        failing = one.outcome is Outcome.FAIL and one.lab not in passed
        if one.passed or one.held > best.get(one.lab, -1):
            failed, since = 0, one.recorded
        elif failing:
            failed += 1
        best[one.lab] = max(best.get(one.lab, 0), one.held)
        if one.passed:
            passed.add(one.lab)
    return failed, since, failing


_STATES = {
    Outcome.PASS: "pass",
    Outcome.FAIL: "fail",
    Outcome.INCONCLUSIVE: "undecided",
    Outcome.ERROR: "error",
    None: "altered",
}


def _cell(lab: str, submitted: list[Any], verdicts: dict[str, CheckedVerdict]) -> Cell:
    """Return a learner's cell. A lab once passed stays so; otherwise the latest attempt counts."""
    if not submitted:
        return Cell(lab)
    # An altered record is shown before anything else: it is what somebody must look into.
    altered = [one for one in submitted if one.handle in verdicts and verdicts[one.handle].problem]
    passed = [one for one in submitted if one.handle in verdicts and verdicts[one.handle].passed]
    last = (altered or passed or submitted)[-1]
    state = last.state
    if altered or passed or state in ("done", "failed"):
        verdict = verdicts.get(last.handle)
        if verdict is None:
            state = "error"
        elif verdict.copied:
            state = "copied"
        else:
            state = _STATES[verdict.outcome]
    return Cell(lab, state, len(submitted), last.handle)
