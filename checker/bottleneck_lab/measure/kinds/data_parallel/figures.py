"""Figures of distributed training, from emulated runs to the criteria: pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.criteria import grade_check, grade_value
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.kinds.data_parallel.fabric.clock import (
    RankClock,
    Span,
    covered_us,
    merge,
)
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable
from bottleneck_lab.measure.kinds.data_parallel.fabric.moments import Moments
from bottleneck_lab.measure.kinds.data_parallel.protocol import RankEvent

WARMUP_STEPS = 2
"""Steps before the timed ones: the reducer builds its buckets again after the first."""
TOLERANCE = 0.02
"""Largest distance from the reference's parameters, as a share of how far training moved them: in
`ddp-scaling`, another order of sums comes to 0.0002, bfloat16 to 0.003, gradients of the step
before to 0.3. The model has to be smooth: with ReLU, right work came to 0.007, and once to 0.035.
"""
LONG_TOLERANCE = 0.1
"""The same for a run that compares every step: over fifty, bfloat16 comes to 0.003, gradients of
the step before to 0.18.
"""
GRADIENT_TOLERANCE = 0.1
"""Largest relative difference from the reference, in any step, of the spread of the reduced
gradients' values; see `Moments`.
"""


STEP_TOLERANCE, MOST_STEP_TOLERANCE = 0.1, 1.0
"""Largest distance of one step's change of the parameters from the reference's change, as a share
of it or of a usual one. All parameters together: the first; right work and bfloat16 come to 0.002
at most, gradients of the step before to 0.44 in most steps. A module's: the first and ten times the
script's usual distance, but at most the second, since gradients may nearly cancel between ranks.
In a smooth model, bfloat16 comes to 0.005, a step without a module's gradient to 0.3 and more.
"""


@dataclass
class EmulatedRun:
    """The outcome of a script's run on `world` emulated ranks; every number is the verifier's own.

    `gradients`: for each step the moments that the reduced gradients may have; `orders`: for each
    rank the modules in the order of its forward passes; `trained_with`: the parameters of each
    step's forward, in a run that compares them.
    """

    world: int
    costs: CostTable
    clocks: list[RankClock]
    reduced_bytes: list[int]
    gradients: list[list[Moments]]
    orders: list[list[int]]
    start: np.ndarray[Any, Any]
    events: list[RankEvent]
    parameters: list[np.ndarray[Any, Any]]
    trained_with: list[np.ndarray[Any, Any]]

    @cached_property
    def window_us(self) -> tuple[float, float]:
        """The timed part: from the end of the warm-up to the end of the last step, on the slowest
        rank.
        """
        start = max(clock.step_ends_us[WARMUP_STEPS - 1] for clock in self.clocks)
        return start, max(clock.step_ends_us[-1] for clock in self.clocks)

    @property
    def step_ms(self) -> float:
        """Modelled milliseconds a step."""
        start, end = self.window_us
        return (end - start) / 1e3 / (len(self.clocks[0].step_ends_us) - WARMUP_STEPS)

    @property
    def samples_per_s(self) -> float:
        """Modelled throughput of the whole job."""
        return self.world * self.costs.micro_batches * self.costs.samples / self.step_ms * 1e3

    def _timed(
        self, clock: RankClock, stream: str, named: tuple[str, ...] = ("",)
    ) -> list[tuple[float, float]]:
        """Return the intervals of a stream's spans of these names, cut to the timed part."""
        start, end = self.window_us
        return [
            (max(start, span.start_us), min(end, span.end_us))
            for span in clock.spans
            if span.stream == stream
            and span.name.startswith(named)
            and start < span.end_us
            and span.start_us < end
        ]

    @property
    def communication_ms(self) -> float:
        """Modelled communication a step, mean over the ranks."""
        return self._per_step(
            lambda clock: sum(b - a for a, b in merge(self._timed(clock, "communication")))
        )

    @property
    def exposed_ms(self) -> float:
        """Communication a step under which nothing was computed, mean over the ranks."""
        return self.communication_ms - self._per_step(
            lambda clock: covered_us(
                self._timed(clock, "communication"), self._timed(clock, "compute")
            )
        )

    @property
    def compute_ms(self) -> float:
        """Modelled compute a step, mean over the ranks."""
        return self._per_step(
            lambda clock: sum(b - a for a, b in merge(self._timed(clock, "compute")))
        )

    def _per_step(self, of: Callable[[RankClock], float]) -> float:
        steps = len(self.clocks[0].step_ends_us) - WARMUP_STEPS
        return sum(map(of, self.clocks)) / len(self.clocks) / steps / 1e3

    @cached_property
    def exchange_ms(self) -> float:
        """Communication a step since the step's last forward, which the update waits for; mean over
        the ranks.
        """
        return self._per_step(
            lambda clock: sum(span.end_us - span.start_us for span in self._exchange(clock))
        )

    @cached_property
    def hidden_ms(self) -> float:
        """The part of `exchange_ms` that the model's passes hide: of gradients alone."""
        # Anything sent with an earlier micro-batch, or beside gradients, brings an update no
        # earlier, however well it is hidden; nor does other computing beside the model.
        return self._per_step(
            lambda clock: covered_us(
                [(span.start_us, span.end_us) for span in self._exchange(clock) if span.gradients],
                self._timed(clock, "compute", ("forward ", "backward ")),
            )
        )

    @property
    def overlap_share(self) -> float:
        """Share (0–1) of the exchange that the model's passes hide."""
        return self.hidden_ms / self.exchange_ms if self.exchange_ms else 1.0

    def _exchange(self, clock: RankClock) -> list[Span]:
        """Return a rank's collectives of the timed steps, each step's from its last forward on."""
        forward = {
            span.step: span.launched_us for span in clock.spans if span.name.startswith("forward ")
        }
        return [
            span
            for span in clock.spans
            if span.stream == "communication"
            and WARMUP_STEPS <= span.step < clock.step
            and span.launched_us > forward[span.step]
        ]

    def difference(self, reference: EmulatedRun) -> float:
        """Return the largest distance of a rank's parameters from the reference's, as a share of
        the distance that training moved the reference's.
        """
        right = reference.parameters[0]
        moved = float(np.linalg.norm(right - reference.start))
        apart = max(float(np.linalg.norm(parameters - right)) for parameters in self.parameters)
        return apart / moved


class RanksMeasurement(msgspec.Struct, frozen=True):
    """The figures of one check. `few` and `many` are the rank counts compared; times are modelled
    where `modelled` says so.

    `exchange_ms`: the communication a step that the update waits for; `hidden_ms`: the part of it
    behind the model's passes, which is the `overlap_share`.
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
    exchange_ms: float
    hidden_ms: float
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
        """Throughput on many ranks over the shipped script's."""
        return self.many_samples_per_s / self.baseline_many_samples_per_s

    def details(self) -> dict[str, Any]:
        """Return the figures for the verdict's file."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields | {"scaling": self.scaling}


def results(measurement: RanksMeasurement, specs: list[CriterionSpec]) -> list[CriterionResult]:
    """Return one result for each criterion that this measurement decides: `same-training`,
    `scaling`, `overlap-share`.
    """
    values = {"scaling": measurement.scaling, "overlap-share": measurement.overlap_share}
    graded = []
    for spec in specs:
        if spec.id == "same-training":
            graded.append(grade_check(spec, measurement.problem, measurement.checked, "ranks"))
        elif spec.id in values and measurement.problem is None:
            graded.append(grade_value(spec, values[spec.id]))
    return graded
