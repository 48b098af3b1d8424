"""Captures that a runner makes of submitted code: `lab submit --capture`."""

from __future__ import annotations

import time

import pytest

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.client import Client, RefusedByServerError
from bottleneck_lab.cohort.grading.rules import set_rules
from bottleneck_lab.cohort.protocol import content_of
from bottleneck_lab.cohort.running import job, leases, profiling
from bottleneck_lab.cohort.running.dispatch import LocalDispatcher
from bottleneck_lab.cohort.running.job import Job, Result, read_result, run_job, write_job
from bottleneck_lab.cohort.running.profiling import make_capture
from bottleneck_lab.cohort.store import tables
from bottleneck_lab.cohort.view.room import load_room
from bottleneck_lab.cohort.view.standing import load_me, load_standing
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.errors import CaptureError, MachineError

from .serving import serving

CAPTURE = {"capture.json": b'{"files": ["trace.json.gz"]}', "trace.json.gz": b"made"}


def captured(room, token):
    """A submission for a capture, made by a runner; its handle."""
    handle = room.submit(token, tool="torch").receipt.submission
    dispatcher = LocalDispatcher(room.cohort, "r")
    work = dispatcher.claim({"cpu"}, lambda _waiting: "cpu0")
    assert work.lease.tool == "torch"
    problem = Result(work.lease.nonce, "test", problem="nsys is not installed.")
    with pytest.raises(MachineError, match="nsys is not installed"):
        dispatcher.conclude(work.lease.nonce, problem, "somebody")
    dispatcher.conclude(work.lease.nonce, Result(work.lease.nonce, "t", capture=CAPTURE), "me")
    with pytest.raises(leases.StaleError):
        dispatcher.conclude(work.lease.nonce, Result(work.lease.nonce, "t", capture=CAPTURE), "me")
    return handle


def test_a_capture_is_neither_an_attempt_nor_off_the_budget(room):
    person, token = room.join()
    with room.cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, budget=1)
    handle = captured(room, token)
    judge = verdict_reader_of(room.cohort.public_key)
    with room.cohort.database.reading() as connection:
        assert judge.latest(connection) == [], "and nothing of it was altered"
        assert load_standing(connection, judge, person, handle, room.clock()).state == "captured"
        (row,) = load_room(connection, judge, room.clock()).rows
        assert {cell.state for cell in row.cells} == {"none"}
        lab = next(one for one in load_me(connection, judge, person, 0.0).labs if one.left == 1)
        assert (lab.slug, lab.submissions) == ("slow", 0)
        assert content_of(CAPTURE) == room.cohort.blobs.get(room.rows(tables.submissions)[0].made)
        assert room.rows(tables.submissions)[0].made in tables.blobs_of_submissions(connection)


def test_a_capture_of_nothing_is_said_once_and_is_no_fault_of_the_machine(
    sqlite_room, tmp_path, monkeypatch
):
    room = sqlite_room

    def nothing(*_):
        raise CaptureError("nsys left no report.", "Run the code without it first.")

    monkeypatch.setattr(job, "make_capture", nothing)
    person, token = room.join()
    handle = room.submit(token, tool="nsys").receipt.submission
    dispatcher = LocalDispatcher(room.cohort, "r")
    work = dispatcher.claim({"cpu"}, lambda _waiting: "cpu0")
    order = Job(
        work.lease.nonce,
        work.lease.lab,
        work.lease.lab_hash,
        "cpu",
        sandbox_required=False,
        limits_required=False,
        tool="nsys",
    )
    write_job(tmp_path / "job", order, work.files, {})
    run_job(tmp_path / "job")
    dispatcher.conclude(work.lease.nonce, read_result(tmp_path / "job"), "me")
    assert dispatcher.claim({"cpu"}, lambda _waiting: "cpu0") is None, "it is not tried again"
    with room.cohort.database.reading() as connection:
        judge = verdict_reader_of(room.cohort.public_key)
        standing = load_standing(connection, judge, person, handle, room.clock())
    assert standing.state == "uncaptured"
    assert standing.note == (
        "Nothing was recorded. nsys left no report. Run the code without it first."
    )


def test_only_who_submitted_fetches_the_capture(sqlite_room):
    room = sqlite_room
    (_, ada), (_, eve) = room.join("Ada"), room.join("Eve")
    handle = captured(room, ada)
    room.cohort.database.clock = time.time
    with serving(room.cohort.folder) as (port, _):
        url = f"http://127.0.0.1:{port}"
        assert Client(url, ada).fetch_capture(handle) == CAPTURE
        with pytest.raises(RefusedByServerError, match="no capture of yours"):
            Client(url, eve).fetch_capture(handle)


def test_a_profiler_that_is_missing_is_named(tmp_path, monkeypatch):
    def missing(_tool):
        raise MachineError("nsys is not installed.", "Install it.")

    monkeypatch.setattr(profiling, "locate_tool", missing)
    with pytest.raises(MachineError, match="nsys is not installed"):
        make_capture(find_lab("slow"), tmp_path, "cpu", "nsys", tmp_path)


def collected(folder):
    return profiling._collect(folder, "")


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    for name, data in CAPTURE.items():
        (tmp_path / "out" / name).write_bytes(data)
    return tmp_path / "out"


def test_a_capture_is_its_description_and_the_files_named_there(out):
    (out / "output.txt").write_text("what the program printed")
    assert collected(out.parent) == CAPTURE
    report = {"capture.json": b'{"files": ["trace.json.gz"], "extra": ["report.nsys-rep"]}'}
    report["report.nsys-rep"] = b"for nsys-ui"
    for name, data in report.items():
        (out / name).write_bytes(data)
    assert collected(out.parent) == CAPTURE | report


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "trace.json.gz"])
def test_what_leads_out_of_the_sandbox_is_not_read(out, name):
    (out.parent / "secret").write_text("the key")
    (out / "trace.json.gz").unlink()
    (out / "trace.json.gz").symlink_to(out.parent / "secret")
    (out / "capture.json").write_text(f'{{"files": ["{name}"]}}')
    with pytest.raises(CaptureError):
        collected(out.parent)


@pytest.mark.long
def test_submitted_code_is_profiled_in_the_sandbox(tmp_path):
    """The code sees neither the runner's files nor the solution, and its trace comes back."""
    lab = find_lab("slow")
    key = tmp_path / "key"
    key.write_text("secret")
    looks = f"import os\nassert not os.path.exists({str(key)!r})\n"
    work = tmp_path / "files"
    work.mkdir()
    (work / "work.py").write_text(looks + (lab.path / "work.py").read_text())
    files = make_capture(lab, work, "cpu", "torch", tmp_path / "files")
    assert set(files) == {"capture.json", "trace.json.gz"}
    (work / "work.py").write_text("raise SystemExit('broken')\n")
    with pytest.raises(CaptureError, match="broken"):
        make_capture(lab, work, "cpu", "torch", tmp_path / "files")
