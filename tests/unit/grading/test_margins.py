"""How far work lies from a target, and what several machines say of it together."""

from __future__ import annotations

import msgspec
import pytest

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.margins import Margin, Proof, Row, judge_targets, margins_of
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Verdict


def row(
    name: str,
    low: float,
    high: float,
    *,
    right: bool,
    machine: str = "laptop",
    at_least: bool = True,
) -> Row:
    margin = Margin("speedup", (low + high) / 2, low, high, 3.0, at_least, "x")
    part = "variants" if right else "mutants"
    return Row("mine", name, [], Proof(part, name, "cpu", "PASS", [margin], machine, right))


def test_a_distance_is_of_the_bound_that_counts():
    above = Margin("speedup", 4.0, 3.6, 4.5, 3.0, at_least=True)
    assert (above.least, above.most) == pytest.approx((1.2, 1.5))
    below = Margin("p50-ms", 4.0, 3.6, 4.5, 5.0, at_least=False)
    assert (below.least, below.most) == pytest.approx((5 / 4.5, 5 / 3.6))


def test_nothing_at_all_of_what_is_to_be_small_is_far_beyond_the_target():
    assert Margin("waits", 0.0, 0.0, 0.0, 1.0, at_least=False).least > 1000
    assert Margin("waits", 0.0, 0.0, 0.0, 0.0, at_least=False).least == 1.0


def test_only_measured_targets_have_a_margin_and_the_bar_is_the_share_that_is_asked_for():
    results = [
        CriterionResult("right-answers", "correctness", True, "yes"),
        CriterionResult(
            "speedup", "target", True, "yes", value=1.2, low=1.1, high=1.3, target=1.0, unit="x"
        ),
        CriterionResult("p50-ms", "target", None, "not measured", target=5.0, direction="at_most"),
        CriterionResult(
            "launches", "mechanism", True, "yes", value=200.0, target=220.0, direction="at_most"
        ),
    ]
    specs = [
        CriterionSpec("right-answers", "correctness", "right"),
        CriterionSpec("speedup", "target", "fast", 1.0, margin=0.97),
        CriterionSpec("p50-ms", "target", "soon", 5.0, "at_most"),
        CriterionSpec("launches", "mechanism", "few", 220.0, "at_most"),
    ]
    found = {margin.criterion: margin for margin in margins_of(verdict(results), specs)}
    assert set(found) == {"speedup", "launches"}
    assert found["speedup"].least == pytest.approx(1.1 / 0.97)
    assert found["launches"].least == found["launches"].most == pytest.approx(1.1), (
        "exact: its own bounds"
    )


def verdict(results) -> Verdict:
    return Verdict(Outcome.PASS, None, "", "mine", "", "", "cpu", results, {}, {}, "", 0.0)


def test_a_target_is_safe_where_both_sides_are_clear_of_it_on_every_machine():
    rows = [
        row("fast", 3.9, 4.2, right=True),
        row("fast", 3.4, 3.6, right=True, machine="server"),
        row("slow", 1.0, 1.1, right=False),
        row("half", 2.0, 2.4, right=False, machine="server"),
    ]
    (found,) = judge_targets(rows)
    assert not found.problems
    assert found.right[0] == (pytest.approx(3.4 / 3), "fast, server"), "the nearest first"
    assert found.slow[0] == (pytest.approx(0.8), "half, server")
    assert (found.safe_from, found.safe_to) == pytest.approx((2.4 / 0.9, 3.4 / 1.1))


def test_a_target_too_near_to_right_work_says_to_whose_and_what_would_be_safe():
    (found,) = judge_targets(
        [row("fast", 3.1, 3.3, right=True, machine="server"), row("slow", 1.0, 1.2, right=False)]
    )
    assert found.problems == [
        "right work is 1.03 times as good as required; 1.1 is safe (fast, server)."
    ]
    assert (found.safe_from, found.safe_to) == pytest.approx((1.2 / 0.9, 3.1 / 1.1))


def test_where_the_two_sides_meet_no_target_is_safe():
    (found,) = judge_targets(
        [row("fast", 3.1, 3.3, right=True), row("half", 2.8, 3.0, right=False)]
    )
    assert len(found.problems) == 2
    assert (found.safe_from, found.safe_to) == (None, None)


def test_what_is_to_be_small_is_safe_the_other_way_round():
    rows = [
        row("few", 1.0, 2.0, right=True, at_least=False),
        row("many", 6.0, 7.0, right=False, at_least=False),
    ]
    (found,) = judge_targets(rows)
    assert not found.problems
    assert (found.safe_from, found.safe_to) == pytest.approx((2.0 * 1.1, 6.0 * 0.9))


def test_a_count_is_safe_on_its_target():
    def counted(name, count, *, right):
        margin = Margin("waits", count, count, count, 1.0, at_least=False, exact=True)
        return Row(
            "mine", name, [], Proof("variants", name, "cpu", "PASS", [margin], "laptop", right)
        )

    (safe,) = judge_targets([counted("right", 1.0, right=True), counted("slow", 4.0, right=False)])
    assert safe.problems == []
    (unsafe,) = judge_targets(
        [counted("right", 2.0, right=True), counted("slow", 1.0, right=False)]
    )
    assert [problem.split(" (")[0] for problem in unsafe.problems] == [
        "right work is 0.50 times as good as required; 1 is safe",
        "slow work is 1.00 times as good as required; less than 1 is safe",
    ]


def test_a_side_that_nobody_tried_is_no_proof():
    (found,) = judge_targets([row("fast", 9.0, 9.5, right=True)])
    assert found.problems == ["nothing was measured that should miss it."]


def test_rows_come_back_from_json_as_they_were():
    rows = [row("fast", 3.9, 4.2, right=True), Row("mine", "files", ["one"])]
    assert msgspec.json.decode(msgspec.json.encode(rows), type=list[Row]) == rows
