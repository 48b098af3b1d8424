"""`lab check` as a use case: its reads and its records. The measurement is stood in for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.course import checking
from bottleneck_lab.course.progress import no_progress
from bottleneck_lab.grading.verdict import Outcome, Verdict
from bottleneck_lab.measure import measured_key
from bottleneck_lab.workspace import commitments
from bottleneck_lab.workspace.diagnosis_file import save_answers
from bottleneck_lab.workspace.progress import load_progress
from bottleneck_lab.workspace.start import start_workspace

MINI = Path(__file__).parents[2] / "integration" / "mini"


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """The lab `slow`, answered but not committed; a check of it passes."""
    monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(MINI))
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    load_labs.cache_clear()
    lab = load_labs()["slow"]

    def passing(lab, folder, device, **_):
        return Verdict(
            outcome=Outcome.PASS,
            reason=None,
            summary="",
            lab=lab.slug,
            lab_hash=lab.content_hash(),
            submission_hash=lab.code_hash(folder),
            device=device,
            criteria=[],
            environment={},
            isolation={},
            started_at="2026-01-02T00:00:00+00:00",
            duration_s=1.0,
        )

    monkeypatch.setattr(checking, "check_lab", passing)
    workspace, _ = start_workspace(lab, tmp_path / "work", "cpu")
    save_answers(workspace, {"cause": "the loop in Python", "gain": 9.0})
    yield workspace
    load_labs.cache_clear()


@pytest.fixture
def loaded(monkeypatch):
    """The times that a workspace's record is read from its files."""
    times, read = [], commitments.load_record

    def load(workspace):
        times.append(workspace)
        return read(workspace)

    monkeypatch.setattr(commitments, "load_record", load)
    monkeypatch.setattr(checking, "load_record", load)
    return times


def test_the_record_is_loaded_once_a_check(workspace, loaded):
    checking.check_workspace(workspace, None, show_progress=no_progress)
    assert len(loaded) == 2, "at first, and again under the lock that commits the diagnosis"
    loaded.clear()
    checking.check_workspace(workspace, None, show_progress=no_progress)
    assert len(loaded) == 1


@pytest.mark.parametrize("measured", ["memory bandwidth", "the loop in Python"])
def test_a_choice_is_wrong_only_if_this_machine_measures_another(workspace, monkeypatch, measured):
    """The solution says that it is the loop."""
    save_answers(workspace, {"cause": "memory bandwidth"})
    results, passing = [], checking.check_lab

    def graded(*arguments, diagnosis, **more):
        results.extend(diagnosis)
        return passing(*arguments, **more)

    monkeypatch.setattr(checking, "check_lab", graded)
    monkeypatch.setattr(measured_key, "has_key", lambda _: True)
    monkeypatch.setattr(measured_key, "measure_key", lambda *_: {"cause": measured})
    verdict = checking.check_workspace(workspace, None, show_progress=no_progress).attempt.verdict
    right = measured == "memory bandwidth"
    assert [(one.id, one.holds) for one in results] == [("cause", right)]
    assert verdict.diagnosis.named == right


def test_the_attempt_the_record_and_the_progress_agree(workspace):
    checked = checking.check_workspace(workspace, None, show_progress=no_progress)
    assert checked.attempt.number == 1
    assert [made.answers["gain"] for made in checked.record.commitments] == [9.0]
    assert checked.attempt.verdict.diagnosis.named
    entry = load_progress().labs["slow"]
    assert (entry.attempts, entry.outcome, entry.named) == (1, "PASS", True)
    again = checking.check_workspace(workspace, None, show_progress=no_progress)
    assert [attempt.number for attempt in again.attempts] == [1, 2]
