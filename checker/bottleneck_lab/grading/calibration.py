"""How well a learner predicts gains: predicted against measured, over the course."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from bottleneck_lab.wording import counted

RIGHT = 1.1
"""A prediction within this factor of what is measured is called close, and counts as right."""
EXACT = 1.02
"""Within this factor it is right on the mark."""


class PastPrediction(msgspec.Struct, frozen=True):
    """One lab's prediction and what its last measured check measured: speed-ups over the shipped
    workload.
    """

    lab: str
    predicted: float
    measured: float

    @property
    def factor(self) -> float:
        """Predicted over measured: above 1 means overpromised."""
        return self.predicted / self.measured


class Calibration(msgspec.Struct, frozen=True):
    """`bias` is the median of predicted over measured; `typical` the median factor by which a
    prediction is off, to whichever side.
    """

    points: list[PastPrediction]
    bias: float
    typical: float


def calibrate(points: Sequence[PastPrediction]) -> Calibration | None:
    """Return the calibration of these predictions; None without any whose gains are positive
    numbers.
    """
    usable = [
        point
        for point in points
        if 0 < point.predicted < math.inf and 0 < point.measured < math.inf
    ]
    if not usable:
        return None
    logs = [math.log(point.factor) for point in usable]
    return Calibration(usable, math.exp(median(logs)), math.exp(median(map(abs, logs))))


def describe_factor(factor: float) -> str:
    """Return a ratio of predicted to measured in words, such as `too high by a factor of 1.40`."""
    off = max(factor, 1 / factor) if factor > 0 else math.inf
    if off < EXACT:
        return "right on the mark"
    text = f"too {'high' if factor > 1 else 'low'} by a factor of {off:.2f}"
    return f"close, {text}" if off <= RIGHT else text


def describe_calibration(calibration: Calibration) -> str:
    """Return the calibration in a sentence or two."""
    labs = counted(len(calibration.points), "lab")
    right = sum(max(each.factor, 1 / each.factor) <= RIGHT for each in calibration.points)
    lean = "neither too high nor too low"
    if max(calibration.bias, 1 / calibration.bias) > RIGHT:
        lean = describe_factor(calibration.bias)
    hits = f"The gain of {right} of {labs} was predicted within a factor of {RIGHT:.2f}."
    if len(calibration.points) == 1:
        return hits
    return (
        f"{hits} Typically you are off by a factor of {calibration.typical:.2f}; on the whole your"
        f" predictions are {lean}."
    )
