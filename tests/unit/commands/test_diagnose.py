"""`lab diagnose`: which answers are saved, which are committed, and what comes next."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.commands import asking
from bottleneck_lab.commands import diagnose as diagnosing
from bottleneck_lab.commands import report as reporting
from bottleneck_lab.commands.asking import confirm_first_diagnosis
from bottleneck_lab.course import checking
from bottleneck_lab.course.captures import compared_with
from bottleneck_lab.course.checking import with_comparison
from bottleneck_lab.course.diagnosing import require_diagnosis
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.criteria import describe_criterion
from bottleneck_lab.grading.verdict import CriterionResult, Graded, Outcome, Verdict
from bottleneck_lab.workspace.attempts import load_attempts, record, submission
from bottleneck_lab.workspace.commitments import (
    Record,
    load_record,
    note_solution_taken,
    questions_of,
)
from bottleneck_lab.workspace.diagnosis_file import load_answers, save_answers
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.next_step import next_here
from bottleneck_lab.workspace.progress import load_progress
from bottleneck_lab.workspace.start import start_workspace

TRACE = Path(__file__).parents[3] / "datasets" / "captures" / "synthetic-input.json.gz"
RESTS = "not judged, because your `cause` is wrong."
ANSWERS = ["cause=1", "evidence=0.6", "where=10-20 ms", "predicted_gain=2"]


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Workspace:
    """The tagger with a made-up capture, of some tens of milliseconds, of the shipped code."""
    return start_here("stuttering-tagger", tmp_path, monkeypatch)


@pytest.fixture
def ensemble(tmp_path, monkeypatch) -> Workspace:
    """The same of the ensemble, which asks for another figure of each cause."""
    return start_here("busy-ensemble", tmp_path, monkeypatch)


def start_here(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab(name), tmp_path / "work", "virtual")
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
    assert not answers.get("evidence"), "a check would commit what is left of a refused command"
    assert not load_record(workspace).commitments


def test_the_limits_of_a_stretch_are_named_where_it_is_asked_for(workspace):
    output = " ".join(diagnose().output.split())
    assert re.search(r"Mark a stretch that is [\d.]+ to [\d.]+ ms long", output)
    shutil.rmtree(workspace.captures)
    assert "0.2% to 10% of the capture" in " ".join(diagnose().output.split())


def test_a_refused_answer_is_not_lost_beneath_the_questions(workspace):
    done = diagnose("cause=9", "evidence=60")
    assert not done.output.strip()
    cause, evidence = str(done.exception).split("\nevidence: ")
    assert "not one of the choices" in cause
    assert "write 60% or 0.6" in evidence


def test_a_refused_correction_leaves_the_answer_as_it_was(workspace):
    assert diagnose(*ANSWERS).exit_code == 0
    assert isinstance(diagnose("where=1-2 s").exception, UsageError)
    assert load_answers(workspace.root)["where"] == "10-20 ms"


def test_a_refused_command_leaves_nothing_that_a_check_would_commit(workspace):
    assert diagnose(*ANSWERS).exit_code == 0
    refused = diagnose("evidence=78", "where=11-21", "cause=9").exception
    assert "Nothing was saved" in refused.remedy
    assert load_answers(workspace.root)["where"] == "10-20 ms"
    assert diagnose("where=10-20").exit_code == 0
    assert len(load_record(workspace).commitments) == 1, "the same stretch, in ms like its unit"


@pytest.mark.parametrize("given", ["3", '"3"', '"norms"', "'NORMS (line'  # found by hand"])
def test_a_choice_in_the_file_may_be_short_as_one_given_to_the_command(workspace, given):
    """And the file keeps it in full, whichever command reads it first."""
    norms = workspace.lab.spec.questions[0].choices[2]
    file = workspace.root / "diagnosis.toml"
    assert diagnose("cause=norms").exit_code == 0
    whole, line = file.read_text(), f"cause = {json.dumps(norms)}"
    for reads in (
        diagnose,
        lambda: confirm_first_diagnosis(workspace, json=True),
        lambda: require_diagnosis(workspace, load_record(workspace)),
    ):
        file.write_text(whole.replace(line, f"cause = {given}"))
        assert load_answers(workspace.root)["cause"] != norms
        with suppress(UsageError):  # other questions are still open
            reads()
        assert load_answers(workspace.root)["cause"] == norms
        assert ("found by hand" in file.read_text()) == ("found by hand" in given)


def test_a_choice_in_the_file_that_could_be_several_is_refused_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    lab = find_lab("forecaster-out-of-memory")
    started, _ = start_workspace(lab, tmp_path / "work", "virtual")
    monkeypatch.chdir(started.root)
    save_answers(started, {"cause": "the training"})
    shown = " ".join(diagnose().output.split())
    assert "'the training' fits the training states since garbage" in shown
    assert load_answers(started.root)["cause"] == "the training"


def test_a_prediction_above_what_a_check_measures_is_remarked_on(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    started, _ = start_workspace(find_lab("past-the-plateau"), tmp_path / "work", "virtual")
    monkeypatch.chdir(started.root)
    remark = "A check measures 3.00x at most"
    assert remark in " ".join(diagnose("predicted_gain=9").output.split())
    assert remark not in " ".join(diagnose("predicted_gain=3").output.split())


def test_without_a_capture_the_way_to_one_comes_first(workspace):
    shutil.rmtree(workspace.captures)
    output = diagnose().output
    assert output.index("`lab profile`") < output.index("`lab report")
    assert "Next: lab profile\n" in output


def test_what_is_committed_already_is_said_so(workspace):
    assert "Still to answer" in diagnose(*ANSWERS[:2]).output
    assert "Committed as your first diagnosis: where work is graded" in diagnose(*ANSWERS).output
    again = diagnose().output
    assert "not committed" not in again
    assert "These answers are committed already. `lab check` says whether" in again


def test_a_first_diagnosis_is_shown_and_confirmed_before_it_is_committed(workspace, monkeypatch):
    questions: list[str] = []
    monkeypatch.setattr(diagnosing.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(diagnosing.typer, "confirm", lambda text, **_: questions.append(text))
    shown: list[str] = []
    monkeypatch.setattr(diagnosing, "say", lambda text, *_, **__: shown.append(text))
    diagnosing.command([*ANSWERS])
    (question,) = questions
    assert "compared with capture 0001-torch" in question
    assert "your first diagnosis, the one that counts" in question
    assert any("where: 10-20 ms" in line for line in shown)
    assert not load_record(workspace).commitments, "the answer was no"
    assert load_answers(workspace.root)["where"] == "10-20 ms"
    diagnosing.command([*ANSWERS], yes=True)
    assert len(load_record(workspace).commitments) == 1
    diagnosing.command(["evidence=0.5"])
    assert len(load_record(workspace).commitments) == 2
    assert len(questions) == 1, "neither --yes nor a correction asks"


def test_a_script_reads_that_it_commits(workspace, monkeypatch):
    notes: list[str] = []
    monkeypatch.setattr(diagnosing, "note", notes.append)
    diagnose(*ANSWERS)
    (note,) = notes
    assert note == "Committing these answers, compared with capture 0001-torch."


def test_a_report_that_explains_nothing_is_not_promised(tmp_path, monkeypatch):
    """A capture of a program that measures others has no causes and findings."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("timing-pitfalls"), tmp_path / "work", "virtual")
    leave_capture(workspace)
    monkeypatch.chdir(workspace.root)
    output = diagnose("notebook=1", "nightly=1", "paper=1").output
    assert "Committed as your first diagnosis" in " ".join(output.split())
    assert "`lab report` now names" not in " ".join(output.split())
    assert "`lab run` shows what each change brings" in " ".join(output.split())


