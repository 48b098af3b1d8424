"""Attempts of learners: what changed in each, and what their captures showed."""

from __future__ import annotations

import difflib
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from bottleneck_lab.catalog import Lab, load_labs
from bottleneck_lab.cohort.members.people import Person, same_learner
from bottleneck_lab.cohort.protocol import Capture, files_of
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.blobs import Blobs
from bottleneck_lab.cohort.submissions.diagnosis import NOTHING
from bottleneck_lab.cohort.submissions.handing_in import DESCRIPTION
from bottleneck_lab.cohort.submissions.ledger import Circumstances
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict, VerdictReader
from bottleneck_lab.grading.answers import format_answer
from bottleneck_lab.grading.likeness import likeness, same_code
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.workspace.commitments import Record

MOST_LINES = 2000
"""Of a difference; nobody reads more, and a hostile file has them."""
MOST_COLUMNS = 400


class Attempt(msgspec.Struct, frozen=True):
    """One submission in a list, of the person with that number."""

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
    person: int


class DiffLine(msgspec.Struct, frozen=True):
    """A line of a difference; `kind` is added, removed, place or same."""

    kind: str
    text: str


class AnsweredQuestion(msgspec.Struct, frozen=True):
    """A question of the lab with the answers that were committed to it, oldest first.

    An answer that a correction repeats stands once.
    """

    ask: str
    answers: list[str]


class Try(NamedTuple):
    """One lease of a submission: its state, where it was, when it began and ended, and why so."""

    state: str
    slot: str
    taken: float
    ended: float | None
    why: str | None


class SubmissionDetails(msgspec.Struct, frozen=True):
    """One submission with everything that is known of it.

    `likeness` to the reference (0–1) of what it changed, and of the shipped code there; None if it
    changed no code. `captured` says in words of which code its capture is.
    """

    attempt: Attempt
    person: str
    name: str
    rounds: list[tuple[CheckedVerdict, Verdict | None]]
    leases: list[Try]
    changes: dict[str, list[DiffLine]]
    against: str
    receipt: str
    diagnosis: list[AnsweredQuestion]
    likeness: tuple[float, float] | None
    captured: str


def load_attempts(connection: Connection, judge: VerdictReader, *where: Any) -> list[Attempt]:
    """Return submissions, newest first. `where` narrows them down."""
    table = tables.submissions
    judged = {one.submission: one for one in judge.latest(connection, *where)}
    query = select(table).where(*where).order_by(table.c.id.desc())
    return [_attempt(row, judged.get(row.handle)) for row in connection.execute(query)]


def _attempt(row: Any, judged: CheckedVerdict | None) -> Attempt:
    circumstances = msgspec.json.decode(row.circumstances, type=Circumstances)
    return Attempt(
        row.handle,
        row.lab,
        row.device,
        row.state,
        row.received,
        row.note,
        circumstances.hints,
        circumstances.checks,
        circumstances.captures,
        circumstances.figures,
        circumstances.record,
        row.made or row.capture,
        judged,
        row.person,
    )


def load_submission(
    connection: Connection,
    judge: VerdictReader,
    blobs: Blobs,
    handle: str,
    against: str = "shipped",
) -> SubmissionDetails:
    """Return one submission, its files compared with others.

    `against` is `shipped` for the lab's own files, or `before` for the learner's earlier attempt.
    Raises RefusedError for an unknown handle.
    """
    table, people, leases = tables.submissions, tables.people, tables.leases
    row = connection.execute(select(table).where(table.c.handle == handle)).first()
    if row is None:
        raise RefusedError("not-found", "There is no such submission.", "Go back to the room.")
    lab = load_labs()[row.lab]
    who = connection.execute(
        select(people.c.handle, people.c.name).where(people.c.id == row.person)
    ).one()
    columns = (leases.c.state, leases.c.slot, leases.c.taken, leases.c.ended, leases.c.why)
    tries = connection.execute(
        select(*columns).where(leases.c.submission == row.id).order_by(leases.c.id)
    )
    shipped = lab.code_of(lab.path)
    if (diagnosis := lab.path / "diagnosis.toml").is_file():
        shipped["diagnosis.toml"] = diagnosis.read_bytes()
    new, old = files_of(blobs.get(row.blob)), shipped
    if against == "before":
        earlier = (table.c.person == row.person) & (table.c.lab == row.lab) & (table.c.id < row.id)
        query = select(table.c.blob).where(earlier).order_by(table.c.id.desc())
        if blob := connection.execute(query).scalar():
            old = files_of(blobs.get(blob))
    # Not the newest of its rounds: that a verdict is gone is seen by comparing with the submission.
    in_force = judge.latest(connection, table.c.handle == handle)
    attempt = _attempt(row, in_force[0] if in_force else None)
    return SubmissionDetails(
        attempt,
        person=who.handle,
        name=who.name,
        rounds=[(one.judged, one.verdict) for one in judge.all_of(connection, handle)],
        leases=[Try(*each) for each in tries],
        changes={
            name: difference(old.get(name, b""), new.get(name, b"")) for name in sorted(old | new)
        },
        against=against,
        receipt=row.receipt,
        diagnosis=_committed_answers(lab, attempt.record),
        likeness=_likeness(new, shipped, lab),
        captured=_captured_code(blobs, attempt.capture, lab, row.lab_hash),
    )


