"""Checks as jobs of a Slurm cluster. The folder of the cohort must be on a file system that the
nodes share.

Slurm may run a job twice (a controller that is killed within seconds of a start does): the lease
makes it one verdict. What it cannot tell is taken as running, until the lease's own limit; what it
no longer knows is lost, and measured again.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.running.executors.base import Executor, Progress
from bottleneck_lab.errors import MachineError

log = logging.getLogger("bottleneck_lab.cohort.slurm")
JOB = [sys.executable, "-m", "bottleneck_lab.cohort.running.job"]
ASK_S = 1.0
"""Between two questions how the jobs are."""
ANSWER_S = 20.0
"""How long Slurm's own commands may take."""

_RUNNING = {
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
}
_UNKNOWN_JOB = "Invalid job id"


class SlurmExecutor(Executor):
    """At most `most` jobs at once; Slurm decides where they run. `options` are given to sbatch as
    they are (a partition, a reservation, an account).
    """

    name = "slurm"
    survives = True

    def __init__(
        self,
        most: int,
        *,
        gpus: bool = False,
        options: list[str] | None = None,
        command: list[str] | None = None,
    ) -> None:
        for program in ("sbatch", "squeue", "scancel"):
            if shutil.which(program) is None:
                raise MachineError(
                    f"Slurm's {program} is not installed here.",
                    "Start the runner on a machine that submits to the cluster.",
                )
        self._gpus, self._options, self._command = gpus, options or [], command or JOB
        self._slots: dict[str, str | None] = {}
        self._ended: set[str] = set()
        self._polled = 0.0
        self._names = [f"cluster{number}" for number in range(most)]

    @property
    def devices(self) -> set[Device]:
        return {"cpu", "virtual", "cuda"} if self._gpus else {"cpu", "virtual"}

    def choose(self, device: Device, *, quiet: bool = True) -> str | None:
        del device, quiet  # Slurm finds the place for a job.
        slot = next((name for name in self._names if name not in self._slots), None)
        if slot is not None:
            self._slots[slot] = None
        return slot

    def submit(self, slot: str, folder: Path, device: Device) -> str:
        arguments = [
            "sbatch",
            "--parsable",
            f"--job-name=lab-{folder.name[:8]}",
            f"--output={folder / 'log'}",
            f"--chdir={folder}",
            "--exclusive",  # figures of a machine shared with others mean nothing
            "--ntasks=1",
            "--requeue",  # a node that fails does not fail the learner
            *(["--gpus=1"] if device == "cuda" else []),
            *self._options,
            f"--wrap=exec {shlex.join([*self._command, str(folder)])}",
        ]
        done = _slurm(arguments)
        handle = done.stdout.split(";")[0].strip()
        if done.returncode != 0 or not handle.isdecimal():
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise MachineError(
                f"Slurm did not take the job: {reason}.",
                "Look at `sinfo` and `squeue`.",
            )
        self._slots[slot] = handle
        self._ended.discard(handle)  # a controller that was killed may give a number twice
        return handle

    def poll(self, handle: str) -> Progress:
        if time.monotonic() - self._polled >= ASK_S:
            self._ask()
            self._polled = time.monotonic()
        return "ended" if handle in self._ended else "running"

    def _ask(self) -> None:
        """Ask the controller once about all jobs: many short questions keep it from its work."""
        handles = [handle for handle in self._slots.values() if handle]
        try:
            done = _slurm(
                [
                    "squeue",
                    "--noheader",
                    "--states=all",
                    "--format=%i %T %r",
                    f"--jobs={','.join(handles)}",
                ]
            )
        except MachineError as error:
            log.warning("%s", error.message)
            return
        # Of several, it leaves out what it does not know.
        if done.returncode == 0 or (len(handles) == 1 and _UNKNOWN_JOB in done.stderr):
            under_way = set()
            for line in done.stdout.splitlines():
                number, state, reason = [*line.split(maxsplit=2), "", ""][:3]
                # One whose node died while it started: it waits for an administrator, for ever.
                if state == "REQUEUE_HOLD" or ("requeued" in reason and "held" in reason):
                    self.cancel(number)
                elif state in _RUNNING:
                    under_way.add(number)
            self._ended = set(handles) - under_way

    def cancel(self, handle: str) -> None:
        try:
            _slurm(["scancel", handle])
        except MachineError as error:
            log.warning("%s", error.message)

    def release(self, slot: str, handle: str | None) -> None:
        del handle  # A slot is a number here.
        self._slots.pop(slot, None)

    def adopt(self, slot: str, handle: str) -> None:
        self._slots[slot] = handle

    def slots(self) -> list[str]:
        return self._names

    def close(self) -> None:
        """Leave the jobs running; a runner that starts again takes them over."""


def _slurm(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands. Raises MachineError if it does not answer in time."""
    try:
        return subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(
            f"{arguments[0]} does not answer: {error}.", "Look at the cluster's controller."
        ) from error