def test_where_the_shipped_code_is_wrong_all_that_a_check_asks_for_is_named(tmp_path, monkeypatch):
    """Its answers are graded with wrong work, too, and its limits are not hidden in `right`."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("timing-pitfalls"), tmp_path / "work", "virtual")
    monkeypatch.chdir(workspace.root)
    output = " ".join(diagnose("notebook=1", "nightly=1", "paper=1").output.split())
    limits = output.partition("A check also asks for:")[2]
    assert "At least 92% of the intervals contain the true cost" in limits
    assert "finishes within its machine time" in limits


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


def test_a_draft_that_cannot_be_committed_is_refused_without_a_word_before(workspace, monkeypatch):
    shutil.rmtree(workspace.captures)
    save_answers(workspace, {"cause": find_lab(workspace.lab.slug).spec.questions[0].choices[0]})
    save_answers(workspace, {"evidence": 0.6, "where": "10-20 ms", "predicted_gain": 2.0})
    notes: list[str] = []
    monkeypatch.setattr(asking, "note", notes.append)
    confirm_first_diagnosis(workspace, json=False)
    assert not notes
    with pytest.raises(UsageError, match="you have no capture"):
        require_diagnosis(workspace, load_record(workspace))


def edit(workspace: Workspace) -> None:
    (file,) = workspace.lab.spec.editable[:1]
    with (workspace.root / file).open("a") as text:
        text.write("\n# edited\n")


def test_answers_read_from_a_capture_of_edited_code_are_said_to_be(workspace):
    assert "edited code" not in diagnose(*ANSWERS).output
    shutil.rmtree(workspace.captures)
    edit(workspace)
    leave_capture(workspace)
    output = " ".join(diagnose(*ANSWERS[:1], "evidence=0.5").output.split())
    assert "compared with 0001-torch, which shows edited code" in output
    assert "`lab reset` brings that back and keeps yours" in output


def test_a_verdict_names_the_capture_that_answers_were_compared_with(workspace):
    assert compared_with(workspace, "") == "0001-torch, of the shipped code"
    shipped = with_comparison([], compared_with(workspace, ""), [])
    assert shipped == ["Answers were compared with the capture 0001-torch, of the shipped code."]
    assert with_comparison(shipped, "0001-torch, of the shipped code", shipped) == shipped
    shutil.rmtree(workspace.captures)
    edit(workspace)
    leave_capture(workspace)
    edited = with_comparison(["other"], compared_with(workspace, ""), [])
    note = "Answers were compared with the capture 0001-torch, of edited code."
    assert edited == [note, "other"], "first, since the questions are about the shipped code"
    changed = "The check before compared them with 0001-torch, of edited code."
    (now, _) = with_comparison(edited, "0002-torch, of the shipped code", edited)
    assert now.endswith(f"0002-torch, of the shipped code. {changed}")
    after = with_comparison([now], "0002-torch, of the shipped code", [now])
    assert after == shipped_note(2)


@pytest.mark.parametrize(("why", "compared"), [("60%.", True), (RESTS, False)])
def test_no_capture_is_named_where_no_answer_was_compared_with_it(workspace, why, compared):
    diagnose(*ANSWERS)
    leave_check(workspace, evidence=why)
    verdict, questions = load_attempts(workspace)[-1].verdict, workspace.lab.spec.questions
    answers = checking._Answers(questions, {}, Graded(verdict.criteria, None))
    learner = load_record(workspace)
    noted = checking._with_diagnosis(workspace, learner, [], workspace.root, verdict, answers)
    assert bool(noted.notes) is compared


def shipped_note(number: int) -> list[str]:
    return [f"Answers were compared with the capture 000{number}-torch, of the shipped code."]


def leave_check(workspace: Workspace, *, holds: bool = False, **sentences: str) -> None:
    """Leave a check of the answers as they are, with a sentence for each that it judged."""
    with workspace.working("lab check"), submission(workspace, workspace.lab) as folder:
        verdict = Verdict(
            outcome=Outcome.FAIL,
            reason="wrong diagnosis",
            summary="",
            lab=workspace.lab.slug,
            lab_hash="",
            submission_hash="",
            device="virtual",
            criteria=[
                CriterionResult(id_, "diagnosis", holds, f"{id_}: {sentence}")
                for id_, sentence in sentences.items()
            ],
            environment={},
            isolation={},
            started_at="2036-01-01T00:00:00Z",
            duration_s=1.0,
        )
        record(workspace, verdict, folder)


def test_the_bare_command_marks_what_the_last_check_found_wrong(workspace):
    diagnose(*ANSWERS)
    leave_check(workspace, evidence="The capture shows a different figure.")
    shown = " ".join(diagnose().output.split())
    assert "✗ Check 1: The capture shows a different figure." in shown
    assert "`lab report 1` shows it" in shown
    assert shown.endswith("Next: lab diagnose -a evidence=…")
    assert "✗" not in diagnose("evidence=0.5").output


def test_answers_that_a_check_found_right_are_marked_with_its_figures(workspace):
    diagnose(*ANSWERS)
    cause = load_answers(workspace.root)["cause"]
    figure = "60%, where your capture shows 60.4%."
    leave_check(workspace, holds=True, cause=f"'{cause}' is right.", evidence=figure)
    shown = " ".join(diagnose().output.split())
    assert f"{cause} ✓ Check 1 evidence: 60% ✓ Check 1: {figure} where:" in shown
    assert "`lab check` says whether the answers are right" in shown, "the stretch was not judged"
    leave_check(workspace, holds=True, where="10-20 ms is what your capture shows.")
    done = " ".join(diagnose().output.split())
    assert "These answers are committed, and a check found them right." in done
    assert "says whether" not in done
    assert "✓ Check 1: 60%" not in diagnose("evidence=0.5").output
    assert "✓" in diagnose("evidence=0.6").output
    assert "✓" not in diagnose("cause=rows").output, "evidence and stretch are of another cause"


def test_what_rested_on_a_wrong_choice_is_open_once_that_is_corrected(workspace):
    diagnose(*ANSWERS)
    leave_check(workspace, cause="'1' does not fit.", evidence=RESTS)
    shown = " ".join(diagnose().output.split())
    assert "✗ Check 1: '1' does not fit." in shown
    assert "– Check 1: not judged, because your `cause` is wrong." in shown
    assert "✗" not in diagnose("cause=2", *ANSWERS[1:]).output
    assert "✗" not in diagnose().output


def test_a_corrected_choice_takes_along_no_answer_that_was_given_for_another(workspace):
    diagnose(*ANSWERS)
    alone = str(diagnose("cause=2").exception)
    assert "evidence: 0.6 was given for another `cause`. Give it again if it holds" in alone
    assert load_answers(workspace.root)["cause"] != "2"
    assert len(load_record(workspace).commitments) == 1
    diagnose("cause=2", *ANSWERS[1:])
    assert len(load_record(workspace).commitments) == 2


def test_questions_that_were_answered_stay_after_a_look_at_the_solution(workspace):
    diagnose(*ANSWERS)
    lab, questions = workspace.lab, workspace.lab.spec.questions
    note_solution_taken(workspace)
    assert questions_of(lab, load_record(workspace)) == questions
    nothing = Record([], load_record(workspace).help, 0)
    assert [each.id for each in questions_of(lab, nothing)] == ["cause", "predicted_gain"]


@pytest.mark.parametrize(
    ("undone", "step"), [(["reset", "--yes"], "diagnose"), (["hint"], "check")]
)
def test_the_solution_leads_to_what_a_check_still_needs(workspace, undone, step):
    """A reset empties the answers, and a stretch of the learner's capture is in no solution."""
    diagnose(*ANSWERS)
    for command in (undone, ["solution", "--yes"]):
        output = CliRunner().invoke(app, command).output
    assert output.endswith(f"Next: lab {step}\n")


