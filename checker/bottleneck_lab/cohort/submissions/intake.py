"""Accepting submissions: many at once, each durable before it is acknowledged.

Requests that come together share one transaction and so one wait for the disk: that is what carries
a room that submits at the same moment.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from importlib.metadata import version
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace
from sqlalchemy import Connection, select

from bottleneck_lab.catalog import Lab, find_lab, load_labs
from bottleneck_lab.cohort.members.people import Person, by_tokens, unknown_token
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import MAX_FILE_BYTES, Accepted, Receipt, Submission, content_of
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.running.forecast import load_forecast
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.ledger import Ledger
from bottleneck_lab.cohort.submissions.receipts import sign_receipt
from bottleneck_lab.errors import UsageError

if TYPE_CHECKING:
    from bottleneck_lab.cohort.folder import Cohort

log = logging.getLogger("bottleneck_lab.cohort.submissions.intake")
MOST_AT_ONCE = 64
"""Most requests that share a transaction; the first of them waits for the last."""
DIAGNOSIS = "diagnosis.toml"


class _Request(NamedTuple):
    who: str | Person
    submission: Submission
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
        # Before anything comes in: a blob that no submission names belongs to a request that a
        # killed server never finished.
        with self._cohort.database.reading() as connection:
            wanted = tables.blobs_of_submissions(connection)
        if removed := self._cohort.blobs.collect(wanted):
            log.info("%d blobs of no submission were removed", removed)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._thread.join()

    def offer(self, who: str | Person, submission: Submission) -> Future[Accepted]:
        """Queue a submission of the owner of a token, or of somebody whose browser is logged in.

        The future gives Accepted once it is on the disk, or RefusedError.
        """
        request = _Request(who, submission, Future())
        self._requests.put(request)
        return request.answer

    def _serve(self) -> None:
        # One transaction for all that has come meanwhile: each waits for the disk, and a room
        # submits within the same minute.
        while (first := self._requests.get()) is not None:
            batch = [first]
            while len(batch) < MOST_AT_ONCE and not self._requests.empty():
                request = self._requests.get()
                if request is None:
                    self._requests.put(None)  # for the outer loop, which ends by it
                    break
                batch.append(request)
            self._take([each for each in batch if each.answer.set_running_or_notify_cancel()])

    def _take(self, batch: list[_Request]) -> None:
        """Store a batch and settle the answer of every request in it."""
        formed = []
        for request in batch:
            try:
                lab = self._require_formed(request.submission)
                # An older client may name the lab as it was called then; only the name of today is
                # stored, so that rules, budgets and exports find it.
                submission = replace(request.submission, lab=lab.slug)
                formed.append(request._replace(submission=submission))
            except RefusedError as refused:
                request.answer.set_exception(refused)
        try:
            # Tokens are looked up before files are written: strangers fill nobody's disk.
            with self._cohort.database.reading() as connection:
                tokens = {request.who for request in formed if isinstance(request.who, str)}
                people = by_tokens(connection, tokens)
            known = []
            for request in formed:
                who = people.get(request.who) if isinstance(request.who, str) else request.who
                if who is None:
                    request.answer.set_exception(unknown_token())
                else:
                    known.append((request, who))
            blobs = self._cohort.blobs.put(
                [content_of(request.submission.files) for request, _ in known]
            )
            with self._cohort.database.writing() as connection:
                stored, answers = self._store(connection, known, blobs)
        except Exception:  # whatever it is: the next requests want this thread
            log.exception("a batch of %d submissions could not be stored", len(batch))
            busy = RefusedError(
                "busy", "The server could not store this.", "Try again in a moment.", 2.0
            )
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(busy)
            return
        # Only now: the transaction has ended, so a receipt is never sent for what could be lost.
        for one, answer in zip(stored, answers, strict=True):
            one.request.answer.set_result(answer)

    def _store(
        self, connection: Connection, known: list[tuple[_Request, Person]], blobs: list[str]
    ) -> tuple[list[_Stored], list[Accepted]]:
        """Enter in the database what is allowed, and refuse the rest."""
        now = self._cohort.database.clock()
        people = [person for _, person in known]
        keys = [request.submission.key for request, _ in known]
        ledger = Ledger(connection, people, keys, now)
        stored = []
        for (request, person), blob in zip(known, blobs, strict=True):
            submission = request.submission
            try:
                if earlier := ledger.receipt(person, submission):
                    stored.append(_Stored(request, earlier, None))
                    continue
                left = ledger.require_allowed(
                    person, submission.lab, counts=submission.tool is None
                )
            except RefusedError as refused:
                request.answer.set_exception(refused)
                continue
            unsigned = Receipt(
                self._identifier,
                person.handle,
                token_hex(8),
                submission.lab,
                blob,
                iso(now),
                submission.key,
            )
            receipt = sign_receipt(unsigned, self._key)
            ledger.add(person, submission, receipt)
            stored.append(_Stored(request, receipt, left))
        ledger.write()
        forecast, zone = load_forecast(connection, now), load_settings(connection).timezone
        answers = []
        for one in stored:
            handle = one.receipt.submission
            wait_s = forecast.waits_s.get(handle)
            ahead = forecast.ahead_of(handle)
            answers.append(Accepted(one.receipt, ahead, wait_s, one.left, forecast.paused, zone))
        return stored, answers

    def _require_formed(self, submission: Submission) -> Lab:
        """Return the lab of a submission. Raises RefusedError for what is not worth storing."""
        if not 8 <= len(submission.key) <= 64:
            raise RefusedError(
                "bad-request",
                "The request's key must have 8 to 64 characters.",
                "Send it with `lab submit`.",
            )
        try:
            lab = find_lab(submission.lab)
        except UsageError:
            raise RefusedError(
                "unknown-lab",
                f"This cohort has no lab called '{submission.lab[:80]}'.",
                "`lab list` shows your labs; the cohort's edition may be older.",
            ) from None
        if submission.lab_hash != self._hashes[lab.slug]:
            raise RefusedError(
                "other-lab-version",
                f"Your edition of '{lab.slug}' is not this cohort's.",
                f"Install bottleneck-lab {version('bottleneck-lab')}, then `lab reset --update`"
                " keeps your edits.",
            )
        _require_files(submission, lab)
        if submission.capture is not None and not self._cohort.blobs.holds(submission.capture):
            raise RefusedError(
                "wrong-files",
                "The capture did not arrive.",
                "Run `lab submit` again: it sends the capture first.",
            )
        return lab


def _require_files(submission: Submission, lab: Lab) -> None:
    """Raise RefusedError for a device or files that the lab does not take."""
    if submission.device not in lab.spec.devices:
        raise RefusedError(
            "bad-request",
            f"'{lab.slug}' cannot be measured on {submission.device}.",
            f"Choose one of {', '.join(lab.spec.devices)}.",
        )
    allowed, names = {*lab.spec.editable, DIAGNOSIS}, set(submission.files)
    if strange := sorted(names - allowed):
        raise RefusedError(
            "wrong-files",
            f"{strange[0][:80]} is not one of the files that this lab takes.",
            f"Submit {', '.join(sorted(allowed))}.",
        )
    if missing := sorted(set(lab.spec.editable) - names):
        raise RefusedError("wrong-files", f"{missing[0]} is missing.", "`lab reset` restores it.")
    for name, data in submission.files.items():
        if len(data) > MAX_FILE_BYTES:
            raise RefusedError(
                "too-large",
                f"{name} has {len(data)} bytes; at most {MAX_FILE_BYTES} are accepted.",
                "Submit source code only, no data.",
            )
