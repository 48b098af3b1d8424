"""The `benchmark` kind: the learner's measuring code, judged by what it reports for things whose
true cost the judge knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bottleneck_lab.measure.kinds.base import JudgeFunctions, Kind
from bottleneck_lab.measure.settings import WorkerSettings

if TYPE_CHECKING:
    from bottleneck_lab.catalog import Device, Lab


class BenchmarkSettings(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """harness: the lab's own file that connects the learner's code to the machine. call_s: real
    seconds that the learner's code may take until it asks the machine again or answers.
    own_process: each trial runs in a process of its own, so that nothing in memory outlives it.
    """

    harness: str
    call_s: float = 30.0
    own_process: bool = False


class BenchmarkKind(Kind[BenchmarkSettings]):
    """Measuring code, on an emulated machine that keeps its own time, or on this one, whose
    disturbances a check must tell from the code's errors.
    """

    name = "benchmark"
    modelled_on: ClassVar[tuple[Device, ...]] = ("virtual",)
    settings_type = BenchmarkSettings
    judge_functions: ClassVar[JudgeFunctions] = {
        "trials": 2,
        "judge": 2,
        "practice": 1,
        "practice_line": 1,
        "practice_summary": 2,
    }
    run = Kind.run_by_kind

    def captured_work(self, tool: str) -> tuple[str, ...]:  # noqa: ARG002 - the same for every tool
        return ()  # what the GPU does there is the checker's own

    def program(self, lab: Lab, device: Device, tool: str | None = None) -> tuple[str, ...]:
        command = super().program(lab, device, tool)
        return (*command, "--device", device) if device == "cuda" else command

    def run_note(self, device: Device) -> str:
        return " The machine and its time are emulated." if device == "virtual" else ""

    def trusted_files(self, lab: Lab) -> list[str]:  # noqa: ARG002 - the same for every lab
        return ["judge.py", "emulator.py"]


KIND = BenchmarkKind()
