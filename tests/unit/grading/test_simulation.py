"""Thousands of simulated checks: the sequential test errs as rarely as the documentation says,
whatever the noise.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ...modules import load_file

ROOT = Path(__file__).resolve().parents[3]
RUNS = 200
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def simulation():
    yield load_file(ROOT / "benchmarks" / "verdict_simulation.py", "verdict_simulation")
    del sys.modules["verdict_simulation"]


@pytest.fixture(scope="module")
def cells(simulation):
    return simulation.simulate(RUNS, seed=20261121)


@pytest.mark.parametrize("plan", ["pairs", "blocks"])
@pytest.mark.parametrize("speed", [0.8, 0.9, 1.1, 1.25])
def test_away_from_the_target_wrong_verdicts_are_rare(simulation, cells, plan, speed, binomtest):
    """At most 0.1% false passes from 0.9x down and 1% false fails from 1.1x up; the runs vouch for
    0.16% at worst.
    """
    cell = simulation.pool(cells, plan=plan, speed=speed)
    assert cell.runs == RUNS * 15
    assert cell.wrong / cell.runs <= (0.001 if speed < 1 else 0.01)
    assert binomtest(cell.wrong, cell.runs).proportion_ci(0.95).high < (
        0.003 if speed < 1 else 0.01
    )


@pytest.mark.parametrize("plan", ["pairs", "blocks"])
def test_on_the_target_errors_keep_to_what_was_counted(simulation, cells, plan, binomtest):
    cell, error = simulation.pool(cells, plan=plan, speed=1.0), simulation.PLANS[plan].error
    assert binomtest(cell.failed, cell.runs).proportion_ci(0.999).low <= error
    assert binomtest(cell.passed, cell.runs).proportion_ci(0.999).low <= error


def test_no_kind_of_noise_is_worse_than_its_runs_allow(cells, binomtest):
    for cell in cells:
        allowed = 0.001 if cell.speed < 1 else 0.01
        assert binomtest(cell.wrong, cell.runs).proportion_ci(0.999).low <= allowed, cell


@pytest.mark.parametrize("speed", [0.8, 0.9, 1.1, 1.25])
def test_a_quiet_machine_nearly_always_decides(simulation, cells, speed):
    cell = simulation.pool(cells, plan="pairs", level="quiet", speed=speed)
    assert (cell.undecided + cell.refused) / cell.runs <= 0.01


def test_a_stormy_machine_mostly_gives_no_verdict(simulation, cells):
    stormy = simulation.pool(cells, level="stormy")
    assert stormy.refused + stormy.undecided > 0.6 * stormy.runs


def test_the_usual_way_errs_where_this_one_does_not(simulation, cells):
    usual = simulation.naive_errors("drifting", "loaded", 1.1, RUNS, seed=1)
    assert usual > 0.3 * RUNS
    assert (
        simulation.pool(cells, plan="pairs", noise="drifting", level="loaded", speed=1.1).wrong == 0
    )


def test_samples_without_a_partner_take_drift_for_slowness(simulation):
    """Why the documentation asks for guards where there are no pairs."""
    assert simulation.unpaired_errors("drifting", "loaded", 1.1, RUNS, seed=1) > 0.1 * RUNS
    assert simulation.unpaired_errors("normal", "quiet", 1.1, RUNS, seed=1) == 0


def test_writing_fills_the_pages_from_the_seed(simulation, tmp_path, monkeypatch, capsys):
    names = ("plans", "errors", "usual way", "first look")
    page = "\n".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->" for name in names)
    (tmp_path / "statistics.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(simulation, "DOCS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["verdict_simulation.py", "--runs", "2", "--write"])
    simulation.main()
    printed, written = (
        capsys.readouterr().out,
        (tmp_path / "statistics.md").read_text(encoding="utf-8"),
    )
    assert all(line in written for line in printed.splitlines())
    measured = (tmp_path / "measured" / "verdict_simulation.md").read_text(encoding="utf-8")
    rows = (
        len(simulation.PLANS)
        * len(simulation.LEVELS)
        * len(simulation.NOISES)
        * len(simulation.SPEEDS)
    )
    assert measured.count("\n| pairs |") + measured.count("\n| blocks |") == rows


def test_first_looks_end_far_off_work_and_spare_what_meets_its_target(simulation):
    assert simulation.simulate_first_looks("quiet", 0.1, 20, seed=1) == [3] * 100
    assert simulation.simulate_first_looks("stormy", 1.0, 100, seed=1) == []


def test_the_same_seed_gives_the_same_figures(simulation):
    kind = ("pairs", "bimodal", "loaded", 0.9, 20)
    assert simulation.simulate_cell(*kind, seed=7) == simulation.simulate_cell(*kind, seed=7)


def test_the_documented_plans_are_those_in_use(simulation):
    page = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    assert simulation.renew(page, "plans", simulation.plan_table()) == page


def test_generated_parts_are_replaced_and_nothing_else(simulation):
    page = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb"
    assert simulation.renew(page, "x", "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no marks"):
        simulation.renew("no marks", "x", "new")
