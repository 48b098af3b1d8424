"""A real Slurm with one node on the loopback interface, started by the test: jobs run there, and
killing its parts makes no second verdict.
"""

from __future__ import annotations

import subprocess
import time

import pytest

from bottleneck_lab.cohort.running.executors.slurm import SlurmExecutor
from bottleneck_lab.cohort.store import tables

from .fake_job import COMMAND
from .slurm import missing, slurm_cluster
from .test_runner import outcomes, overlaps, run_until, settled

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if problem := missing():
        pytest.skip(problem)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def submit(room, count: int, seconds: float) -> None:
    for number in range(count):
        _, token = room.join(f"learner {number}")
        room.submit(token, f"# right {seconds} {number}\n")


def real_clock(room) -> None:
    room.cohort.database.clock = room.clock = time.time


@pytest.mark.usefixtures("cluster")
def test_checks_run_as_jobs_one_at_a_time_on_a_node(sqlite_room, tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_FAKE_LOG", str(tmp_path / "log"))
    submit(sqlite_room, 4, 0.3)
    real_clock(sqlite_room)
    run_until(
        sqlite_room.runner(executor=SlurmExecutor(4, command=COMMAND)), settled(sqlite_room), 120
    )
    assert outcomes(sqlite_room) == ["PASS"] * 4
    assert overlaps(tmp_path / "log") == []


@pytest.mark.usefixtures("cluster")
def test_a_job_that_is_cancelled_by_the_cluster_is_measured_again(sqlite_room):
    submit(sqlite_room, 1, 2)
    real_clock(sqlite_room)
    runner = sqlite_room.runner(executor=SlurmExecutor(2, command=COMMAND))
    runner.step()
    (lease,) = sqlite_room.rows(tables.leases)
    subprocess.run(["scancel", lease.job], check=True)
    run_until(runner, settled(sqlite_room), 120)
    assert outcomes(sqlite_room) == ["PASS"]
    assert [row.state for row in sqlite_room.rows(tables.leases)] == ["lost", "done"]


@pytest.mark.usefixtures("cluster")
def test_a_runner_that_starts_again_goes_on_with_the_clusters_jobs(sqlite_room):
    submit(sqlite_room, 1, 2)
    real_clock(sqlite_room)
    sqlite_room.runner(executor=SlurmExecutor(2, command=COMMAND)).step()
    second = sqlite_room.runner(executor=SlurmExecutor(2, command=COMMAND))
    second.recover()
    run_until(second, settled(sqlite_room), 120)
    assert outcomes(sqlite_room) == ["PASS"]
    assert [row.state for row in sqlite_room.rows(tables.leases)] == ["done"]


@pytest.mark.slow  # Slurm takes a minute to find that its node knows nothing of a job
def test_a_controller_that_is_killed_makes_no_second_verdict(sqlite_room, cluster):
    """Killed within seconds of a start, Slurm forgets the job, or runs it twice, or gives its
    number to another.
    """
    submit(sqlite_room, 2, 1)
    real_clock(sqlite_room)
    runner = sqlite_room.runner(executor=SlurmExecutor(2, command=COMMAND))
    runner.step()
    cluster.kill("slurmctld")
    runner.step()
    cluster.start("slurmctld")
    run_until(runner, settled(sqlite_room), 200)
    assert outcomes(sqlite_room) == ["PASS"] * 2
    assert sorted(row.submission for row in sqlite_room.rows(tables.verdicts)) == [1, 2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killing_controller_and_node_makes_one_verdict_each(sqlite_room, cluster):
    submit(sqlite_room, 6, 1)
    real_clock(sqlite_room)
    runner = sqlite_room.runner(executor=SlurmExecutor(4, command=COMMAND))
    for name in ("slurmctld", "node1", "slurmctld"):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            runner.step()
            time.sleep(0.1)
        cluster.kill(name)
        cluster.start(name)
    checked = time.monotonic()

    def done() -> bool:
        nonlocal checked
        if time.monotonic() > checked + 5:
            cluster.resume_drained()
            checked = time.monotonic()
        return settled(sqlite_room)()

    run_until(runner, done, 500)
    assert sorted(row.submission for row in sqlite_room.rows(tables.verdicts)) == list(range(1, 7))


@pytest.fixture
def controller(tmp_path, monkeypatch):
    """Programs in Slurm's place: `sbatch` answers with what `number` holds, `squeue` with `jobs`,
    and notes each question in `asked`; `cancelled` names the jobs that `scancel` ended.
    """
    scripts = {
        "sbatch": "cat $HERE/number",
        "squeue": 'echo "$*" >> $HERE/asked; cat $HERE/jobs',
        "scancel": "echo $* >> $HERE/cancelled",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nHERE={tmp_path}\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_the_controller_is_asked_once_for_all_jobs(controller, monkeypatch):
    executor = SlurmExecutor(3)
    for number in (7, 8, 9):
        (controller / "number").write_text(f"{number}\n")
        executor.submit(executor.choose("cpu"), controller, "cpu")
    (controller / "jobs").write_text("7 RUNNING\n8 COMPLETED\n")
    assert [executor.poll(handle) for handle in ("7", "8", "9")] == ["running", "ended", "ended"]
    assert [executor.poll(handle) for handle in ("7", "8", "9")] == ["running", "ended", "ended"]
    questions = (controller / "asked").read_text().splitlines()
    assert [line.split()[-1] for line in questions] == ["--jobs=7,8,9"]
    monkeypatch.setattr("bottleneck_lab.cohort.running.executors.slurm.ASK_S", 0.0)
    (controller / "jobs").write_text("7 COMPLETED\n")
    assert executor.poll("7") == "ended"


def test_a_job_that_slurm_holds_after_a_failed_start_is_measured_again(controller):
    executor = SlurmExecutor(2)
    for number in (7, 8):
        (controller / "number").write_text(f"{number}\n")
        executor.submit(executor.choose("cpu"), controller, "cpu")
    (controller / "jobs").write_text("7 PENDING launch failed requeued held\n8 PENDING Resources\n")
    assert [executor.poll(handle) for handle in ("7", "8")] == ["ended", "running"]
    assert (controller / "cancelled").read_text() == "7\n"


def test_a_number_that_the_controller_gives_twice_is_not_taken_for_the_job_before(controller):
    executor = SlurmExecutor(2)
    (controller / "number").write_text("8\n")
    slot = executor.choose("cpu")
    executor.submit(slot, controller, "cpu")
    (controller / "jobs").write_text("")
    assert executor.poll("8") == "ended"
    executor.release(slot, "8")
    executor.submit(executor.choose("cpu"), controller, "cpu")
    assert executor.poll("8") == "running"
