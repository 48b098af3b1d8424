"""The runner: takes leases, has them measured, and hands in what was measured. It trusts no job to
run once, and none to tell the truth.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.running.dispatch import Dispatcher, UnavailableError, Work
from bottleneck_lab.cohort.running.durations import keep_duration
from bottleneck_lab.cohort.running.executors.base import Executor
from bottleneck_lab.cohort.running.forecast import needs_quiet
from bottleneck_lab.cohort.running.job import Job, read_result, write_job
from bottleneck_lab.cohort.running.leases import Lease, StaleError
from bottleneck_lab.cohort.running.queue_order import Waiting
from bottleneck_lab.cohort.running.workers import RunnerStatus, Slot
from bottleneck_lab.cohort.submissions.ledger import Circumstances
from bottleneck_lab.errors import LabError, MachineError
from bottleneck_lab.workspace.dataset import missing_datasets
from bottleneck_lab.workspace.lock import try_lock

log = logging.getLogger("bottleneck_lab.cohort.running.runner")
BEAT_S = 5.0
"""Between two signs of life; a lease lasts several of them."""


class UnderWay(NamedTuple):
    """A job that was started: its lease, the executor's name for it, and when it began."""

    lease: Lease
    handle: str
    began: float


class Conditions(NamedTuple):
    """Conditions under which a job measures; where a required one is missing, there is no verdict.

    `quiet_s` is how long a job that needs a quiet machine waits for it.
    """

    sandbox_required: bool = True
    limits_required: bool = True
    quiet_s: float = 0.0


STRICT = Conditions()


class Machine(NamedTuple):
    """The machine of a runner: its clock (in seconds), the checks that need it to themselves, its
    table of how long checks took, and the data sets that it lacks.
    """

    clock: Callable[[], float] = time.time
    needs_quiet: Callable[[str, Device], bool] = needs_quiet
    keep_duration: Callable[[str, Device, float], None] = keep_duration
    missing_datasets: Callable[[], list[str]] = missing_datasets


THIS_MACHINE = Machine()


