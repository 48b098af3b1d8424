"""The types that every kind of measurement receives and returns."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from bottleneck_lab.catalog import CriterionSpec, Device, Lab
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.conclusion import Conditions
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.clock import PhaseClock, TimedModule
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.settings import Settings, WorkerSettings
from bottleneck_lab.measure.submission import collect_pristine

Progress = Callable[[str, float], None]
"""Called with the current activity and the share (0–1) of the check that is done."""
S_co = TypeVar("S_co", bound=Settings, covariant=True)


@dataclass
class Context(Generic[S_co]):
    """One check: the lab with its settings on this device, the submission in its fresh folder, and
    where secrets come from.
    """

    lab: Lab
    device: Device
    settings: S_co
    submission: Path
    workspace: Path
    data: Path
    janitor: Janitor
    progress: Progress
    rng: random.Random = field(default_factory=random.SystemRandom)
    clock: PhaseClock = field(default_factory=PhaseClock)
    isolation: dict[str, str] = field(default_factory=dict)
    """How the last started worker is contained; empty before the first."""

    def criterion(self, id_: str) -> CriterionSpec | None:
        """Return the lab's criterion with that id on this device, if it has one."""
        return next(
            (spec for spec in self.lab.spec.devices[self.device].criteria if spec.id == id_), None
        )

    def required(self, id_: str) -> CriterionSpec:
        """Return the criterion with that id. Raises LabError if the lab has none."""
        if (spec := self.criterion(id_)) is None:
            raise LabError(
                f"{self.lab.slug} declares no criterion '{id_}'.",
                "The lab's author must add it to lab.toml; see docs/authors.md.",
            )
        return spec

    def pristine(self) -> Path:
        """Return a fresh folder with the shipped files, for the reference worker."""
        folder = self.janitor.folder / "reference"
        if not folder.exists():
            collect_pristine(self.lab, folder)
        return folder

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a workload that runs alone: where its data is, and
        which device to use.
        """
        return {"LAB_PHOTOS": str(self.data), "LAB_DEVICE": self.device}

    def judge(self) -> ModuleType:
        """Return the lab's trusted knowledge of what is right, loaded from the package's own
        copy.
        """
        with self.clock.phase("imports"):
            return TimedModule(load_judge(self.lab), self.clock)


def load_judge(lab: Lab) -> ModuleType:
    """Return a lab's judge.py. Raises whatever its code raises."""
    path = lab.path / "judge.py"
    spec = importlib.util.spec_from_file_location(f"judge_{lab.slug.replace('-', '_')}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


WorkerContext = Context[WorkerSettings]
"""A check of a kind that runs workers."""


@dataclass
class Measured:
    """The result of a measurement. `speedup` is over the shipped workload, for comparison with the
    prediction.
    """

    results: list[CriterionResult]
    details: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    speedup: float | None = None
    conditions: Conditions = field(default_factory=Conditions)
