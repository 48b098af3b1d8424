"""Checks on this machine: one at a time a GPU, and alone on the machine where the CPU is what is measured.

A slot is a file lock that the job's own process holds: while anything of a job lives, even after its runner was killed, nobody else gets the slot.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.executors.base import Executor, Progress
from bottleneck_lab.cohort.gpu_health import gpu_health
from bottleneck_lab.cohort.workers import Slot
from bottleneck_lab.errors import MachineError

JOB = [sys.executable, "-m", "bottleneck_lab.cohort.job"]
END_S = 20.0
"""How long a job has to end its sandbox after SIGTERM."""


class LocalExecutor(Executor):
    """Jobs as processes of this machine, on the GPUs of these indices. `machine`: how many checks of the CPU go on at once, 1 where figures count."""

    name = "local"
    survives = False

    def __init__(self, locks: Path, gpus: list[int], *, machine: int = 1, command: list[str] | None = None) -> None:
        self._locks = locks
        self._command = command or JOB
        self._gpus = [f"gpu{index}" for index in gpus]
        self._machine = [f"cpu{index}" for index in range(machine)]
        self._alone = machine == 1
        self._held: dict[str, list[int]] = {}
        self._jobs: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        locks.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def devices(self) -> set[Device]:
        return {"cpu", "virtual", "cuda"} if self._gpus else {"cpu", "virtual"}

    def choose(self, device: Device) -> str | None:
        for slot in self._gpus if device == "cuda" else self._machine:
            if slot not in self._held and self._take(slot, shared=device == "cuda" or not self._alone):
                return slot
        return None

    def _take(self, slot: str, *, shared: bool) -> bool:
        """Lock the machine (shared among GPUs) and the slot, both or neither."""
        taken: list[int] = []
        for name, kind in (("machine", fcntl.LOCK_SH if shared else fcntl.LOCK_EX), (slot, fcntl.LOCK_EX)):
            descriptor = os.open(self._locks / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            taken.append(descriptor)
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                for each in taken:
                    os.close(each)
                return False
        self._held[slot] = taken
        return True

    def submit(self, slot: str, folder: Path, device: Device) -> str:
        chosen = {
            "CUDA_VISIBLE_DEVICES": slot.removeprefix("gpu"),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }  # as NVML counts them
        environment = {**os.environ, **(chosen if device == "cuda" else {})}
        try:
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    [*self._command, str(folder), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    pass_fds=self._held[slot],
                    start_new_session=True,
                )
        except OSError as error:
            raise MachineError(f"The job cannot be started: {error}.", "Look at the runner's machine.") from error
        self._let_go(slot)  # the job holds the locks now
        self._held[slot] = []
        handle = str(process.pid)
        self._jobs[handle] = (slot, process)
        return handle

    def poll(self, handle: str) -> Progress:
        if handle not in self._jobs:
            return "lost"
        return "running" if self._jobs[handle][1].poll() is None else "ended"

    def cancel(self, handle: str) -> None:
        if handle not in self._jobs:
            return
        process = self._jobs[handle][1]
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def release(self, slot: str, handle: str | None) -> None:
        self._let_go(slot)
        self._held.pop(slot, None)
        if handle is not None:
            self._jobs.pop(handle, None)

    def _let_go(self, slot: str) -> None:
        for descriptor in self._held.get(slot, []):
            os.close(descriptor)

    def slots(self) -> list[Slot]:
        under_way = {slot: handle for handle, (slot, _) in self._jobs.items()}
        return [Slot(name, under_way.get(name)) for name in (*self._gpus, *self._machine)]

    def health(self) -> dict[str, str]:
        return gpu_health([int(slot.removeprefix("gpu")) for slot in self._gpus])

    def close(self) -> None:
        for handle, (slot, _) in list(self._jobs.items()):
            self.cancel(handle)
            self.release(slot, handle)
