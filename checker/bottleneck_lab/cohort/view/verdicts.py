"""Verdicts fit to show: only those that the cohort's key signed for this submission, learner and
attempt.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Row, Select, func, select

from bottleneck_lab.cohort.running.leases import binding_problem
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.grading.attest import public_key_of, verify_bytes
from bottleneck_lab.grading.verdict import Binding, Outcome, Verdict

STOPPED = ("crashed", "timed out", "tampered", "forbidden call", "does not compile")
"""Reasons of a FAIL for which nothing that held before counts."""


class CheckedVerdict(msgspec.Struct, frozen=True):
    """What a verdict comes to. `value` and `target` are those of the lab's first target; `problem`
    says why the record is not to be believed.
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
    held: int = 0
    total: int = 0
    value: float | None = None
    target: float | None = None
    unit: str = ""
    direction: Literal["at_least", "at_most"] = "at_least"
    predicted: float | None = None
    measured: float | None = None
    copied: bool = False
    problem: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the lab is solved by it: the reference solution submitted does not count."""
        return self.outcome is Outcome.PASS and not self.copied

    @property
    def share(self) -> float:
        """The share (0–1) of the criteria that hold; 1 only for a lab that is solved, 0 for work
        that was stopped.
        """
        if self.passed:
            return 1.0
        if self.outcome is not Outcome.FAIL or self.reason in STOPPED or not self.total:
            return 0.0
        return min(self.held, self.total - 1) / self.total


def _query(*columns: Any) -> Select[Any]:
    verdicts, submissions, people, leases = (
        tables.verdicts,
        tables.submissions,
        tables.people,
        tables.leases,
    )
    return (
        select(
            submissions.c.handle,
            submissions.c.person,
            submissions.c.lab,
            submissions.c.lab_hash,
            submissions.c.received,
            people.c.handle.label("learner"),
            leases.c.nonce,
            verdicts.c.round,
            verdicts.c.recorded,
            verdicts.c.checker,
            verdicts.c.document,
            select(tables.cohort.c.id).scalar_subquery().label("cohort"),
            *columns,
        )
        .join(submissions, submissions.c.id == verdicts.c.submission)
        .join(people, people.c.id == submissions.c.person)
        .join(leases, leases.c.id == verdicts.c.lease)
        .order_by(verdicts.c.id)
    )


class VerdictReader:
    """Reads verdicts with the cohort's public key. What was verified once is remembered by the hash
    of all that was verified.
    """

    def __init__(self, public_key: str) -> None:
        self._key = public_key_of(public_key.encode())
        self._seen: dict[bytes, CheckedVerdict] = {}

    def latest(self, connection: Connection, *where: Any) -> list[CheckedVerdict]:
        """The latest verdict of each submission, oldest first. `where` narrows it down."""
        verdicts = tables.verdicts
        newest = select(func.max(verdicts.c.id)).group_by(verdicts.c.submission)
        return [
            self._read(row)
            for row in connection.execute(_query().where(verdicts.c.id.in_(newest), *where))
        ]

    def all_of(
        self, connection: Connection, submission: str
    ) -> list[tuple[CheckedVerdict, Verdict | None, str]]:
        """Every round's verdict of one submission, with the whole verdict and the signed document."""
        rows = connection.execute(_query().where(tables.submissions.c.handle == submission))
        return [
            (judged, self._whole(row, judged), row.document)
            for row in rows
            for judged in [self._read(row)]
        ]

    def _whole(self, row: Row[Any], judged: CheckedVerdict) -> Verdict | None:
        return None if judged.problem else verify_bytes(row.document.encode(), self._key).verdict

    def _read(self, row: Row[Any]) -> CheckedVerdict:
        digest = hashlib.sha256(repr(tuple(row)).encode()).digest()
        if digest not in self._seen:
            self._seen[digest] = self._judge(row)
        return self._seen[digest]

    def _judge(self, row: Row[Any]) -> CheckedVerdict:
        base = CheckedVerdict(
            row.handle, row.person, row.lab, row.round, row.received, row.recorded, row.checker
        )
        checked = verify_bytes(row.document.encode(), self._key)
        binding = Binding(row.cohort, row.learner, row.handle, row.nonce)
        problem = None if checked.ok else checked.sentence
        if checked.ok and checked.verdict:
            problem = binding_problem(checked.verdict, binding, row.lab, row.lab_hash)
        if problem or checked.verdict is None:
            return msgspec.structs.replace(base, problem=f"This record was altered: {problem}")
        return _figures(base, checked.verdict)


def _figures(base: CheckedVerdict, verdict: Verdict) -> CheckedVerdict:
    target = next(
        (one for one in verdict.criteria if one.kind == "target" and one.target is not None), None
    )
    figures: dict[str, Any] = (
        {}
        if target is None
        else {name: getattr(target, name) for name in ("value", "target", "unit", "direction")}
    )
    return msgspec.structs.replace(
        base,
        outcome=verdict.outcome,
        reason=verdict.reason,
        summary=verdict.summary,
        held=sum(one.holds is True for one in verdict.criteria),
        total=len(verdict.criteria),
        predicted=verdict.prediction.predicted if verdict.prediction else None,
        measured=verdict.prediction.measured if verdict.prediction else None,
        copied=bool(verdict.diagnosis and verdict.diagnosis.copied),
        **figures,
    )


@cache
def verdict_reader_of(public_key: str) -> VerdictReader:
    """The one reader of a cohort in this process, so that all pages share what it remembers."""
    return VerdictReader(public_key)
