"""Record what was handed out to a training script and what the device saw of it, and turn that into
figures.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.messages import HandOut, Trained

KEPT_ROWS = 3
"""Rows of each batch whose samples are checked: a script that spoils one sample in twenty escapes
the 96 of an epoch once in 130 times.
"""
BATCHES_PER_BLOCK = 3
WARM_UP_BATCHES = 4


@dataclass
class Assignment:
    """An epoch that was handed out at `given_ns`.

    order: (batches × batch,) indices into the data set. rows: (batches, KEPT_ROWS) positions within
    each batch whose samples the device keeps, drawn in secret.
    """

    number: int
    seed: int
    order: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]
    given_ns: int

    @property
    def batches(self) -> int:
        return len(self.rows)

    def message(self) -> HandOut:
        """Return the message that hands it out."""
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
        """Return the steps after the warm-up."""
        if not self.assignments:
            return []
        return self.steps[self.assignments[0].batches :]

    def began_ns(self) -> int:
        """Return when the first timed epoch was handed out."""
        return self.assignments[1].given_ns

    def block_ends_ns(self) -> list[int]:
        """Return the start of the clock and the end of every whole block."""
        ends = [step.ended_ns for step in self.timed()]
        return [self.began_ns(), *ends[BATCHES_PER_BLOCK - 1 :: BATCHES_PER_BLOCK]]

    def utilisation(self, step_s: float) -> list[float]:
        """Return the useful utilisation (0–1) of each block: device time that its batches need over
        wall time.
        """
        ends = self.block_ends_ns()
        return [BATCHES_PER_BLOCK * step_s * 1e9 / (end - begin) for begin, end in pairwise(ends)]

    def batch_utilisation(self, step_s: float) -> list[float]:
        """Return the useful utilisation (0–1) of each batch: a step over the time since the batch
        before ended.
        """
        ends = [self.began_ns(), *(step.ended_ns for step in self.timed())]
        return [step_s * 1e9 / (end - begin) for begin, end in pairwise(ends)]

    def idle(self) -> list[float]:
        """Return the share (0–1) of each block's wall time in which the device had no work."""
        ends, steps = self.block_ends_ns(), self.timed()
        idle = []
        for number, (begin, end) in enumerate(pairwise(ends)):
            block = steps[number * BATCHES_PER_BLOCK : (number + 1) * BATCHES_PER_BLOCK]
            busy = sum(step.ended_ns - step.started_ns for step in block)
            # A block's first step may have begun in the block before.
            idle.append(max(0.0, 1 - busy / (end - begin)))
        return idle

    def samples_per_s(self) -> float:
        """Return the samples trained a second over the timed part, starts of epochs included."""
        steps = self.timed()
        samples = sum(len(step.labels) for step in steps)
        return samples * 1e9 / (steps[-1].ended_ns - self.began_ns())


def plan_epoch(
    rng: np.random.Generator, run: PipelineRun, count: int, sizes: list[int]
) -> Assignment:
    """Draw the next epoch and note it in `run`: number n has `sizes[n]` batches, or as many as the
    `count` samples give. The one after the last is empty.
    """
    number = len(run.assignments)
    batches = 0
    if number < len(sizes):
        batches = min(sizes[number], count // run.batch)
    order = rng.permutation(count)[: batches * run.batch].astype(np.int64)
    # For each batch its positions in an order of their own, of which the first few are kept.
    positions = rng.permuted(np.tile(np.arange(run.batch), (batches, 1)), axis=1)
    rows = positions[:, :KEPT_ROWS].astype(np.int64)
    epoch = Assignment(number, int(rng.integers(1 << 31)), order, rows, time.monotonic_ns())
    if batches:
        run.assignments.append(epoch)
    return epoch
