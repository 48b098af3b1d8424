"""How long a check of the labs with kernels takes on a GPU: simulated with the verifier's own
sampling, on a clock that calls move.
"""

from pathlib import Path

import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.grading.sequential import State

from ...modules import load_file

LONGEST_S = 90
"""A minute on a quiet machine, by `benchmarks/gpu_budget.py`; the machine of a test may be busy."""


@pytest.fixture(scope="module")
def gpu_budget():
    return load_file(Path(__file__).parents[3] / "benchmarks" / "gpu_budget.py", "gpu_budget")


@pytest.fixture(scope="module")
def budget(gpu_budget):
    return gpu_budget.Budget("fused-attention")


@pytest.mark.parametrize("name", ["stuttering-tagger", "idle-gpu", "perf-gate", "timing-pitfalls"])
def test_labs_whose_parts_fit_a_minute_keep_to_it(gpu_budget, name):
    assert gpu_budget.show_parts(find_lab(name)) <= gpu_budget.WITHIN_S


def test_calls_that_nobody_times_cost_what_their_own_inputs_cost(gpu_budget, monkeypatch):
    monkeypatch.setattr(gpu_budget, "UNTIMED", 3)
    roofline = gpu_budget.Budget("roofline")
    as_drawn = roofline.simulate().seconds
    roofline.untimed.clear()
    assert as_drawn < roofline.simulate().seconds, "most of them are far shorter than timed ones"


@pytest.mark.parametrize(("speed", "state"), [(1.05, State.PASS), (0.85, State.FAIL)])
def test_a_check_on_a_gpu_is_decided_within_a_minute(budget, speed, state):
    for seed in range(5):
        check = budget.simulate(speed=speed, seed=seed)
        assert check.state is state
        assert check.seconds <= LONGEST_S, check


@pytest.mark.parametrize("speed", [0.97, 1.0])
def test_nor_does_it_take_longer_at_the_bar_or_where_the_two_are_equally_fast(
    gpu_budget, budget, monkeypatch, speed
):
    """Judging costs the same in every run of this test: a busy machine does not show."""
    costs = dict.fromkeys(budget.costs, gpu_budget.Cost(first_s=0.1, draw_s=0.0, judge_s=0.04))
    monkeypatch.setattr(budget, "costs", costs)
    longest = max(budget.simulate(speed=speed, seed=seed).seconds for seed in range(20))
    assert longest <= gpu_budget.WITHIN_S


def test_what_judging_costs_counts(budget, monkeypatch):
    """As it was when every answer's float64 sample took longer than the call: half a second."""
    quick = budget.simulate()
    slow = {case: cost._replace(judge_s=0.5) for case, cost in budget.costs.items()}
    monkeypatch.setattr(budget, "costs", slow)
    later = budget.simulate()
    assert quick.state is later.state is State.PASS
    assert later.seconds > quick.seconds + 20