class Runner:
    """One loop over everything under way. `step` is one turn of it; `run` turns until stopped.

    `jobs` is the folder of its jobs.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        executor: Executor,
        name: str,
        jobs: Path,
        conditions: Conditions = STRICT,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self._dispatcher = dispatcher
        self._executor = executor
        self._name = name
        self._jobs = jobs
        self._conditions = conditions
        self._machine = machine
        self._under_way: dict[str, UnderWay] = {}
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
        """Return False if the cohort does not answer; it may be restarting, so try again."""
        try:
            work()
        except UnavailableError as error:
            log.warning("the cohort does not answer: %s", error)
            time.sleep(1.0)
            return False
        return True

    def recover(self) -> None:
        """Take over from an earlier runner of this name: adopt surviving jobs, requeue others.

        Raises MachineError if this runner cannot help.
        """
        for lease in self._dispatcher.register(self._status()):
            if self._executor.survives and lease.job is not None:
                self._executor.adopt(lease.slot, lease.job)
                self._under_way[lease.nonce] = UnderWay(lease, lease.job, lease.taken)
            else:
                why = "The runner was started again."
                self._dispatcher.give_up(lease.nonce, why, blame=False)
        # Folders of jobs that ended with the machine hold learners' files: none is left lying.
        for folder in self._jobs.iterdir():
            if folder.name not in self._under_way:
                shutil.rmtree(folder, ignore_errors=True)

    def step(self) -> None:
        """Do one turn: keep the leases alive, conclude what has ended, begin what can begin."""
        self._keep_alive()
        # Listed first: concluding changes what is under way.
        ended = [
            nonce
            for nonce, job in self._under_way.items()
            if self._executor.poll(job.handle) != "running"
        ]
        for nonce in ended:
            self._conclude(*self._under_way[nonce])
            del self._under_way[nonce]
        self._moved = self._begin() or bool(ended)

    def turn(self) -> None:
        """Take steps until nothing ends and nothing can begin."""
        self._moved = True
        while self._moved:
            self.step()

    def stop(self) -> None:
        """End what cannot go on alone; somebody else measures it."""
        if not self._executor.survives:
            for nonce in self._under_way:
                self._dispatcher.give_up(nonce, "The runner was stopped.", blame=False)
        self._executor.close()
        self._under_way.clear()
        self._dispatcher.leave()

    def _status(self) -> RunnerStatus:
        alone = not self._executor.survives  # a cluster's nodes are other machines than this one
        return RunnerStatus(
            self._name,
            self._executor.name,
            [Slot(name) for name in self._executor.slots()],
            0.0,  # whoever is told puts the time on it: clocks of machines differ
            self._executor.health(),
            machine_id() if alone else "",
            self._machine.missing_datasets() if alone else [],
        )

    def _keep_alive(self) -> None:
        """Prolong leases, end jobs that lost theirs or take too long, and report the status."""
        now = self._machine.clock()
        if 0 <= now - self._beat < BEAT_S:  # a clock that was set back does not stop the beat
            return
        beat = self._dispatcher.beat(self._status(), list(self._under_way))
        self._beat = now
        for nonce, job in list(self._under_way.items()):
            # Somebody else may be measuring it already; two results would waste a slot.
            if nonce not in beat.kept:
                self._drop(nonce, "its lease has expired")
            elif (
                now - job.began > beat.job_limit_s and self._executor.poll(job.handle) == "running"
            ):
                self._drop(nonce, f"it took longer than {beat.job_limit_s:.0f} s")

    def _drop(self, nonce: str, why: str) -> None:
        lease, handle, _ = self._under_way.pop(nonce)
        log.warning("job %s of %s is ended: %s", handle, lease.submission, why)
        self._executor.cancel(handle)
        self._dispatcher.give_up(nonce, f"The check was ended: {why}.")
        self._clear(lease, handle)

    def _begin(self) -> bool:
        """Claim and start one job if there is one and room for it; False if nothing was begun."""
        # The cohort decides what is next; only this runner knows whether it has room for it. So the
        # choice of a slot is called from within the claim, while nobody else can claim.
        chosen: list[str] = []

        def choose(waiting: Waiting) -> str | None:
            quiet = self._machine.needs_quiet(waiting.lab, waiting.device)
            slot = self._executor.choose(waiting.device, quiet=quiet)
            chosen.extend([slot] if slot else [])
            return slot

        work = None
        try:
            work = self._dispatcher.claim(self._executor.devices, choose)
        finally:
            if work is None:  # also if the claim failed: the slot that it took is given back
                for slot in chosen:
                    self._executor.release(slot, None)
        if work is None:
            return False
        self._start(work)
        return True

    def _start(self, work: Work) -> None:
        lease = work.lease
        folder = self._jobs / lease.nonce
        conditions = self._conditions
        quiet = self._machine.needs_quiet(lease.lab, lease.device)
        try:
            job = Job(
                lease.nonce,
                lease.lab,
                lease.lab_hash,
                lease.device,
                conditions.sandbox_required,
                conditions.quiet_s if quiet else 0.0,
                msgspec.json.decode(lease.circumstances, type=Circumstances).record,
                conditions.limits_required,
                lease.tool,
            )
            write_job(folder, job, work.files, work.capture)
            handle = self._executor.submit(lease.slot, folder, lease.device)
        except LabError as error:
            log.warning("%s cannot be measured: %s", lease.submission, error.message)
            self._dispatcher.give_up(lease.nonce, error.message)
            self._clear(lease, None)
            return
        self._under_way[lease.nonce] = UnderWay(lease, handle, self._machine.clock())
        # Written at once: after a crash, the next runner finds the job by this handle.
        self._dispatcher.set_job(lease, handle)

    def _conclude(self, lease: Lease, handle: str, began: float) -> None:
        """Hand in what an ended job left, or have the submission measured again."""
        try:
            result = read_result(self._jobs / lease.nonce)
            if result is None:
                raise MachineError("The check ended without a result.", "It is measured again.")
            self._dispatcher.conclude(lease.nonce, result, self._executor.user(lease.slot))
            outcome = result.verdict.outcome if result.verdict else "captured"
            log.info("%s of %s: %s", lease.submission, lease.lab, outcome)
            if lease.tool is None:
                self._machine.keep_duration(lease.lab, lease.device, self._machine.clock() - began)
        except StaleError:
            log.info("%s was measured too late; another attempt has taken over", lease.submission)
        except LabError as error:
            log.warning("%s has no verdict: %s", lease.submission, error.message)
            self._dispatcher.give_up(lease.nonce, error.message)
        self._clear(lease, handle)

    def _clear(self, lease: Lease, handle: str | None) -> None:
        self._executor.release(lease.slot, handle)
        with suppress(OSError):
            shutil.rmtree(self._jobs / lease.nonce)


def machine_id() -> str:
    """Return what tells this machine from others: containers on one machine have the same."""
    try:
        # Kernel documentation, sysctl/kernel: drawn when the machine boots.
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


@contextmanager
def only_runner(folder: Path, name: str) -> Iterator[None]:
    """Be the only runner called `name` on the cohort of `folder`; MachineError if there is one."""
    lock = try_lock(folder / f"runner-{name}.lock")
    if lock is None:
        raise MachineError(
            f"A runner called '{name}' is already working for this cohort.",
            "Choose another name with --name, or stop that runner.",
        )
    try:
        yield
    finally:
        os.close(lock)
