"""A runner that would sign what nothing holds refuses, unless it was told otherwise; then every
verdict says so.
"""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.cohort.running import job
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
from bottleneck_lab.commands import cohort as commands
from bottleneck_lab.errors import MachineError

from .fake_job import check


@pytest.fixture
def folder(sqlite_room, tmp_path, monkeypatch):
    """A job on a machine with neither bubblewrap nor control groups."""
    monkeypatch.setattr(job, "bubblewrap", lambda: None)
    monkeypatch.setattr(job, "limits_problem", lambda: "cgroup v2 is not mounted")
    asked = sqlite_room.submission()
    folder = tmp_path / "job"

    def write(**fields) -> Result:
        write_job(folder, Job("n", asked.lab, asked.lab_hash, "cpu", **fields), asked.files, {})
        run_job(folder, check)
        assert (folder / FILES / "work.py").is_file()
        return job.msgspec.json.decode((folder / RESULT).read_bytes(), type=Result)

    return write


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sandbox_required": True, "limits_required": False}, "bubblewrap does not work"),
        (
            {"sandbox_required": False, "limits_required": True},
            "cannot be limited by a control group",
        ),
    ],
)
def test_a_job_measures_nothing_without_what_is_required(folder, fields, said):
    result = folder(**fields)
    assert result.verdict is None
    assert said in result.problem


def test_what_was_allowed_stands_in_the_verdict(folder):
    verdict = folder(sandbox_required=False, limits_required=False).verdict
    assert verdict.notes == [UNSANDBOXED, UNLIMITED]


@pytest.mark.parametrize("command", ["serve", "runner"])
def test_a_runner_says_what_is_missing_before_anything_else(sqlite_room, monkeypatch, command):
    monkeypatch.setattr(commands, "bubblewrap", lambda: "bwrap")
    monkeypatch.setattr(commands, "limits_problem", lambda: "cgroup v2 is not mounted")
    done = CliRunner().invoke(app, ["cohort", command, "--folder", str(sqlite_room.cohort.folder)])
    assert isinstance(done.exception, MachineError)
    assert "cgroup v2 is not mounted" in done.exception.message
    assert "--allow-no-cgroup" in done.exception.remedy
    assert "Learners type" not in done.output
