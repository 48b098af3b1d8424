"""What was handed out to a training script, and what the device saw of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.messages import HandOut, Trained

KEPT_ROWS = 3
"""Rows of each batch whose samples are checked: a script that spoils one in twenty escapes the 96
of an epoch once in 130 times.
"""
BATCHES_PER_BLOCK = 3
WARM_UP_BATCHES = 4


@dataclass
class Assignment:
    """An epoch that was handed out: what had to be trained, which rows were kept, and when."""

    number: int
    seed: int
    order: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]
    given_ns: int

    @property
    def batches(self) -> int:
        return len(self.rows)

    def message(self) -> HandOut:
        """What the device is told of it."""
        return HandOut(self.number, self.seed, self.order, self.rows)


@dataclass
class PipelineRun:
    """All that was handed out and all that came back. The first assignment is the warm-up and is
    never timed.
    """

    batch: int
    assignments: list[Assignment] = field(default_factory=list)
    steps: list[Trained] = field(default_factory=list)

    def timed(self) -> list[Trained]:
        """The steps after the warm-up."""
        return self.steps[self.assignments[0].batches :] if self.assignments else []

    def began_ns(self) -> int:
        """When the first timed epoch was handed out."""
        return self.assignments[1].given_ns

    def block_ends_ns(self) -> list[int]:
        """The start of the clock and the end of every whole block."""
        ends = [step.ended_ns for step in self.timed()]
        return [self.began_ns(), *ends[BATCHES_PER_BLOCK - 1 :: BATCHES_PER_BLOCK]]

    def utilisation(self, step_s: float) -> list[float]:
        """Useful utilisation (0–1) of each block: device time needed for its batches over wall
        time.
        """
        ends = self.block_ends_ns()
        return [BATCHES_PER_BLOCK * step_s * 1e9 / (end - begin) for begin, end in pairwise(ends)]

    def idle(self) -> list[float]:
        """Share (0–1) of each block's wall time in which the device had nothing to do."""
        ends, steps = self.block_ends_ns(), self.timed()
        blocks = [
            steps[at : at + BATCHES_PER_BLOCK]
            for at in range(0, BATCHES_PER_BLOCK * (len(ends) - 1), BATCHES_PER_BLOCK)
        ]
        return [
            max(0.0, 1 - sum(step.ended_ns - step.started_ns for step in block) / (end - begin))
            for block, begin, end in zip(blocks, ends, ends[1:], strict=False)
        ]

    def samples_per_s(self) -> float:
        """Samples trained a second over the whole timed part, epoch starts included."""
        steps = self.timed()
        return (
            sum(len(step.labels) for step in steps) * 1e9 / (steps[-1].ended_ns - self.began_ns())
        )


def plan_epoch(
    rng: np.random.Generator, run: PipelineRun, count: int, sizes: list[int]
) -> Assignment:
    """Draws the next epoch, of `sizes[n]` batches where the data has as many, and notes it; an
    empty one after the last.
    """
    number = len(run.assignments)
    batches = min(sizes[number], count // run.batch) if number < len(sizes) else 0
    order = rng.permutation(count)[: batches * run.batch].astype(np.int64)
    rows = rng.permuted(np.tile(np.arange(run.batch), (batches, 1)), axis=1)[:, :KEPT_ROWS].astype(
        np.int64
    )
    epoch = Assignment(number, int(rng.integers(1 << 31)), order, rows, time.monotonic_ns())
    if batches:
        run.assignments.append(epoch)
    return epoch
