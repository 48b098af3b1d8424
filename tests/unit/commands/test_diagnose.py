"""`lab diagnose`: which answers are saved, which are committed, and what comes next."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.commands import asking
from bottleneck_lab.commands.asking import confirm_first_diagnosis
from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.commitments import load_record
from bottleneck_lab.workspace.diagnosis_file import load_answers, save_answers
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.start import start_workspace

TRACE = Path(__file__).parents[3] / "datasets" / "captures" / "synthetic-input.json.gz"
ANSWERS = ["cause=1", "evidence=0.6", "where=10-20 ms", "predicted_gain=2"]


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Workspace:
    """The tagger with a made-up capture, of some tens of milliseconds, of the shipped code."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    lab = find_lab("stuttering-tagger")
    workspace, _ = start_workspace(lab, tmp_path / "work", "virtual")
    leave_capture(workspace)
    monkeypatch.chdir(workspace.root)
    return workspace


def leave_capture(workspace: Workspace) -> None:
    """Leave a capture of the code as it is."""
    folder = workspace.captures / "0001-torch"
    folder.mkdir(parents=True)
    shutil.copy(TRACE, folder / "trace.json.gz")
    code = workspace.lab.code_hash(workspace.root)
    described = {"files": ["trace.json.gz"], "code": code, "made_at": "2026-01-01"}
    (folder / "capture.json").write_text(json.dumps(described))


def diagnose(*answers: str):
    """The end of `lab diagnose -a …`."""
    return CliRunner().invoke(app, ["diagnose", *(word for a in answers for word in ("-a", a))])


@pytest.mark.parametrize(("stretch", "fault"), [("1-2 s", "after your"), ("1-1.01 ms", "short")])
def test_a_stretch_that_shows_nothing_is_neither_saved_nor_committed(workspace, stretch, fault):
    done = diagnose(*ANSWERS[:2], f"where={stretch}", ANSWERS[3])
    assert isinstance(done.exception, UsageError)
    assert "where: That stretch" in done.exception.message
    assert fault in done.exception.message
    answers = load_answers(workspace.root)
    assert not answers["where"], "the next check would be refused for it"
    assert answers["evidence"] == 0.6
    assert not load_record(workspace).commitments


def test_the_limits_of_a_stretch_are_named_where_it_is_asked_for(workspace):
    assert re.search(r"A stretch is [\d.]+ to [\d.]+ ms long;", " ".join(diagnose().output.split()))
    shutil.rmtree(workspace.captures)
    assert "0.2% to 10% of the capture" in " ".join(diagnose().output.split())


def test_a_refused_answer_is_not_lost_beneath_the_questions(workspace):
    done = diagnose("cause=9", "evidence=60")
    assert not done.output.strip()
    cause, evidence = str(done.exception).split("\nevidence: ")
    assert "not one of the choices" in cause
    assert "write 0.6 for 60%" in evidence


def test_a_refused_correction_leaves_the_answer_as_it_was(workspace):
    assert diagnose(*ANSWERS).exit_code == 0
    assert isinstance(diagnose("where=1-2 s").exception, UsageError)
    assert load_answers(workspace.root)["where"] == "10-20 ms"


def test_without_a_capture_the_way_to_one_comes_first(workspace):
    shutil.rmtree(workspace.captures)
    output = diagnose().output
    assert output.index("`lab profile`") < output.index("`lab report")
    assert output.rstrip().endswith("Next: lab profile")


def test_what_is_committed_already_is_said_so(workspace):
    assert "Still to answer" in diagnose(*ANSWERS[:2]).output
    assert "kept as your first diagnosis, the one that counts" in diagnose(*ANSWERS).output
    again = diagnose().output
    assert "not committed" not in again
    assert "These answers are committed already. `lab check` says whether" in again


def test_a_report_that_explains_nothing_is_not_promised(tmp_path, monkeypatch):
    """A capture of a program that measures others has no causes and findings."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("timing-pitfalls"), tmp_path / "work", "virtual")
    leave_capture(workspace)
    monkeypatch.chdir(workspace.root)
    output = diagnose("notebook=1", "nightly=1", "paper=1").output
    assert "kept as your first diagnosis" in " ".join(output.split())
    assert "`lab report` now names" not in " ".join(output.split())
    assert "Next: lab check" in output


def test_a_check_says_before_it_measures_that_it_commits_a_draft(workspace, monkeypatch):
    save_answers(workspace, {"cause": find_lab(workspace.lab.slug).spec.questions[0].choices[0]})
    save_answers(workspace, {"evidence": 0.6, "where": "10-20 ms", "predicted_gain": 2.0})
    notes: list[str] = []
    monkeypatch.setattr(asking, "note", notes.append)
    confirm_first_diagnosis(workspace, json=False)
    assert "your first diagnosis, the one that counts" in "".join(notes)
    monkeypatch.setattr(asking.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(asking.typer, "confirm", lambda *_, **__: False)
    with pytest.raises(UsageError, match="Nothing was checked"):
        confirm_first_diagnosis(workspace, json=False)
    assert not load_record(workspace).commitments
    diagnose(*ANSWERS)
    notes.clear()
    confirm_first_diagnosis(workspace, json=False)
    assert not notes, "it is committed already"


def test_what_was_drafted_is_committed_by_the_command_that_is_suggested(workspace):
    """Also where nothing can be asked, as in a script."""
    drafted = CliRunner().invoke(
        app, ["diagnose", "--draft", *(word for a in ANSWERS for word in ("-a", a))]
    )
    assert "Next: lab diagnose" in drafted.output
    assert not load_record(workspace).commitments
    assert "kept as your first diagnosis" in " ".join(diagnose().output.split())
    assert len(load_record(workspace).commitments) == 1
