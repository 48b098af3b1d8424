"""`lab history --course`: predictions of every lab that was started, whatever has become of its
folder.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.commands import history
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.grading.criteria import grade_check
from bottleneck_lab.grading.verdict import CriterionResult, Prediction, Standing
from bottleneck_lab.workspace import commitments, hints
from bottleneck_lab.workspace.cases import DrawnCase
from bottleneck_lab.workspace.commitments import commit, note_solution_taken
from bottleneck_lab.workspace.hints import take_hint
from bottleneck_lab.workspace.start import start_workspace

from ..report import made_up


@pytest.fixture
def course(monkeypatch):
    """Three labs: one with measured predictions, the last of a failure after a pass; one whose
    folder cannot be read, one that is gone. The first was started again elsewhere after its pass.
    """
    places = {"idle-gpu": "/again", "resnet-latency": "/old", "ddp-scaling": "/gone"}
    labs = {
        slug: SimpleNamespace(workspace=place, passed_in="/first" if place == "/again" else None)
        for slug, place in places.items()
    }
    made = [
        (Prediction(3.0, None), "PASS"),
        (Prediction(3.0, 1.5), "PASS"),
        (Prediction(2.5, 2.0), "PASS"),
        (Prediction(2.5, 1.0), "FAIL"),
        (None, "PASS"),
    ]
    attempts = [
        SimpleNamespace(verdict=SimpleNamespace(prediction=one, outcome=outcome))
        for one, outcome in made
    ]

    def load(place):
        if place != "/first":
            raise MachineError("of another version", "start again")
        return attempts

    monkeypatch.setattr(history, "load_progress", lambda: SimpleNamespace(labs=labs))
    monkeypatch.setattr(history, "is_workspace", lambda place: str(place) != "/gone")
    monkeypatch.setattr(history, "open_workspace", str)
    monkeypatch.setattr(history, "load_attempts", load)


def run(*words):
    return CliRunner().invoke(app, ["history", *words])


def test_the_last_measured_prediction_of_each_lab_that_passed_counts(course):
    told = run("--course")
    assert told.exit_code == 0, told.output
    assert "2.50x     2.00x  too high by a factor of 1.25" in told.output
    assert json.loads(run("--course", "--json").output)["points"][0]["measured"] == 2.0


def test_the_page_is_written(course, tmp_path):
    page = tmp_path / "course.html"
    assert run("--course", "--html", str(page)).exit_code == 0
    assert "<circle" in page.read_text()


def test_without_the_course_there_is_nothing_to_draw(course, tmp_path):
    refused = run("--html", str(tmp_path / "page.html"))
    assert isinstance(refused.exception, UsageError)
    assert not (tmp_path / "page.html").exists()


def test_hints_are_listed_beside_the_diagnosis(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("stuttering-tagger"), tmp_path / "lab", "virtual")
    monkeypatch.chdir(workspace.root)
    commit(workspace, {"cause": "norms: the loop waits for numbers"}, "")
    take_hint(workspace)
    lines = run().output.splitlines()
    assert any(line.endswith("diagnosis, before any hint: cause norms") for line in lines)
    assert any(line.endswith("hint 1") for line in lines)


def test_a_case_drawn_in_the_workspace_is_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("stuttering-tagger"), tmp_path / "lab", "virtual")
    monkeypatch.chdir(workspace.root)
    drawn = [
        DrawnCase("old-sermons", str(folder), "2026-01-01T00:00:02Z", 0.0)
        for folder in (workspace.root / "cases" / "old-sermons", tmp_path / "elsewhere")
    ]
    monkeypatch.setattr(history, "load_drawn", lambda: drawn)
    drawn = [line for line in run().output.splitlines() if "  lab case, " in line]
    assert len(drawn) == 1
    assert drawn[0].endswith(": not answered yet")


def test_everything_stands_in_the_order_of_time(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("stuttering-tagger"), tmp_path / "lab", "virtual")
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(hints, "now", lambda: "2026-01-01T00:00:03+00:00")
    take_hint(workspace)
    times = iter(["2026-01-01T00:00:05+00:00", "2026-01-01T00:00:01Z"])
    monkeypatch.setattr(commitments, "now", lambda: next(times))
    note_solution_taken(workspace)
    commit(workspace, {"cause": "norms"}, "")
    shown = [line[23:].split(",")[0] for line in run().output.splitlines()[-3:]]
    assert shown == ["diagnosis", "hint 1", "looked at the solution"]


def test_every_check_shows_the_same_figures(tmp_path, monkeypatch):
    """Which criterion most checks missed changed from check to check, and every line with it."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("perf-gate"), tmp_path / "lab", "virtual")
    monkeypatch.chdir(workspace.root)
    figures = [
        CriterionResult("caught", "correctness", False, "", value=0.5, target=0.9, unit="share"),
        CriterionResult("false-alarms", "correctness", True, "", value=0.01, target=0.02),
    ]
    verdict = msgspec.structs.replace(
        made_up.slow(), lab="perf-gate", device="virtual", criteria=figures, prediction=None
    )
    attempts = [SimpleNamespace(number=number, verdict=verdict) for number in (1, 2)]
    monkeypatch.setattr(history, "load_attempts", lambda _: attempts)
    shown = " ".join(run().output.split())
    assert shown.count("regressions caught 50%") == 2
    assert shown.count("false alarms") == 2


def test_what_was_wrong_is_said_and_the_same_standing_only_once(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("resnet-top-ops"), tmp_path / "lab", "cpu")
    monkeypatch.chdir(workspace.root)
    spec = workspace.lab.spec.devices["cpu"].criteria[0]
    verdict = msgspec.structs.replace(
        made_up.slow(),
        lab="resnet-top-ops",
        device="cpu",
        reason="wrong output",
        criteria=[grade_check(spec, "The capture has no shapes", 1)],
        prediction=None,
        diagnosis=Standing(False),
    )
    attempts = [SimpleNamespace(number=number, verdict=verdict) for number in (1, 2)]
    monkeypatch.setattr(history, "load_attempts", lambda _: attempts)
    shown = " ".join(run().output.split())
    assert shown.count("FAIL, missed: your script's capture; the capture has no shapes") == 2
    assert "wrong output" not in shown
    assert shown.count("on the first try") == 1


@pytest.mark.parametrize(("measured", "times"), [(1.17, 1), (1.3, 2)])
def test_a_gain_is_given_once_beside_its_prediction(measured, times):
    speed = CriterionResult("step-speedup", "target", False, "no", 1.172, target=1.4, unit="x")
    verdict = msgspec.structs.replace(
        made_up.slow(),
        lab="stuttering-tagger",
        device="virtual",
        criteria=[speed],
        prediction=Prediction(2.5, measured),
    )
    ((_, line, *_),) = history._checks([SimpleNamespace(number=1, verdict=verdict)])
    assert f"gain predicted 2.50x, measured {measured:.2f}x" in line
    assert line.count("1.17x") + line.count("1.30x") == times


def test_a_check_has_the_first_prediction_and_the_corrected_one():
    verdict = msgspec.structs.replace(
        made_up.slow(), prediction=Prediction(9.0, None, corrected=2.5)
    )
    ((_, text, *_),) = history._checks([SimpleNamespace(number=1, verdict=verdict)])
    assert "gain predicted 9.00x at first, then 2.50x, " in text
