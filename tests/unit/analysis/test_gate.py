"""The gate: no change is rarely called one, a change of a tenth is found, and controls that move
silence it.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab.analysis.gate import Rules, alternate, judge, judge_suite
from bottleneck_lab.analysis.statistics import signed_rank_interval

RULES = Rules()


def measured(change, *, noise=0.03, pairs=24, seed=1):
    """Seconds before and after in turns, on a machine that drifts."""
    rng, level, before, after = random.Random(seed), 0.0, [], []
    for after_first in alternate(rng, pairs):
        level += rng.gauss(0, 0.01)
        first, second = (math.exp(level + rng.gauss(0, noise)) for _ in range(2))
        before.append(second if after_first else first)
        after.append(change * (first if after_first else second))
    return before, after


@pytest.mark.parametrize(
    ("change", "outcome"), [(1.0, "same"), (1.1, "worse"), (0.9, "better"), (1.5, "worse")]
)
def test_what_became_of_a_change_of_known_size(change, outcome):
    found = judge(measured(change), RULES)
    assert found.outcome == outcome, found.sentence
    assert found.low < change < found.high
    assert found.wanted == 0


def test_a_change_that_is_tolerated_is_no_regression():
    assert judge(measured(1.015, pairs=80), RULES).outcome == "same"


def test_too_few_pairs_cannot_tell_and_ask_for_more():
    found = judge(measured(1.3, pairs=5), RULES)
    assert (found.outcome, found.low, found.wanted) == ("cannot tell", None, 16)


def test_noise_that_hides_a_tenth_cannot_tell_after_the_last_look():
    found = judge(measured(1.05, noise=0.5, pairs=80), RULES)
    assert (found.outcome, found.wanted) == ("cannot tell", 0)
    assert "neither shows nor excludes a change of 10%" in found.sentence


def test_a_suite_needs_more_for_each_answer_than_a_single_benchmark():
    pairs = measured(1.1, pairs=16)
    alone, of_many = judge(pairs, RULES), judge(pairs, RULES, benchmarks=40)
    assert of_many.low is None or of_many.low < alone.low


@pytest.mark.parametrize("control", ["unaffected", "same_code"])
def test_a_control_that_moves_takes_back_what_moved_with_it(control):
    slow = measured(1.3)
    suite = {"touched": slow, "other": measured(1.3 if control == "unaffected" else 1.0, seed=2)}
    given_ = (
        {"unaffected": ["other"]}
        if control == "unaffected"
        else {"same_code": measured(1.3, seed=3)}
    )
    found = judge_suite(suite, RULES, **given_)
    assert found["touched"].outcome == "cannot tell"
    assert "favours one side" in found["touched"].sentence
    assert judge_suite(suite, RULES)["touched"].outcome == "worse"


def test_a_control_that_stands_still_takes_nothing_back():
    suite = {"touched": measured(1.3), "other": measured(1.0, seed=2)}
    found = judge_suite(suite, RULES, unaffected=["other"], same_code=measured(1.0, seed=3))
    assert {name: change.outcome for name, change in found.items()} == {
        "touched": "worse",
        "other": "same",
    }


def test_two_versions_of_the_same_code_raise_no_alarm():
    alarms = sum(
        judge(measured(1.0, noise=0.1, pairs=16, seed=seed), RULES).outcome == "worse"
        for seed in range(300)
    )
    assert alarms <= 1


def test_a_tenth_is_found():
    found = sum(
        judge(measured(1.1, pairs=24, seed=seed), RULES).outcome == "worse" for seed in range(300)
    )
    assert found >= 297


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(ValueError, match="cannot be paired"):
        judge(([1.0, 1.0], [1.0]), RULES)
    with pytest.raises(ValueError, match="positive"):
        judge(([1.0], [0.0]), RULES)


def test_the_order_is_a_coin_a_pair():
    order = alternate(random.Random(0), 1000)
    assert 400 < sum(order) < 600


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=40),
    st.sampled_from([0.5, 0.9, 0.99, 0.999]),
)
def test_the_signed_rank_interval_turns_with_its_samples(values, confidence):
    found = signed_rank_interval(values, confidence)
    turned = signed_rank_interval([-value for value in values], confidence)
    assert found.low <= found.median <= found.high
    assert (turned.low, turned.median, turned.high) == (-found.high, -found.median, -found.low)


@pytest.mark.parametrize(
    ("n", "confidence", "rank"), [(5, 0.9, 1), (10, 0.95, 9), (20, 0.95, 53), (25, 0.99, 69)]
)
def test_the_signed_rank_interval_takes_the_tables_walsh_averages(n, confidence, rank):
    """Critical values of the two-sided signed-rank test as statistics textbooks print them, one
    more being the rank.
    """
    samples = [float(2**i) for i in range(n)]
    walsh = sorted((a + b) / 2 for i, a in enumerate(samples) for b in samples[i:])
    assert signed_rank_interval(samples, confidence).low == walsh[rank - 1]
