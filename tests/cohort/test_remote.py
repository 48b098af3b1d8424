"""Runners on other machines: by token over HTTP, under the same leases as all others."""

from __future__ import annotations

import time

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.cohort.client import RefusedByServerError
from bottleneck_lab.cohort.running.dispatch import UnavailableError
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.running.job import Result
from bottleneck_lab.cohort.running.leases import StaleError
from bottleneck_lab.cohort.running.remote import RemoteDispatcher
from bottleneck_lab.cohort.running.runner import Conditions, Runner
from bottleneck_lab.cohort.running.workers import RunnerStatus, Slot, load_runners
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.errors import MachineError

from ..processes import PATIENCE_S
from ..tools import NO_SANDBOX
from .fake_job import COMMAND
from .serving import serving
from .test_runner import run_until, settled


@pytest.fixture
def served(sqlite_room):
    """A served cohort; its port."""
    sqlite_room.cohort.database.clock = sqlite_room.clock = time.time
    with serving(sqlite_room.cohort.folder) as (port, server):
        yield sqlite_room, f"http://127.0.0.1:{port}", server


def status(name: str, machine: str = "elsewhere") -> RunnerStatus:
    return RunnerStatus(name, "local", [Slot("cpu0")], 0.0, {}, machine)


def dispatcher(room, url, name: str = "far") -> RemoteDispatcher:
    return RemoteDispatcher(url, room.cohort.runner_token(), name)


def hand_in(room, text: str = "# right\n"):
    _, token = room.join(f"learner {time.time_ns()}")
    return room.intake.offer(token, room.submission(text)).result(PATIENCE_S).receipt.submission


def test_another_machine_measures_and_the_server_signs(served, tmp_path):
    room, url, _ = served
    handles = [hand_in(room), hand_in(room, "# wrong\n"), hand_in(room, "# dies\n")]
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    executor = LocalExecutor(tmp_path / "slots", [], command=COMMAND)
    runner = Runner(
        dispatcher(room, url),
        executor,
        "far",
        jobs,
        Conditions(sandbox_required=not NO_SANDBOX, limits_required=False),
    )
    runner.recover()
    run_until(runner, settled(room))
    with room.cohort.database.reading() as connection:
        judge = verdict_reader_of(room.cohort.public_key)
        outcomes = {one.submission: one.outcome for one in judge.latest(connection)}
        assert [one.name for one in load_runners(connection)] == ["far"]
        assert outcomes == {handles[0]: "PASS", handles[1]: "FAIL"}
    assert {lease.runner for lease in room.rows(tables.leases)} == {"far"}
    runner.stop()
    with room.cohort.database.reading() as connection:
        assert load_runners(connection) == []
    assert list(jobs.iterdir()) == []


def test_a_runner_ends_only_its_own_leases_and_a_late_result_is_refused(served):
    room, url, _ = served
    hand_in(room)
    near, far = dispatcher(room, url, "near"), dispatcher(room, url, "far")
    near.register(status("near", "here"))
    far.register(status("far"))
    work = near.claim({"cpu"}, lambda _waiting: "cpu0")
    assert far.claim({"cpu"}, lambda _waiting: "cpu0") is None
    result = Result(work.lease.nonce, "test", problem="The machine failed.")
    with pytest.raises(StaleError):
        far.conclude(work.lease.nonce, result, "somebody")
    far.give_up(work.lease.nonce, "not mine")
    assert [lease.state for lease in room.rows(tables.leases)] == ["active"]
    with pytest.raises(RefusedByServerError, match="The machine failed"):
        near.conclude(work.lease.nonce, result, "somebody")
    near.give_up(work.lease.nonce, "failed", blame=False)
    with pytest.raises(StaleError):
        near.conclude(work.lease.nonce, result, "somebody")


def test_without_the_token_nobody_is_a_runner(served):
    room, url, server = served
    old = dispatcher(room, url)
    old.register(status("far"))
    printed = CliRunner().invoke(
        app, ["cohort", "token", "--new", "--folder", str(room.cohort.folder)]
    )
    assert f"--token {room.cohort.runner_token()}\n" in printed.stdout
    for wrong in (old, RemoteDispatcher(url, "guessed", "far")):
        with pytest.raises(RefusedByServerError, match="not the token"):
            wrong.beat(status("far"), [])
    with pytest.raises(MachineError, match="on another machine"):
        dispatcher(room, url).register(status("far", "a third machine"))
    server.kill()
    gone = dispatcher(room, url)
    gone._client._patience_s = 0.1
    with pytest.raises(UnavailableError):
        gone.beat(status("far"), [])


def test_a_server_is_named_with_a_token():
    done = CliRunner().invoke(app, ["cohort", "runner", "--server", "http://127.0.0.1:9"])
    assert "--server needs --token" in str(done.exception)
