"""The rules that a simple judge is made of: what they accept, and every way in which an answer can
be none.
"""

from __future__ import annotations

import numpy as np
import pytest

from bottleneck_lab.judging import answers, close, exact

NAN, INF = float("nan"), float("inf")
WANT = np.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("got", [WANT + 5e-6, WANT.astype(np.float32), WANT - 1e-5])
def test_close_numbers_are_right_whatever_their_width(got):
    assert close(atol=1.1e-5)(got, WANT) is None


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (WANT + 2e-5, "off by 2e-05"),
        (WANT[0], r"has the shape \(2,\), not \(2, 2\)"),
        (np.where(WANT == 1.0, NAN, WANT), "not finite"),
        (np.full((2, 2), INF), "not finite"),
        ("text", "is a str, not numbers"),
        (np.array([["a", "b"], ["c", "d"]]), "not numbers"),
        (np.empty((0,)), "has the shape"),
        (3.0, r"has the shape \(\), not"),
    ],
)
def test_what_is_not_close_says_why(got, said):
    wrong = close(atol=1e-5)(got, WANT)
    assert wrong is not None
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(wrong)


def test_the_limits_add_up_and_are_relative_to_the_reference():
    rule = close(atol=0.1, rtol=0.1)
    assert rule(np.array([11.05]), np.array([10.0])) is None
    assert rule(np.array([11.2]), np.array([10.0])) is not None
    assert rule(np.array([0.3]), np.array([0.0])) is not None


def test_small_integers_do_not_wrap_around():
    assert close(atol=1)(np.array([0], np.uint8), np.array([255], np.uint8)) is not None
    assert close(atol=1)(np.array([254], np.uint8), np.array([255], np.uint8)) is None


def test_what_is_not_finite_must_be_the_references_own():
    want = np.array([NAN, INF, 1.0])
    assert close(atol=1)(want, want) is None
    assert "finite numbers where" in close(atol=1)(np.array([0.0, INF, 1.0]), want)
    assert "finite numbers where" in close(atol=1)(np.array([NAN, -INF, 1.0]), want)


@pytest.mark.parametrize(
    "same", [WANT, 3, 2.5, "text", b"bytes", True, np.array([NAN, 1.0]), np.array([], np.int8)]
)
def test_exact_takes_the_same(same):
    assert exact(same, same) is None


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (WANT + 1e-12, WANT),
        ("Text", "text"),
        (b"", "text"),
        (None, "text"),
        (2, 3),
        (WANT[:1], WANT),
        ("3", 3),
    ],
)
def test_exact_takes_nothing_else(got, want):
    assert exact(got, want) is not None


def test_a_judge_names_the_part_that_is_wrong():
    judge = answers(confusion=exact, loss=close(atol=1e-5))
    right = [np.eye(3), 0.5]
    assert judge("only", [], right, right, {}) is None
    assert judge("only", [], [np.eye(3), 0.500001], right, {}) is None
    assert judge("only", [], [np.eye(3), 0.6], right, {}).startswith("`loss` is off by 0.1")
    assert (
        judge("only", [], [np.ones((3, 3)), 0.5], right, {})
        == "`confusion` differs in 6 of 9 numbers."
    )
    assert judge("only", [], [0.5], right, {}) == "The answer has 1 parts, not 2: confusion, loss."
