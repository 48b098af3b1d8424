"""The intervals cover what they claim to, exactly, and for whatever distribution."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab.analysis.statistics import (
    bounds_at,
    log_ratios,
    median_interval,
    noise_share,
    paired_ratios,
    tail_rank,
)

numbers = st.floats(-1e6, 1e6)
samples = st.lists(numbers, min_size=1, max_size=60)
confidences = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.998, 0.999])
times = st.floats(1e-6, 1e3)


def coin_tail(n: int, below: int) -> Fraction:
    """P(Bin(n, ½) < below), written out."""
    return Fraction(sum(math.comb(n, i) for i in range(below)), 2**n)


@given(st.integers(1, 300), st.sampled_from(["0.1", "0.05", "0.025", "0.005", "0.001", "0.0005"]))
def test_rank_is_the_largest_one_within_the_level(n, level):
    rank = tail_rank(n, Fraction(level))
    assert coin_tail(n, rank) <= Fraction(level) < coin_tail(n, rank + 1)


@pytest.mark.parametrize(
    ("n", "rank"), [(5, 0), (6, 1), (8, 1), (9, 2), (20, 6), (50, 18), (100, 40)]
)
def test_ranks_agree_with_published_tables_of_the_sign_test_at_95_percent(n, rank):
    assert tail_rank(n, Fraction("0.025")) == rank


@given(samples, confidences)
def test_interval_is_ordered_and_made_of_samples(values, confidence):
    low, middle, high = median_interval(values, confidence)
    assert low <= middle <= high
    assert low in values or low == -math.inf
    assert high in values or high == math.inf


@given(samples, confidences, st.randoms())
def test_interval_does_not_depend_on_the_order_of_samples(values, confidence, rng):
    shuffled = list(values)
    rng.shuffle(shuffled)
    assert median_interval(shuffled, confidence) == median_interval(values, confidence)


@given(samples)
def test_more_confidence_never_narrows(values):
    loose, strict = median_interval(values, 0.9), median_interval(values, 0.99)
    assert strict.low <= loose.low
    assert loose.high <= strict.high


@given(samples, confidences, st.data())
def test_raising_a_sample_never_lowers_a_bound(values, confidence, data):
    index = data.draw(st.integers(0, len(values) - 1))
    raised = [*values[:index], values[index] + data.draw(st.floats(0, 1e6)), *values[index + 1 :]]
    before, after = median_interval(values, confidence), median_interval(raised, confidence)
    assert all(new >= old for new, old in zip(after, before, strict=True))


@given(samples, confidences)
def test_mirroring_the_samples_mirrors_the_interval(values, confidence):
    low, middle, high = median_interval(values, confidence)
    assert median_interval([-value for value in values], confidence) == (-high, -middle, -low)


@given(st.lists(numbers, min_size=6, max_size=40))
def test_repeating_the_same_evidence_never_widens(values):
    once, twice = median_interval(values, 0.95), median_interval(values * 2, 0.95)
    assert once.low <= twice.low
    assert twice.high <= once.high


@pytest.mark.parametrize("n", [1, 5])
def test_too_few_samples_bear_no_bound(n):
    assert median_interval([1.0] * n, 0.95) == (-math.inf, 1.0, math.inf)


DRAWS = {
    "normal": lambda rng: rng.gauss(0, 1),
    "cauchy": lambda rng: math.tan(math.pi * (rng.random() - 0.5)),
    "two lumps": lambda rng: rng.choice((-1, 1)) + rng.gauss(0, 0.1),
    "skewed, median 0": lambda rng: rng.lognormvariate(0, 1) - 1,
    "atoms": lambda rng: rng.choice((-1, 0, 0, 1)),
}


@pytest.mark.parametrize("n", [12, 25])
@pytest.mark.parametrize("name", DRAWS)
def test_coverage_is_at_least_nominal(name, n, binomtest):
    rng, draw, trials = random.Random(f"{name} {n}"), DRAWS[name], 2000
    missed = 0
    for _ in range(trials):
        low, _, high = median_interval([draw(rng) for _ in range(n)], 0.9)
        missed += not low <= 0 <= high
    # The share of misses may be 10%; it fails only where even the lower bound of what was seen is
    # above that.
    assert binomtest(missed, trials).proportion_ci(0.9999).low <= 0.1


@pytest.mark.parametrize("values", [[], [1.0, math.nan]])
def test_interval_refuses_what_is_not_a_sample(values):
    with pytest.raises(ValueError, match="interval"):
        median_interval(values, 0.95)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_confidence_must_be_a_share(confidence):
    with pytest.raises(ValueError, match="confidence"):
        median_interval([1.0], confidence)


def test_infinite_samples_are_samples():
    assert bounds_at([1.0, math.inf, 2.0], 1) == (1.0, 2.0, math.inf)


@given(st.lists(st.tuples(times, times), min_size=1))
def test_swapping_sides_negates_the_log_ratio(pairs):
    reference, learner = zip(*pairs, strict=True)
    forth, back = log_ratios(reference, learner), log_ratios(learner, reference)
    assert forth == pytest.approx([-value for value in back], abs=1e-12)


def test_half_the_time_is_a_ratio_of_two():
    assert paired_ratios([2.0, 4.0], [1.0, 2.0]) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("reference", "learner"),
    [([1.0], []), ([1.0], [0.0]), ([math.nan], [1.0]), ([1.0], [math.inf])],
)
def test_impossible_times_are_refused(reference, learner):
    with pytest.raises(ValueError, match=r"time"):
        paired_ratios(reference, learner)


def test_noise_is_that_of_a_typical_pair_not_of_a_stall():
    rng = random.Random(1)
    quiet = [rng.gauss(0.3, 0.05) for _ in range(400)]
    assert noise_share(quiet) == pytest.approx(0.05, rel=0.15)
    assert noise_share([*quiet, *[5.0] * 20]) == pytest.approx(noise_share(quiet), rel=0.15)