@pytest.mark.parametrize("number", range(1, 4))
def test_a_report_says_nothing_of_the_cause_before_a_check_has_judged_it(ensemble, number):
    diagnose(f"cause={number}", *ANSWERS[1:])

    def reported() -> str:
        return " ".join(CliRunner().invoke(app, ["report"]).output.split())

    before, comes = (
        reported(),
        "The tool's figure will stand here once `lab check` has judged your `cause`",
    )
    sentences = ("rests on your `cause`", "The tool names another")
    assert comes in before, "whether it is right or wrong"
    assert not any(sentence in before for sentence in sentences)
    right = load_answers(ensemble.root)["cause"] == load_answers(ensemble.lab.solution)["cause"]
    leave_check(ensemble, holds=right, cause="…", evidence="…")
    judged = reported()
    assert comes not in judged
    assert all((sentence in judged) != right for sentence in sentences)
    assert ("The tool: " in judged.partition("Your answers")[2].partition("where")[0]) == right
    diagnose(f"cause={number % 3 + 1}", *ANSWERS[1:])
    assert comes in reported(), "no check has judged the correction"


def test_a_report_keeps_a_figure_back_until_it_is_right(ensemble):
    """Also where the cause that it follows from is right."""
    diagnose("cause=3", *ANSWERS[1:])

    def figure() -> str:
        output = " ".join(CliRunner().invoke(app, ["report"]).output.split())
        return output.partition("evidence You:")[2].partition(" where ")[0]

    assert "The tool's figure will stand here once" in figure()
    with pytest.MonkeyPatch.context() as patched:
        for right in (True, False):
            patched.setattr(
                reporting, "judged_answers", lambda *_, r=right: {"cause": True, "evidence": r}
            )
            assert ("The tool: " in figure()) == right
            assert ("The tool's figure is another: work it out again" in figure()) == (not right)


