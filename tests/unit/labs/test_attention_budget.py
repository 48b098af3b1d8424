"""How long a check of `fused-attention` takes on a GPU: simulated with the verifier's own sampling,
on a clock that calls move.
"""

from pathlib import Path

import pytest

from bottleneck_lab.catalog import find_lab

from ...modules import load_file

BUSY = {"draw_s": 80e-9, "judge_s": 80e-9}
"""Seconds a number, as two cores had them that others kept busy: a quiet machine is twice as fast.
"""


@pytest.fixture(scope="module")
def budget():
    return load_file(Path(__file__).parents[3] / "benchmarks" / "gpu_budget.py", "gpu_budget")


@pytest.fixture(scope="module")
def lab():
    return find_lab("fused-attention")


@pytest.mark.parametrize(("speed", "passed"), [(1.05, True), (0.85, False)])
def test_a_check_on_a_gpu_is_decided_within_four_minutes(budget, lab, speed, passed):
    judge = budget.load_judge(lab)
    for seed in range(5):
        check = budget.simulate(lab, judge, budget.Cost(**BUSY), speed=speed, seed=seed)
        assert check.passed is passed
        assert check.seconds <= 240, check


def test_nor_does_it_take_longer_where_no_number_of_pairs_would_decide(budget, lab):
    judge = budget.load_judge(lab)
    assert (
        max(
            budget.simulate(lab, judge, budget.Cost(**BUSY), speed=0.97, seed=seed).seconds
            for seed in range(5)
        )
        <= 240
    )


def test_what_judging_costs_counts(budget, lab):
    """As it was before answers were compared block by block, and launches worked out together: 440
    ns a number.
    """
    slow = budget.Cost(draw_s=BUSY["draw_s"], judge_s=440e-9)
    assert budget.simulate(lab, budget.load_judge(lab), slow).seconds > 240
