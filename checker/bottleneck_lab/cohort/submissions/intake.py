"""Accepting submissions: many at once, each durable before it is acknowledged.

Requests that come together share one transaction and so one wait for the disk: that is what carries
a room that submits at the same moment.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, select

from bottleneck_lab.catalog import Lab, load_labs
from bottleneck_lab.cohort.members.people import Person, by_tokens, unknown_token
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import MAX_FILE_BYTES, Accepted, Receipt, Submission, content_of
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.running.queue_order import load_pace, load_queue
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.ledger import Ledger
from bottleneck_lab.cohort.submissions.receipts import sign_receipt

if TYPE_CHECKING:
    from bottleneck_lab.cohort.folder import Cohort

log = logging.getLogger("bottleneck_lab.cohort.submissions.intake")
MOST_AT_ONCE = 64
"""Most requests that share a transaction; the first of them waits for the last."""
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
        """Begin; first, while nothing comes in yet, remove blobs that were stored for submissions
        that never came to be.
        """
        with self._cohort.database.reading() as connection:
            wanted = tables.blobs_of_submissions(connection)
        if removed := self._cohort.blobs.collect(wanted):
            log.info("%d blobs of no submission were removed", removed)
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
            known = self._known([request for request in batch if self._formed(request)])
            blobs = self._cohort.blobs.put(
                [content_of(request.asked.files) for request, _ in known]
            )
            with self._cohort.database.writing() as connection:
                stored, answers = self._store(connection, known, blobs)
        except Exception:  # whatever it is: the next requests want this thread
            log.exception("a batch of %d submissions could not be stored", len(batch))
            for request in batch:
                _settle(
                    request.answer,
                    RefusedError(
                        "busy", "The server could not store this.", "Try again in a moment.", 2.0
                    ),
                )
            return
        for one, answer in zip(stored, answers, strict=True):
            one.request.answer.set_result(answer)

    def _known(self, requests: list[_Request]) -> list[tuple[_Request, Person]]:
        """Those by learners of this cohort: nobody else's files come to the disk."""
        with self._cohort.database.reading() as connection:
            people = by_tokens(connection, {request.token for request in requests})
        for request in requests:
            if request.token not in people:
                request.answer.set_exception(unknown_token())
        return [(request, people[request.token]) for request in requests if request.token in people]

    def _store(
        self, connection: Connection, known: list[tuple[_Request, Person]], blobs: list[str]
    ) -> tuple[list[_Stored], list[Accepted]]:
        now = self._cohort.database.clock()
        ledger = Ledger(
            connection,
            [person for _, person in known],
            [request.asked.key for request, _ in known],
            now,
        )
        stored = []
        for (request, person), blob in zip(known, blobs, strict=True):
            try:
                stored.append(self._enter(ledger, request, person, blob, now))
            except RefusedError as refused:
                request.answer.set_exception(refused)
        ledger.write()
        return stored, _answers(connection, stored, now)

    def _enter(
        self, ledger: Ledger, request: _Request, person: Person, blob: str, now: float
    ) -> _Stored:
        asked = request.asked
        if earlier := ledger.receipt(person, asked):
            return _Stored(request, earlier, None)
        left = ledger.require_allowed(person, asked.lab)
        unsigned = Receipt(
            self._identifier, person.handle, token_hex(8), asked.lab, blob, iso(now), asked.key
        )
        receipt = sign_receipt(unsigned, self._key)
        ledger.add(person, asked, receipt)
        return _Stored(request, receipt, left)

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
                "bad-request",
                "The request's key must have 8 to 64 characters.",
                "Send it with `lab submit`.",
            )
        lab = load_labs().get(asked.lab)
        if lab is None:
            raise RefusedError(
                "unknown-lab",
                f"This cohort has no lab called '{asked.lab[:80]}'.",
                "`lab list` shows your labs; the cohort's edition may be older.",
            )
        if asked.lab_hash != self._hashes[asked.lab]:
            raise RefusedError(
                "other-lab-version",
                f"Your edition of '{lab.slug}' is not this cohort's.",
                "Install the version that the instructor named, then `lab reset --update` keeps"
                " your edits.",
            )
        _check_files(asked, lab)
        if asked.capture is not None and not self._cohort.blobs.holds(asked.capture):
            raise RefusedError(
                "wrong-files",
                "The capture did not arrive.",
                "Run `lab submit` again: it sends the capture first.",
            )


def _answers(connection: Connection, stored: list[_Stored], now: float) -> list[Accepted]:
    places = {one.handle: place for place, one in enumerate(load_queue(connection))}
    pace = load_pace(connection, now)
    ahead = [places.get(one.receipt.submission, 0) for one in stored]
    return [
        Accepted(one.receipt, place, pace.wait_s(place), one.left)
        for one, place in zip(stored, ahead, strict=True)
    ]


def _settle(answer: Future[Accepted], refused: RefusedError) -> None:
    if not answer.done():
        answer.set_exception(refused)


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
        raise RefusedError("wrong-files", f"{missing[0]} is missing.", "`lab reset` restores it.")
    for name, data in asked.files.items():
        if len(data) > MAX_FILE_BYTES:
            raise RefusedError(
                "too-large",
                f"{name} has {len(data)} bytes; at most {MAX_FILE_BYTES} are accepted.",
                "Submit source code only, no data.",
            )
