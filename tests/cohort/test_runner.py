"""Runner and local executor: no two checks on one slot, and every submission comes to its one
verdict whatever is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bottleneck_lab import catalog
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables

from ..processes import PATIENCE_S, lives, soon
from .fake_job import COMMAND
from .serving import RUNNER, Process

pytestmark = pytest.mark.long


def run_until(runner, done, limit_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + limit_s
    while not done():
        runner.step()
        time.sleep(0.02)
        assert time.monotonic() < end


def settled(room):
    return lambda: all(row.state in ("done", "failed") for row in room.rows(tables.submissions))


def outcomes(room) -> list[str]:
    return [json.loads(row.document)["outcome"] for row in room.rows(tables.verdicts)]


@pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
def test_what_is_handed_in_comes_to_its_verdict(room):
    for number, word in enumerate(("right", "wrong", "hostile", "undecided", "broken", "dies")):
        room.submit(room.join(f"learner {number}")[1], f"# {word}\n")
    run_until(room.runner(machine=3), settled(room))
    states = {row.id: row.state for row in room.rows(tables.submissions)}
    assert states == {1: "done", 2: "done", 3: "done", 4: "done", 5: "failed", 6: "failed"}
    assert sorted(outcomes(room)) == ["FAIL", "FAIL", "INCONCLUSIVE", "PASS"]
    assert "too busy" in room.rows(tables.submissions)[4].note
    assert list(room.cohort.jobs.iterdir()) == []


def overlaps(log: Path) -> list:
    runs = sorted(
        (json.loads(line) for line in log.read_text().splitlines()), key=lambda run: run["began"]
    )
    return [
        (one, other)
        for at, one in enumerate(runs)
        for other in runs[at + 1 :]
        if one["slot"] == other["slot"] and other["began"] < one["ended"]
    ]


@pytest.fixture
def with_gpus(tmp_path, monkeypatch, mini):
    """The miniature course, whose labs can be measured on a GPU too."""
    content = tmp_path / "content"
    shutil.copytree(mini, content)
    lab = content / "labs" / "slow" / "lab.toml"
    lab.write_text(lab.read_text() + "[devices.cuda]\ncriteria = []\n")
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(content))
    catalog.load_labs.cache_clear()


@pytest.mark.usefixtures("with_gpus")
def test_a_gpu_has_one_check_at_a_time(tmp_path, monkeypatch, request):
    room = request.getfixturevalue("sqlite_room")
    monkeypatch.setenv("BOTTLENECK_LAB_FAKE_LOG", str(tmp_path / "log"))
    for number in range(6):
        _, token = room.join(f"learner {number}")
        room.submit(token, f"# right 0.05 {number}\n", device="cuda")
    run_until(room.runner(gpus=(0, 1, 2)), settled(room))
    log = (tmp_path / "log").read_text().splitlines()
    assert len(log) == 6
    assert {json.loads(line)["slot"] for line in log} == {"0", "1", "2"}
    assert overlaps(tmp_path / "log") == []


def test_the_cpu_is_measured_while_nothing_else_is(sqlite_room):
    executor = LocalExecutor(sqlite_room.cohort.folder / "slots", [0, 1], command=COMMAND)
    gpu = executor.choose("cuda")
    assert gpu == "gpu0"
    assert executor.choose("cpu") is None
    executor.release(gpu, None)
    cpu = executor.choose("virtual")
    assert cpu == "cpu0"
    assert executor.choose("cuda") is None
    executor.release(cpu, None)
    assert executor.choose("cuda") == "gpu0"
    executor.close()


def test_modelled_checks_run_side_by_side_and_never_beside_what_measures(sqlite_room):
    executor = LocalExecutor(
        sqlite_room.cohort.folder / "slots", [0, 1], machine=2, command=COMMAND
    )
    other = LocalExecutor(sqlite_room.cohort.folder / "slots", [0, 1], machine=2, command=COMMAND)
    first = executor.choose("virtual", quiet=False)
    assert {first, executor.choose("virtual", quiet=False)} == {"cpu0", "cpu1"}
    assert executor.choose("virtual", quiet=False) is None, "no slot is left"
    assert (other.choose("cuda"), other.choose("cpu")) == (None, None)
    executor.release("cpu0", None)
    assert executor.choose("cpu") is None, "the other modelled check goes on"
    executor.release("cpu1", None)
    assert executor.choose("cuda") == "gpu0"
    assert other.choose("virtual", quiet=False) is None, "a GPU's host is measured too"
    assert other.choose("cuda") == "gpu1"
    executor.close()
    other.close()


@contextmanager
def started_runner(room, tmp_path):
    """A runner of its own process, with the fake check; killed when it is left."""
    folder, command = str(room.cohort.folder), json.dumps(COMMAND)
    runner = Process(RUNNER, folder, "1", command, log=tmp_path / "runner.log")
    try:
        yield
    finally:
        runner.kill()


@pytest.mark.parametrize(
    "database_url", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"], indirect=True
)
def test_a_runner_that_is_killed_loses_nothing_and_doubles_nothing(room, tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_FAKE_LOG", str(tmp_path / "log"))
    room.cohort.database.clock = time.time
    with room.cohort.database.writing() as connection:
        change_settings(connection, min_interval_s=0, max_waiting=50, max_failures=50)
    _, ada = room.join()
    for number in range(8):
        room.submit(ada, f"# right 0.2 {number}\n")
    for _ in range(3):
        with started_runner(room, tmp_path):
            before = len(room.rows(tables.leases))
            assert soon(
                lambda before=before: len(room.rows(tables.leases)) > before + 1 or settled(room)()
            )
    last = room.runner(name="runner")
    last.recover()
    run_until(last, settled(room))
    assert len(outcomes(room)) == 8
    assert sorted(row.submission for row in room.rows(tables.verdicts)) == list(range(1, 9))


def test_a_job_outlives_no_runner_and_holds_its_slot_as_long_as_it_lives(sqlite_room, tmp_path):
    room = sqlite_room
    _, ada = room.join()
    room.submit(ada, "# slow 600\n")
    with started_runner(room, tmp_path):
        assert soon(lambda: [row for row in room.rows(tables.leases) if row.job])
        job = psutil.Process(int(room.rows(tables.leases)[0].job))
        executor = LocalExecutor(room.cohort.folder / "slots", [], command=COMMAND)
        job.suspend()
    assert executor.choose("cpu") is None
    job.resume()
    assert soon(lambda: not lives(job))
    assert executor.choose("cpu") == "cpu0"
    executor.close()


def test_a_check_that_takes_too_long_is_ended_and_set_aside(sqlite_room):
    room = sqlite_room
    with room.cohort.database.writing() as connection:
        change_settings(connection, job_limit_s=0.5, max_failures=1)
    _, ada = room.join()
    room.submit(ada, "# slow 600\n")
    runner = room.runner()

    def done() -> bool:
        room.clock.now += 0.1
        return settled(room)()

    run_until(runner, done)
    (row,) = room.rows(tables.submissions)
    assert (row.state, row.note) == ("failed", "The check was ended: it took longer than 0 s.")
    runner.stop()


def test_stopping_in_order_queues_again_without_blame(sqlite_room):
    room = sqlite_room
    _, ada = room.join()
    room.submit(ada, "# slow 600\n")
    runner = room.runner()
    runner.step()
    assert room.rows(tables.submissions)[0].state == "running"
    runner.stop()
    (row,) = room.rows(tables.submissions)
    assert (row.state, row.failures) == ("queued", 0)


def test_a_result_that_was_put_there_by_another_is_not_taken(sqlite_room):
    """A job's folder belongs to the runner's user; even so, a result without the lease's nonce
    counts for nothing.
    """
    room = sqlite_room
    _, ada = room.join()
    room.submit(ada, "# slow 600\n")
    runner = room.runner()
    runner.step()
    (lease,) = room.rows(tables.leases)
    (room.cohort.jobs / lease.nonce / "result.json").write_text(
        '{"nonce":"guessed","checker":"x","verdict":null}'
    )
    os.kill(int(lease.job or room.rows(tables.leases)[0].job), signal.SIGKILL)
    run_until(runner, lambda: room.rows(tables.leases)[0].state != "active")
    assert room.rows(tables.verdicts) == []
    runner.stop()
