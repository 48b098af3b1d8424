"""`lab check` as a use case: its reads and its records. The measurement is stood in for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bottleneck_lab.catalog import CriterionSpec, load_labs
from bottleneck_lab.course import checking, regrading
from bottleneck_lab.course.progress import no_progress
from bottleneck_lab.grading.conclusion import conclude
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Prediction, Verdict
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

    def measure(*arguments, graded, **more):
        results.extend(graded.results)
        return passing(*arguments, **more)

    monkeypatch.setattr(checking, "check_lab", measure)
    monkeypatch.setattr(measured_key, "has_key", lambda _: True)
    monkeypatch.setattr(measured_key, "measure_key", lambda *_: {"cause": measured})
    verdict = checking.check_workspace(workspace, None, show_progress=no_progress).attempt.verdict
    right = measured == "memory bandwidth"
    assert [(one.id, one.holds) for one in results] == [("cause", right)]
    assert verdict.diagnosis.named == right


def test_a_check_of_shipped_code_says_that_nothing_is_edited(workspace):
    checked = checking.check_workspace(workspace, None, show_progress=no_progress)
    (file,) = workspace.lab.spec.editable
    unedited = f"Nothing is edited yet: this verdict is on {file} as shipped."
    assert unedited in checked.remarks
    code = workspace.root / file
    code.write_text(f"{code.read_text()}\n")
    checked = checking.check_workspace(workspace, None, show_progress=no_progress)
    assert unedited not in checked.remarks


def test_the_attempt_the_record_and_the_progress_agree(workspace):
    checked = checking.check_workspace(workspace, None, show_progress=no_progress)
    assert checked.attempt.number == 1
    assert [made.answers["gain"] for made in checked.record.commitments] == [9.0]
    assert checked.attempt.verdict.diagnosis.named
    entry = load_progress().labs["slow"]
    assert (entry.attempts, entry.outcome, entry.named) == (1, "PASS", True)
    again = checking.check_workspace(workspace, None, show_progress=no_progress)
    assert [attempt.number for attempt in again.attempts] == [1, 2]


@pytest.fixture
def measured(workspace, monkeypatch):
    """The folders that were measured. All work is right and fast; the answers are graded."""
    folders, passing = [], checking.check_lab
    monkeypatch.setattr(regrading, "fingerprint", lambda: {"torch": "2.14", "load": "0.31"})

    def measure(lab, folder, device, *, graded, **_):
        folders.append(folder)
        results = [
            CriterionResult("right-answers", "correctness", True, "Every sum is right."),
            CriterionResult("speedup", "target", True, "30x as fast.", value=30.0),
            *graded.results,
        ]
        questions = [CriterionSpec(result.id, "diagnosis", result.id) for result in graded.results]
        conclusion = conclude(results, specs=[*lab.spec.devices[device].criteria, *questions])
        return msgspec.structs.replace(
            passing(lab, folder, device),
            outcome=conclusion.outcome,
            reason=conclusion.reason,
            criteria=results,
            environment={"torch": "2.14", "load": "0.28"},
            prediction=Prediction(graded.prediction.predicted, 30.0),
        )

    monkeypatch.setattr(checking, "check_lab", measure)
    return folders


def test_only_the_answers_are_graded_again_where_only_they_have_changed(workspace, measured):
    def check():
        return checking.check_workspace(workspace, None, show_progress=no_progress).attempt.verdict

    save_answers(workspace, {"cause": "memory bandwidth"})
    assert check().reason == "wrong diagnosis"
    save_answers(workspace, {"cause": "the loop in Python", "gain": 20.0})
    corrected = check()
    assert len(measured) == 1
    assert corrected.outcome is Outcome.PASS
    assert corrected.notes == [regrading.STANDS]
    assert corrected.prediction == Prediction(9.0, 30.0, corrected=20.0)
    assert not corrected.diagnosis.named, "the first diagnosis counts"
    assert check().notes == []
    assert len(measured) == 2, "a PASS is measured as often as it is checked"


@pytest.mark.parametrize("change", ["code", "machine", "undecided", "signed"])
def test_the_work_is_measured_again_where_anything_else_may_have_changed(
    workspace, measured, monkeypatch, change
):
    save_answers(workspace, {"cause": "memory bandwidth"})
    checking.check_workspace(workspace, None, show_progress=no_progress)
    save_answers(workspace, {"cause": "the loop in Python"})
    last = checking.load_attempts(workspace)[-1]
    if change == "code":
        work = workspace.root / "work.py"
        work.write_text(work.read_text() + "\n")
    elif change == "machine":
        monkeypatch.setattr(regrading, "fingerprint", lambda: {"torch": "2.15", "load": "0.31"})
    else:
        verdict = msgspec.structs.replace(last.verdict, signature="of a runner")
        if change == "undecided":
            right, fast, *answers = last.verdict.criteria
            fast = msgspec.structs.replace(fast, holds=None)
            verdict = msgspec.structs.replace(last.verdict, criteria=[right, fast, *answers])
        attempts = [msgspec.structs.replace(last, verdict=verdict)]
        monkeypatch.setattr(checking, "load_attempts", lambda _: attempts)
    checking.check_workspace(workspace, None, show_progress=no_progress)
    assert len(measured) == 2
