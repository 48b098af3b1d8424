"""Did a script train what the shipped one trains? Pure functions on the runs of both."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from bottleneck_lab.grading.criteria import format_figure, format_limit
from bottleneck_lab.measure.kinds.data_parallel.figures import (
    GRADIENT_TOLERANCE,
    LONG_TOLERANCE,
    MOST_STEP_TOLERANCE,
    STEP_TOLERANCE,
    TOLERANCE,
    EmulatedRun,
)

_TINY = float(np.finfo(np.float32).tiny)


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
    if problem := _first_other_step(run, reference):
        return problem
    apart = run.difference(reference)
    allowed = LONG_TOLERANCE if run.trained_with else TOLERANCE
    if not apart <= allowed:
        return (
            f"After {steps} steps on {run.world} ranks the parameters differ from the reference's"
            f" by {format_figure(apart, 'share', allowed)} of how far training moved them;"
            f" {format_limit(allowed, 'share')} is allowed."
        )
    return None if run.trained_with else _other_gradients(run, reference)


def _other_gradients(run: EmulatedRun, reference: EmulatedRun) -> str | None:
    """Say why what was reduced is not the model's gradients, or None."""
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
                f"What was reduced in step {step} on {run.world} ranks is not the gradient, at"
                f" any scale: the spread of its values differs from the reference's by"
                f" {format_figure(apart, 'share', GRADIENT_TOLERANCE)};"
                f" {format_limit(GRADIENT_TOLERANCE, 'share')} is allowed."
            )
    return None


def _first_other_step(run: EmulatedRun, reference: EmulatedRun) -> str | None:
    """Say which step was the first to change a module's parameters otherwise than the reference's
    step did; None if each did the same, or runs do not compare steps.
    """
    if not run.trained_with:
        return None
    modules = run.costs.modules
    bounds = np.cumsum([module.elements for module in modules])[:-1]
    mine = [*run.trained_with, run.parameters[0]]
    right = [*reference.trained_with, reference.parameters[0]]
    # A change is the difference of two float32, each rounded once.
    rounding = 2 * float(np.finfo(np.float32).eps)
    steps = []
    for (before, after), (right_before, right_after) in zip(
        pairwise(mine), pairwise(right), strict=True
    ):
        change = right_after - right_before
        off = np.abs((after - before) - change) - rounding * np.abs(right_before)
        steps.append((_norms(np.maximum(off, 0), bounds), _norms(change, bounds)))
    offs, sizes = np.array(steps).swapaxes(0, 1)  # steps x modules
    # Gradients sent in less precision are a little off in every step, and in some modules, whose
    # gradients nearly cancel between ranks, by much. All modules together tell them from others.
    of_module = _shares(offs, sizes)
    of_all = _shares(np.linalg.norm(offs, axis=1), np.linalg.norm(sizes, axis=1))
    usual = np.median(of_module, axis=0)
    allowed = np.minimum(STEP_TOLERANCE + 10 * usual, MOST_STEP_TOLERANCE)
    for step, (shares, share) in enumerate(zip(of_module, of_all, strict=True), start=1):
        what = "the parameters"
        if not (shares <= allowed).all():
            what += f" of {modules[int(np.argmax(shares - allowed))].name}"
        elif share <= STEP_TOLERANCE:
            continue
        return (
            f"Step {step} on {run.world} ranks changed {what} otherwise than the reference's step"
            " did."
        )
    return None


def _shares(offs: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return how far off each step was (first axis), as a share of how far it should have gone."""
    # In some steps the gradients of ranks cancel, and hardly anything is left that rounding could
    # be compared with: a usual step stands for those.
    shares: np.ndarray[Any, Any] = offs / np.maximum(sizes, np.median(sizes, axis=0)).clip(_TINY)
    return shares


def _norms(values: np.ndarray[Any, Any], bounds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the norm of each module's values."""
    return np.array([np.linalg.norm(part) for part in np.split(values, bounds)])
