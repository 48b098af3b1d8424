"""Interface of all executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

from bottleneck_lab.catalog import Device

Progress = Literal["running", "ended", "lost"]
"""A job's state: `ended` may or may not have left a result; a `lost` job is unknown to everybody.
"""


class Executor(ABC):
    """Starts jobs and keeps them apart. A job is a folder that `bottleneck_lab.cohort.running.job`
    was laid out in.
    """

    name: str
    survives: bool
    """True if jobs survive the runner and can be found again by their handle."""

    @property
    @abstractmethod
    def devices(self) -> set[Device]:
        """Return the devices that can be measured here."""

    @abstractmethod
    def choose(self, device: Device, *, quiet: bool = True) -> str | None:
        """Take the slot in which a job for `device` could start now; None while there is none.

        A `quiet` job measures its machine, so nothing may run beside it. `submit` or `release`
        follows.
        """

    @abstractmethod
    def submit(self, slot: str, folder: Path, device: Device) -> str:
        """Start the job in the slot that was chosen and return its handle. Raises MachineError."""

    @abstractmethod
    def poll(self, handle: str) -> Progress:
        """Return the job's state.

        Never raises for a cluster that does not answer: the job is `running` until known better.
        """

    @abstractmethod
    def cancel(self, handle: str) -> None:
        """End the job and everything that it started. One that is gone is fine."""

    @abstractmethod
    def release(self, slot: str, handle: str | None) -> None:
        """Free the slot of a job that has ended and was dealt with, or was never started."""

    def adopt(self, slot: str, handle: str) -> None:
        """Go on with a job of an earlier runner; only of an executor that `survives`."""
        raise NotImplementedError

    @abstractmethod
    def slots(self) -> list[str]:
        """Return the names of the slots."""

    def user(self, slot: str) -> str:  # noqa: ARG002 - a cluster's jobs all have one
        """Describe the user that the checks of a slot run as, for the verdict."""
        return "the cluster's, shared by all checks"

    def health(self) -> dict[str, str]:
        """Return facts about the machines, for the instructor's page."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; jobs of an executor that `survives` go on."""
