"""Taking in submissions: many at once, each durable before it is acknowledged.

Requests that come together share one transaction and so one wait for the disk: that is what carries a room that submits at the same moment.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy import Connection, func, select

from bottleneck_lab.catalog import Lab, load_labs
from bottleneck_lab.cohort.line import expected_wait_s, load_line
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.people import Person, by_token
from bottleneck_lab.cohort.protocol import MAX_FILE_BYTES, Accepted, Receipt, Submission
from bottleneck_lab.cohort.receipts import sign_receipt
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.rules import load_rules
from bottleneck_lab.cohort.settings import Settings, load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.store.database import note
from bottleneck_lab.cohort.workers import free_slots

if TYPE_CHECKING:
    from bottleneck_lab.cohort.folder import Cohort

log = logging.getLogger("bottleneck_lab.cohort.intake")
MOST_AT_ONCE = 64
"""Requests that share a transaction; the first of them waits for the last."""
DIAGNOSIS = "diagnosis.toml"


class _Request(NamedTuple):
    token: str
    asked: Submission
    answer: Future[Accepted]


class _Stored(NamedTuple):
    """A submission in the database, before the commit."""

    request: _Request
    receipt: Receipt
    left: int | None
    new: bool


class Intake:
    """The one writer of submissions. `offer` may be called from any thread."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self._key = cohort.key()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._hashes = {slug: lab.content_hash() for slug, lab in load_labs().items()}
        self._thread = threading.Thread(target=self._serve, name="intake", daemon=True)
        with cohort.database.reading() as connection:
            self._identifier = connection.execute(select(tables.cohort.c.id)).scalar_one()

    def __enter__(self) -> Intake:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._thread.join()

    def offer(self, token: str, asked: Submission) -> Future[Accepted]:
        """The answer to come: Accepted once everything is on the disk, or RefusedError."""
        request = _Request(token, asked, Future())
        self._requests.put(request)
        return request.answer

    def _serve(self) -> None:
        while (first := self._requests.get()) is not None:
            batch = [first]
            while len(batch) < MOST_AT_ONCE and not self._requests.empty():
                request = self._requests.get()
                if request is None:
                    self._requests.put(None)  # for the loop's own end
                    break
                batch.append(request)
            self._take(batch)

    def _take(self, batch: list[_Request]) -> None:
        batch = [request for request in batch if request.answer.set_running_or_notify_cancel()]
        try:
            sound = [request for request in batch if self._formed(request)]
            blobs = self._cohort.blobs.put([content_of(request.asked) for request in sound])
            with self._cohort.database.writing() as connection:
                tried = [self._store(connection, *pair) for pair in zip(sound, blobs, strict=True)]
                stored = [one for one in tried if one]
                answers = self._answers(connection, stored)
        except Exception:  # whatever it is: the next requests want this thread
            log.exception("a batch of %d submissions could not be stored", len(batch))
            for request in batch:
                _settle(
                    request.answer,
                    RefusedError("busy", "The server could not store this.", "Try again in a moment.", 2.0),
                )
            return
        for one, answer in zip(stored, answers, strict=True):
            one.request.answer.set_result(answer)

    def _formed(self, request: _Request) -> bool:
        """Whether it is worth storing at all; if not, its answer says why."""
        try:
            self._check_form(request.asked)
        except RefusedError as refused:
            request.answer.set_exception(refused)
            return False
        return True

    def _check_form(self, asked: Submission) -> None:
        if not 8 <= len(asked.key) <= 64:
            raise RefusedError(
                "bad-request", "The request's key must have 8 to 64 characters.", "Send it with `lab submit`."
            )
        lab = load_labs().get(asked.lab)
        if lab is None:
            raise RefusedError(
                "unknown-lab",
                f"This cohort has no lab called '{asked.lab[:80]}'.",
                "`lab list` shows the labs; the instructor's edition may be older.",
            )
        if asked.lab_hash != self._hashes[asked.lab]:
            raise RefusedError(
                "other-lab-version",
                f"Your edition of '{asked.lab}' is not the one of this cohort.",
                "Install the version that the instructor named, then `lab reset --update` keeps your edits.",
            )
        _check_files(asked, lab)

    def _store(self, connection: Connection, request: _Request, blob: str) -> _Stored | None:
        try:
            person = by_token(connection, request.token)
            return _already(connection, request, person) or self._new(connection, request, person, blob)
        except RefusedError as refused:
            request.answer.set_exception(refused)
            return None

    def _new(self, connection: Connection, request: _Request, person: Person, blob: str) -> _Stored:
        asked, now = request.asked, self._cohort.database.clock()
        left = _require_allowed(connection, person, asked, load_settings(connection), now)
        handle = token_hex(8)
        receipt = sign_receipt(
            Receipt(self._identifier, person.handle, handle, asked.lab, blob, iso(now), asked.key), self._key
        )
        told = {name: msgspec.to_builtins(getattr(asked, name)) for name in ("hints", "checks", "captures", "figures")}
        values = {
            "handle": handle,
            "person": person.id,
            "lab": asked.lab,
            "device": asked.device,
            "lab_hash": asked.lab_hash,
            "request_key": asked.key,
            "blob": blob,
            "received": now,
            "receipt": msgspec.json.encode(receipt).decode(),
            "told": msgspec.json.encode(told).decode(),
            "state": "queued",
            "queued": now,
        }
        connection.execute(tables.submissions.insert().values(values))
        connection.execute(tables.people.update().where(tables.people.c.id == person.id).values(seen=now))
        note(connection, now, "submitted", person=person.id, submission=handle)
        return _Stored(request, receipt, left, new=True)

    def _answers(self, connection: Connection, stored: list[_Stored]) -> list[Accepted]:
        places = {one.handle: place for place, one in enumerate(load_line(connection))}
        slots = free_slots(connection, self._cohort.database.clock())
        ahead = [places.get(one.receipt.submission, 0) for one in stored]
        return [
            Accepted(one.receipt, place, expected_wait_s(connection, place, slots), one.left)
            for one, place in zip(stored, ahead, strict=True)
        ]


