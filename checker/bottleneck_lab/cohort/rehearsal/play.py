"""Play scripts against a cohort of their own, in simulated time.

Intake, limits, queue, leases, signatures and records are the server's and the runner's own code.
Only the clock is simulated, and a check takes as long as one did that was recorded.
"""

from __future__ import annotations

import heapq
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import Device, Lab, find_lab
from bottleneck_lab.cohort.folder import Cohort, Config, create_cohort, open_cohort
from bottleneck_lab.cohort.grading.rules import set_rules
from bottleneck_lab.cohort.members.joining import join, join_codes
from bottleneck_lab.cohort.protocol import Join, Submission
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.cohort.rehearsal.learners import Script
from bottleneck_lab.cohort.running.dispatch import LocalDispatcher, Work
from bottleneck_lab.cohort.running.durations import Durations, typical_s
from bottleneck_lab.cohort.running.executors.base import Progress
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.running.job import JOB, RESULT, Job, Result
from bottleneck_lab.cohort.running.leases import Choose
from bottleneck_lab.cohort.running.runner import Machine, Runner
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.submissions.intake import Intake
from bottleneck_lab.grading.verdict import Outcome, Verdict

STEP_S = 20.0
"""Longest step of the simulated clock while something is measured: leases have to be renewed."""
START = 1_800_000_000.0
"""Any moment: simulated clocks begin here."""


class Machines(msgspec.Struct, frozen=True):
    """The machines of a workshop: each with so many GPUs and slots for modelled checks."""

    count: int = 1
    gpus: int = 0
    slots: int = 1


class Check(msgspec.Struct):
    """One submission: moments in seconds from the start. Without `ended` it was not measured."""

    learner: int
    lab: str
    device: Device
    sent: float
    began: float | None = None
    ended: float | None = None

    @property
    def wait_s(self) -> float | None:
        """Return how long it waited for its check to begin; None if it never did."""
        return None if self.began is None else self.began - self.sent


class Outcomes(msgspec.Struct, frozen=True):
    """The outcome of a rehearsal: every submission, refusals by their code, and by lab the learners
    who had not passed it when its time was over.
    """

    checks: list[Check]
    refusals: dict[str, int]
    ended: float
    unfinished: dict[str, list[str]] = {}


class _Executor(LocalExecutor):
    """Slots and locks as on a real machine; jobs only take their time."""

    name = "rehearsal"

    def __init__(self, locks: Path, machines: Machines, play: _Play) -> None:
        super().__init__(locks, list(range(machines.gpus)), machine=machines.slots)
        self._play = play
        self._ends: dict[str, tuple[str, Path, float]] = {}
        self._count = 0

    def next_end(self) -> float | None:
        """Return when the next job ends; None without one."""
        return min((ends for _, _, ends in self._ends.values()), default=None)

    def submit(self, slot: str, folder: Path, device: Device) -> str:
        job = msgspec.json.decode((folder / JOB).read_bytes(), type=Job)
        self._count += 1
        handle = str(self._count)
        ends = self._play.now + self._play.draw_duration(job.lab, device)
        self._ends[handle] = (slot, folder, ends)
        return handle

    def poll(self, handle: str) -> Progress:
        _, folder, ends = self._ends[handle]
        if self._play.now < ends:
            return "running"
        job = msgspec.json.decode((folder / JOB).read_bytes(), type=Job)
        verdict = self._play.verdict(job)
        (folder / RESULT).write_bytes(
            msgspec.json.encode(Result(job.nonce, "rehearsal", verdict=verdict))
        )
        return "ended"

    def cancel(self, handle: str) -> None:
        self._ends.pop(handle, None)

    def release(self, slot: str, handle: str | None) -> None:
        super().release(slot, handle)
        self._ends.pop(handle or "", None)

    def health(self) -> dict[str, str]:
        return {}


class _Dispatcher(LocalDispatcher):
    """The cohort's own, which tells the play what begins and ends."""

    def __init__(self, cohort: Cohort, name: str, play: _Play) -> None:
        super().__init__(cohort, name)
        self._play = play

    def claim(self, devices: Iterable[Device], choose: Choose) -> Work | None:
        work = super().claim(devices, choose)
        if work is not None:
            self._play.begun(work.lease.nonce, work.lease.submission)
        return work

    def conclude(self, nonce: str, result: Result, user: str) -> None:
        super().conclude(nonce, result, user)
        self._play.concluded(nonce)


class _Learner:
    """Where a learner is in the script."""

    def __init__(self, script: Script, token: str) -> None:
        self.script, self.token = script, token
        self.block = self.number = self.sent = 0


