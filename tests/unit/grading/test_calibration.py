"""Predictions over a course: bias, spread, words, and the page that draws them."""

from __future__ import annotations

import math

import pytest

from bottleneck_lab.grading.calibration import (
    PastPrediction,
    calibrate,
    describe_calibration,
    describe_factor,
)
from bottleneck_lab.report.page.html import render_html

POINTS = [
    PastPrediction("one", 2.0, 2.1),
    PastPrediction("two", 4.0, 2.0),
    PastPrediction("three", 3.0, 2.0),
]


def test_bias_and_spread_are_medians_of_factors():
    found = calibrate(POINTS)
    assert found.bias == pytest.approx(1.5)
    assert found.typical == pytest.approx(1.5)
    turned = calibrate(
        [PastPrediction(point.lab, point.measured, point.predicted) for point in POINTS]
    )
    assert turned.bias == pytest.approx(1 / 1.5)
    assert turned.typical == pytest.approx(1.5)


def test_what_is_said_of_each_and_of_all():
    assert [describe_factor(point.factor) for point in POINTS] == [
        "close, too low by a factor of 1.05",
        "too high by a factor of 2.00",
        "too high by a factor of 1.50",
    ]
    assert (
        describe_calibration(calibrate(POINTS))
        == "The gain of 1 of 3 labs was predicted within a factor of 1.10. Typically you are off by"
        " a factor of 1.50; on the whole your predictions are too high by a factor of 1.50."
    )
    assert describe_calibration(calibrate(POINTS[:1])) == (
        "The gain of 1 of 1 lab was predicted within a factor of 1.10."
    )


@pytest.mark.parametrize(
    "point", [PastPrediction("a", 0.0, 2.0), PastPrediction("a", 2.0, math.inf)]
)
def test_gains_that_are_none_do_not_count(point):
    assert calibrate([point]) is None
    assert calibrate([]) is None


def test_the_page_draws_each_lab_against_the_diagonal():
    page = render_html(title="Course", calibration=calibrate(POINTS))
    assert page.count("<circle") >= 3
    assert "two: predicted 4.00x, measured 2.00x" in page
    assert "Your predictions" not in render_html(title="Course")
