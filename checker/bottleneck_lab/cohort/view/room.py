"""The room at a glance: everybody's progress, who is stuck, what is queued."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.running.leases import queue_length
from bottleneck_lab.cohort.running.queue_order import load_queue
from bottleneck_lab.cohort.running.workers import Runner, load_runners
from bottleneck_lab.cohort.settings import Settings, load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader
from bottleneck_lab.grading.verdict import Outcome

STUCK_FAILED = 3
"""Failed attempts since the last progress after which a learner is shown as stuck."""
STUCK_MIN = 20.0
"""Or minutes since then, after at least one failed attempt."""

MARKS = {
    "pass": "✓",
    "copied": "=",
    "fail": "✗",
    "undecided": "~",
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
        """A sign for the state, so that it does not rest on colour alone."""
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


class Queued(msgspec.Struct, frozen=True):
    """A submission that waits or is measured."""

    submission: str
    name: str
    lab: str
    device: str
    state: str
    since: float


class Room(msgspec.Struct, frozen=True):
    """Everything on the instructor's first page."""

    settings: Settings
    labs: list[str]
    rows: list[Row]
    queue: list[Queued]
    states: dict[str, int]
    runners: list[Runner]
    announcements: list[tuple[int, str]]
    unmeasurable: list[str]
    version: int
    now: float

    @property
    def stuck(self) -> list[Row]:
        """Who needs help, those who tried most first."""
        return sorted(
            (row for row in self.rows if row.stuck), key=lambda row: (-row.failed, -row.idle_min)
        )

    @property
    def passed(self) -> int:
        """Labs passed by anybody, all counted."""
        return sum(row.passed for row in self.rows)


def load_room(connection: Connection, judge: VerdictReader, now: float) -> Room:
    """The room as it is at this moment."""
    labs = list(load_labs())
    runners = load_runners(connection)
    queue = _queue(connection)
    return Room(
        load_settings(connection),
        labs,
        _rows(connection, judge, labs, now),
        queue,
        queue_length(connection),
        runners,
        announcements(connection),
        _unmeasurable(queue, [runner for runner in runners if runner.alive(now)]),
        latest_event(connection),
        now,
    )


def latest_event(connection: Connection) -> int:
    """The number of the last thing that happened."""
    return connection.execute(select(func.max(tables.events.c.id))).scalar() or 0


def announcements(connection: Connection) -> list[tuple[int, str]]:
    """What is announced now, newest first, with its number."""
    table = tables.announcements
    query = (
        select(table.c.id, table.c.text)
        .where(table.c.withdrawn.is_(None))
        .order_by(table.c.id.desc())
    )
    return [(row.id, row.text) for row in connection.execute(query)]


def _unmeasurable(queue: list[Queued], runners: list[Runner]) -> list[str]:
    """Devices that submissions wait for and no runner has."""
    has_gpu = any(
        slot.name.startswith(("gpu", "cluster")) for runner in runners for slot in runner.slots
    )
    wanted = {one.device for one in queue if one.state == "queued"}
    return sorted(device for device in wanted if not runners or (device == "cuda" and not has_gpu))


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
    return [
        *running,
        *(
            Queued(one.handle, names[one.person], one.lab, one.device, "queued", one.queued)
            for one in load_queue(connection)
        ),
    ]


def _rows(connection: Connection, judge: VerdictReader, labs: list[str], now: float) -> list[Row]:
    judged = {one.submission: one for one in judge.latest(connection)}
    handed_in: dict[int, list[Any]] = defaultdict(list)
    table = tables.submissions
    columns = (
        table.c.person,
        table.c.handle,
        table.c.lab,
        table.c.state,
        table.c.received,
        table.c.told,
    )
    for submission in connection.execute(select(*columns).order_by(table.c.id)):
        handed_in[submission.person].append(submission)
    people = tables.people
    query = (
        select(people)
        .where(people.c.role == "learner", people.c.removed.is_(None))
        .order_by(people.c.name, people.c.id)
    )
    return [
        _row(person, handed_in[person.id], judged, labs, now)
        for person in connection.execute(query)
    ]


def _row(
    person: Any,
    handed_in: list[Any],
    judged: dict[str, CheckedVerdict],
    labs: list[str],
    now: float,
) -> Row:
    verdicts = [judged[one.handle] for one in handed_in if one.handle in judged]
    failed, since = _since_progress(verdicts, person.joined or person.created)
    cells = [_cell(lab, [one for one in handed_in if one.lab == lab], judged) for lab in labs]
    idle_min = (now - since) / 60
    hints = {one.lab: msgspec.json.decode(one.told).get("hints", 0) for one in handed_in}
    done = sum(cell.state == "pass" for cell in cells)
    return Row(
        person.handle,
        person.name,
        cells,
        done,
        handed_in[-1].lab if handed_in else None,
        failed,
        idle_min,
        sum(hints.values()),
        done < len(labs) and (failed >= STUCK_FAILED or (failed > 0 and idle_min >= STUCK_MIN)),
        person.joined is None,
    )


def _since_progress(verdicts: list[CheckedVerdict], since: float) -> tuple[int, float]:
    """Failed attempts since the last progress, and when that was. Progress: more criteria of a lab
    hold than ever before, or all.
    """
    best: dict[str, int] = {}
    failed = 0
    for one in verdicts:
        if one.passed or (
            one.outcome is Outcome.FAIL and one.lab in best and one.held > best[one.lab]
        ):
            failed, since = 0, one.recorded
        elif one.outcome is Outcome.FAIL:
            failed += 1
        best[one.lab] = max(best.get(one.lab, 0), one.held)
    return failed, since


_STATES = {
    Outcome.PASS: "pass",
    Outcome.FAIL: "fail",
    Outcome.INCONCLUSIVE: "undecided",
    Outcome.ERROR: "error",
    None: "altered",
}


def _cell(lab: str, handed_in: list[Any], judged: dict[str, CheckedVerdict]) -> Cell:
    """A lab once passed stays so; otherwise the latest attempt counts."""
    if not handed_in:
        return Cell(lab)
    passed = [one for one in handed_in if one.handle in judged and judged[one.handle].passed]
    last = (passed or handed_in)[-1]
    if passed or last.state in ("done", "failed"):
        verdict = judged.get(last.handle)
        state = (
            "copied"
            if verdict and verdict.copied
            else _STATES[verdict.outcome]
            if verdict
            else "error"
        )
        return Cell(lab, state, len(handed_in), last.handle)
    return Cell(lab, last.state, len(handed_in), last.handle)