class _Play:
    """One play. `now` is the simulated clock."""

    def __init__(self, scripts: Sequence[Script], durations: Durations, seed: int) -> None:
        self.now = START
        self._scripts, self._durations = scripts, durations
        blocks = scripts[0].blocks
        self._rng = random.Random(seed)
        self._labs = {block.lab: find_lab(block.lab) for block in blocks}
        self._hashes = {slug: lab.content_hash() for slug, lab in self._labs.items()}
        self._events: list[tuple[float, int]] = []
        self._learners: list[_Learner] = []
        self._checks: dict[str, tuple[Check, int]] = {}
        self._leases: dict[str, str] = {}
        self._refusals: dict[str, int] = {}
        self._unfinished: dict[str, list[str]] = {}

    def draw_duration(self, lab: str, device: Device) -> float:
        """Return how long a check takes: as one of those recorded, else as is typical."""
        recorded = self._durations.get((lab, device))
        return self._rng.choice(recorded) if recorded else typical_s(self._durations, lab, device)

    def verdict(self, job: Job) -> Verdict:
        """Return the verdict of the script on the submission of a job."""
        check, number = self._checks[self._leases[job.nonce]]
        learner = self._learners[check.learner]
        passes = learner.script.tries[learner.block][number].passes
        return Verdict(
            outcome=Outcome.PASS if passes else Outcome.FAIL,
            reason=None if passes else "correct but slow",
            summary="Rehearsed.",
            lab=job.lab,
            lab_hash=job.lab_hash,
            submission_hash="",
            device=job.device,
            criteria=[],
            environment={},
            isolation={},
            started_at="",
            duration_s=0.0,
        )

    def begun(self, nonce: str, submission: str) -> None:
        """Note that a check begins."""
        self._leases[nonce] = submission
        self._checks[submission][0].began = self.now - START

    def concluded(self, nonce: str) -> None:
        """Note a verdict; the learner goes on."""
        check, number = self._checks[self._leases[nonce]]
        check.ended = self.now - START
        learner = self._learners[check.learner]
        if learner.script.tries[learner.block][number].passes:
            learner.block, learner.number = learner.block + 1, 0
        else:
            learner.number = number + 1
        self._plan(check.learner)

    def _plan(self, index: int) -> None:
        """Plan a learner's next submission, in the next block if this one is over by then."""
        learner = self._learners[index]
        while learner.block < len(learner.script.blocks):
            block = learner.script.blocks[learner.block]
            begins = max(self.now, START + block.begins)
            at = begins + learner.script.tries[learner.block][learner.number].think_s
            if at <= START + block.ends:
                heapq.heappush(self._events, (at, index))
                return
            self._unfinished.setdefault(block.lab, []).append(learner.script.name)
            learner.block, learner.number = learner.block + 1, 0

    def _submit(self, intake: Intake, index: int) -> None:
        learner = self._learners[index]
        block = learner.script.blocks[learner.block]
        lab = self._labs[block.lab]
        learner.sent += 1
        submission = Submission(
            f"rehearsal-{index}-{learner.sent}",
            lab.slug,
            self._hashes[lab.slug],
            block.device,
            _files(lab, f"{index}-{learner.sent}"),
        )
        try:
            accepted = intake.offer(learner.token, submission).result()
        except RefusedError as refused:
            self._refusals[refused.code] = self._refusals.get(refused.code, 0) + 1
            if refused.retry_after_s:
                heapq.heappush(self._events, (self.now + refused.retry_after_s, index))
            else:  # a spent budget: on to the next lab
                learner.block, learner.number = learner.block + 1, 0
                self._plan(index)
            return
        check = Check(index, lab.slug, block.device, self.now - START)
        self._checks[accepted.receipt.submission] = (check, learner.number)

    def run(
        self,
        folder: Path,
        machines: Machines,
        budget: int | None,
        progress: Callable[[float], None],
    ) -> Outcomes:
        """Play to the end, in a cohort of its own below `folder`."""
        create_cohort(folder / "cohort", Config("Rehearsal"))
        with ExitStack() as stack:
            cohort = stack.enter_context(open_cohort(folder / "cohort"))
            cohort.database.clock = lambda: self.now
            self._set_up(cohort, budget)
            intake = stack.enter_context(Intake(cohort))
            executors, runners = [], []
            simulated = Machine(
                clock=lambda: self.now,
                keep_duration=lambda _lab, _device, _seconds: None,
                missing_datasets=list,
            )
            for number in range(machines.count):
                name = f"machine {number + 1}"
                executor = _Executor(folder / f"slots{number}", machines, self)
                jobs = folder / f"jobs{number}"
                jobs.mkdir()
                dispatcher = _Dispatcher(cohort, name, self)
                runners.append(Runner(dispatcher, executor, name, jobs, machine=simulated))
                executors.append(executor)
            end = START + max(block.ends for block in self._scripts[0].blocks)
            while self._advance(executors):
                progress(min(1.0, (self.now - START) / (end - START)))
                while self._events and self._events[0][0] <= self.now:
                    self._submit(intake, heapq.heappop(self._events)[1])
                for runner in runners:
                    runner.turn()
        checks = [check for check, _ in self._checks.values()]
        return Outcomes(checks, self._refusals, self.now - START, self._unfinished)

    def _advance(self, executors: Sequence[_Executor]) -> bool:
        """Move the clock to whatever comes next; False when nothing does."""
        ends = [end for executor in executors if (end := executor.next_end()) is not None]
        nexts = [*ends, *(event[0] for event in self._events[:1])]
        if not nexts:
            return False
        self.now = max(self.now, min(*nexts, self.now + STEP_S) if ends else min(nexts))
        return True

    def _set_up(self, cohort: Cohort, budget: int | None) -> None:
        with cohort.database.writing() as connection:
            change_settings(connection, labs=list(self._labs))
            for lab in self._labs:
                set_rules(connection, lab, self.now, budget=budget)
            code = join_codes(connection)[0]
            for script in self._scripts:
                _, token = join(connection, Join(code, script.name), self.now)
                self._learners.append(_Learner(script, token))
        for index in range(len(self._learners)):
            self._plan(index)


def _files(lab: Lab, mark: str) -> dict[str, bytes]:
    """Return a submission's files; no two are the same."""
    return {name: f"# {mark}\n".encode() for name in lab.spec.editable}


def play(
    scripts: Sequence[Script],
    machines: Machines,
    durations: Durations,
    *,
    budget: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _share: None,
) -> Outcomes:
    """Play a workshop and return what came of it.

    `durations` are those of checks, by lab and device; `budget` limits submissions per learner and
    lab.
    """
    # In memory where the system has such a folder: nothing of a rehearsal has to survive.
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="lab-rehearsal-", dir=where) as name:
        run = _Play(scripts, durations, seed)
        return run.run(Path(name), machines, budget, progress)