def test_reset_says_that_the_answers_are_gone(workspace):
    diagnose(*ANSWERS)
    shown = CliRunner().invoke(app, ["reset", "--yes"])
    assert shown.exit_code == 0
    assert "diagnosis.toml is empty again" in shown.output
    assert "empty" not in CliRunner().invoke(app, ["reset", "--yes"]).output


def test_what_was_drafted_is_committed_by_the_command_that_is_suggested(workspace):
    """Also where nothing can be asked, as in a script."""
    drafted = CliRunner().invoke(
        app, ["diagnose", "--draft", *(word for a in ANSWERS for word in ("-a", a))]
    )
    assert "Next: lab diagnose --yes" in drafted.output
    assert not load_record(workspace).commitments
    committed = CliRunner().invoke(app, ["diagnose", "--yes"])
    assert "Committed as your first diagnosis" in " ".join(committed.output.split())
    assert len(load_record(workspace).commitments) == 1


def test_without_a_terminal_the_next_step_says_that_the_last_answer_commits(workspace, monkeypatch):
    drafted = CliRunner().invoke(app, ["diagnose", "--draft", "-a", ANSWERS[0]]).output
    commits = "Giving the last answer commits them all; with `--draft` they are only saved."
    assert drafted.endswith(f"-a where=… -a predicted_gain=…\n{commits}\n")
    assert "Committed as your first diagnosis" in diagnose(*ANSWERS[1:]).output
    shown: list[str] = []
    monkeypatch.setattr(diagnosing.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(diagnosing, "say", lambda text, *_, **__: shown.append(text))
    save_answers(workspace, {"where": ""})
    diagnosing.command(["evidence=0.5"])
    assert any("Still to answer: where" in text for text in shown)
    assert commits not in shown, "at a terminal it asks first"


def test_without_a_terminal_the_bare_command_commits_nothing_and_loses_nothing(workspace):
    CliRunner().invoke(app, ["diagnose", "--draft", *(w for a in ANSWERS for w in ("-a", a))])
    before = (workspace.root / "diagnosis.toml").read_text()
    refused = diagnose()
    assert isinstance(refused.exception, UsageError)
    assert "no terminal to ask on" in refused.exception.message
    assert refused.exception.remedy == "`lab diagnose --yes` commits them."
    assert not load_record(workspace).commitments
    assert (workspace.root / "diagnosis.toml").read_text() == before
    diagnose(*ANSWERS)
    assert diagnose().exception is None, "there is nothing to agree to"
    save_answers(workspace, {"evidence": 0.5})
    assert isinstance(diagnose().exception, UsageError), "a correction is not committed either"
    assert len(load_record(workspace).commitments) == 1


@pytest.fixture
def recording(tmp_path, monkeypatch) -> Workspace:
    """A lab whose code records itself, with two captures of edited code."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("resnet-top-ops"), tmp_path / "work", "cpu")
    for number in (1, 2):
        folder = workspace.captures / f"000{number}-torch"
        folder.mkdir(parents=True)
        shutil.copy(TRACE.parent / "synthetic-elementwise.json.gz", folder / "trace.json.gz")
        described = {"files": ["trace.json.gz"], "code": f"edit {number}", "made_at": "2026-01-01"}
        (folder / "capture.json").write_text(json.dumps(described))
    monkeypatch.chdir(workspace.root)
    return workspace


def test_a_script_whose_capture_lacks_something_is_edited_before_any_answer(recording):
    file = recording.captures / "0002-torch" / "capture.json"
    described = json.loads(file.read_text()) | {"code": recording.lab.code_hash(recording.root)}
    file.write_text(json.dumps(described))

    def step():
        return next_here(recording, [], load_record(recording), {}, load_progress()).command

    assert step() == "lab report"
    file.write_text(json.dumps(described | {"notes": ["The capture holds 3 passes."]}))
    assert step() == "edit profile_resnet.py"


def test_an_operator_that_the_latest_capture_lacks_is_refused_with_near_names(recording):
    done = diagnose("first=aten::foreach_add")
    assert isinstance(done.exception, UsageError)
    assert "first: Capture 0002-torch has no operator 'aten::foreach_add'." in (
        done.exception.message
    )
    assert "Near it: aten::_foreach_add_" in done.exception.message
    assert not load_answers(recording.root)["first"]
    assert "Near" not in diagnose("first=aten::nosuch").exception.message
    assert diagnose("first=addmm").exit_code == 0, "its namespace may be left out"


def test_what_a_check_said_of_an_answer_that_is_corrected_is_not_repeated(recording):
    save_answers(recording, {"first": "aten::conv2d", "ceiling": 1.69})
    leave_check(recording, ceiling="not that of aten::conv2d.")
    assert "Check 1: not that of aten::conv2d." in diagnose().output
    save_answers(recording, {"first": "aten::mkldnn_convolution"})
    assert "Check 1" not in diagnose().output


def test_answers_that_a_criterion_names_are_marked_and_what_rests_on_them_is_not(recording):
    answers = {"first": "aten::conv2d", "second": "aten::x", "third": "aten::norm", "share": 0.6}
    bounds = "compute-bound, memory-bound, memory-bound"
    save_answers(recording, answers | {"bounds": bounds, "ceiling": 2.5})
    CliRunner().invoke(app, ["diagnose", "--yes"])
    spec = next(one for one in recording.lab.spec.devices["cpu"].criteria if one.id == "share")
    leave_check(
        recording,
        **{"top-operators": "Not met. `first` is not aten::conv2d. `third` is not aten::norm."},
        bounds="aten::conv2d does no work that can be counted.",
        ceiling="Not what Amdahl's law gives for your `share`.",
        share=f"Not met: {describe_criterion(spec)}. That is its total time.",
    )
    shown = " ".join(diagnose().output.split())
    assert "✗ Check 1: `first` is not aten::conv2d." in shown
    assert "✗ Check 1: That is its total time." in shown
    assert "Check 1: Not what Amdahl's law gives" in shown
    assert shown.endswith("Next: lab diagnose -a first=… -a third=… -a ceiling=… -a share=…")
    save_answers(recording, {"share": 0.5})
    shown = diagnose().output
    assert "Check 1: Not what" not in shown, "it was about another share"
    assert "`share` and `ceiling` do not fit together" in " ".join(shown.split())


def test_what_is_final_cannot_be_drafted(workspace):
    words = ["diagnose", "--reveal", "--draft", "--yes", "-a", "cause=1", "-a", "gain=1"]
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, UsageError)
    assert "nothing was done" in refused.exception.message
    assert not load_record(workspace).help.revealed


def test_the_end_of_input_commits_nothing_and_says_so(workspace, monkeypatch):
    monkeypatch.setattr(diagnosing.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(diagnosing.typer, "confirm", Mock(side_effect=typer.Abort))
    notes: list[str] = []
    monkeypatch.setattr(diagnosing, "note", notes.append)
    with pytest.raises(typer.Abort):
        diagnosing.command([*ANSWERS])
    assert "Nothing was committed: your answers are saved" in notes[-1]
    assert not load_record(workspace).commitments


def test_who_has_named_a_cause_is_asked_for_its_figure_alone(ensemble):
    cause, evidence, *_ = ensemble.lab.spec.questions
    unnamed = diagnose().output
    assert evidence.measure in unnamed
    assert not any(rule in unnamed for rule in evidence.rules.values())
    for number, choice in enumerate(cause.choices, start=1):
        shown = diagnose(f"cause={number}").output
        assert evidence.rules[choice] in shown
        assert evidence.measure not in shown


def test_at_the_terminal_the_figure_of_the_cause_just_named_is_asked_for(ensemble, monkeypatch):
    cause, evidence, *_ = ensemble.lab.spec.questions
    monkeypatch.setattr(diagnosing.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    given = iter(["2", "0.4", "10-20 ms", "2"])
    monkeypatch.setattr(asking.typer, "prompt", lambda *_, **__: next(given))
    monkeypatch.setattr(diagnosing.typer, "confirm", lambda *_, **__: False)
    shown: list[str] = []
    monkeypatch.setattr(asking, "say", lambda text, *_, **__: shown.append(text))
    diagnosing.command(None)
    assert evidence.rules[cause.choices[1]] in shown
    assert evidence.measure not in shown


def test_at_the_terminal_yes_commits_what_is_complete_without_a_question(workspace, monkeypatch):
    CliRunner().invoke(app, ["diagnose", "--draft", *(w for a in ANSWERS for w in ("-a", a))])
    monkeypatch.setattr(diagnosing.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(asking.typer, "prompt", Mock(side_effect=AssertionError))
    diagnosing.command(None, yes=True)
    assert len(load_record(workspace).commitments) == 1


def test_who_asks_for_a_sibling_as_in_an_earlier_version_is_sent_to_a_case(workspace):
    done = CliRunner().invoke(app, ["diagnose", "--sibling"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.remedy.startswith(f"`lab case --lab {workspace.lab.slug}` draws one")
