"""The page's section about predictions: each lab's point against the diagonal on which prediction
and measurement agree.
"""

from __future__ import annotations

import math

from bottleneck_lab.grading.calibration import (
    Calibration,
    PastPrediction,
    describe_calibration,
    describe_factor,
)
from bottleneck_lab.report.page.markup import Markup, Section, table
from bottleneck_lab.report.page.shapes import Point, chart, dot, line, text
from bottleneck_lab.report.page.verdict import section

_TOP, _BOTTOM = 14.0, 210.0
_LEFT, _RIGHT = 0.08, 0.97


def calibration_section(calibration: Calibration | None) -> Section | None:
    """Return the chart and its figures; None without a prediction that was measured."""
    if calibration is None:
        return None
    rows = [
        [
            point.lab,
            f"{point.predicted:.2f}x",
            f"{point.measured:.2f}x",
            describe_factor(point.factor),
        ]
        for point in calibration.points
    ]
    return section(
        "calibration",
        "Your predictions",
        _chart(calibration.points),
        table(
            ["lab", "predicted", "measured", ""],
            rows,
            caption="Speed-ups over the shipped workload",
            numeric={1, 2},
        ),
        lead=describe_calibration(calibration),
    )


def _chart(points: list[PastPrediction]) -> Markup:
    """Draw measured over predicted, both logarithmic from 1x (or less) on."""
    gains = [gain for point in points for gain in (point.predicted, point.measured)]
    low, high = math.log(min(*gains, 1.0)), math.log(max(*gains, 2.0) * 1.1)

    def at(predicted: float, measured: float) -> Point:
        x, y = ((math.log(gain) - low) / (high - low) for gain in (predicted, measured))
        return _LEFT + x * (_RIGHT - _LEFT), round(_BOTTOM - y * (_BOTTOM - _TOP), 2)

    dots = []
    for point in points:
        title = f"{point.lab}: predicted {point.predicted:.2f}x, measured {point.measured:.2f}x"
        dots.append(dot(at(point.predicted, point.measured), "fill-value", title))
    return chart(
        "Measured speed-up over predicted speed-up; on the line they agree; below it, too much was"
        " promised",
        232,
        line((_LEFT, _BOTTOM), (_RIGHT, _TOP), "target"),
        dots,
        text("measured", (0, _TOP + 10), style="soft"),
        text("predicted", (_RIGHT, _BOTTOM + 16), "end", "soft"),
    )
