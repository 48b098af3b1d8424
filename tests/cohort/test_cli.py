"""The commands as instructor and learner type them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .fake_job import COMMAND
from .serving import RUNNER, Process, Visitor, free_port, wait_until_it_answers

LAB = [sys.executable, "-m", "bottleneck_lab"]
pytestmark = pytest.mark.long


def lab(*arguments: str, home: Path, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BOTTLENECK_LAB_HOME": str(home)}
    return subprocess.run(
        [*LAB, *arguments],
        cwd=at or home.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def good(*arguments: str, home: Path, at: Path | None = None) -> str:
    done = lab(*arguments, home=home, at=at)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture
def served(tmp_path):
    """A cohort as `lab cohort create` makes it and `lab cohort serve` serves it; the runner's check is the tests' own."""
    home, port = tmp_path / "instructor", free_port()
    good("cohort", "create", "Autumn workshop", home=home)
    folder = tmp_path / "autumn-workshop"
    command = [*LAB, "cohort", "serve", "--folder", str(folder), "--port", str(port), "--no-runner"]
    with (tmp_path / "serve.out").open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    runner = Process(RUNNER, str(folder), "2", json.dumps(COMMAND), log=tmp_path / "runner.log")
    try:
        wait_until_it_answers(port)
        yield tmp_path, folder, port, server
    finally:
        for process in (server, runner.process):
            process.kill()
            process.wait()


def test_a_workshop_on_the_command_line(served):
    place, folder, port, server = served
    home, said = place / "ada", (place / "serve.out").read_text()
    url, code = re.search(r"lab join (\S+) (\S+)", said).groups()
    assert url == f"http://127.0.0.1:{port}"
    visitor = Visitor(port)
    assert visitor.get(re.search(r"/login/\S+", said)[0]).status == 303
    assert code in visitor.get("/room").text
    wrong = lab("join", url, "AAAA-BBBB-CCCC", "--name", "Ada", home=home)
    assert (wrong.returncode, "not valid" in wrong.stderr) == (2, True)
    assert "You are in 'Autumn workshop' as Ada" in good("join", url, code.lower(), "--name", "Ada", home=home)
    good("start", "slow", "work", home=home)
    work = place / "work"
    refused = lab("submit", home=home, at=work)
    assert (refused.returncode, "The diagnosis is not complete" in refused.stderr) == (2, True)
    (work / "diagnosis.toml").write_text('cause = "the loop in Python"\ngain = 3.0\n')
    (work / "work.py").write_text("# wrong\n")
    failed = lab("submit", home=home, at=work)
    assert (failed.returncode, "Verified: measured and signed" in failed.stdout) == (1, True)
    (work / "work.py").write_text("# right\n")
    time.sleep(5)  # between two submissions of one learner
    passed = lab("submit", "--json", home=home, at=work)
    assert passed.returncode == 0, passed.stderr
    standing = json.loads(passed.stdout)
    (receipt,) = [file for file in (home / "cohort" / "receipts").iterdir() if standing["submission"] in file.name]
    (verdict,) = [file for file in (home / "cohort" / "verdicts").iterdir() if standing["submission"] in file.name]
    key = str(folder / "key" / "cohort.pem.pub")
    for file in (receipt, verdict):
        good("verify", str(file), "--key", key, home=home)
    assert "✓ slow: 2 submitted" in good("status", home=home)
    link = good("status", "--web", home=home).strip()
    assert Visitor(port).get(link.removeprefix(url)).status == 303
    status = json.loads(good("cohort", "status", "--json", "--folder", str(folder), home=home))
    assert [row["passed"] for row in status["rows"]] == [1]
    instructors(place, folder, home)
    server.terminate()
    assert server.wait(20) == 0


def instructors(place: Path, folder: Path, home: Path) -> None:
    """What an instructor does while it runs."""
    about = ("--folder", str(folder))
    (place / "roster.csv").write_text("student_id,name\ns1,Grace Hopper\n")
    assert "Roster: 1 added, 0 corrected." in good("cohort", "roster", "roster.csv", *about, home=home)
    good("cohort", "export", "nbgrader", "-o", "grades.csv", *about, home=home)
    assert "Hopper" in (place / "grades.csv").read_text()
    assert "password" in good("cohort", "staff", "Grace", *about, home=home)
    assert "/login/" in good("cohort", "link", *about, home=home)
    assert "2 submissions are queued again" in good("cohort", "regrade", "slow", *about, home=home)
    good("cohort", "backup", "backup.tar", *about, home=home)
    good("cohort", "restore", "backup.tar", "--folder", "restored", home=home)
    assert "2 learners, 1 labs passed" in good("cohort", "status", "--folder", "restored", home=home)
    again = lab("cohort", "create", "Autumn workshop", home=home)
    assert (again.returncode, "holds a cohort already" in again.stderr) == (2, True)


def test_who_has_joined_nothing_is_told_how(tmp_path):
    done = lab("status", home=tmp_path / "home")
    assert (done.returncode, "You have not joined a cohort" in done.stderr) == (2, True)
    done = lab("cohort", "serve", home=tmp_path / "home")
    assert (done.returncode, "There is no cohort" in done.stderr) == (2, True)