def _settle(answer: Future[Accepted], refused: RefusedError) -> None:
    if not answer.done():
        answer.set_exception(refused)


def content_of(asked: Submission) -> bytes:
    """The blob of a submission: its files as JSON, names sorted, contents in Base64."""
    return msgspec.json.encode(dict(sorted(asked.files.items())))


def files_of(content: bytes) -> dict[str, bytes]:
    """The files of a blob."""
    return msgspec.json.decode(content, type=dict[str, bytes])


def _check_files(asked: Submission, lab: Lab) -> None:
    if asked.device not in lab.spec.devices:
        raise RefusedError(
            "bad-request",
            f"'{lab.slug}' cannot be measured on {asked.device}.",
            f"Choose one of {', '.join(lab.spec.devices)}.",
        )
    allowed, names = {*lab.spec.editable, DIAGNOSIS}, set(asked.files)
    if strange := sorted(names - allowed):
        raise RefusedError(
            "wrong-files",
            f"{strange[0][:80]} is not one of the files that this lab takes.",
            f"Submit {', '.join(sorted(allowed))}.",
        )
    if missing := sorted(set(lab.spec.editable) - names):
        raise RefusedError("wrong-files", f"{missing[0]} is missing.", "`lab reset` brings it back.")
    for name, data in asked.files.items():
        if len(data) > MAX_FILE_BYTES:
            raise RefusedError(
                "too-large",
                f"{name} has {len(data)} bytes; {MAX_FILE_BYTES} are accepted.",
                "Submit source code only, no data.",
            )


def _already(connection: Connection, request: _Request, person: Person) -> _Stored | None:
    """The same request, which came before: its receipt again, and nothing new."""
    table = tables.submissions
    query = select(table.c.receipt).where(table.c.person == person.id, table.c.request_key == request.asked.key)
    found = connection.execute(query).scalar()
    if found is None:
        return None
    receipt = msgspec.json.decode(found, type=Receipt)
    if receipt.lab != request.asked.lab:
        raise RefusedError(
            "bad-request",
            "That key belongs to another submission.",
            "Send it with `lab submit`, which draws a new one.",
        )
    return _Stored(request, receipt, None, new=False)


def _require_allowed(
    connection: Connection, person: Person, asked: Submission, settings: Settings, now: float
) -> int | None:
    """How many submissions will be left of the budget after this one; None without a budget. Raises RefusedError for every limit."""
    table = tables.submissions
    mine = table.c.person == person.id
    latest = connection.execute(select(func.max(table.c.received)).where(mine)).scalar()
    if latest is not None and (wait := latest + settings.min_interval_s - now) > 0:
        raise RefusedError("too-fast", "You have only just submitted.", f"Wait {wait:.0f} s.", wait)
    waiting = connection.execute(
        select(func.count()).where(mine, table.c.state.in_(("queued", "running")))
    ).scalar_one()
    if waiting >= settings.max_waiting:
        raise RefusedError(
            "too-many-waiting",
            f"{waiting} of your submissions are waiting already.",
            "Wait for one of them: `lab status` shows them.",
            10.0,
        )
    rules = load_rules(connection, asked.lab, person.id)
    if rules.closes is not None and now > rules.closes:
        raise RefusedError(
            "late", f"'{asked.lab}' closed at {iso(rules.closes)}.", "Ask your instructor for an extension."
        )
    left = rules.left(connection, person.id)
    if left is not None and left <= 0:
        raise RefusedError(
            "budget-spent",
            f"Your {rules.budget} submissions for '{asked.lab}' are spent.",
            "`lab check` goes on measuring on your own machine; your instructor can grant more.",
        )
    return None if left is None else left - 1
