"""Did a script train what the shipped one trains? Pure functions on the runs of both."""

from __future__ import annotations

import numpy as np

from bottleneck_lab.grading.criteria import format_figure
from bottleneck_lab.measure.kinds.data_parallel.figures import (
    GRADIENT_TOLERANCE,
    TOLERANCE,
    EmulatedRun,
)


def same_training(run: EmulatedRun, reference: EmulatedRun) -> str | None:
    """Say why the parameters are not the reference's; None if they are equal on every rank, near
    the reference, and made of the same gradients.
    """
    steps = run.clocks[0].step
    for rank, parameters in enumerate(run.parameters):
        if not np.isfinite(parameters).all():
            return (
                f"After {steps} steps rank {rank} of {run.world} has parameters that"
                " are not finite."
            )
        if not np.array_equal(parameters, run.parameters[0]):
            return (
                f"After {steps} steps rank {rank} of {run.world} has different"
                " parameters from rank 0."
            )
    apart = run.difference(reference)
    if not apart <= TOLERANCE:
        return (
            f"After {steps} steps on {run.world} ranks the parameters differ from the reference's"
            f" by {format_figure(apart, 'share', TOLERANCE)} of how far training moved them;"
            f" {format_figure(TOLERANCE, 'share')} is allowed."
        )
    if any(order != reference.orders[0] for order in run.orders):
        return (
            f"A rank of {run.world} reported forward and backward in a different order from the"
            " model's."
        )
    pairs = zip(run.gradients, reference.gradients, strict=True)
    for step, (reduced, (right, *_)) in enumerate(pairs, start=1):
        apart = min(one.differs_from(right) for one in reduced)
        if not apart <= GRADIENT_TOLERANCE:
            return (
                f"What was all-reduced in step {step} on {run.world} ranks is not the gradient, at"
                f" any scale: the spread of its values differs from the reference's by"
                f" {format_figure(apart, 'share', GRADIENT_TOLERANCE)};"
                f" {format_figure(GRADIENT_TOLERANCE, 'share')} is allowed."
            )
    return None
