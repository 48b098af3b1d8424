"""Where a runner gets its work and hands in results: the cohort itself, or its server.

Whoever hands work out also signs: the key and the database stay with the cohort, and a runner on
another machine only measures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError

from bottleneck_lab.catalog import Device, find_lab
from bottleneck_lab.cohort.folder import Cohort
from bottleneck_lab.cohort.protocol import content_of, files_of
from bottleneck_lab.cohort.running import leases
from bottleneck_lab.cohort.running.job import Result
from bottleneck_lab.cohort.running.leases import Choose, Lease
from bottleneck_lab.cohort.running.workers import (
    RunnerStatus,
    leave,
    report_status,
    require_useful,
)
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.submissions.handing_in import files_problem
from bottleneck_lab.errors import MachineError
from bottleneck_lab.grading.attest import sign
from bottleneck_lab.grading.verdict import Verdict


class UnavailableError(Exception):
    """The cohort's database or server does not answer; it may be restarting."""


class Beat(msgspec.Struct, frozen=True):
    """Answer to a sign of life: nonces of the leases still valid, and the limit of a job (s)."""

    kept: set[str]
    job_limit_s: float


class Work(msgspec.Struct, frozen=True):
    """A lease with what is measured: the submitted files, and those of the learner's capture."""

    lease: Lease
    files: dict[str, bytes]
    capture: dict[str, bytes]


class Dispatcher(Protocol):
    """Hands out work to one runner. Every method raises UnavailableError without an answer."""

    def register(self, status: RunnerStatus) -> list[Lease]:
        """Report a runner that starts; return the leases that one of its name still holds.

        Raises MachineError if it cannot help.
        """

    def beat(self, status: RunnerStatus, nonces: list[str]) -> Beat:
        """Report a runner's status, and prolong its leases."""

    def claim(self, devices: Iterable[Device], choose: Choose) -> Work | None:
        """Return what is next among what can be measured on `devices`, leased in a chosen slot.

        None if there is nothing, or no slot for it.
        """

    def set_job(self, lease: Lease, job: str) -> None:
        """Record what the executor calls this work."""

    def give_up(self, nonce: str, why: str, *, blame: bool = True) -> None:
        """End a lease without a verdict, and have it measured again."""

    def conclude(self, nonce: str, result: Result, user: str) -> None:
        """Sign and record what was measured under a lease, by a job of that `user`.

        Raises StaleError if the lease is over, MachineError for a result that is not a verdict on
        what was submitted.
        """

    def leave(self) -> None:
        """Report that the runner has stopped."""


class LocalDispatcher:
    """The dispatcher of a runner called `name` that has the cohort's folder and its key."""

    def __init__(self, cohort: Cohort, name: str) -> None:
        self._cohort, self._name, self._key = cohort, name, cohort.key()

    @contextmanager
    def _writing(self) -> Iterator[tuple[Connection, float]]:
        """Open a transaction, with the time at its beginning."""
        database = self._cohort.database
        try:
            with database.writing() as connection:
                yield connection, database.clock()
        except (OperationalError, InterfaceError) as error:
            raise UnavailableError(str(error.orig).splitlines()[0]) from error

    def register(self, status: RunnerStatus) -> list[Lease]:
        with self._writing() as (connection, now):
            status = msgspec.structs.replace(status, seen=now)
            require_useful(connection, status)
            report_status(connection, status)
            return leases.active_leases(connection, self._name)

    def beat(self, status: RunnerStatus, nonces: list[str]) -> Beat:
        with self._writing() as (connection, now):
            kept = leases.renew(connection, nonces, now)
            # Leases that other runners let lapse: any runner that lives sees to them.
            leases.expire(connection, now)
            report_status(connection, msgspec.structs.replace(status, seen=now))
            return Beat(kept, load_settings(connection).job_limit_s)

    def claim(self, devices: Iterable[Device], choose: Choose) -> Work | None:
        with self._writing() as (connection, now):
            lease = leases.claim(connection, self._name, devices, choose, now)
        if lease is None:
            return None
        try:
            blobs = self._cohort.blobs
            capture = files_of(blobs.get(lease.capture)) if lease.capture else {}
            return Work(lease, files_of(blobs.get(lease.blob)), capture)
        except MachineError as error:
            self.give_up(lease.nonce, error.message)
            return None

    def set_job(self, lease: Lease, job: str) -> None:
        with self._writing() as (connection, _):
            leases.set_job(connection, lease, job)

    def give_up(self, nonce: str, why: str, *, blame: bool = True) -> None:
        with self._writing() as (connection, now):
            if self._holds(connection, nonce):
                leases.give_up(connection, nonce, why, now, blame=blame)

    def conclude(self, nonce: str, result: Result, user: str) -> None:
        with self._writing() as (connection, _):
            if not self._holds(connection, nonce):
                raise leases.StaleError
            lease = leases.load_lease(connection, nonce)
        if lease.tool is not None:
            self._keep_capture(lease, result)
            return
        verdict = _require_verdict(result, lease)
        # The job is not trusted: its verdict must be of the files that were submitted.
        with tempfile.TemporaryDirectory(prefix="lab-verdict-") as name:
            for file, data in files_of(self._cohort.blobs.get(lease.blob)).items():
                path = Path(name, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            expected = find_lab(lease.lab).code_hash(Path(name))
        if verdict.submission_hash not in (expected, ""):
            raise MachineError(
                "The verdict is about other files than those submitted.",
                "Look at the runner's machine.",
            )
        isolation = {**verdict.isolation, "user": user}
        bound = msgspec.structs.replace(verdict, binding=lease.binding, isolation=isolation)
        document = msgspec.json.encode(sign(bound, self._key)).decode()
        with self._writing() as (connection, now):
            public = self._key.public_key()
            leases.finish(connection, nonce, document, public, result.checker, now)

    def _keep_capture(self, lease: Lease, result: Result) -> None:
        """Store a capture that was made, and record it, or that there is none and why."""
        if result.nonce == lease.nonce and result.uncaptured:
            with self._writing() as (connection, now):
                leases.finish_capture(connection, lease.nonce, None, now, result.problem)
            return
        if result.nonce != lease.nonce or files_problem(result.capture):
            problem = result.problem or "The job ended without a capture."
            raise MachineError(problem, "It is made again.")
        (blob,) = self._cohort.blobs.put([content_of(result.capture)])
        with self._writing() as (connection, now):
            leases.finish_capture(connection, lease.nonce, blob, now)

    def leave(self) -> None:
        with self._writing() as (connection, _):
            leave(connection, self._name)

    def _holds(self, connection: Connection, nonce: str) -> bool:
        """Return True if this runner has that lease: runners do not end each other's."""
        own = leases.active_leases(connection, self._name)
        return any(lease.nonce == nonce for lease in own)


def _require_verdict(result: Result, lease: Lease) -> Verdict:
    if result.nonce != lease.nonce:
        raise MachineError("The result belongs to another attempt.", "It is measured again.")
    if result.verdict is None:
        raise MachineError(
            result.problem or "The check ended without a verdict.", "It is measured again."
        )
    return result.verdict
