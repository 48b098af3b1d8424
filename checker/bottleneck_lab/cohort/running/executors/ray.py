"""Checks as tasks of a Ray cluster (the extra `ray`).

Never as Ray jobs: those were lost when the cluster's head was killed, tasks are tried again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bottleneck_lab.catalog import Device
from bottleneck_lab.cohort.running.executors.base import Executor, Progress
from bottleneck_lab.errors import MachineError

JOB = [sys.executable, "-m", "bottleneck_lab.cohort.running.job"]


def _run(command: list[str], folder: str, environment: dict[str, str]) -> int:
    """Run the job as its own process, so that nothing of a check stays in Ray's worker."""
    with (Path(folder) / "log").open("ab") as log:
        return subprocess.run(
            [*command, folder, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
            check=False,
        ).returncode


class RayExecutor(Executor):
    """At most `most` tasks at once, with `cpus` each, and a GPU where the lab needs one.

    `cpus` is a whole node's, so that no two checks share a machine.
    """

    name = "ray"
    survives = False

    def __init__(
        self,
        most: int,
        *,
        address: str = "auto",
        cpus: float = 1,
        gpus: bool = False,
        command: list[str] | None = None,
    ) -> None:
        try:
            import ray  # noqa: PLC0415 - an extra that few runners have
        except ImportError as error:
            raise MachineError(
                "Ray is not installed.",
                "pip install 'bottleneck-lab[ray]' on the runner and the nodes.",
            ) from error
        self._ray: Any = ray
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        self._cpus, self._gpus, self._command = cpus, gpus, command or JOB
        self._names = [f"cluster{number}" for number in range(most)]
        self._held: set[str] = set()
        self._tasks: dict[str, tuple[str, Any]] = {}

    @property
    def devices(self) -> set[Device]:
        return {"cpu", "virtual", "cuda"} if self._gpus else {"cpu", "virtual"}

    def choose(self, device: Device, *, quiet: bool = True) -> str | None:
        del device, quiet  # Ray finds the place for a job.
        slot = next((name for name in self._names if name not in self._held), None)
        if slot is not None:
            self._held.add(slot)
        return slot

    def submit(self, slot: str, folder: Path, device: Device) -> str:
        # Ray starts workers with its own environment; ours says where labs and data sets are.
        settings = {
            name: value for name, value in os.environ.items() if name.startswith("BOTTLENECK_LAB_")
        }
        task = self._ray.remote(
            num_cpus=self._cpus, num_gpus=1 if device == "cuda" else 0, max_retries=2
        )(_run)
        reference = task.remote(self._command, str(folder), settings)
        self._tasks[reference.hex()] = (slot, reference)
        return str(reference.hex())

    def poll(self, handle: str) -> Progress:
        if handle not in self._tasks:
            return "lost"
        ready, _ = self._ray.wait([self._tasks[handle][1]], timeout=0)
        return "ended" if ready else "running"

    def cancel(self, handle: str) -> None:
        if handle in self._tasks:
            self._ray.cancel(self._tasks[handle][1], force=True)

    def release(self, slot: str, handle: str | None) -> None:
        self._held.discard(slot)
        if handle is not None:
            self._tasks.pop(handle, None)

    def slots(self) -> list[str]:
        return self._names

    def close(self) -> None:
        for handle in list(self._tasks):
            self.cancel(handle)
        self._tasks.clear()
        self._held.clear()
