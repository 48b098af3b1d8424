"""The `operator_profile` kind: nothing is made faster; the learner's answers about a workload are
checked against the verifier's own captures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.measure.kinds.base import Criteria, JudgeFunctions, Kind
from bottleneck_lab.measure.settings import WorkerSettings


class OperatorProfileSettings(
    WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """passes: of the network, in each capture. The reference is captured `least_captures` times or
    more, until the shares are known to `precision`.

    After `max_s` seconds that is given up; shares known no better than `loosest` are an error.
    """

    passes: int
    call_s: float = 120.0
    precision: float = 0.02
    loosest: float = 0.04
    least_captures: int = 4
    max_s: float = 60.0


class OperatorProfileKind(Kind[OperatorProfileSettings]):
    """A diagnosis, graded against captures."""

    name = "operator_profile"
    settings_type = OperatorProfileSettings
    criteria: ClassVar[Criteria] = {
        "genuine-capture": "correctness",
        "top-operators": "diagnosis",
        "share": "diagnosis",
        "bounds": "diagnosis",
        "ceiling": "diagnosis",
    }
    required = tuple(criteria)
    judge_functions: ClassVar[JudgeFunctions] = {"make_inputs": 3, "work": 3}
    answered_questions = ("first", "second", "third", "share", "bounds", "ceiling")
    records_itself = True

    def captured_work(self, tool: str) -> tuple[str, ...]:
        # The solution is a profiler itself, and no other tool can look at that.
        return ("solution",) if tool == "torch" else ("starter",)

    def answers(self, measurement: Mapping[str, Any]) -> dict[str, str | float]:
        from bottleneck_lab.measure.kinds.operator_profile.judging import measured_answers

        return measured_answers(measurement)

    def missing_parts(self, lab: Lab, device: Device, trace: Path) -> list[str]:
        from bottleneck_lab.measure.kinds.operator_profile.capture import read_capture
        from bottleneck_lab.measure.kinds.operator_profile.genuine import missing_parts

        try:
            capture = read_capture(trace.read_bytes())
        except CaptureError as error:
            return [f"{error.message} {error.remedy}"]
        return missing_parts(capture, self.settings(lab, device).passes)

    def needs_correctness(self) -> bool:
        return False


KIND = OperatorProfileKind()
