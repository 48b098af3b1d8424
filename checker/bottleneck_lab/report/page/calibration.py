"""The page's section about predictions: each lab's point against the diagonal on which prediction
and measurement agree.
"""

from __future__ import annotations

import math

from bottleneck_lab.grading.calibration import (
    Calibration,
    PastPrediction,
    describe_calibration,
    describe_point,
)
from bottleneck_lab.report.page.markup import Markup, Section, table, tag
from bottleneck_lab.report.page.verdict import section

_TOP, _BOTTOM = 14.0, 210.0
_LEFT, _RIGHT = 0.08, 0.97


def calibration_section(calibration: Calibration | None) -> Section | None:
    """Return the chart and its figures; None without a prediction that was measured."""
    if calibration is None:
        return None
    rows = [
        [point.lab, f"{point.predicted:.2f}x", f"{point.measured:.2f}x", describe_point(point)]
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

    def place(gain: float) -> float:
        return (math.log(gain) - low) / (high - low)

    ends = (math.exp(low), math.exp(high))
    diagonal = tag(
        "line",
        x1=_x(place(ends[0])),
        x2=_x(place(ends[1])),
        y1=_y(place(ends[0])),
        y2=_y(place(ends[1])),
        class_="target",
    )
    marks = [
        tag(
            "circle",
            tag(
                "title",
                f"{point.lab}: predicted {point.predicted:.2f}x, measured {point.measured:.2f}x",
            ),
            cx=_x(place(point.predicted)),
            cy=_y(place(point.measured)),
            r=5,
            class_="fill-value",
        )
        for point in points
    ]
    spoken = (
        "Measured speed-up over predicted speed-up; on the line they agree; below it, too much was"
        " promised"
    )
    words = [
        tag("text", "measured", x=0, y=_TOP + 10, class_="soft"),
        tag("text", "predicted", x=_x(1.0), y=_BOTTOM + 16, text_anchor="end", class_="soft"),
    ]
    return tag("svg", tag("title", spoken), diagonal, marks, words, role="img", height=232)


def _x(share: float) -> str:
    return f"{100 * (_LEFT + share * (_RIGHT - _LEFT)):.2f}%"


def _y(share: float) -> float:
    return round(_BOTTOM - share * (_BOTTOM - _TOP), 2)
