"""Verdicts fit to show: only those that the cohort's key signed for this submission, learner and
attempt.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Row, Select, and_, func, select

from bottleneck_lab.catalog import Device, current_name
from bottleneck_lab.cohort.moments import iso
from bottleneck_lab.cohort.protocol import Receipt
from bottleneck_lab.cohort.running.leases import binding_problem
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.submissions.receipts import receipt_problem
from bottleneck_lab.grading.attest import public_key_of, verify_bytes
from bottleneck_lab.grading.verdict import Binding, CriterionResult, Outcome, Verdict

RESTORE = "Restore a backup (`lab cohort restore`): measuring it again does not mend this."
"""Remedy for a submission that is not what its receipt confirms."""


class CheckedVerdict(msgspec.Struct, frozen=True):
    """The contents of a verdict whose signature was checked.

    `person` is the learner for whom it counts. `value` and `target` are those of the lab's first
    target. `document_sha256` names the signed document. `problem` says why the record is not to be
    believed, and `remedy` what mends it; it has no outcome then.
    """

    submission: str
    person: int
    lab: str
    round: int
    received: float
    recorded: float
    checker: str
    outcome: Outcome | None = None
    reason: str | None = None
    summary: str = ""
    device: Device = "cpu"
    criteria: list[CriterionResult] = []
    value: float | None = None
    target: float | None = None
    unit: str = ""
    direction: Literal["at_least", "at_most"] = "at_least"
    predicted: float | None = None
    measured: float | None = None
    copied: bool = False
    document_sha256: str = ""
    problem: str | None = None
    remedy: str = ""

    @property
    def held(self) -> int:
        """Return how many criteria hold."""
        return sum(one.holds is True for one in self.criteria)

    @property
    def passed(self) -> bool:
        """Return True if the lab is solved by it; the reference solution submitted is not."""
        return self.outcome is Outcome.PASS and not self.copied


def with_verdict(base: CheckedVerdict, verdict: Verdict, document: str) -> CheckedVerdict:
    """Return what a verdict says, which was read of a `document` whose signature was checked."""
    targets = (one for one in verdict.criteria if one.kind == "target")
    target = next((one for one in targets if one.target is not None), None)
    figures: dict[str, Any] = {}
    if target is not None:
        figures = {name: getattr(target, name) for name in ("value", "target", "unit", "direction")}
    prediction = verdict.prediction
    return replace(
        base,
        outcome=verdict.outcome,
        reason=verdict.reason,
        summary=verdict.summary,
        device=verdict.device,
        criteria=verdict.criteria,
        predicted=prediction.predicted if prediction else None,
        measured=prediction.measured if prediction else None,
        copied=bool(verdict.diagnosis and verdict.diagnosis.copied),
        document_sha256=hashlib.sha256(document.encode()).hexdigest(),
        **figures,
    )


def _query() -> Select[Any]:
    """Select submissions with their newest verdicts, if they have one, and what signed them."""
    verdicts, submissions = tables.verdicts, tables.submissions
    people, leases = tables.people, tables.leases
    return (
        select(
            submissions.c.handle,
            func.coalesce(people.c.merged_into, people.c.id).label("person"),
            submissions.c.lab,
            leases.c.lab_hash,
            submissions.c.received,
            submissions.c.receipt,
            submissions.c.blob,
            submissions.c.state,
            submissions.c.round.label("current_round"),
            people.c.handle.label("learner"),
            leases.c.nonce,
            verdicts.c.round,
            verdicts.c.recorded,
            verdicts.c.checker,
            verdicts.c.document,
            select(tables.cohort.c.id).scalar_subquery().label("cohort"),
        )
        .join(people, people.c.id == submissions.c.person)
        .outerjoin(verdicts, verdicts.c.submission == submissions.c.id)
        .outerjoin(leases, leases.c.id == verdicts.c.lease)
    )


class Round(NamedTuple):
    """One round's verdict of a submission: what it says, the whole of it unless it was altered, and
    the signed document.
    """

    judged: CheckedVerdict
    verdict: Verdict | None
    document: str


class VerdictReader:
    """Reads verdicts with the cohort's public key.

    What was verified once is remembered by the hash of all that was verified, so that a page over
    thousands of verdicts does not check each signature again.
    """

    def __init__(self, public_key: str) -> None:
        self._key = public_key_of(public_key.encode())
        self._seen: dict[bytes, CheckedVerdict] = {}

    def latest(self, connection: Connection, *where: Any) -> list[CheckedVerdict]:
        """Return the latest verdict of each measured submission, oldest first.

        `where` narrows them down. A submission that counts as measured and has no verdict is among
        them, with a `problem`.
        """
        verdicts, submissions = tables.verdicts, tables.submissions
        newest = select(func.max(verdicts.c.id)).group_by(verdicts.c.submission)
        gone = and_(verdicts.c.id.is_(None), submissions.c.state == "done")
        query = _query().where(verdicts.c.id.in_(newest) | gone, *where)
        latest = []
        for row in connection.execute(query.order_by(submissions.c.id)):
            judged = self._read(row)
            # Older rounds stay on record, so a newest verdict that was deleted would bring the one
            # before it back into force.
            if row.state == "done" and row.round != row.current_round and not judged.problem:
                gone_text = "This record was altered: its latest verdict is gone."
                judged = replace(judged, outcome=None, criteria=[], problem=gone_text)
            latest.append(judged)
        return latest

    def altered(self, connection: Connection) -> list[CheckedVerdict]:
        """Return the latest verdicts that are not what the key signed, oldest first."""
        return [one for one in self.latest(connection) if one.problem]

    def all_of(self, connection: Connection, submission: str) -> list[Round]:
        """Return every round of one submission, oldest first."""
        query = _query().where(
            tables.submissions.c.handle == submission, tables.verdicts.c.id.is_not(None)
        )
        rounds = []
        for row in connection.execute(query.order_by(tables.verdicts.c.id)):
            judged = self._read(row)
            whole = None
            if not judged.problem:
                whole = verify_bytes(row.document.encode(), self._key).verdict
            rounds.append(Round(judged, whole, row.document))
        return rounds

    def _read(self, row: Row[Any]) -> CheckedVerdict:
        # Over every column, not only the document: whoever changes any of them is noticed.
        digest = hashlib.sha256(repr(tuple(row)).encode()).digest()
        if digest not in self._seen:
            self._seen[digest] = self._judge(row)
        return self._seen[digest]

    def _judge(self, row: Row[Any]) -> CheckedVerdict:
        base = CheckedVerdict(
            row.handle,
            row.person,
            row.lab,
            row.round or 0,
            row.received,
            row.recorded or row.received,
            row.checker or "",
            remedy=f"Measure it again (`lab cohort regrade {row.handle}`), or restore a backup.",
        )
        if problem := self._receipt_problem(row):
            return replace(base, problem=f"This record was altered: {problem}", remedy=RESTORE)
        if row.document is None:
            return replace(base, problem="This record was altered: its verdict is gone.")
        checked = verify_bytes(row.document.encode(), self._key)
        verdict = checked.verdict
        if not checked.ok or verdict is None:
            return replace(base, problem=f"This record was altered: {checked.sentence}")
        binding = Binding(row.cohort, row.learner, row.handle, row.nonce)
        if wrong := binding_problem(verdict, binding, row.lab, row.lab_hash):
            return replace(base, problem=f"This record was altered: {wrong}.")
        return with_verdict(base, verdict, row.document)

    def _receipt_problem(self, row: Row[Any]) -> str | None:
        """Explain why a submission is not what its signed receipt confirms; None if it is.

        Lateness is computed from when it was received: without this, moving that time in the
        database would change grades unnoticed.
        """
        try:
            receipt = msgspec.json.decode(row.receipt, type=Receipt)
        except msgspec.DecodeError:
            return "its receipt cannot be read."
        if receipt_problem(receipt, self._key):
            return "its receipt is not what the cohort's key signed."
        pairs = {
            "cohort": (row.cohort, receipt.cohort),
            "learner": (row.learner, receipt.learner),
            "submission": (row.handle, receipt.submission),
            "lab": (row.lab, current_name(receipt.lab)),
            "files": (row.blob, receipt.content_sha256),
            "time": (iso(row.received), receipt.received_at),
        }
        for name, (recorded, confirmed) in pairs.items():
            if recorded != confirmed:
                return f"its {name}: {recorded} in the database, {confirmed} on its receipt."
        return None


@cache
def verdict_reader_of(public_key: str) -> VerdictReader:
    """Return the one reader of a cohort in this process, so that pages share what it remembers."""
    return VerdictReader(public_key)
