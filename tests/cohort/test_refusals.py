"""A runner that would sign what nothing holds refuses, unless it was told otherwise; then every
verdict says so.
"""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from bottleneck_lab.capture import doctor
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.folder import Config
from bottleneck_lab.cohort.running import job, preflight
from bottleneck_lab.cohort.running.job import (
    FILES,
    RESULT,
    UNLIMITED,
    UNSANDBOXED,
    Job,
    Result,
    run_job,
    write_job,
)
from bottleneck_lab.cohort.sign_in.providers import OpenIdProvider
from bottleneck_lab.errors import ExitCode, MachineError, UsageError

from .fake_job import check


@pytest.fixture
def folder(sqlite_room, tmp_path, monkeypatch):
    """A job on a machine with neither bubblewrap nor control groups."""
    monkeypatch.setattr(job, "bubblewrap", lambda: None)
    monkeypatch.setattr(job, "limits_problem", lambda: "cgroup v2 is not mounted")
    submission = sqlite_room.submission()
    folder = tmp_path / "job"

    def write(**fields) -> Result:
        write_job(
            folder,
            Job("n", submission.lab, submission.lab_hash, "cpu", **fields),
            submission.files,
            {},
        )
        run_job(folder, check)
        assert (folder / FILES / "work.py").is_file()
        return job.msgspec.json.decode((folder / RESULT).read_bytes(), type=Result)

    return write


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sandbox_required": True, "limits_required": False}, "bubblewrap does not work"),
        (
            {"sandbox_required": False, "limits_required": True},
            "cannot be limited by a control group",
        ),
    ],
)
def test_a_job_measures_nothing_without_what_is_required(folder, fields, problem):
    result = folder(**fields)
    assert result.verdict is None
    assert problem in result.problem


def test_what_was_allowed_stands_in_the_verdict(folder):
    verdict = folder(sandbox_required=False, limits_required=False).verdict
    assert verdict.notes == [UNSANDBOXED, UNLIMITED]


@pytest.mark.parametrize("command", ["serve", "runner"])
def test_a_runner_says_what_is_missing_before_anything_else(sqlite_room, monkeypatch, command):
    monkeypatch.setattr(preflight, "bubblewrap", lambda: "bwrap")
    monkeypatch.setattr(preflight, "limits_problem", lambda: "cgroup v2 is not mounted")
    done = CliRunner().invoke(app, ["cohort", command, "--folder", str(sqlite_room.cohort.folder)])
    assert isinstance(done.exception, MachineError)
    text = f"{done.exception.message} {done.exception.remedy}"
    assert "cgroup v2 is not mounted" in text
    assert "--allow-no-cgroup" in text
    assert "Learners type" not in done.output


def test_serve_reports_everything_that_is_wrong_at_once(sqlite_room, monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "bubblewrap", lambda: None)
    monkeypatch.setattr(preflight, "limits_problem", lambda: "cgroup v2 is not mounted")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = ["--port", str(taken.getsockname()[1]), "--uids", "ada"]
        words += ["--tls", str(tmp_path / "none.pem"), str(tmp_path / "none.key")]
        folder = str(sqlite_room.cohort.folder)
        done = CliRunner().invoke(app, ["cohort", "serve", "--folder", folder, *words])
    assert isinstance(done.exception, MachineError)
    assert done.exception.exit_code == ExitCode.ERROR
    for reason in (
        "5 reasons",
        "cannot listen on 127.0.0.1",
        "cannot be used for TLS",
        "bubblewrap does not work",
        "cgroup v2 is not mounted",
        "names no unprivileged users",
    ):
        assert reason in done.exception.message
    assert "/login/" not in done.output


def test_wrong_options_alone_are_the_callers_error():
    collected = preflight.Preflight()
    for text in ("first", "second"):
        with collected.step():
            raise UsageError(f"The {text} option is wrong.", "Correct it.")
    with pytest.raises(UsageError, match="for 2 reasons:\n- The first option"):
        collected.finish("This cannot start")
    preflight.Preflight().finish("Nothing is wrong")


def test_sign_in_without_its_packages_is_refused_before_anything_is_served(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _module: None)
    collected = preflight.Preflight()
    collected.check_sign_in(Config("plain"))
    collected.finish("Nothing is wrong")
    collected.check_sign_in(Config("oidc", oidc=OpenIdProvider("https://id.example", "client")))
    with pytest.raises(MachineError, match="Authlib"):
        collected.finish("This cannot be served")


@pytest.mark.parametrize("existed", [False, True])
def test_a_failed_create_leaves_nothing(tmp_path, existed):
    folder = tmp_path / "autumn"
    if existed:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    database = f"postgresql://nobody@/none?host={tmp_path}/nowhere"
    words = ["create", "Autumn", "--folder", str(folder), "--database", database]
    done = CliRunner().invoke(app, ["cohort", *words])
    assert isinstance(done.exception, MachineError)
    assert "does not answer" in done.exception.message
    assert sorted(tmp_path.rglob("*")) == before
    done = CliRunner().invoke(app, ["cohort", *words[:-2]])
    assert done.exit_code == 0, done.exception


def test_a_folder_without_a_cohort_is_named_with_the_one_below_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["cohort", "status"])
    assert done.exception.message == f"There is no cohort in {tmp_path}."
    assert "lab cohort create NAME" in done.exception.remedy
    (tmp_path / "autumn").mkdir()
    (tmp_path / "autumn" / "cohort.toml").write_text('name = "Autumn"\n')
    done = CliRunner().invoke(app, ["cohort", "status"])
    assert done.exception.remedy == "There is one below it: --folder autumn."


@pytest.mark.parametrize("problem", ["", "the control groups it can create have no memory.max"])
def test_doctor_and_serve_judge_control_groups_alike(monkeypatch, tmp_path, problem):
    for module in (doctor, preflight):
        monkeypatch.setattr(module, "limits_problem", lambda: problem)
    monkeypatch.setattr(doctor, "own_group", lambda: tmp_path)
    monkeypatch.setattr(preflight, "bubblewrap", lambda: tmp_path)
    monkeypatch.setattr(preflight, "free_uids", lambda _count: [])
    finding = doctor.probe_cgroup()
    assert (finding.present, finding.found) == (not problem, problem or str(tmp_path))
    done = CliRunner().invoke(app, ["doctor", "--runner"])
    if problem:
        assert problem in done.exception.message
    else:
        assert "can measure for a cohort" in done.output


def test_link_prints_the_address_that_the_server_was_last_reached_at(sqlite_room):
    folder = ["--folder", str(sqlite_room.cohort.folder)]
    first = CliRunner().invoke(app, ["cohort", "link", *folder]).output
    assert first.startswith("http://127.0.0.1:8321/login/")
    sqlite_room.cohort.keep_address("https://lab.example.org")
    second = CliRunner().invoke(app, ["cohort", "link", *folder]).output
    assert second.startswith("https://lab.example.org/login/")
    named = CliRunner().invoke(app, ["cohort", "link", *folder, "--url", "http://here:1/"]).output
    assert named.startswith("http://here:1/login/")
