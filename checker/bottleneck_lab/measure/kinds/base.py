"""A kind of lab: one object that knows its settings, and how to measure, profile and run labs of
its kind. README.md beside this file names the files that kinds have in common.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from bottleneck_lab.catalog import CriterionKind, CriterionSpec, Device, Lab
from bottleneck_lab.declared import convert, position, unknown
from bottleneck_lab.errors import LabError, UsageError
from bottleneck_lab.measure.settings import HostCall, Settings

if TYPE_CHECKING:
    from bottleneck_lab.analysis.ranks.scaling import Sweep
    from bottleneck_lab.measure.context import Context, Measured
    from bottleneck_lab.measure.sandbox.children import OnLine

S = TypeVar("S", bound=Settings)
Criteria = Mapping[str, CriterionKind]
"""Ids of criteria, and the kind of each."""
JudgeFunctions = Mapping[str, int]
"""Names of functions of a judge.py, and the number of arguments that each is called with."""


class Kind(Generic[S]):
    """A kind of lab. `name` is the value of `measure` in lab.toml; `settings_type` holds every
    setting that its labs may have, with its default.

    Each kind is a package whose `KIND` is its one object. The package's own `__init__.py` is
    imported by every process of the kind, so it imports little: `measure`, `profile` and `run` load
    the package's check.py and run.py when they are called.
    """

    name: ClassVar[str]
    settings_type: type[S]
    criteria: ClassVar[Criteria | None] = None
    """The criteria that the kind can decide. None if the lab's judge names them."""
    required: ClassVar[Collection[str]] = ()
    """Ids of criteria that each of its labs must have."""
    judge_functions: ClassVar[JudgeFunctions] = {}
    """The functions that a judge.py must have."""
    cuda_judge_function: ClassVar[str] = ""
    """One more that a lab with a `cuda` device must have; it takes no arguments."""
    answered_questions: ClassVar[Collection[str]] = ()
    """Ids of the questions whose answers the kind judges itself, against its own measurements."""
    modelled_on: ClassVar[tuple[Device, ...]] = ()
    """The devices on which every figure is counted or modelled: a check there needs no quiet
    machine.
    """
    records_itself: ClassVar[bool] = False
    """True if the learner's own code writes the capture: the shipped code may then write none, and
    a capture of the lab is compared with the solution's.
    """

    def settings(self, lab: Lab, device: Device) -> S:
        """Return the lab's settings on a device. Raises LabError if lab.toml has a wrong one."""
        return convert(
            lab.spec.devices[device].settings,
            self.settings_type,
            lab.path / "lab.toml",
            ("devices", device, "settings"),
        )

    def cores(self, lab: Lab, device: Device) -> int:
        """Return how many cores a check needs to itself; 0 where its times are modelled."""
        if device in self.modelled_on:
            return 0
        return int(getattr(self.settings(lab, device), "threads", 1))

    def measure(self, context: Context[S]) -> Measured:
        """Do the whole measurement of `lab check`: `measure` in the kind's check.py.

        Raises LearnerFault or VerifierFault if it ends early.
        """
        with context.clock.phase("imports"):
            measure = self._load("check", "measure")
        measured: Measured = measure(context)
        return measured

    def profile(self, context: Context[S], trace: Path, on_line: OnLine) -> int:
        """Run the workspace's code under torch.profiler and write its trace to `trace` (`lab
        profile`): `profile` in the kind's run.py. Returns the exit status.
        """
        status: int = self._load("run", "profile")(context, trace, on_line)
        return status

    def run(self, context: Context[S], on_line: OnLine) -> int:
        """Run the workspace's code for `lab run`, passing its output line by line to `on_line`:
        `program` as it stands, unless the kind overrides this. Returns the exit status.
        """
        from bottleneck_lab.measure.sandbox.children import stream

        command = list(self.program(context.lab, context.device))
        return stream(command, context.workspace, context.janitor, on_line, context.environment())

    def run_by_kind(self, context: Context[S], on_line: OnLine) -> int:
        """Run it with `run` in the kind's run.py: a kind whose workload needs more than its program
        has `run = Kind.run_by_kind`. Returns the exit status.
        """
        status: int = self._load("run", "run")(context, on_line)
        return status

    def _load(self, module: str, function: str) -> Callable[..., Any]:
        """Load a function from a module of the kind's package. Raises LabError if there is none."""
        name = f"{type(self).__module__}.{module}"
        try:
            loaded = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # a package that the module itself needs
                raise
            loaded = None
        own: Callable[..., Any] | None = getattr(loaded, function, None)
        if own is None:
            raise LabError(
                f"The kind of lab '{self.name}' has no function `{function}` in {name}.",
                "Its author must write it there, or override the method of Kind that calls it.",
            )
        return own

    def run_note(self, device: Device) -> str:  # noqa: ARG002 - for kinds to override
        """Return a sentence that `lab run` prints before it starts, after file and device."""
        return ""

    def program(self, lab: Lab, device: Device, tool: str | None = None) -> tuple[str, ...]:  # noqa: ARG002 - for kinds to override
        """Return the command line, in the workspace, of the workload alone: for `lab run`, or for
        an outside profiler (`nsys`, `ncu`, `sanitizer`).
        """
        return (sys.executable, "-u", lab.spec.entry)

    def needs_quiet(self, device: Device) -> bool:
        """Return True if a check on this device measures the machine, and so needs it alone; other
        checks can run side by side.
        """
        return device not in self.modelled_on

    def scales_on(self, device: Device) -> bool:  # noqa: ARG002 - for kinds to override
        """Return True if `lab run` on this device shows how the workload scales over ranks."""
        return False

    def scale(self, context: Context[S], ranks: list[int]) -> list[Sweep]:  # noqa: ARG002 - for kinds to override
        """Model how the workload scales to each number of `ranks`.

        Raises UsageError if the kind has no ranks, LearnerFault if the code fails.
        """
        raise UsageError(f"{context.lab.slug} has no modelled ranks.", "Leave out `--ranks`.")

    def problems(self, lab: Lab) -> Iterator[str]:
        """Yield the problems that a lab's files alone reveal, one sentence each (`lab dev check
        --static`).
        """
        for device, spec in lab.spec.devices.items():
            try:
                self.settings(lab, device)
            except LabError as error:
                yield error.message
            yield from self._criteria_problems(lab, device, spec.criteria)
        judge, name = lab.path / "judge.py", self.cuda_judge_function
        if not name or "cuda" not in lab.spec.devices or not judge.is_file():
            return
        if f"def {name}(" not in judge.read_text(encoding="utf-8"):
            yield f"{judge}: `{name}` is missing; on cuda it is called without arguments."

    def _criteria_problems(
        self, lab: Lab, device: Device, declared: list[CriterionSpec]
    ) -> Iterator[str]:
        """Yield criteria that the kind does not measure, or not so, and those that are missing."""
        file = lab.path / "lab.toml"
        for number, criterion in enumerate(declared):
            if self.criteria is None or self.criteria.get(criterion.id) == criterion.kind:
                continue
            at = position(file, ("devices", device, "criteria", number))
            if criterion.id in self.criteria:
                kind = self.criteria[criterion.id]
                yield f"{at}: `{criterion.id}` is a criterion of kind `{kind}`."
            else:
                problem = f"{at}: `{self.name}` does not measure `{criterion.id}`"
                yield unknown(problem, criterion.id, self.criteria)
        for id_ in self.required:
            if id_ not in [criterion.id for criterion in declared]:
                at = position(file, ("devices", device))
                yield f"{at}: {device} lacks the criterion `{id_}`."
        if self.needs_correctness() and "correctness" not in [each.kind for each in declared]:
            yield f"{device} has no criterion of kind `correctness`."

    def missing_parts(self, lab: Lab, device: Device, trace: Path) -> list[str]:  # noqa: ARG002 - for kinds to override
        """Return what a capture that the learner's code records lacks of what its task asks for, in
        sentences.
        """
        return []

    def captured_work(self, tool: str) -> tuple[str, ...]:  # noqa: ARG002 - for kinds to override
        """Return which of `starter` and `solution` a capture with a tool describes; nothing if the
        tool cannot record a workload of this kind.
        """
        return ("starter", "solution")

    def launches(self, lab: Lab) -> tuple[HostCall, ...]:  # noqa: ARG002 - for kinds to override
        """Return the calls by which `lab check --static` sees how the CUDA kernels are launched."""
        return ()

    def answers(self, measurement: Mapping[str, Any]) -> dict[str, str | float]:  # noqa: ARG002 - for kinds to override
        """Return the answers to `answered_questions` by a check's own figures
        (`Verdict.measurement`); empty if nothing was measured.
        """
        return {}

    def needs_correctness(self) -> bool:
        """Return True if every lab of this kind must have a criterion of correctness."""
        return True

    def trusted_files(self, lab: Lab) -> list[str]:  # noqa: ARG002 - for kinds to override
        """Return the files of the lab's folder that it needs besides those a workspace gets."""
        return ["judge.py"]
