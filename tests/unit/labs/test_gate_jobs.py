"""`perf-gate` on real work, with a stand-in for the device: the same judge and harness, and a clock
that only the test moves.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.errors import BusyMachineError
from bottleneck_lab.measure.kinds.benchmark.trials import Open
from bottleneck_lab.measure.lab_rules.mutants import load_mutants, write_mutant

from ...modules import load_file
from .benches import GpuBench, StoodInBench
from .trials import failed, judge_answers

pytestmark = pytest.mark.long
LAB = find_lab("perf-gate")


def check(folder, bench, jobs=40, seed=1):
    """Judge a gate with `bench` as its device, after fewer jobs than a check has."""
    judge = load_file(LAB.path / "judge.py", "judge of perf-gate")
    settings = {
        **LAB.spec.devices[bench.device].settings["judge"],
        "looks": [[jobs, 1, 3]],
        "bench": bench,
    }
    harness = load_file(LAB.path / "runner.py", "harness of perf-gate")
    entry = folder / LAB.spec.entry
    load = partial(load_file, entry, "entry of perf-gate")  # anew for each job, as a check does
    return judge_answers(judge, harness, load, settings, seed)


@pytest.fixture(params=[StoodInBench, GpuBench], ids=["cpu", "cuda"])
def bench(request):
    """One of each device."""
    return request.param()


def test_the_solution_passes(bench):
    found = check(LAB.solution, bench)
    assert not failed(found), found
    assert set(found) == {criterion.id for criterion in LAB.spec.devices[bench.device].criteria}


def test_the_starter_is_wrong(bench):
    kinds = {criterion.id: criterion.kind for criterion in LAB.spec.devices[bench.device].criteria}
    assert "correctness" in {kinds[id_] for id_ in failed(check(LAB.path, bench))}


EVERY_TIME = {"out-of-time", "looser-threshold", "sequential-blocks"}
"""Mutants of which each breaks something else; `make slow` has them all."""


def wrong():
    for mutant in load_mutants(LAB, "cpu"):
        marks = () if mutant.id in EVERY_TIME else pytest.mark.slow
        yield pytest.param(mutant, id=mutant.id, marks=marks)


@pytest.mark.parametrize("mutant", list(wrong()))
def test_a_wrong_answer_fails_its_own_criterion(mutant, bench, tmp_path):
    write_mutant(LAB, mutant, tmp_path)
    assert mutant.criterion in failed(check(tmp_path, bench, jobs=80))


@pytest.fixture
def job():
    """A job of `perf-gate` whose device is stood in for."""
    judge = load_file(LAB.path / "judge.py", "judge of perf-gate")
    history = judge.emulator().History(np.random.default_rng(0))
    history.first()
    return judge.real_job()(history, np.random.default_rng(0), 900.0, StoodInBench(), 5e-4)


def test_a_pause_of_this_machine_costs_the_job_none_of_its_time(job):
    commit = job.history.passed
    _, usual = job.run(commit, "sort")
    before, job.bench.stretch = job.used_s, 100.0
    _, paused = job.run(commit, "sort")
    assert paused > 50 * usual
    assert job.used_s - before < 5 * usual


def test_a_job_with_more_than_one_run_in_twenty_off_its_time_does_not_count(job):
    for number in range(40):
        job.bench.stretch = 2.0 if number < 2 else 1.0
        job.run(job.history.passed, "sort")
    assert not job.disturbed
    job.bench.stretch = 2.0
    job.run(job.history.passed, "sort")
    assert job.disturbed == "5% of the work took at least 2.0 times as long as it should"


def test_a_machine_that_does_not_keep_still_ends_the_check_early():
    bench = StoodInBench()
    bench.stretch = 1.5
    with pytest.raises(BusyMachineError, match="of 20 jobs"):
        check(LAB.solution, bench)


def test_false_alarms_between_the_limits_leave_it_open():
    judge = load_file(LAB.path / "judge.py", "judge of perf-gate")
    ((wanted, fewest, most),) = LAB.spec.devices["cpu"].settings["judge"]["looks"]

    def problem(alarms):
        jobs = [
            SimpleNamespace(answered=True, name="a job", alarm=number < alarms, answer={"scan"})
            for number in range(wanted)
        ]
        return judge._alarms(jobs, [wanted, fewest, most])[0]

    assert problem(fewest) is None
    assert isinstance(problem(fewest + 1), Open)
    assert isinstance(problem(most - 1), Open)
    assert not isinstance(problem(most), Open)
    assert problem(most) == f"{most} of {wanted} jobs (4.17%); {most} are too many."
    limits = f"wanted at most {fewest}, {most} are too many"
    assert problem(fewest + 1) == f"{fewest + 1} of {wanted} jobs (1.39%); {limits}."
