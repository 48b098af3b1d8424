"""The `training` kind: its figures and its comparison of two trainings."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.training import check, figures
from bottleneck_lab.measure.kinds.training.judging import wrong_parameters, wrong_reports
from bottleneck_lab.measure.kinds.training.session import OwnFigures, Training
from bottleneck_lab.measure.virtual_gpu.books import Figures


def made_up(**changed: object) -> Figures:
    usual = {
        "total_us": 80.0,
        "step_us": [50.0, 10.0, *[2.0] * 38],
        "launches": 400,
        "waits": 0,
        "step_waits": [9] * 10 + [0] * 29 + [2],
        "flops": 1.0,
        "step_flops": [step / 40 for step in range(40)],
        "report_flops": [0.25, 0.5, 0.75, 1.0],
        "peak_bytes": 3 << 20,
        "reserved_bytes": 4 << 20,
        "step_bytes": [1 << 20] * 40,
        "steps": 40,
    }
    return Figures(**(usual | changed))


def test_the_first_steps_do_not_count_as_time() -> None:
    assert figures.step_time_us(made_up()) == 2.0


def test_waits_are_of_the_worst_interval_between_two_reports() -> None:
    assert figures.waits_per_interval(made_up(), 10) == 0
    assert figures.waits_per_interval(made_up(step_waits=[0] * 15 + [1] * 4 + [0] * 21), 10) == 4


def test_waits_of_batches_that_were_all_taken_at_once_count() -> None:
    at_once = made_up(step_waits=[0] * 39 + [12])
    assert figures.waits_per_interval(at_once, 10) == 4
    two_reports_at_the_end = made_up(step_waits=[0] * 19 + [1] + [0] * 9 + [1] + [0] * 9 + [2])
    assert figures.waits_per_interval(two_reports_at_the_end, 10) == 1


def test_arithmetic_before_the_warm_up_is_over_is_not_timed() -> None:
    assert figures.timed_flops(made_up()) == pytest.approx(38 / 40)
    assert figures.timed_flops(made_up(step_flops=[1.0] * 40)) == 0


def test_a_report_may_come_an_interval_late_and_no_later() -> None:
    assert figures.late_report(made_up(), 10) is None
    assert figures.late_report(made_up(report_flops=[0.5, 0.75, 1.0, 1.0]), 10) is None
    assert figures.late_report(made_up(report_flops=[0.25, 1.0, 1.0, 1.0]), 10) == (20, 1.0)


def test_memory_that_comes_and_goes_does_not_grow() -> None:
    saw = [(1 + step % 5) << 20 for step in range(40)]
    late = [1 << 20 if step % 4 == 0 or step < 20 else 3 << 20 for step in range(40)]
    assert figures.growth_kib_per_step(saw) == figures.growth_kib_per_step(late) == 0


def test_one_kept_number_a_step_is_growth() -> None:
    levels = [(1 << 20) + 512 * step for step in range(60)]
    assert figures.growth_kib_per_step(levels) == 0.5
    assert math.isnan(figures.growth_kib_per_step(levels[:3]))


REPORTS = [(10, {"loss": 0.5}), (20, {"loss": 0.25})]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (REPORTS[:1], "due after steps 10, 20"),
        ([REPORTS[0], (20, {"loss": 0.251})], "The report of step 20 says loss 0.251"),
        ([REPORTS[0], (20, {})], "it should have loss"),
        ([REPORTS[0], (20, {"loss": float("nan")})], "loss nan"),
    ],
)
def test_wrong_reports_are_named(wrong: list, says: str) -> None:
    assert says in (wrong_reports(wrong, REPORTS, 1e-3) or "")


def test_rounding_is_no_difference() -> None:
    assert wrong_reports([(10, {"loss": 0.50001}), (20, {"loss": 0.25})], REPORTS, 1e-3) is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "it should have w"),
        ({"w": np.ones(3)}, "has the shape (3,)"),
        ({"w": np.array([1.0, 1.1])}, "differs from the shipped script's"),
        ({"w": np.array([1.0, np.nan])}, "differs from the shipped script's"),
    ],
)
def test_wrong_parameters_are_named(wrong: dict, says: str) -> None:
    assert says in (wrong_parameters(wrong, {"w": np.ones(2)}, 1e-3) or "")


def test_the_same_parameters_are_right() -> None:
    assert wrong_parameters({"w": np.array([1.0, 1.0001])}, {"w": np.ones(2)}, 1e-3) is None


def test_the_start_of_a_loader_is_not_timed_up_to_what_the_reference_needs(monkeypatch) -> None:
    def train(start_s: float, _seed: int) -> Training:
        return Training([], {}, None, 1.0, OwnFigures(start_s=start_s))

    monkeypatch.setattr(check, "train_on_device", train)
    context = SimpleNamespace(rng=random.Random(1))
    rounds = check.Rounds(context, reference=0.05, learner=5.0, start_s=0.1)
    rounds.play()
    assert rounds.times == {"reference": [pytest.approx(0.95)], "learner": [pytest.approx(0.9)]}


def test_parameters_that_were_trained_elsewhere_are_refused() -> None:
    """Arithmetic beside the training is as much as it takes, but no parameter follows from it."""
    shipped = made_up(chain=200)
    check.refuse_work_elsewhere(made_up(chain=40), shipped, least_work=0.9)
    with pytest.raises(LearnerFault, match="trained elsewhere"):
        check.refuse_work_elsewhere(made_up(chain=0), shipped, least_work=0.9)


def test_workspaces_of_libraries_are_not_what_a_program_allocates() -> None:
    own = OwnFigures(waits=8, step_bytes=[2e6] * 40, peak_bytes=66.6 * (1 << 20))
    values = check._own_values(own, 10, workspace_bytes=64 * (1 << 20))
    assert values["peak-mib"] == pytest.approx(2.6)
    assert (values["growth-kib-per-step"], values["waits-per-interval"]) == (0, 2)
    assert math.isnan(check._own_values(OwnFigures(), 10, 0.0)["peak-mib"])
