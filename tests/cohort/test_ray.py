"""Checks as Ray tasks, on a Ray that the test starts on this machine; where the extra `ray` is
installed.
"""

from __future__ import annotations

import subprocess
import time

import psutil
import pytest

from bottleneck_lab.cohort.running.executors.ray import RayExecutor
from bottleneck_lab.cohort.store import tables

from ..processes import soon
from .fake_job import COMMAND
from .test_runner import outcomes, overlaps, run_until, settled

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'bottleneck-lab[ray]'")

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(
        address="local",
        num_cpus=1,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=100 << 20,
    )
    yield
    ray.shutdown()


def submit(room, count: int, text: str) -> None:
    for number in range(count):
        _, token = room.join(f"learner {number}")
        room.submit(token, f"{text} {number}\n")
    room.cohort.database.clock = time.time


def test_checks_run_as_tasks_one_at_a_time_on_a_cpu(sqlite_room, tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_FAKE_LOG", str(tmp_path / "log"))
    submit(sqlite_room, 4, "# right 0.3")
    run_until(
        sqlite_room.runner(executor=RayExecutor(4, command=COMMAND)), settled(sqlite_room), 120
    )
    assert outcomes(sqlite_room) == ["PASS"] * 4
    assert overlaps(tmp_path / "log") == []


def test_a_worker_that_is_killed_is_replaced_and_makes_one_verdict(sqlite_room):
    submit(sqlite_room, 1, "# slow 3")
    runner = sqlite_room.runner(executor=RayExecutor(2, command=COMMAND))
    runner.step()
    jobs = sqlite_room.cohort.jobs

    def working() -> list[psutil.Process]:
        return [
            one
            for one in psutil.process_iter(["cmdline"])
            if any(str(jobs) in part for part in one.info["cmdline"] or [])
        ]

    assert soon(working)
    for process in working():
        process.parent().kill()  # Ray's worker, and the job with it
        process.kill()
    run_until(runner, settled(sqlite_room), 120)
    assert outcomes(sqlite_room) == ["PASS"]
    assert len(sqlite_room.rows(tables.verdicts)) == 1


def test_a_check_that_is_given_up_is_ended(sqlite_room):
    submit(sqlite_room, 1, "# slow 60")
    executor = RayExecutor(1, command=COMMAND)
    runner = sqlite_room.runner(executor=executor)
    runner.step()
    pattern = str(sqlite_room.cohort.jobs)

    def running() -> bool:
        return (
            subprocess.run(
                ["pgrep", "-f", f"fake_job.py {pattern}"], stdout=subprocess.DEVNULL, check=False
            ).returncode
            == 0
        )

    assert soon(running)
    runner.stop()
    assert soon(lambda: not running())
    assert sqlite_room.rows(tables.submissions)[0].state == "queued"
