"""The sequential test: its error is exact, and a decision never turns."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab.grading.sequential import (
    BLOCKS,
    PAIRS,
    Plan,
    SequentialTest,
    State,
    ever_missed,
    look_ranks,
    self_test,
    shuffled_order,
)

SMALL = Plan(looks=(6, 8, 12), error=0.05)
values = st.lists(st.floats(0.1, 10), max_size=20)
directions = st.sampled_from(["at_least", "at_most"])


def test_error_is_exact_over_every_path_of_a_fair_coin():
    """All 2^12 outcomes of 'above or below the median', each walked through the looks."""
    test = SequentialTest(target=1.0, plan=SMALL)
    paths = list(itertools.product((0.5, 2.0), repeat=12))
    passed = sum(test.decide(path).state is State.PASS for path in paths)
    failed = sum(test.decide(path).state is State.FAIL for path in paths)
    assert (
        Fraction(passed, len(paths))
        == Fraction(failed, len(paths))
        == ever_missed(SMALL.looks, SMALL.ranks)
    )
    assert passed / len(paths) <= SMALL.error


@pytest.mark.parametrize(
    "plan", [PAIRS, BLOCKS, SMALL, Plan(looks=(10, 14, 20, 30, 40)), Plan(looks=(100,))]
)
def test_every_plan_keeps_to_its_error(plan):
    assert 0 < ever_missed(plan.looks, plan.ranks) <= Fraction(str(plan.error))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.sampled_from([0.001, 0.01, 0.05]))
def test_ranks_are_never_stricter_than_bonferroni(groups, error):
    looks = tuple(itertools.accumulate(groups))
    level = Fraction(str(error)) / len(looks)
    for look, rank in zip(looks, look_ranks(looks, error), strict=True):
        below = Fraction(sum(math.comb(look, i) for i in range(rank + 1)), 2**look)
        assert below > level, (
            f"rank {rank + 1} would have been allowed by Bonferroni at look {look}"
        )


@pytest.mark.parametrize("plan", [PAIRS, BLOCKS])
def test_first_look_of_the_standard_plans_can_decide(plan):
    assert plan.ranks[0] >= 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"looks": ()},
        {"looks": (8, 8)},
        {"looks": (0, 9)},
        {"looks": (4,)},
        {"error": 0.0},
        {"error": 0.5},
    ],
)
def test_plans_that_cannot_work_are_refused(wrong):
    with pytest.raises(ValueError, match=r"look|error|samples"):
        Plan(**wrong)


@given(values, values, st.floats(0.5, 2), directions)
def test_a_decision_never_turns_with_more_samples(first, more, target, direction):
    test = SequentialTest(target=target, direction=direction, plan=SMALL)
    before = test.decide(first)
    if before.state is not State.CONTINUE:
        assert test.decide([*first, *more]) == before


@given(values, st.floats(0.5, 2), directions, st.randoms())
def test_order_within_a_group_does_not_matter(samples, target, direction, rng):
    test = SequentialTest(target=target, direction=direction, plan=SMALL)
    groups = [
        samples[a:b] for a, b in zip((0, *SMALL.looks), (*SMALL.looks, len(samples)), strict=True)
    ]
    for group in groups:
        rng.shuffle(group)
    assert test.decide(list(itertools.chain(*groups))) == test.decide(samples)


@given(st.lists(st.floats(0.1, 10), min_size=12, max_size=12), st.floats(0.5, 2), st.floats(1, 2))
def test_a_harder_target_never_turns_a_fail_into_a_pass(samples, target, harder):
    rank = {State.FAIL: 0, State.INCONCLUSIVE: 1, State.PASS: 2}
    last_look = Plan(looks=(12,), error=0.05)
    easy = SequentialTest(target=target, plan=last_look).decide(samples).state
    hard = SequentialTest(target=target * harder, plan=last_look).decide(samples).state
    assert rank[hard] <= rank[easy]


@given(values, st.floats(0.5, 2))
def test_at_most_is_the_mirror_of_at_least(samples, target):
    least = SequentialTest(target=-target, plan=SMALL).decide([-value for value in samples])
    most = SequentialTest(target=target, direction="at_most", plan=SMALL).decide(samples)
    assert most.state is least.state


@given(st.lists(st.floats(0.1, 10), max_size=60), st.floats(0.5, 20), directions, st.floats(0, 0.5))
def test_a_first_look_fails_only_what_the_whole_test_would(samples, target, direction, doubt):
    test = SequentialTest(target, direction, SMALL)
    look = msgspec.structs.replace(test, doubt=doubt).first_look(samples)
    assert look is None or test.decide(samples) == look


@pytest.mark.parametrize("plan", [BLOCKS, PAIRS])
def test_a_first_look_takes_all_samples_of_a_look_and_a_miss_by_far(plan):
    test, first = SequentialTest(target=3.0, plan=plan), plan.looks[0]
    assert test.first_look([1.4] * first).state is State.FAIL
    assert test.first_look([1.4] * (first - 1)) is None
    assert test.first_look([1.4] * (first - 1) + [1.6]) is None
    assert msgspec.structs.replace(test, doubt=0.5).first_look([1.4] * first) is None
    most = SequentialTest(target=3.0, direction="at_most", plan=plan)
    assert most.first_look([6.1] * first).state is State.FAIL
    assert most.first_look([5.9] * first) is None
    assert not test.misses_by_far([])
    assert not most.misses_by_far([])


def test_reaching_the_target_exactly_passes():
    assert SequentialTest(target=1.5).decide([1.5] * 12).state is State.PASS
    assert SequentialTest(target=20, direction="at_most").decide([20.0] * 12).state is State.PASS


def test_asks_for_as_many_samples_as_the_next_look_needs():
    test = SequentialTest(target=1.0)
    assert (test.decide([]).state, test.decide([]).wanted) == (State.CONTINUE, 12)
    torn = [0.9, 1.1] * 8
    assert (test.decide(torn[:13]).wanted, test.decide(torn[:13]).samples) == (3, 12)


def test_the_cap_and_the_end_of_time_are_inconclusive():
    test = SequentialTest(target=1.0)
    torn = [0.9, 1.1] * 96
    assert test.decide(torn).state is State.INCONCLUSIVE
    early = test.decide(torn[:20], exhausted=True)
    assert (early.state, early.samples, early.wanted) == (State.INCONCLUSIVE, 16, 0)
    assert test.decide([2.0] * 3, exhausted=True).state is State.INCONCLUSIVE


@pytest.mark.parametrize(
    ("below", "seen", "most", "passes", "fails"),
    [
        (0, 10, 12, (0.9, 1.0), (0.0, 0.0)),  # two more above: PASS at the first look
        (10, 10, 12, (0.0, 0.0), (0.9, 1.0)),
        (0, 10, 11, (0.0, 0.0), (0.0, 0.0)),  # no look within reach
        (32, 64, 192, (0.001, 0.01), (0.001, 0.01)),
        (80, 160, 192, (0.0, 1e-3), (0.0, 1e-3)),
        (72, 160, 192, (0.0, 0.0), (0.0, 1e-6)),  # 72 below already: no PASS is left
    ],
)
@pytest.mark.parametrize("direction", ["at_least", "at_most"])
def test_an_outlook_says_how_likely_the_looks_to_come_decide(
    below, seen, most, passes, fails, direction
):
    samples = [0.5] * below + [2.0] * (seen - below)
    if direction == "at_most":
        samples = [1 / sample for sample in samples]
    outlook = SequentialTest(target=1.0, direction=direction).outlook(samples, most)
    assert passes[0] <= outlook.passes <= passes[1]
    assert fails[0] <= outlook.fails <= fails[1]


def test_a_wild_pair_does_not_turn_a_clear_answer():
    assert SequentialTest(target=1.3).decide([1.6] * 11 + [0.01] + [1.6] * 12).state is State.PASS


def test_a_broken_sample_is_refused():
    with pytest.raises(ValueError, match="number"):
        SequentialTest(target=1.0).decide([math.nan] * 12)


def test_non_inferiority_moves_the_bar():
    just_short = [0.98] * 12
    assert SequentialTest(target=1.0).decide(just_short).state is State.FAIL
    assert SequentialTest(target=1.0, margin=0.97).decide(just_short).state is State.PASS
    assert SequentialTest(target=1.0, margin=0.97).decide([0.96] * 12).state is State.FAIL
    latency = SequentialTest(target=10.0, direction="at_most", margin=0.97)
    assert latency.decide([10.2] * 12).state is State.PASS


def test_a_doubt_has_to_be_cleared_on_either_side():
    doubtful = partial(SequentialTest, target=2.0, doubt=0.25)
    assert [doubtful().decide([ratio] * 12).state for ratio in (2.5, 2.49, 1.61, 1.59)] == [
        *(State.PASS, State.CONTINUE, State.CONTINUE, State.FAIL)
    ]
    latency = doubtful(direction="at_most")
    assert [latency.decide([ms] * 12).state for ms in (1.6, 1.61, 2.49, 2.51)] == [
        *(State.PASS, State.CONTINUE, State.CONTINUE, State.FAIL)
    ]


@pytest.mark.parametrize(
    ("wrong", "about"),
    [
        ({"target": math.nan}, "target"),
        ({"target": 1.0, "margin": 1.1}, "margin"),
        ({"target": 1.0, "margin": 0.0}, "margin"),
        ({"target": 1.0, "doubt": -0.1}, "doubt"),
        ({"target": 1.0, "doubt": math.nan}, "doubt"),
    ],
)
def test_targets_that_mean_nothing_are_refused(wrong, about):
    with pytest.raises(ValueError, match=about):
        SequentialTest(**wrong)


def test_self_test_accepts_a_quiet_machine_and_says_what_it_saw():
    rng = random.Random(3)
    result = self_test([rng.gauss(0, 0.02) for _ in range(12)], margin=0.1)
    assert (result.quiet, result.fit, result.doubt) == (True, True, 0.0)
    assert result.spread < 0.05
    assert "measured against itself 12 times" in result.sentence


@pytest.mark.parametrize("draw", [lambda rng: rng.gauss(0, 0.3), lambda rng: rng.gauss(0.3, 0.01)])
def test_self_test_doubts_a_noisy_and_a_lopsided_machine(draw):
    rng = random.Random(4)
    result = self_test([draw(rng) for _ in range(12)], margin=0.1)
    assert (result.quiet, result.fit) == (False, True)
    assert result.doubt == result.spread > 0.1
    assert f"clears it by {result.spread:.0%}" in result.sentence


@pytest.mark.parametrize("draw", [lambda rng: rng.gauss(0, 2), lambda rng: rng.gauss(0.7, 0.01)])
def test_self_test_refuses_a_machine_on_which_nothing_can_be_told(draw):
    rng = random.Random(4)
    result = self_test([draw(rng) for _ in range(12)], margin=0.1)
    assert not result.fit
    assert "too busy" in result.sentence


def test_self_test_needs_enough_pairs():
    with pytest.raises(ValueError, match="6 pairs"):
        self_test([0.0] * 5, margin=0.1)


def test_order_is_drawn_by_a_fair_coin_a_pair():
    order = shuffled_order(random.Random(5), 4000)
    assert {frozenset(pair) for pair in order} == {frozenset(("reference", "learner"))}
    assert sum(pair[0] == "learner" for pair in order) == pytest.approx(2000, abs=150)
