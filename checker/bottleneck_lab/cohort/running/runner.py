"""The runner: takes leases, has them measured, signs what was measured, and records it. It trusts
no job to run once, and none to tell the truth.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from sqlalchemy.exc import InterfaceError, OperationalError

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.folder import Cohort
from bottleneck_lab.cohort.protocol import files_of
from bottleneck_lab.cohort.running import leases
from bottleneck_lab.cohort.running.executors.base import Executor
from bottleneck_lab.cohort.running.job import FILES, Job, Result, read_result, write_job
from bottleneck_lab.cohort.running.leases import Lease
from bottleneck_lab.cohort.running.queue_order import Waiting
from bottleneck_lab.cohort.running.workers import RunnerStatus, Slot, report_status
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.submissions.ledger import Circumstances
from bottleneck_lab.errors import LabError, MachineError
from bottleneck_lab.grading.attest import sign
from bottleneck_lab.grading.verdict import Verdict

log = logging.getLogger("bottleneck_lab.cohort.running.runner")
BEAT_S = 5.0
"""Between two signs of life; a lease lasts several of them."""


class Runner:
    """One loop over everything under way. `step` is one turn of it; `run` turns until stopped."""

    def __init__(
        self,
        cohort: Cohort,
        executor: Executor,
        name: str,
        *,
        sandbox_required: bool = True,
        limits_required: bool = True,
        quiet_s: float = 0.0,
    ) -> None:
        self._cohort = cohort
        self._executor = executor
        self._name = name
        self._sandbox_required = sandbox_required
        self._limits_required = limits_required
        self._quiet_s = quiet_s
        self._key = cohort.key()
        self._under_way: dict[str, tuple[Lease, str]] = {}
        self._beat = 0.0
        self._moved = False

    def run(self, stopping: Callable[[], bool], pause_s: float = 0.2) -> None:
        """Measure until `stopping` returns True.

        Then jobs of an executor that cannot survive are ended and queued again, without blame.
        """
        while not self._try(self.recover) and not stopping():
            time.sleep(1.0)
        while not stopping():
            self._moved = False
            self._try(self.step)
            if not self._moved:  # with work at hand, the next turn comes at once
                time.sleep(pause_s)
        self._try(self.stop)

    def _try(self, work: Callable[[], object]) -> bool:
        """Return False if the database does not answer; it may be restarting, so try again."""
        try:
            work()
        except (OperationalError, InterfaceError) as error:
            log.warning("the database does not answer: %s", str(error.orig).splitlines()[0])
            time.sleep(1.0)
            return False
        return True

    def recover(self) -> None:
        """Take over from an earlier runner of this name: adopt surviving jobs, requeue others."""
        with self._cohort.database.writing() as connection:
            now = self._cohort.database.clock()
            for lease in leases.active_leases(connection, self._name):
                if self._executor.survives and lease.job is not None:
                    self._executor.adopt(lease.slot, lease.job)
                    self._under_way[lease.nonce] = (lease, lease.job)
                else:
                    leases.give_up(
                        connection, lease.nonce, "The runner was started again.", now, blame=False
                    )
        # Folders of jobs that ended with the machine hold learners' files: none is left lying.
        kept = {lease.nonce for lease, _ in self._under_way.values()}
        for folder in self._cohort.jobs.iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def step(self) -> None:
        """Do one turn: keep the leases alive, conclude what has ended, begin what can begin."""
        self._keep_alive()
        ended = [
            nonce
            for nonce, (_, handle) in self._under_way.items()
            if self._executor.poll(handle) != "running"
        ]
        for nonce in ended:
            self._conclude(*self._under_way[nonce])
            del self._under_way[nonce]
        self._moved = self._begin() or bool(ended)

    def stop(self) -> None:
        """End what cannot go on alone; somebody else measures it."""
        if not self._executor.survives:
            with self._cohort.database.writing() as connection:
                for nonce in self._under_way:
                    leases.give_up(
                        connection,
                        nonce,
                        "The runner was stopped.",
                        self._cohort.database.clock(),
                        blame=False,
                    )
        self._executor.close()
        self._under_way.clear()
        with self._cohort.database.writing() as connection:
            report_status(connection, self._status([], 0.0))  # seen at 0: gone at once

    def _status(self, slots: list[Slot], seen: float) -> RunnerStatus:
        return RunnerStatus(self._name, self._executor.name, slots, seen, self._executor.health())

    def _keep_alive(self) -> None:
        """Prolong leases, end jobs that lost theirs or take too long, and report the status.

        Leases that other runners let lapse are queued again here: any runner that lives sees to it.
        """
        now = self._cohort.database.clock()
        if 0 <= now - self._beat < BEAT_S:  # a clock that was set back does not stop the beat
            return
        with self._cohort.database.writing() as connection:
            kept = leases.renew(connection, list(self._under_way), now)
            limit_s = load_settings(connection).job_limit_s
            leases.expire(connection, now)
            submissions = {handle: lease.submission for lease, handle in self._under_way.values()}
            slots = [
                Slot(slot.name, submissions.get(slot.busy or "")) for slot in self._executor.slots()
            ]
            report_status(connection, self._status(slots, now))
        self._beat = now
        for nonce, (lease, handle) in list(self._under_way.items()):
            # Somebody else may be measuring it already; two results would waste a slot.
            if nonce not in kept:
                self._drop(nonce, "its lease has expired")
            elif now - lease.taken > limit_s and self._executor.poll(handle) == "running":
                self._drop(nonce, f"it took longer than {limit_s:.0f} s")

    def _drop(self, nonce: str, why: str) -> None:
        lease, handle = self._under_way.pop(nonce)
        log.warning("job %s of %s is ended: %s", handle, lease.submission, why)
        self._executor.cancel(handle)
        self._give_up(lease, f"The check was ended: {why}.")
        self._clear(lease, handle)

    def _begin(self) -> bool:
        """Claim and start one job if there is one and room for it; False if nothing was begun."""
        chosen: list[str] = []

        def choose(waiting: Waiting) -> str | None:
            slot = self._executor.choose(waiting.device)
            chosen.extend([slot] if slot else [])
            return slot

        try:
            with self._cohort.database.writing() as connection:
                lease = leases.claim(
                    connection,
                    self._name,
                    self._executor.devices,
                    choose,
                    self._cohort.database.clock(),
                )
        except BaseException:
            # The transaction is undone, so the slot that it took must be given back as well.
            for slot in chosen:
                self._executor.release(slot, None)
            raise
        if lease is None:
            return False
        self._start(lease)
        return True

    def _start(self, lease: Lease) -> None:
        folder = self._cohort.jobs / lease.nonce
        try:
            blobs = self._cohort.blobs
            capture = files_of(blobs.get(lease.capture)) if lease.capture else {}
            job = Job(
                lease.nonce,
                lease.lab,
                lease.lab_hash,
                lease.device,
                self._sandbox_required,
                self._quiet_s,
                msgspec.json.decode(lease.circumstances, type=Circumstances).record,
                self._limits_required,
            )
            write_job(folder, job, files_of(blobs.get(lease.blob)), capture)
            handle = self._executor.submit(lease.slot, folder, lease.device)
        except LabError as error:
            log.warning("%s cannot be measured: %s", lease.submission, error.message)
            self._give_up(lease, error.message)
            self._clear(lease, None)
            return
        self._under_way[lease.nonce] = (lease, handle)
        # Written at once: after a crash, the next runner finds the job by this handle.
        with self._cohort.database.writing() as connection:
            leases.set_job(connection, lease, handle)

    def _conclude(self, lease: Lease, handle: str) -> None:
        """Record what an ended job left, signed; or queue the submission again."""
        try:
            result = read_result(self._cohort.jobs / lease.nonce)
            self._record(lease, _require_verdict(result, lease), result.checker if result else "")
        except leases.StaleError:
            log.info("%s was measured too late; another attempt has taken over", lease.submission)
        except LabError as error:
            log.warning("%s has no verdict: %s", lease.submission, error.message)
            self._give_up(lease, error.message)
        self._clear(lease, handle)

    def _record(self, lease: Lease, verdict: Verdict, checker: str) -> None:
        # The job is not trusted: its verdict must be of the files that this runner laid out.
        expected = find_lab(lease.lab).code_hash(self._cohort.jobs / lease.nonce / FILES)
        if verdict.submission_hash not in (expected, ""):
            raise MachineError(
                "The verdict is about other files than those submitted.",
                "Look at the runner's machine.",
            )
        isolation = {**verdict.isolation, "user": self._executor.user(lease.slot)}
        bound = msgspec.structs.replace(verdict, binding=lease.binding, isolation=isolation)
        signed = sign(bound, self._key)
        document = msgspec.json.encode(signed).decode()
        with self._cohort.database.writing() as connection:
            leases.finish(
                connection,
                lease.nonce,
                document,
                self._key.public_key(),
                checker,
                self._cohort.database.clock(),
            )
        log.info("%s of %s: %s", lease.submission, lease.lab, verdict.outcome)

    def _give_up(self, lease: Lease, why: str) -> None:
        with self._cohort.database.writing() as connection:
            leases.give_up(connection, lease.nonce, why, self._cohort.database.clock())

    def _clear(self, lease: Lease, handle: str | None) -> None:
        self._executor.release(lease.slot, handle)
        with suppress(OSError):
            shutil.rmtree(self._cohort.jobs / lease.nonce)


def _require_verdict(result: Result | None, lease: Lease) -> Verdict:
    if result is None:
        raise MachineError("The check ended without a result.", "It is measured again.")
    if result.nonce != lease.nonce:
        raise MachineError("The result belongs to another attempt.", "It is measured again.")
    if result.verdict is None:
        raise MachineError(
            result.problem or "The check ended without a verdict.", "It is measured again."
        )
    return result.verdict


def keep_lock(cohort: Cohort, name: str) -> int:
    """Be the only runner with that name on this cohort; the lock goes with the process.

    Returns the descriptor that holds it. Raises MachineError while another has it.
    """
    path = Path(cohort.folder / f"runner-{name}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise MachineError(
            f"A runner called '{name}' is already working for this cohort.",
            "Choose another name with --name, or stop that runner.",
        ) from None
    return descriptor
