"""Compare two trainings: reports number by number, parameters by the norm of each array, so that
no scale can hide a difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Reports = list[tuple[int, dict[str, float]]]
Arrays = Mapping[str, NDArray[np.floating]]


def wrong_reports(reports: Reports, wanted: Reports, tolerance: float) -> str | None:
    """Return a sentence on what is wrong with the reports; None when every number is the
    reference's within a relative `tolerance`.
    """
    steps, due = [step for step, _ in reports], [step for step, _ in wanted]
    if steps != due:
        return f"Reports were due after steps {_few(due)}; they came after {_few(steps) or 'none'}."
    for (step, numbers), (_, right) in zip(reports, wanted, strict=True):
        if numbers.keys() != right.keys():
            return (
                f"The report of step {step} has {_few(sorted(numbers))}; it should have"
                f" {_few(sorted(right))}."
            )
        for name, value in numbers.items():
            if not math.isclose(value, right[name], rel_tol=tolerance, abs_tol=1e-6):
                return (
                    f"The report of step {step} says {name} {value:.6g}; the shipped script's is"
                    f" {right[name]:.6g}, with the same seed, which this check has drawn."
                )
    return None


def wrong_parameters(parameters: Arrays, wanted: Arrays, tolerance: float) -> str | None:
    """Return a sentence on what is wrong with the parameters; None when each array differs by at
    most `tolerance` of its own norm.
    """
    if parameters.keys() != wanted.keys():
        return (
            f"The returned model has the parameters {_few(sorted(parameters))}; it should have"
            f" {_few(sorted(wanted))}."
        )
    for name, right in wanted.items():
        value = parameters[name]
        if value.shape != right.shape:
            return f"The parameter {name} has the shape {value.shape}; it should be {right.shape}."
        off = float(np.linalg.norm(value.astype(np.float64) - right.astype(np.float64)))
        norm = float(np.linalg.norm(right.astype(np.float64)))
        if not off <= tolerance * max(norm, 1e-6):  # so written that NaN is wrong, too
            return (
                f"The parameter {name} differs from the shipped script's by"
                f" {off / max(norm, 1e-6):.1%} of its norm."
            )
    return None


def _few(items: list[object] | list[int] | list[str]) -> str:
    """Join at most six items: a sentence is read, not searched."""
    shown = ", ".join(str(item) for item in items[:6])
    return shown + (", …" if len(items) > 6 else "")
