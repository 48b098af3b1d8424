"""The commands as instructor and learner type them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bottleneck_lab.cli import app
from bottleneck_lab.cohort.client import CONNECT_S, Client, _Unanswered
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.grading.rules import set_rules
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.errors import MachineError, UsageError

from .. import warm
from ..processes import PATIENCE_S, running
from .fake_job import COMMAND
from .serving import RUNNER, Process, Visitor, free_port, wait_until_it_answers

LAB = [sys.executable, "-m", "bottleneck_lab"]
pytestmark = pytest.mark.long


def lab(*arguments: str, home: Path, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BOTTLENECK_LAB_HOME": str(home)}
    return warm.lab(*arguments, at=at or home.parent, environment=environment)


def good(*arguments: str, home: Path, at: Path | None = None) -> str:
    done = lab(*arguments, home=home, at=at)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Run commands in this process, which has imported everything, beside the learner's folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, home: Path) -> str:
        monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(home))
        done = CliRunner().invoke(app, [*arguments], prog_name="lab", catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


@pytest.fixture
def served(tmp_path):
    """A cohort as `lab cohort create` makes it and `lab cohort serve` serves it, with no pause
    between submissions.

    The runner's check is the tests' own.
    """
    home, port = tmp_path / "instructor", free_port()
    good("cohort", "create", "Autumn workshop", home=home)
    folder = tmp_path / "autumn-workshop"
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        change_settings(connection, min_interval_s=0)
    command = [*LAB, "cohort", "serve", "--folder", str(folder), "--port", str(port), "--no-runner"]
    with (
        (tmp_path / "serve.out").open("wb") as out,
        running(command, stdout=out, stderr=subprocess.STDOUT) as server,
    ):
        runner = Process(RUNNER, str(folder), "2", json.dumps(COMMAND), log=tmp_path / "runner.log")
        try:
            wait_until_it_answers(port)
            yield tmp_path, folder, port, server
        finally:
            runner.kill()


def test_a_workshop_on_the_command_line(served, here):
    outside, folder, port, server = served
    home, output = outside / "ada", (outside / "serve.out").read_text()
    url, code = re.search(r"lab join (\S+) (\S+)", output).groups()
    assert url == f"http://127.0.0.1:{port}"
    assert f"`lab cohort runner --folder {folder}` measures" in " ".join(output.split())
    visitor = Visitor(port)
    assert visitor.get(re.search(r"/login/\S+", output)[0]).status == 303
    assert code in visitor.get("/room").text
    wrong = lab("join", url, "AAAA-BBBB-CCCC", "--name", "Ada", home=home)
    assert (wrong.returncode, "not valid" in wrong.stderr) == (2, True)
    assert "You have joined 'Autumn workshop' as Ada" in good(
        "join", url, code.lower(), "--name", "Ada", home=home
    )
    good("start", "slow", "work", home=home)
    work = outside / "work"
    captured = lab("submit", "--capture", "torch", home=home, at=work)
    assert (captured.returncode, "captures/0001-torch --html" in captured.stdout) == (0, True)
    refused = lab("submit", home=home, at=work)
    assert (refused.returncode, "The diagnosis is incomplete" in refused.stderr) == (2, True)
    close(folder, 1.0)
    refused = lab("submit", home=home, at=work)
    assert (refused.returncode, "'slow' closed at" in refused.stderr) == (2, True), refused.stderr
    close(folder, None)
    (work / "diagnosis.toml").write_text('cause = "the loop in Python"\ngain = 3.0\n')
    (work / "work.py").write_text("# wrong\n")
    failed = lab("submit", home=home, at=work)
    assert (failed.returncode, "Verified: measured and signed" in failed.stdout) == (1, True)
    assert re.search(r"Began [-0-9]{10} \d\d:\d\d UTC, took", failed.stdout), "as all its times"
    (work / "work.py").write_text("# right\n")
    passed = lab("submit", "--json", home=home, at=work)
    assert passed.returncode == 0, passed.stderr
    standing = json.loads(passed.stdout)
    (receipt,) = [
        file
        for file in (home / "cohort" / "receipts").iterdir()
        if standing["submission"] in file.name
    ]
    (verdict,) = [
        file
        for file in (home / "cohort" / "verdicts").iterdir()
        if standing["submission"] in file.name
    ]
    key = str(folder / "key" / "cohort.pem.pub")
    for file in (receipt, verdict):
        here("verify", str(file), "--key", key, home=home)
    assert "✓ slow: 2 submitted" in here("status", home=home)
    verdict.unlink()
    later = lab("status", standing["submission"], "--wait", home=home, at=work)
    assert (later.returncode, "PASS" in later.stdout) == (0, True), later.stderr
    assert verdict.is_file()
    assert lab("status", "nobodys", home=home, at=work).returncode == 2
    link = here("status", "--web", home=home).strip()
    assert Visitor(port).get(link.removeprefix(url)).status == 303
    status = json.loads(here("cohort", "status", "--json", "--folder", str(folder), home=home))
    assert [row["passed"] for row in status["rows"]] == [1]
    instructors(outside, folder, partial(here, home=home))
    server.terminate()
    assert server.wait(PATIENCE_S) == 0


def close(folder: Path, at: float | None) -> None:
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        set_rules(connection, "slow", 0.0, closes=at)


def instructors(outside: Path, folder: Path, here) -> None:
    """Do what an instructor does while it runs."""
    about = ("--folder", str(folder))
    (outside / "roster.csv").write_text("student_id,name\ns1,Grace Hopper\n")
    assert "Read 1 learner from the roster: 1 added, 0 corrected." in here(
        "cohort", "roster", "roster.csv", *about
    )
    here("cohort", "export", "nbgrader", "-o", "grades.csv", *about)
    assert "Hopper" in (outside / "grades.csv").read_text()
    with pytest.raises(UsageError, match=r"grades\.csv already exists"):
        here("cohort", "export", "nbgrader", "-o", "grades.csv", *about)
    here("cohort", "export", "nbgrader", "-o", "grades.csv", "--replace", *about)
    assert Path("grades.csv").stat().st_mode & 0o777 == 0o600, "it has names and grades"
    staff = " ".join(here("cohort", "staff", "Grace", *about).split())
    assert "/login while `lab cohort serve` runs there, with this password" in staff
    assert "/login/" in here("cohort", "link", *about)
    assert "Queued again: 2 submissions." in here("cohort", "regrade", "slow", *about)
    here("cohort", "backup", "backup.tar", *about)
    here("cohort", "restore", "backup.tar", "--folder", "restored")
    assert "2 learners, 1 joined, 1 lab passed" in here("cohort", "status", "--folder", "restored")
    again = lab("cohort", "create", "Autumn workshop", home=outside / "ada")
    assert (again.returncode, "already holds a cohort" in again.stderr) == (2, True)


def test_a_machine_that_is_switched_off_is_reported_at_once(monkeypatch):
    timeouts = []

    def silent(_address, timeout, *_):
        timeouts.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)
    with pytest.raises(MachineError, match=r"http://room:8321 does not answer \(timed out\)"):
        Client("http://room:8321", "token", patience_s=0.0).me()
    assert timeouts == [CONNECT_S]


def test_a_pause_before_another_try_is_in_whole_seconds(monkeypatch):
    notes: list[str] = []
    replies = [_Unanswered("You have only just submitted", 3.50521), b"{}"]

    def reply(*_request):
        if isinstance(one := replies.pop(0), Exception):
            raise one
        return one

    client = Client("http://room:8321", "token", on_retry=notes.append)
    monkeypatch.setattr(client, "_ask", reply)
    monkeypatch.setattr("bottleneck_lab.cohort.client.time.sleep", lambda _seconds: None)
    assert client.post("/api/x", b"") == b"{}"
    assert notes == ["You have only just submitted; trying again in 4 s."]


def test_who_has_joined_nothing_is_told_how(tmp_path):
    done = lab("status", home=tmp_path / "home")
    assert (done.returncode, "You have not joined a cohort" in done.stderr) == (2, True)
    done = lab("cohort", "serve", home=tmp_path / "home")
    assert (done.returncode, "There is no cohort" in done.stderr) == (2, True)
