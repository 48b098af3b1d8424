"""Checks on this machine: one at a time per GPU, alone where the CPU is measured, and side by side
where every figure is modelled.

A slot is a file lock that the job's own process holds: while anything of a job lives, even after
its runner was killed, nobody else gets the slot.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.running.executors.base import Executor, Progress
from bottleneck_lab.cohort.running.gpu_health import gpu_health
from bottleneck_lab.cohort.running.slot_users import USERS_ROOT, SlotUser
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.workspace.lock import try_lock

JOB = [sys.executable, "-m", "bottleneck_lab.cohort.running.job"]
END_S = 20.0
"""How long a job has to end its sandbox after SIGTERM."""


class _Job(NamedTuple):
    """A job that was started."""

    slot: str
    folder: Path
    process: subprocess.Popen[bytes]


class LocalExecutor(Executor):
    """Jobs as processes of this machine.

    `gpus` are indices as NVML counts them; `machine` is how many checks that need no quiet machine
    go on at once. `uids` are the users of the slots, GPUs first, with their folders below
    `users_root`; without any, jobs run as the runner's own user.
    """

    name = "local"
    survives = False

    def __init__(
        self,
        locks: Path,
        gpus: list[int],
        *,
        machine: int = 1,
        command: list[str] | None = None,
        uids: list[int] | None = None,
        users_root: Path = USERS_ROOT,
    ) -> None:
        self._locks = locks
        self._command = command or JOB
        self._gpus = [f"gpu{index}" for index in gpus]
        self._machine = [f"cpu{index}" for index in range(machine)]
        self._held: dict[str, list[int]] = {}
        self._jobs: dict[str, _Job] = {}
        slots = [*self._gpus, *self._machine]
        if uids and len(uids) < len(slots):
            raise UsageError(
                f"{len(slots)} slots need {len(slots)} users, but {len(uids)} are named.",
                "Name more with --uids, such as 61000-61003.",
            )
        self._users = {
            slot: SlotUser(uid, users_root)
            for slot, uid in zip(slots, uids or [], strict=False)  # more users than slots are fine
        }
        locks.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def devices(self) -> set[Device]:
        return {"cpu", "virtual", "cuda"} if self._gpus else {"cpu", "virtual"}

    def choose(self, device: Device, *, quiet: bool = True) -> str | None:
        for slot in self._gpus if device == "cuda" else self._machine:
            if slot not in self._held and self._take(slot, quiet=quiet):
                return slot
        return None

    def _take(self, slot: str, *, quiet: bool) -> bool:
        """Lock the slot and what it needs of the machine, all or nothing."""
        # GPUs share `gpus` and modelled checks share `modelled`; each sort tests that nobody holds
        # the other's. A check that measures the CPU holds both alone.
        if slot in self._gpus:
            shared, alone, others = ["gpus"], [slot], "modelled"
        elif quiet:
            shared, alone, others = [], ["gpus", "modelled", slot], None
        else:
            shared, alone, others = ["modelled"], [slot], "gpus"
        with ExitStack() as undo:
            taken = []
            for name in [*shared, *alone]:
                lock = try_lock(self._locks / f"{name}.lock", shared=name in shared)
                if lock is None:
                    return False
                undo.callback(os.close, lock)
                taken.append(lock)
            if others is not None:
                # Tested last: of two runners that come at once, each sees what the other holds.
                tested = try_lock(self._locks / f"{others}.lock")
                if tested is None:
                    return False
                os.close(tested)
            undo.pop_all()
        self._held[slot] = taken
        return True

    def submit(self, slot: str, folder: Path, device: Device) -> str:
        # NVML, and so `gpus`, counts in this order; CUDA by default counts the fastest first.
        chosen = {
            "CUDA_VISIBLE_DEVICES": slot.removeprefix("gpu"),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        user = self._users.get(slot)
        try:
            workdir = user.take_in(folder) if user else folder
            command = [*self._command, str(workdir), str(os.getpid())]
            environment = user.environment() if user else dict(os.environ)
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    user.command(command) if user else command,
                    cwd="/" if user else None,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment | (chosen if device == "cuda" else {}),
                    pass_fds=self._held[slot],
                    start_new_session=True,  # Ctrl-C at the runner ends jobs by its own `stop`
                )
        except OSError as error:
            raise MachineError(
                f"The job cannot be started: {error}.", "Look at the runner's machine."
            ) from error
        self._let_go(slot)  # the job holds the locks now
        self._held[slot] = []
        handle = str(process.pid)
        self._jobs[handle] = _Job(slot, folder, process)
        return handle

    def poll(self, handle: str) -> Progress:
        if handle not in self._jobs:
            return "lost"
        slot, folder, process = self._jobs[handle]
        if process.poll() is None:
            return "running"
        if user := self._users.get(slot):
            user.fetch(folder)
        return "ended"

    def cancel(self, handle: str) -> None:
        if handle not in self._jobs:
            return
        process = self._jobs[handle].process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                # The whole session: a job that hangs may have left children that hang too.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def release(self, slot: str, handle: str | None) -> None:
        self._let_go(slot)
        self._held.pop(slot, None)
        if handle is not None:
            self._jobs.pop(handle, None)
        if user := self._users.get(slot):
            user.clear()

    def _let_go(self, slot: str) -> None:
        for descriptor in self._held.get(slot, []):
            os.close(descriptor)

    def slots(self) -> list[str]:
        return [*self._gpus, *self._machine]

    def user(self, slot: str) -> str:
        if user := self._users.get(slot):
            return f"uid {user.uid}, used by this slot only"
        return f"uid {os.geteuid()}, the runner's own, shared by all its slots"

    def health(self) -> dict[str, str]:
        users = "one for each slot" if self._users else "the runner's, shared by all slots"
        return {"user": users, **gpu_health([int(slot.removeprefix("gpu")) for slot in self._gpus])}

    def close(self) -> None:
        for handle, job in list(self._jobs.items()):
            self.cancel(handle)
            self.release(job.slot, handle)
        for user in self._users.values():
            user.close()
        self._users.clear()
