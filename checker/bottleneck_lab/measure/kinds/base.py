"""A kind of lab: one object that knows its settings, and how to measure, profile and run labs of
its kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from bottleneck_lab.catalog import CriterionKind, Device, Lab
from bottleneck_lab.declared import convert, place, unknown
from bottleneck_lab.errors import LabError, UsageError
from bottleneck_lab.measure.rehearsal import python, rehearsing
from bottleneck_lab.measure.settings import Settings

if TYPE_CHECKING:
    from bottleneck_lab.analysis.ranks.scaling import Sweep
    from bottleneck_lab.measure.context import Context, Measured
    from bottleneck_lab.measure.kinds.speedup import HostCall
    from bottleneck_lab.measure.sandbox.children import OnLine

S = TypeVar("S", bound=Settings)
Criteria = Mapping[str, CriterionKind]
"""Ids of criteria, and the kind of each."""
Calls = Mapping[str, int]
"""Names of functions, and with how many arguments they are called."""


class Kind(ABC, Generic[S]):
    """A kind of lab. `name` is what `measure` in lab.toml says; `settings_type` holds every setting
    that its labs may have, with its default.

    Each kind is a package whose `KIND` is its one object. The package's own module is imported by
    every process of the kind: it imports little, and the methods import what they need.
    """

    name: ClassVar[str]
    settings_type: type[S]
    criteria: ClassVar[Criteria | None] = None
    """The criteria that the kind can decide. None if the lab's judge names them."""
    required: ClassVar[Collection[str]] = ()
    """Ids of criteria that each of its labs must have."""
    judge_calls: ClassVar[Calls] = {}
    """The functions that a judge.py must have."""
    asks: ClassVar[Collection[str]] = ()
    """Ids of the questions whose answers the kind judges itself, against its own measurements."""
    records_itself: ClassVar[bool] = False
    """Whether the learner's own code writes the capture: the shipped code may then write none, and
    what a lab says is compared with the solution's.
    """

    def settings(self, lab: Lab, device: Device) -> S:
        """The lab's settings on a device. Raises LabError if lab.toml has a wrong one."""
        found = convert(
            lab.spec.devices[device].settings,
            self.settings_type,
            lab.path / "lab.toml",
            ("devices", device, "settings"),
        )
        return self.rehearsed(found) if device == "cuda" and rehearsing() else found

    def rehearsed(self, settings: S) -> S:
        """The same for a device that is not there: as little work as shows that all of it can be
        done.
        """
        return msgspec.structs.replace(settings, judge=settings.judge | settings.rehearsal)

    @abstractmethod
    def measure(self, context: Context[S]) -> Measured:
        """`lab check`: the whole measurement. Raises LearnerFault or VerifierFault if it ends
        early.
        """

    @abstractmethod
    def profile(self, context: Context[S], trace: Path, on_line: OnLine) -> int:
        """`lab profile`: runs the workspace's code and writes what torch.profiler saw to `trace`;
        the exit status.
        """

    def run(self, context: Context[S], on_line: OnLine) -> int:
        """`lab run`: runs the workspace's code as it is, passing its output line by line to
        `on_line`; returns the exit status.
        """
        from bottleneck_lab.measure.sandbox.children import stream

        command = list(self.program(context.lab, context.device))
        return stream(command, context.workspace, context.janitor, on_line, context.environment())

    def run_note(self, device: Device) -> str:  # noqa: ARG002 - for kinds to override
        """What `lab run` should print before it starts, besides the file and the device."""
        return ""

    def program(self, lab: Lab, device: Device, tool: str | None = None) -> tuple[str, ...]:  # noqa: ARG002 - for kinds to override
        """The command line, in the workspace, of the workload alone: for `lab run`, or for an
        outside profiler (`nsys`, `ncu`, `sanitizer`).
        """
        return (*python(device), lab.spec.entry)

    def scales_on(self, device: Device) -> bool:  # noqa: ARG002 - for kinds to override
        """Whether `lab run` on this device shows how the workload would scale over ranks."""
        return False

    def scale(self, context: Context[S], ranks: list[int]) -> list[Sweep]:  # noqa: ARG002 - for kinds to override
        """The workload's modelled scaling, carried on to `ranks`. Raises UsageError if there is
        none, LearnerFault where the code fails.
        """
        raise UsageError(f"{context.lab.slug} has no modelled ranks.", "Leave out `--ranks`.")

    def problems(self, lab: Lab) -> Iterator[str]:
        """Problems that a lab's files alone reveal, one sentence each (`lab dev check --static`)."""
        for device, spec in lab.spec.devices.items():
            try:
                self.settings(lab, device)
            except LabError as error:
                yield error.message
            yield from self._criteria_problems(lab, device)
            if self.needs_correctness() and not any(
                criterion.kind == "correctness" for criterion in spec.criteria
            ):
                yield f"{device} has no criterion of kind `correctness`."

    def _criteria_problems(self, lab: Lab, device: Device) -> Iterator[str]:
        declared, known = lab.spec.devices[device].criteria, self.criteria
        for number, criterion in enumerate(declared):
            at = place(lab.path / "lab.toml", ("devices", device, "criteria", number))
            if known is None:
                continue
            if criterion.id not in known:
                yield unknown(
                    f"{at}: `{self.name}` does not measure `{criterion.id}`", criterion.id, known
                )
            elif criterion.kind != known[criterion.id]:
                yield f"{at}: `{criterion.id}` is a criterion of kind `{known[criterion.id]}`."
        for id_ in self.required:
            if id_ not in {criterion.id for criterion in declared}:
                yield (
                    f"{place(lab.path / 'lab.toml', ('devices', device))}: {device} lacks the"
                    f" criterion `{id_}`."
                )

    def captured_work(self, tool: str) -> tuple[str, ...]:  # noqa: ARG002 - for kinds to override
        """Which of `starter` and `solution` a capture with a tool says something about; none where
        the tool cannot record a workload of this kind.
        """
        return ("starter", "solution")

    def launches(self, lab: Lab) -> tuple[HostCall, ...]:  # noqa: ARG002 - for kinds to override
        """What `lab check --static` calls to see how the lab's CUDA kernels are launched."""
        return ()

    def answers(self, measurement: Mapping[str, Any]) -> dict[str, str | float]:  # noqa: ARG002 - for kinds to override
        """What a check's own figures (`Verdict.measurement`) answer of the questions in `asks`;
        empty where nothing was measured.
        """
        return {}

    def needs_correctness(self) -> bool:
        """Whether every lab of this kind must have a criterion of correctness."""
        return True

    def trusted_files(self, lab: Lab) -> list[str]:  # noqa: ARG002 - for kinds to override
        """Files of the lab's folder, besides those that a workspace gets, that it cannot do
        without.
        """
        return ["judge.py"]