def _committed_answers(lab: Lab, record: Record | None) -> list[AnsweredQuestion]:
    """Return the lab's questions, each with the answers committed to it; none if nothing was."""
    if record is None or not record.commitments:
        return []
    questions = []
    for question in lab.spec.questions:
        answers = [one.answers for one in record.commitments if question.id in one.answers]
        shown = [format_answer(question, each[question.id]) for each in answers]
        distinct = [answer for answer, _ in groupby(shown)]
        questions.append(AnsweredQuestion(question.ask, distinct))
    return questions


def load_known_record(connection: Connection, person: Person, lab: str) -> Record:
    """Return what the latest submission of this learner to a lab says of the diagnosis."""
    table = tables.submissions
    query = (
        select(table.c.circumstances)
        .where(table.c.person.in_(same_learner(connection, person)), table.c.lab == lab)
        .order_by(table.c.id.desc())
    )
    for circumstances in connection.execute(query).scalars():
        if record := msgspec.json.decode(circumstances, type=Circumstances).record:
            return record
    return NOTHING


def find_evidence(connection: Connection, blobs: Blobs, person: Person, lab: Lab) -> str | None:
    """Return the latest capture that a runner made of the shipped code for this learner.

    That is what a diagnosis is about. None if there is none.
    """
    table = tables.submissions
    own = table.c.person.in_(same_learner(connection, person))
    query = (
        select(table.c.blob, table.c.made)
        .where(own, table.c.lab == lab.slug, table.c.made.is_not(None))
        .order_by(table.c.id.desc())
    )
    shipped = lab.code_of(lab.path)
    for blob, made in connection.execute(query):
        files = files_of(blobs.get(blob))
        if all(files.get(name) == data for name, data in shipped.items()):
            return str(made)
    return None


def load_capture(connection: Connection, handle: str) -> tuple[str, str]:
    """Return the lab of a submission, and the name of its capture: the one that a runner made, or
    that came with it.

    Raises RefusedError if there is none.
    """
    table = tables.submissions
    row = connection.execute(
        select(table.c.lab, table.c.capture, table.c.made).where(table.c.handle == handle)
    ).first()
    if row is None or not (capture := row.made or row.capture):
        raise RefusedError("not-found", "No capture belongs to this submission.", "Go back.")
    return row.lab, capture


class _Description(msgspec.Struct):
    """The part of `capture.json` that is read here: the hash of the code that was captured."""

    code: str = ""


def _captured_code(blobs: Blobs, capture: str | None, lab: Lab, edition: str) -> str:
    """Say of which code a capture is, by the hash in its description, which is the learner's."""
    unknown = "code that is not known"
    if capture is None or edition != lab.content_hash():
        return unknown
    try:
        description = files_of(blobs.get(capture))[DESCRIPTION]
        code = msgspec.json.decode(description, type=_Description).code
    except (KeyError, msgspec.DecodeError):
        return unknown
    if not code:
        return unknown
    same = code == lab.code_hash(lab.path)
    return "the shipped code" if same else "code that was already changed"


def _likeness(
    new: dict[str, bytes], shipped: dict[str, bytes], lab: Lab
) -> tuple[float, float] | None:
    changed = [
        name
        for name in lab.spec.editable
        if not same_code(name, new.get(name, b""), shipped.get(name, b""))
    ]
    reference = lab.code_of(lab.solution)
    work, before, theirs = (
        {name: files.get(name, b"") for name in changed} for files in (new, shipped, reference)
    )
    return (likeness(work, theirs), likeness(before, theirs)) if changed else None


_KINDS = {"+": "added", "-": "removed", "@": "place"}


def difference(old: bytes, new: bytes) -> list[DiffLine]:
    """Return the lines that differ, with three lines around them, of what may be no text."""
    before, after = (
        # Learners' files may be anything, also no text at all.
        data.decode("utf-8", errors="replace").splitlines()[:MOST_LINES]
        for data in (old, new)
    )
    lines = list(difflib.unified_diff(before, after, lineterm="", n=3))[2:]  # without file names
    return [
        DiffLine(_KINDS.get(line[:1], "same"), line[:MOST_COLUMNS]) for line in lines[:MOST_LINES]
    ]
