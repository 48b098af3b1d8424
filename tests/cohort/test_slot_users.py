"""A runner that is root runs the checks of each slot as a user of its own, who can read neither
another slot's files nor the cohort's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.cohort.folder import Config, create_cohort, open_cohort
from bottleneck_lab.cohort.running import preflight
from bottleneck_lab.cohort.running import slot_users as module
from bottleneck_lab.cohort.running.executors.local import LocalExecutor
from bottleneck_lab.cohort.running.job import read_result
from bottleneck_lab.cohort.running.slot_users import (
    SlotUser,
    free_uids,
    parse_uids,
    require_slot_users,
)
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.commands.cohort import runner
from bottleneck_lab.commands.cohort.options import SHARED_USER
from bottleneck_lab.errors import MachineError, UsageError

from ..processes import soon
from .slots import NOT_ROOT, slot_users
from .test_runner import run_until, settled

ROOT = pytest.mark.skipif(bool(NOT_ROOT), reason=NOT_ROOT)


@pytest.fixture
def users():
    with slot_users() as users:
        if users is None:
            pytest.skip("no Python that other users than root may run")
        yield users


def executor_of(room, users, **options) -> LocalExecutor:
    command = [users.python, "-m", "tests.cohort.slots"]
    return LocalExecutor(
        room.cohort.folder / "slots",
        [],
        machine=2,
        command=command,
        uids=users.uids,
        users_root=users.root,
        **options,
    )


@ROOT
def test_two_slots_run_as_two_users_who_read_only_their_own(sqlite_room, users, monkeypatch):
    room, notes = sqlite_room, [users.shared / f"{uid}.json" for uid in users.uids]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("BOTTLENECK_LAB_PRY_FROM", str(users.shared))
    monkeypatch.setenv("BOTTLENECK_LAB_PRY_INTO", "[]")
    runner = room.runner(executor=executor_of(room, users), machine=2)
    room.submit(room.join("Ada")[1])
    runner.step()
    assert soon(notes[0].exists), [path.read_text() for path in room.cohort.jobs.glob("*/log")]
    ada = json.loads(notes[0].read_text())
    own = users.root / str(users.uids[0])
    prying = [ada["mine"], ada["files"], *map(str, own.rglob("*")), str(own), str(users.root)]
    prying += [str(path) for path in room.cohort.folder.rglob("*")]
    monkeypatch.setenv("BOTTLENECK_LAB_PRY_INTO", json.dumps(prying))
    room.submit(room.join("Eve")[1], "# right, she says\n")
    runner.step()
    assert soon(notes[1].exists)
    eve = json.loads(notes[1].read_text())
    for noted, uid in ((ada, users.uids[0]), (eve, users.uids[1])):
        assert noted["uids"] == noted["gids"] == [uid] * 3
        assert (noted["groups"], noted["owner"]) == ([], uid)
        assert noted["read"] == [noted["mine"], noted["files"]]
    (users.shared / "go").touch()
    run_until(runner, settled(room))
    documents = [json.loads(row.document) for row in room.rows(tables.verdicts)]
    users_named = {document["isolation"]["user"] for document in documents}
    assert users_named == {f"uid {uid}, used by this slot only" for uid in users.uids}
    assert not any(folder.is_dir() for folder in users.root.iterdir())
    runner.stop()


@ROOT
def test_a_slots_user_starts_with_nothing_of_the_check_before(users, tmp_path):
    user = SlotUser(users.uids[0], users.root)
    job = tmp_path / "job"
    job.mkdir()
    (job / "work.py").write_text("# mine\n")
    left = user.take_in(job) / "left"
    left.write_text("of the check before")
    copy = user.take_in(job)
    assert [path.name for path in copy.iterdir()] == ["work.py"]
    assert {path.stat().st_uid for path in (copy, *copy.iterdir())} == {users.uids[0]}
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    user.clear()
    assert not copy.exists()
    user.close()


@ROOT
@pytest.mark.parametrize("trick", ["link", "pipe", "another's"])
def test_only_a_plain_file_of_the_user_is_a_result(users, tmp_path, trick):
    user = SlotUser(users.uids[0], users.root)
    job, secret = tmp_path / "job", tmp_path / "secret"
    job.mkdir()
    secret.write_text('{"nonce":"stolen","checker":"x"}')
    result = user.take_in(job) / "result.json"
    if trick == "link":
        result.symlink_to(secret)
    elif trick == "pipe":
        os.mkfifo(result)
    else:
        result.write_text(secret.read_text())
    user.fetch(job)
    assert read_result(job) is None
    result.unlink()
    result.write_text('{"nonce":"own","checker":"x"}')
    os.chown(result, users.uids[0], users.uids[0])
    user.fetch(job)
    assert read_result(job).nonce == "own"
    user.clear()
    user.close()


@ROOT
def test_a_job_ends_with_its_runner_also_as_another_user(sqlite_room, users, monkeypatch):
    room = sqlite_room
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("BOTTLENECK_LAB_PRY_FROM", str(users.shared))
    monkeypatch.setenv("BOTTLENECK_LAB_PRY_INTO", "[]")
    runner = room.runner(executor=executor_of(room, users), machine=2)
    room.submit(room.join("Ada")[1])
    runner.step()
    assert soon((users.shared / f"{users.uids[0]}.json").exists)
    job = psutil.Process(int(room.rows(tables.leases)[0].job))
    assert job.uids().real == users.uids[0]
    runner.stop()
    assert not job.is_running()


@ROOT
def test_a_runner_that_is_root_leaves_the_folder_to_the_servers_user(tmp_path):
    folder, uid = tmp_path / "cohort", 61000
    create_cohort(folder, Config("Autumn workshop"))
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid)
    with open_cohort(folder) as cohort:
        assert cohort.key().public_key()
        with cohort.database.writing() as connection:
            change_settings(connection, paused=True)
        databases = list(folder.glob("cohort.db*"))
        assert len(databases) > 1  # the log that SQLite writes first
        assert {path.stat().st_uid for path in databases} == {uid}


@ROOT
def test_one_user_serves_one_runner(users):
    first = SlotUser(users.uids[0], users.root)
    with pytest.raises(MachineError, match="Another runner uses uid"):
        SlotUser(users.uids[0], users.root)
    first.close()
    SlotUser(users.uids[0], users.root).close()


@ROOT
def test_users_are_tried_before_anything_is_measured(users, monkeypatch, tmp_path):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(users.shared))
    require_slot_users(users.uids, python=users.python, sandbox_required=False)
    closed = users.shared / "closed" / "datasets"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(closed.parent))
    with pytest.raises(MachineError, match=f"uid {users.uids[0]}: it cannot read {closed}"):
        require_slot_users(users.uids, python=users.python, sandbox_required=False)
    private = tmp_path / "python"
    private.symlink_to(sys.executable)
    tmp_path.chmod(0o700)
    with pytest.raises(MachineError, match="Permission denied") as refused:
        require_slot_users(users.uids, python=str(private))
    assert f"Python is {private.resolve()}" in refused.value.remedy


def test_uids_are_ranges_or_single_ones():
    assert parse_uids("61000-61002, 61007") == [61000, 61001, 61002, 61007]
    assert parse_uids("") == []
    for wrong in ("0", "0-3", "ada", "-5", "61000-", "61003-61000", "1-4000000000"):
        with pytest.raises(UsageError, match="no unprivileged users"):
            parse_uids(wrong)
    with pytest.raises(UsageError, match="twice"):
        parse_uids("61000,61000-61001")


def test_an_account_is_not_taken_for_a_slot(monkeypatch):
    monkeypatch.setattr(module, "FIRST_UID", os.getuid())
    with pytest.raises(MachineError, match=f"has uid {os.getuid()}"):
        free_uids(1)


def test_every_slot_needs_a_user(tmp_path):
    with pytest.raises(UsageError, match="3 slots need 3 users, but 2 are named"):
        LocalExecutor(tmp_path, [0, 1], uids=[61000, 61001], users_root=tmp_path / "place")


def test_a_runner_that_is_not_root_says_what_it_lacks(sqlite_room, monkeypatch):
    monkeypatch.setattr(preflight.Preflight, "check_containment", lambda *_, **__: None)
    monkeypatch.setattr(runner.Runner, "run", lambda *_: None)
    monkeypatch.setattr(preflight, "os", SimpleNamespace(geteuid=lambda: 1000))
    words = ["cohort", "runner", "--folder", str(sqlite_room.cohort.folder), "--gpus", ""]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert SHARED_USER in " ".join(done.stderr.split())
    refused = CliRunner().invoke(app, [*words, "--uids", "61000"])
    assert isinstance(refused.exception, UsageError)
    executor = LocalExecutor(sqlite_room.cohort.folder / "slots", [])
    assert executor.user("cpu0") == f"uid {os.geteuid()}, the runner's own, shared by all its slots"
    assert executor.health()["user"] == "the runner's, shared by all slots"
