"""What a learner submitted: the attempts, what changed in each, and what their captures showed."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from bottleneck_lab.catalog import Lab, load_labs
from bottleneck_lab.cohort.protocol import Capture, files_of
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.blobs import Blobs
from bottleneck_lab.cohort.submissions.ledger import Circumstances
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader
from bottleneck_lab.grading.diagnosis import format_answer
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.workspace.commitments import Record

MOST_LINES = 2000
"""Of a difference; nobody reads more, and a hostile file has them."""
MOST_COLUMNS = 400


class Attempt(msgspec.Struct, frozen=True):
    """One submission in a list."""

    handle: str
    lab: str
    device: str
    state: str
    received: float
    note: str | None
    hints: int
    checks: int
    captures: list[Capture]
    figures: dict[str, float]
    record: Record | None
    capture: str | None
    judged: CheckedVerdict | None


class DiffLine(msgspec.Struct, frozen=True):
    """A line of a difference; `kind` is added, removed, place or same."""

    kind: str
    text: str


class AnsweredQuestion(msgspec.Struct, frozen=True):
    """A question of the lab with the answers that were committed to it, oldest first."""

    ask: str
    answers: list[str]


class Whole(msgspec.Struct, frozen=True):
    """One submission with everything that is known of it."""

    attempt: Attempt
    person: str
    name: str
    rounds: list[tuple[CheckedVerdict, Verdict | None]]
    leases: list[tuple[str, str, float, float | None, str | None]]
    changes: dict[str, list[DiffLine]]
    against: str
    receipt: str
    diagnosis: list[AnsweredQuestion]


def load_attempts(connection: Connection, judge: VerdictReader, *where: Any) -> list[Attempt]:
    """Submissions, newest first."""
    table = tables.submissions
    judged = {one.submission: one for one in judge.latest(connection, *where)}
    query = select(table).where(*where).order_by(table.c.id.desc())
    return [_attempt(row, judged.get(row.handle)) for row in connection.execute(query)]


def _attempt(row: Any, judged: CheckedVerdict | None) -> Attempt:
    told = msgspec.json.decode(row.told, type=Circumstances)
    return Attempt(
        row.handle,
        row.lab,
        row.device,
        row.state,
        row.received,
        row.note,
        told.hints,
        told.checks,
        told.captures,
        told.figures,
        told.record,
        row.capture,
        judged,
    )


def load_whole(
    connection: Connection,
    judge: VerdictReader,
    blobs: Blobs,
    handle: str,
    against: str = "shipped",
) -> Whole:
    """One submission. `against`: what its files are compared with, the `shipped` ones or those of
    the attempt `before`. Raises RefusedError.
    """
    table, people, leases = tables.submissions, tables.people, tables.leases
    row = connection.execute(select(table).where(table.c.handle == handle)).first()
    if row is None:
        raise RefusedError("not-found", "There is no such submission.", "Go back to the room.")
    who = connection.execute(
        select(people.c.handle, people.c.name).where(people.c.id == row.person)
    ).one()
    rounds = judge.all_of(connection, handle)
    columns = (leases.c.state, leases.c.slot, leases.c.taken, leases.c.ended, leases.c.why)
    tries = connection.execute(
        select(*columns).where(leases.c.submission == row.id).order_by(leases.c.id)
    )
    old = (
        _files_before(connection, blobs, row)
        if against == "before"
        else _shipped(load_labs()[row.lab])
    )
    return Whole(
        _attempt(row, rounds[-1][0] if rounds else None),
        who.handle,
        who.name,
        [(judged, verdict) for judged, verdict, _ in rounds],
        [(each[0], each[1], each[2], each[3], each[4]) for each in tries],
        _changes(old, files_of(blobs.get(row.blob))),
        against,
        row.receipt,
        _diagnosis(load_labs()[row.lab], msgspec.json.decode(row.told, type=Circumstances).record),
    )


def _diagnosis(lab: Lab, record: Record | None) -> list[AnsweredQuestion]:
    """What was committed, question by question."""
    commitments = record.commitments if record else []
    return [
        AnsweredQuestion(
            question.ask,
            [
                format_answer(question, each.answers[question.id])
                for each in commitments
                if question.id in each.answers
            ],
        )
        for question in lab.spec.questions
        if commitments
    ]


def load_report(connection: Connection, blobs: Blobs, handle: str) -> tuple[str, dict[str, bytes]]:
    """The title of a submission's lab, and the files of the capture that came with it. Raises
    RefusedError if there is none.
    """
    table = tables.submissions
    row = connection.execute(
        select(table.c.lab, table.c.capture).where(table.c.handle == handle)
    ).first()
    if row is None or row.capture is None:
        raise RefusedError(
            "not-found", "No capture came with this submission.", "Go back to the room."
        )
    return load_labs()[row.lab].spec.title, files_of(blobs.get(row.capture))


def _shipped(lab: Lab) -> dict[str, bytes]:
    names = [*lab.spec.editable, "diagnosis.toml"]
    return {name: (lab.path / name).read_bytes() for name in names if (lab.path / name).is_file()}


def _files_before(connection: Connection, blobs: Blobs, row: Any) -> dict[str, bytes]:
    table = tables.submissions
    earlier = (table.c.person == row.person) & (table.c.lab == row.lab) & (table.c.id < row.id)
    blob = connection.execute(
        select(table.c.blob).where(earlier).order_by(table.c.id.desc())
    ).scalar()
    return files_of(blobs.get(blob)) if blob else _shipped(load_labs()[row.lab])


def _changes(old: dict[str, bytes], new: dict[str, bytes]) -> dict[str, list[DiffLine]]:
    return {
        name: _difference(old.get(name, b""), new.get(name, b"")) for name in sorted({*old, *new})
    }


_KINDS = {"+": "added", "-": "removed", "@": "place"}


def _difference(old: bytes, new: bytes) -> list[DiffLine]:
    before, after = (
        data.decode("utf-8", errors="replace").splitlines()[:MOST_LINES] for data in (old, new)
    )
    lines = list(difflib.unified_diff(before, after, lineterm="", n=3))[2:]
    return [
        DiffLine(_KINDS.get(line[:1], "same"), line[:MOST_COLUMNS]) for line in lines[:MOST_LINES]
    ]
