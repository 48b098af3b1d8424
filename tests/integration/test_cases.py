"""`lab case` as a learner meets it: draw, report, answer, and see how one is doing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from bottleneck_lab.catalog import content_root
from bottleneck_lab.workspace.cases import find_case

from .test_cli import Learner


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return Learner(tmp_path, content_root())


def test_answers_are_of_a_case_that_is_open(learner: Learner):
    refused = learner.lab("case", "-a", "cause=1")
    assert refused.returncode == 2
    assert "No case is open" in refused.stderr
    assert not (learner.folder / "cases").exists()


@pytest.mark.parametrize("command", ["hint", "solution", "check"])
def test_what_only_labs_have_is_refused_by_name_in_a_case(learner: Learner, command: str):
    learner.lab("case")
    refused = learner.lab(command, at=learner.folder / "cases" / "0001")
    assert refused.returncode == 2
    sentence = " ".join(refused.stderr.split())
    assert "This folder is a case's, not a lab's: it has no hints, no check" in sentence
    assert "`lab case` shows its questions" in sentence


def test_a_case_from_the_draw_to_the_next_one(learner: Learner):
    drawn = learner.lab("case", "--set", "friday:2", "--timed", "60")
    assert drawn.returncode == 0, drawn.stderr
    assert "Next: lab report cases/0001" in drawn.stdout
    assert sorted(path.name for path in (learner.folder / "cases" / "0001").iterdir())

    assert "Next: lab case" in learner.lab().stdout
    again = learner.lab("case").stdout
    assert "Next: lab case -a cause=" in again, "the report is behind whoever asks again"
    assert "the host does something else: files" in again
    assert "gain: How many times" in again

    blind = learner.json("report", "cases/0001")
    assert blind["summary"]["blind"]
    assert blind["summary"]["findings"] == []
    program = (learner.folder / "cases" / "0001" / "program.py").read_text().splitlines()
    code = blind["summary"]["code"]
    assert code
    assert set(code.values()) <= {line.strip() for line in program}

    partial = learner.lab("case", "-a", "cause=input")
    assert "still missing: evidence, line, gain" in partial.stderr
    refused = learner.lab("case", "-a", "gain=fast")
    assert refused.returncode == 2
    beyond = learner.lab(
        "case", *(f"-a{each}" for each in ("cause=1", "evidence=1", "line=999", "gain=1"))
    )
    assert "no line 999" in beyond.stderr

    answers = ("-a", "cause=input", "-a", "evidence=40%", "-a", "line=30", "-a", "gain=1.5")
    graded = learner.json("case", *answers)
    assert [result["id"] for result in graded["results"]] == ["cause", "evidence", "line", "gain"]
    assert graded["standing"]["answered"] == 1
    assert not learner.json("report", "cases/0001")["summary"]["blind"]

    again = learner.lab("case", *answers)
    assert again.returncode == 2
    assert "No case is open" in again.stderr
    assert learner.json("case", "--progress")["answered"] == 1
    assert "of 1 case; `lab case` draws another" in learner.lab().stdout
    assert "cases/0002" in learner.lab("case", "--set", "friday:2").stdout
    put_away = learner.json("report", "cases/0002")["summary"]
    assert put_away["blind"]
    assert "Next: lab case --set friday:2" in learner.lab("case", "--skip").stdout
    assert "Next: lab case --set monday" in learner.lab("case", "--progress", "--set=monday").stdout


def test_a_case_whose_time_is_over_says_so(learner: Learner):
    assert "You have 0.1 minutes from the draw" in learner.lab("case", "--timed", "0.1").stdout
    drawn = learner.folder / "home" / "cases.json"
    record = next(learner.folder.rglob("cases.json")) if not drawn.exists() else drawn
    text = record.read_text()
    record.write_text(re.sub(r'"drawn_s":\s*[\d.]+', '"drawn_s": 1.0', text))
    assert "Your 0.1 minutes are over: an answer no longer counts" in learner.lab("case").stdout


def test_a_case_of_a_lab_practises_what_it_teaches(learner: Learner):
    names = tomllib.loads((content_root() / "labs" / "idle-gpu" / "lab.toml").read_text())["cases"]
    titles = {find_case(name).title for name in names}
    for _ in names:
        assert learner.json("case", "--lab", "idle-gpu")["title"] in titles
        learner.lab("case", "--skip")
    refused = learner.lab("case", "--lab", "perf-gate")
    assert refused.returncode == 2
    assert "perf-gate has no cases." in refused.stderr
    assert "of level 3" in learner.lab("case", "--lab", "idle-gpu", "--level", "3").stderr


def test_a_case_that_is_not_there_is_answered_with_the_open_one(learner: Learner):
    learner.lab("case")
    refused = " ".join(learner.lab("report", "cases/9999").stderr.split())
    assert "There is no cases/9999." in refused
    assert "cases/0001" in refused


def test_cases_are_no_lab_and_no_versions_of_each_other(learner: Learner):
    for _ in range(2):
        learner.lab("case")
        learner.lab("case", "--skip")
    assert "`lab case --progress`" in " ".join(learner.lab("history").stderr.split())
    refused = learner.lab("compare", "cases/0001", "cases/0002")
    assert refused.returncode == 2
    assert "0001 and 0002 are cases, and different programs" in " ".join(refused.stderr.split())


def test_a_grade_explains_what_looked_like_a_cause(learner: Learner):
    (learner.folder / "set.txt").write_text("star-catalogue\n")
    learner.lab("case", "--set", "set.txt")
    answers = ("cause=compute", "evidence=80%", "line=35", "gain=5")
    graded = " ".join(learner.lab("case", *(f"-a{each}" for each in answers)).stdout.split())
    assert "Modelled, each cause switched off by itself: 5.35x Train in single" in graded
    assert "Other suspects, each switched off by itself: 1.00x Keep the learning rate." in graded
    assert "changes one number on the host" in graded
    assert "Of this set: 1 of 1 answered in time, 1 causes named." in graded
    assert "Of all cases: cause named in 1 of 1 case" in graded
    again = " ".join(learner.lab("case", "--verdict", "1").stdout.split())
    assert again.partition("✓ cause")[2] in graded
    assert "changes one number on the host" in again
    assert learner.lab("case", "--verdict", "2").returncode == 2
    assert learner.lab("report", "cases/0001", "--html", "page.html").returncode == 0
    page = (learner.folder / "page.html").read_text()
    assert "<h1>The colours of stars</h1>" in page
