"""The gains of right scripts that a lab's write-up records, and that a PASS names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.commands import check
from bottleneck_lab.course.solution_gains import SOLUTION, solution_gains
from bottleneck_lab.grading.verdict import Outcome, Prediction
from bottleneck_lab.measure.lab_rules.variants import variants

from ...modules import load_file

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "modelled_labs.py"


@pytest.fixture(params=["stuttering-tagger", "busy-ensemble"])
def lab(request):
    return find_lab(request.param)


def test_each_row_is_a_script_that_is_tested(lab):
    gains = solution_gains(lab)
    others = {path.name.replace("_", " ") for path in variants(lab, "virtual")}
    assert set(gains) == {"as shipped", SOLUTION, *others}
    assert gains["as shipped"] == 1.0


def test_a_write_up_without_gains_has_none():
    for slug in ("perf-gate", "idle-gpu"):
        assert solution_gains(find_lab(slug)) == {}


@pytest.mark.slow
def test_the_gains_of_the_solution_and_of_the_fastest_script_repeat(lab):
    modelled = load_file(BENCHMARK, "modelled_labs")
    gains = solution_gains(lab)
    fastest = max(gains, key=gains.__getitem__)
    folders = dict(modelled.works(lab))
    shipped, *measured = (
        modelled.figures.step_time_us(modelled._train(lab, folders[name]))
        for name in ("as shipped", SOLUTION, fastest)
    )
    for name, us in zip((SOLUTION, fastest), measured, strict=True):
        assert shipped / us == pytest.approx(gains[name], rel=0.02)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, True),
        ({"outcome": Outcome.FAIL}, False),
        ({"device": "cuda"}, False),
        ({"prediction": None}, False),
        ({"prediction": Prediction(2.0, 2.1, quantity="memory")}, False),
    ],
)
def test_a_pass_says_what_the_solution_and_the_fastest_script_gain(lab, changes, shown):
    verdict = {"outcome": Outcome.PASS, "device": "virtual", "prediction": Prediction(2.0, 1.9)}
    workspace = SimpleNamespace(lab=lab)
    text = check._others_gains(workspace, SimpleNamespace(**{**verdict, **changes}))
    gains = solution_gains(lab)
    assert text == shown * (
        f"The reference solution reaches {gains[SOLUTION]:.2f}x, the fastest script known to us"
        f" {max(gains.values()):.2f}x."
    )


@pytest.mark.parametrize(
    ("times", "says"), [(0.995, "x: yours is as fast."), (1.05, "x: yours is faster than any.")]
)
def test_a_pass_that_ties_or_beats_the_fastest_script_says_so(lab, times, says):
    prediction = Prediction(2.0, times * max(solution_gains(lab).values()))
    verdict = SimpleNamespace(outcome=Outcome.PASS, device="virtual", prediction=prediction)
    assert check._others_gains(SimpleNamespace(lab=lab), verdict).endswith(says)
