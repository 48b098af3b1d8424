"""`lab hint`: as many as the cohort's instructor has opened, and no cause before the diagnosis."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cli import app
from bottleneck_lab.cohort.protocol import OpenHelp
from bottleneck_lab.commands import asking, diagnose, hint, solution
from bottleneck_lab.errors import ExitCode, UsageError
from bottleneck_lab.grading.verdict import Outcome, Prediction
from bottleneck_lab.workspace.commitments import commit
from bottleneck_lab.workspace.folder import open_workspace, to_json
from bottleneck_lab.workspace.hints import load_hints, next_hint

from ..report.made_up import slow

LAB = load_labs()["busy-ensemble"]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A workspace of a lab, and how many of its hints are open: set it to what the server says."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert run("start", LAB.slug, "work", "--no-data", "--device", "virtual").exit_code == 0
    monkeypatch.chdir(tmp_path / "work")

    def says(count):
        for module in (hint, diagnose):
            monkeypatch.setattr(module, "open_help", {LAB.slug: OpenHelp(count)}.__getitem__)

    says(None)
    return says


def run(*words):
    return CliRunner().invoke(app, list(words), prog_name="lab")


def taken() -> int:
    return len(load_hints(open_workspace(Path.cwd())))


def test_without_a_cohort_every_hint_is_there(opened):
    for number in range(1, len(LAB.spec.hints) + 1):
        assert f"Hint {number} of {len(LAB.spec.hints)}" in run("hint").output
    none = run("hint")
    assert ("There are no more hints" in none.output, none.exit_code) == (True, 0)


def test_who_has_passed_hears_what_hints_are_for(opened, monkeypatch):
    passed = replace(slow(), lab=LAB.slug, outcome=Outcome.PASS, reason=None)
    assert "You have passed" not in run("hint").output
    workspace = open_workspace(Path.cwd())
    workspace.attempts.mkdir(exist_ok=True)
    workspace.write(workspace.attempts / "0001.json", to_json(passed))
    assert "You have passed this lab: a hint may still help to go further" in run("hint").stderr
    monkeypatch.setattr(hint, "take_hint", lambda *_: 3)
    assert "skipped: about what is right already" in run("hint").stderr


def test_hints_that_are_skipped_are_not_said_to_be_taken(opened, monkeypatch):
    run("hint")
    monkeypatch.setattr(hint, "take_hint", lambda *_: None)
    output = " ".join(run("hint").output.split())
    assert "no more hints" not in output
    assert "The other hints are about what is right already. These are" in output
    monkeypatch.setattr(hint, "latest_pass", lambda _: slow())
    assert "a hint may still help" not in run("hint").output, "there is none to help"


def test_the_hint_before_the_last_says_what_the_last_costs(opened):
    for _ in LAB.spec.hints[2:]:
        assert "Take all of them" in run("hint").output
    cost = "the diagnosis no longer counts as yours."
    assert f"With the last one, {cost}" in run("hint").output
    assert f"All {len(LAB.spec.hints)} hints taken: {cost}" in run("hint").output


@pytest.mark.parametrize(("answer", "shown"), [("n", False), ("y", True)])
def test_at_a_terminal_the_last_hint_is_asked_for(opened, monkeypatch, answer, shown):
    for _ in LAB.spec.hints[1:]:
        run("hint")
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(hint, "sys", terminal)
    monkeypatch.setattr(asking, "sys", terminal)
    monkeypatch.setattr(asking.typer, "confirm", lambda *_, **__: answer == "y")
    run("hint")
    assert taken() == len(LAB.spec.hints) - (not shown)


def test_hints_that_the_instructor_has_not_opened_are_not_given(opened):
    opened(0)
    closed = run("hint")
    assert "So far your instructor has opened none of the hints for this lab" in closed.output
    assert closed.exit_code == ExitCode.USAGE, "as a locked solution"
    assert taken() == 0, "nor counted as taken"
    opened(1)
    assert "Hint 1 of" in run("hint").output
    told = run("hint").output
    assert (
        f"So far your instructor has opened 1 of {len(LAB.spec.hints)} hints for this lab. These"
        " are the ones you have taken:" in told
    )
    assert "Hint 1 of" in told
    assert taken() == 1
    opened(9)
    assert "Hint 2 of" in run("hint").output


def test_a_hint_that_was_taken_stays_readable_when_hints_are_closed(opened):
    run("hint")
    opened(0)
    assert "Hint 1 of" in run("hint", "--again").output


def test_revealing_does_not_go_around_the_instructor(opened):
    opened(2)
    refused = run("diagnose", "--reveal")
    assert isinstance(refused.exception, UsageError)
    assert taken() == 0
    opened(len(LAB.spec.hints))
    assert isinstance(run("diagnose", "--reveal").exception, UsageError), "nobody can be asked"
    assert taken() == 0
    assert run("diagnose", "--reveal", "--yes").exit_code == 0


def test_what_the_capture_shows_is_told_only_after_the_diagnosis(opened, monkeypatch):
    monkeypatch.setattr(
        hint, "evidence", lambda _workspace, finding: f"The capture shows {finding}."
    )
    run("hint")
    blind = run("hint").output
    assert "Hint 2 of" in blind
    assert "The capture shows" not in blind
    assert "{evidence}" not in blind
    commit(open_workspace(Path.cwd()), {"cause": "launch-bound"}, "")
    assert "The capture shows launch-bound." in run("hint", "--again").output


def test_without_a_terminal_it_says_what_would_be_asked(opened):
    refused = run("solution", "--show").exception
    assert "there is no terminal to ask on: Read the reference solution? A" in refused.message
    assert refused.remedy == "`--yes` answers that with yes."


def test_a_locked_solution_names_only_help_that_is_open(opened, monkeypatch):
    def remedy(count: int | None, hints_from: str | None = None) -> str:
        locked = OpenHelp(count, hints_from, "2090-01-01T12:10:00Z", "UTC")
        monkeypatch.setattr(solution, "open_help", {LAB.slug: locked}.__getitem__)
        refused = run("solution", "--yes").exception
        assert "opens the solution" in refused.message
        return refused.remedy

    assert remedy(0) == "Ask your instructor until then."
    closed = remedy(0, "2090-01-01T11:40:00Z")
    assert closed == "Ask your instructor until then; hints open at 2090-01-01 11:40 UTC."
    assert "`lab hint` may help" in remedy(1)
    assert "Hint 1 of" in run("hint").output
    assert "`lab hint`" not in remedy(1), "the open one is taken"
    assert "`lab hint` may help" in remedy(None)


def test_hints_about_what_the_last_check_found_right_are_skipped(opened):
    def check(number: int, *right: str) -> None:
        ids = ("cause", "evidence")
        results = [replace(slow().criteria[-1], id=id_, holds=id_ in right) for id_ in ids]
        workspace = open_workspace(Path.cwd())
        workspace.attempts.mkdir(exist_ok=True)
        verdict = replace(slow(), criteria=results)
        workspace.write(workspace.attempts / f"000{number}.json", to_json(verdict))

    check(1, "evidence")
    assert "Hint 1 of" in run("hint").output
    check(2, "cause")
    predicting = run("hint").output
    assert "Hint 3 of" in predicting, "the answers that a prediction follows from are not right yet"
    assert "1 hint skipped: about what is right already" in predicting
    fourth = run("hint").output
    assert "Hint 4 of" in fourth
    assert "skipped" not in fourth, "said once"
    assert "Hint 1 of" in run("hint", "--again").output


def test_an_answer_that_the_last_check_did_not_judge_stands_as_the_one_before_found_it(opened):
    workspace = open_workspace(Path.cwd())
    workspace.attempts.mkdir(exist_ok=True)
    cause = replace(slow().criteria[-1], id="cause", kind="diagnosis", holds=True)
    for number, holds in ((1, True), (2, None)):
        verdict = replace(slow(), criteria=[replace(cause, holds=holds)])
        workspace.write(workspace.attempts / f"000{number}.json", to_json(verdict))
    assert LAB.spec.hints[0].until == ["cause"]
    assert next_hint(workspace) > 0
    wrong = replace(slow(), criteria=[replace(cause, holds=False)])
    workspace.write(workspace.attempts / "0003.json", to_json(wrong))
    assert next_hint(workspace) == 0


@pytest.mark.parametrize(
    ("prediction", "why"),
    [
        (Prediction(2.0, 99.0), "as fast as the fastest script known to us."),
        (Prediction(2.0, 99.0, quantity="memory"), ""),
        (Prediction(2.0, 1.5), ""),
    ],
)
def test_there_is_no_hint_where_a_pass_leaves_nothing_to_gain(opened, prediction, why):
    workspace = open_workspace(Path.cwd())
    workspace.attempts.mkdir(exist_ok=True)
    passed = replace(
        slow(),
        lab=LAB.slug,
        device="virtual",
        outcome=Outcome.PASS,
        reason=None,
        prediction=prediction,
    )
    workspace.write(workspace.attempts / "0001.json", to_json(passed))
    output = run("hint").output
    nothing = (
        "No hint: nothing is left to gain, as far as we know. Your last check found your work"
        f" {why}"
    )
    assert (nothing in output, taken() == 0) == (bool(why), bool(why))
    assert (json.loads(run("hint", "--json").stdout)["hints"] == []) is bool(why)


def test_hints_about_recording_are_skipped_once_a_capture_lacks_nothing(opened, tmp_path):
    assert run("start", "resnet-top-ops", str(tmp_path / "resnet"), "--no-data").exit_code == 0
    workspace = open_workspace(tmp_path / "resnet")
    folder = workspace.captures / "0001-torch"
    folder.mkdir(parents=True)
    code = workspace.lab.code_hash(workspace.root)
    described = {"code": code, "notes": ["It has no shapes."]}
    (folder / "capture.json").write_text(json.dumps(described))
    assert next_hint(workspace) == 0
    (folder / "capture.json").write_text(json.dumps(described | {"notes": []}))
    assert "self time" in workspace.lab.spec.hints[next_hint(workspace)].text


def test_a_hint_about_predicting_is_skipped_once_its_answers_are_right(opened):
    right = [replace(slow().criteria[-1], id=id_, holds=True) for id_ in ("cause", "evidence")]
    workspace = open_workspace(Path.cwd())
    workspace.attempts.mkdir(exist_ok=True)
    workspace.write(workspace.attempts / "0001.json", to_json(replace(slow(), criteria=right)))
    assert "Hint 4 of" in run("hint").output


def test_hints_that_were_never_taken_are_not_shown_as_nothing(opened):
    assert "You have taken no hint yet" in run("hint", "--again").stdout
    run("hint")
    assert "Hint 1 of" in run("hint", "--again").stdout
