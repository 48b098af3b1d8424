"""What a check of distributed training comes down to, and the criteria it decides. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.criteria import grade_check, grade_value
from bottleneck_lab.grading.verdict import CriterionResult

TOLERANCE = 0.02
"""Largest distance from the reference's parameters, as a share of how far training moved them:
sending gradients as bfloat16 comes to 0.004.
"""
GRADIENT_TOLERANCE = 0.1
"""Largest relative difference, in any step, of how the reduced gradients' values are spread from
the reference's; see `Moments`.
"""


class RanksMeasurement(msgspec.Struct, frozen=True):
    """The figures of one check. `few` and `many` are the rank counts compared; times are modelled
    where `modelled` says so.

    `problem`: why the training is not the reference's, or None. `baseline_few_samples_per_s` is the
    verifier's own run of the shipped script: a slower run on few ranks is not a better starting
    point.
    """

    few: int
    many: int
    few_samples_per_s: float
    many_samples_per_s: float
    baseline_few_samples_per_s: float
    baseline_many_samples_per_s: float
    step_ms: float
    compute_ms: float
    communication_ms: float
    exposed_ms: float
    overlap_share: float
    bytes_per_step: int
    difference: float
    checked: int
    problem: str | None = None
    modelled: bool = True

    @property
    def scaling(self) -> float:
        """Throughput on many ranks over the better of the two on few."""
        return self.many_samples_per_s / max(
            self.few_samples_per_s, self.baseline_few_samples_per_s
        )

    @property
    def speedup(self) -> float:
        """On many ranks, over the shipped script."""
        return self.many_samples_per_s / self.baseline_many_samples_per_s

    def details(self) -> dict[str, Any]:
        """For the verdict's file."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields | {"scaling": self.scaling}


def results(measurement: RanksMeasurement, specs: list[CriterionSpec]) -> list[CriterionResult]:
    """One result for each criterion that this measurement decides: `same-training`, `scaling`,
    `overlap-share`.
    """
    values = {"scaling": measurement.scaling, "overlap-share": measurement.overlap_share}
    found = []
    for spec in specs:
        if spec.id == "same-training":
            found.append(grade_check(spec, measurement.problem, measurement.checked, "ranks"))
        elif spec.id in values and measurement.problem is None:
            found.append(grade_value(spec, values[spec.id]))
    return found
