"""Kinds of learners, played through every lab: who copies or guesses does not end with "named the
cause", who measures does.

Captures are recorded ones and checks are stood in for: what is measured is not the point here. The
last test plays one lab for real, on a modelled clock.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from typer.testing import CliRunner

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.selection import figures_within
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.analysis.summary import analyse, summarise
from bottleneck_lab.catalog import CriterionSpec, Lab, load_labs
from bottleneck_lab.cli import app
from bottleneck_lab.commands import check as check_command
from bottleneck_lab.course import checking
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.conclusion import conclude
from bottleneck_lab.grading.criteria import grade_check
from bottleneck_lab.grading.diagnosis import needs_capture
from bottleneck_lab.grading.figures import figures_of
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.trace import Timeline, load, merge_ranks
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.cases import load_drawn
from bottleneck_lab.workspace.diagnosis_file import load_answers
from bottleneck_lab.workspace.folder import open_workspace
from bottleneck_lab.workspace.progress import load_progress

from .. import warm
from ..modules import load_file
from ..unit.analysis.test_serving import in_turns

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "datasets" / "captures"
LABS = list(load_labs().values())
MADE = ("resnet-latency", "stuttering-tagger")
"""Labs whose recorded capture is made here: they ask for what the made-up captures do not have, a
range or stalls as close together as the lab's own.
"""
WORDS = re.compile(r"-bound\b|starved|Findings|Amdahl\b.*\d|What to try|at most \d+\.\d+x")


class Learner:
    """A learner in a lab that was captured. `lab` runs the real program in this process."""

    def __init__(self, lab: Lab, folder: Path, monkeypatch) -> None:
        self.lab_spec, self.runner, self.measured, self.speed = lab, CliRunner(), 0, 2.0
        monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(folder / "home"))
        monkeypatch.chdir(folder)
        device = next(device for device in ("virtual", "cpu", "cuda") if device in lab.spec.devices)
        assert self.lab("start", lab.slug, "work", "--no-data", "--device", device).exit_code == 0
        self.place = folder / "work"
        monkeypatch.chdir(self.place)
        monkeypatch.setattr(checking, "check_lab", self._measure)
        # What is right on this machine is a measurement too: roofline's takes half a minute.
        monkeypatch.setattr(checking, "solution_here", lambda lab, *_: load_answers(lab.solution))
        monkeypatch.setattr(checking, "data_folder", lambda _lab: folder)
        monkeypatch.setattr(checking, "require_torch", lambda _command: None)
        # It watches for half a second what else runs here.
        monkeypatch.setattr(check_command, "_mind_others", lambda *_: None)
        self.capture()

    def lab(self, *arguments: str, typed: str | None = None) -> SimpleNamespace:
        """Exit code and everything printed, with the message of an error as `main` prints it."""
        done = self.runner.invoke(app, list(arguments), input=typed, prog_name="lab")
        error = done.exception
        if isinstance(error, LabError):
            return SimpleNamespace(
                exit_code=int(error.exit_code),
                output=f"{done.output}{error.message}\n{error.remedy}",
            )
        assert error is None or isinstance(error, SystemExit), done.exc_info
        return SimpleNamespace(exit_code=done.exit_code, output=done.output)

    @property
    def workspace(self):
        return open_workspace(self.place)

    def capture(self) -> None:
        """Puts a recorded capture of the lab's kind where `lab profile` would have put it."""
        folder = self.place / ".lab" / "captures" / "0001-torch"
        folder.mkdir(parents=True)
        made = recording(self.lab_spec.slug)
        for name, data in made.files.items():
            (folder / name).write_bytes(data)
        code = self.lab_spec.code_hash(self.lab_spec.path)
        (folder / "capture.json").write_text(
            json.dumps({"files": [*made.files], "code": code, "made_at": "2026-01-01"})
        )
        self.timeline = made.timeline

    def right(self) -> dict[str, str]:
        """What somebody answers who measures in the own capture."""
        return dict(recording(self.lab_spec.slug).answers)

    def commit(self, answers: dict[str, str]):
        given = [text for key, value in answers.items() for text in ("-a", f"{key}={value}")]
        return self.lab("diagnose", *given)

    def check(self):
        """The answer of `lab check`, and the verdict that it recorded, if any."""
        before = len(load_attempts(self.workspace))
        done = self.lab("check")
        attempts = load_attempts(self.workspace)
        return done, attempts[-1].verdict if len(attempts) > before else None

    def _measure(self, lab, folder, device, *, graded, **_):
        """Stands for the measurement: the fix is right; a lab that judges answers by its own
        captures finds the solution's right.
        """
        self.measured += 1
        solved, given = load_answers(lab.solution), load_answers(folder)
        wrong = {key for key, value in solved.items() if given.get(key) != value}
        results = []
        for spec in lab.spec.devices[device].criteria:
            judged = spec.kind == "diagnosis" and wrong
            results.append(
                grade_check(
                    spec,
                    "That is the order of total times: sort by self time." if judged else None,
                    1,
                )
            )
        results = [
            replace(each, value=self.speed, unit="x") if each.id == "speedup" else each
            for each in results
        ]
        diagnosis = [] if lab.spec.devices[device].judges_diagnosis else graded.results
        results += diagnosis
        specs = [
            *lab.spec.devices[device].criteria,
            *(CriterionSpec(each.id, "diagnosis", each.id) for each in diagnosis),
        ]
        said = conclude(results, specs=specs)
        return Verdict(
            outcome=said.outcome,
            reason=said.reason,
            summary=said.summary,
            advice=said.advice,
            lab=lab.slug,
            lab_hash=lab.content_hash(),
            submission_hash=lab.code_hash(folder),
            device=device,
            criteria=results,
            environment={},
            isolation={},
            started_at="2026-01-02T00:00:00+00:00",
            duration_s=1.0,
            prediction=graded.prediction and replace(graded.prediction, measured=2.0),
        )

    @property
    def passed(self) -> bool:
        return bool(load_progress().labs[self.lab_spec.slug].passed)


class Recording(NamedTuple):
    """A recorded capture of a lab's kind: its files by name, what was read from them, and what
    somebody answers who measures in it.
    """

    files: dict[str, bytes]
    timeline: Timeline
    answers: dict[str, str]


@cache
def recording(slug: str) -> Recording:
    """Made or read once for all learners of the lab."""
    lab = load_labs()[slug]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if slug in MADE:
            trace = json.dumps(requests(slug)).encode()
            (folder / "trace.json.gz").write_bytes(gzip.compress(trace))
        elif (real := CAPTURES / "h200-labs" / f"{slug}.json.gz").is_file():
            shutil.copy(real, folder)
        elif lab.spec.measure == "inference_server":
            # It asks for batches, which no recorded capture has.
            trace = {"traceEvents": list(in_turns(12)), "emulatedDevice": "a test"}
            (folder / "trace.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
        elif lab.spec.measure == "operator_profile":
            # Answers name operators, and those that a capture does not have are refused.
            trace = {"traceEvents": list(operators(lab))}
            (folder / "trace.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
        else:
            shutil.copy(CAPTURES / recorded(lab), folder)
        paths = sorted(folder.glob("*.gz"))
        timeline = merge_ranks([load(path) for path in paths])
        files = {path.name: path.read_bytes() for path in paths}
        return Recording(files, timeline, measured_answers(lab, timeline))


def requests(slug: str) -> dict:
    """Eight requests, each with a slow range or with many reads of results."""
    make = load_file(ROOT / "datasets" / "captures" / "make.py", "make_captures")
    run = make.Program(1, 0, jitter=0.05)
    is_slow = slug == "resnet-latency"
    for number in range(8):
        begin = run.host
        run.python(9_000.0 if is_slow else 80.0)
        run.range("preprocess", begin)
        start = run.host
        for _ in range(24):
            run.operator("aten::addmm", "sm90_xmma_gemm_bf16bf16_bf16f32_tn", 120.0, host_us=8.0)
            if not is_slow:
                run.item()
                run.python(110.0)
        run.range("model", start)
        run.range(f"ProfilerStep#{number}", begin)
    trace = run.trace(world_size=1)
    del trace["injected"]
    return trace


def operators(lab: Lab) -> Iterator[dict]:
    """Yield the solution's operators, one after another, and one that is never the right answer."""
    named = [str(each) for each in load_answers(lab.solution).values() if "::" in str(each)]
    start = 0
    for number, name in enumerate([*named, "aten::nonsense"] * 4):
        length = 4000 - 1000 * (number % (len(named) + 1))
        row = {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": length}
        yield {**row, "pid": 1, "tid": 1}
        start += length + 10


def measured_answers(lab: Lab, timeline: Timeline) -> dict[str, str]:
    """What somebody answers who measures: the choices of the solution, figures and a stretch of the
    own capture.
    """
    solved, figures = load_answers(lab.solution), figures_of(summarise(timeline))
    answers = {}
    for question in lab.spec.questions:
        if question.from_capture:
            answers[question.id] = f"{figures[question.from_capture]:.3f}"
        elif question.shows:
            answers[question.id] = stretch(timeline, question.shows, question.least, best=True)
        elif question.ceiling_of:
            answers[question.id] = f"{ceiling(float(answers[question.ceiling_of])):.2f}"
        else:
            answers[question.id] = str(solved[question.id])
    return answers


def stretch(timeline: Timeline, shows: str, least: float, *, best: bool) -> str:
    """A stretch of the capture with most, or least, of a figure."""
    origin, end = timeline.extent
    length = (end - origin) // 100  # the briefs ask for a part of a step
    parts = [Window(at, at + length) for at in range(0, end - origin - length, length)]
    _, summary, times = analyse(timeline)
    shares = {
        part: figures_within(timeline, times, summary.syncs, part).get(shows, 0.0) for part in parts
    }
    found = (
        max(shares, key=lambda part: shares[part])
        if best
        else min(shares, key=lambda part: shares[part])
    )
    assert (shares[found] >= least) is best
    return f"{found.start / 1e6:.4f}-{found.end / 1e6:.4f} ms"


def recorded(lab: Lab) -> str:
    """The made-up capture whose first finding is the one that the lab teaches; any where it teaches
    none.
    """
    listed = json.loads((CAPTURES / "manifest.json").read_text())["captures"]
    traces = [each for each in listed if each["file"].endswith(".json.gz")]
    return next(
        (each["file"] for each in traces if each["findings"][:1] == [lab.spec.taught]),
        traces[0]["file"],
    )


def wrong_choice(lab: Lab) -> tuple[str, str]:
    """A choice question and an answer to it that is not the right one; in a lab without choices, a
    question for a name.
    """
    solved = load_answers(lab.solution)
    for question in lab.spec.questions:
        if question.type == "choice":
            return question.id, next(
                choice for choice in question.choices if choice != solved[question.id]
            )
    named = next(each.id for each in lab.spec.questions if each.type == "text")
    # A name that has the form of an answer, where there is one.
    return named, {"always": "sort"}.get(named, "nonsense")


@pytest.fixture(params=LABS, ids=lambda lab: lab.slug)
def learner(request, tmp_path, monkeypatch) -> Learner:
    return Learner(request.param, tmp_path, monkeypatch)


def test_who_measures_has_all_answers_right_on_the_first_try(learner):
    assert learner.commit(learner.right()).exit_code == 0
    done, verdict = learner.check()
    assert verdict is not None, done.output
    assert verdict.outcome == "PASS", done.output
    standing = verdict.diagnosis
    assert (standing.named, standing.measured, standing.corrections) == (True, True, 0)
    shown = " ".join(done.output.split())
    what = "Cause named" if learner.lab_spec.spec.asks_for_cause else "All answers right"
    assert f"{what} on the first try" in shown
    assert standing.missed is UNSET
    assert learner.passed


def test_who_takes_one_hint_names_the_cause_and_the_hint_is_shown(learner):
    learner.lab("hint")
    learner.commit(learner.right())
    done, verdict = learner.check()
    assert (verdict.diagnosis.named, verdict.diagnosis.hints) == (True, 1)
    assert "1 hint" in done.output


def test_who_copies_whatever_is_printed_finds_no_answer(learner):
    """Before a diagnosis is committed no command says a cause, a finding or a ceiling."""
    page = learner.place / "page.html"
    assert learner.lab("report", "--html", str(page)).exit_code == 0
    shown = [
        learner.lab(*words).output
        for words in (["report"], ["report", "--json"], ["report", "--gap", "1"], ["history"], [])
    ]
    body = re.sub(r"<(style|script)[^>]*>.*?</\1>", "", page.read_text(), flags=re.DOTALL)
    for text in [*shown, body, learner.lab("list").output]:
        assert not WORDS.search(text), WORDS.search(text)
    capture = str(next((learner.place / ".lab" / "captures").iterdir()))
    assert not WORDS.search(learner.lab("report", capture).output), "nor by its path"
    assert learner.lab("check").exit_code == 2
    assert learner.measured == 0


def test_who_guesses_every_choice_ends_with_corrections(learner):
    lab = learner.lab_spec
    if not any(question.choices for question in lab.spec.questions):
        pytest.skip("it offers no choices: everything that it asks is read or measured")
    for question in lab.spec.questions:
        if question.type == "choice":
            for choice in sorted(
                question.choices, key=learner.right()[question.id].__eq__
            ):  # the right one last
                answers = learner.right() | {question.id: choice}
                guessed = {
                    each.id: "2" if each.type == "ratio" else "0.5"
                    for each in lab.spec.questions
                    if each.from_capture
                }
                learner.commit(answers | guessed)
                learner.check()
    verdict = learner.check()[1]
    assert verdict.diagnosis.corrections
    assert verdict.diagnosis.named is False


def test_who_fixes_without_diagnosing_is_not_measured(learner):
    done, verdict = learner.check()
    assert (done.exit_code, verdict, learner.measured) == (2, None, 0)
    assert "lab diagnose" in done.output


@pytest.mark.parametrize("answer", ["", "  ", "no idea", "-1"])
def test_who_answers_anything_is_refused_before_a_measurement(learner, answer):
    learner.commit(dict.fromkeys(learner.right(), answer))
    done, _ = learner.check()
    texts = all(question.type == "text" for question in learner.lab_spec.spec.questions)
    assert done.exit_code == 2 or texts
    assert learner.measured == 0


def test_a_wrong_cause_with_a_right_fix_is_a_wrong_diagnosis_and_a_correction_stays_one(learner):
    id_, wrong = wrong_choice(learner.lab_spec)
    learner.commit(learner.right() | {id_: wrong})
    done, verdict = learner.check()
    assert (verdict.outcome, verdict.reason) == ("FAIL", "wrong diagnosis")
    right = str(load_answers(learner.lab_spec.solution)[id_])
    texts = [
        criterion.text
        for device in learner.lab_spec.spec.devices.values()
        for criterion in device.criteria
    ]
    assert right not in done.output or any(right in text for text in texts), (
        "a failed check does not tell the right answer"
    )
    assert done.output.count(verdict.summary[:40]) <= 1, "and says what failed once"
    learner.commit(learner.right())
    _, verdict = learner.check()
    assert verdict.outcome == "PASS"
    assert (verdict.diagnosis.named, verdict.diagnosis.corrections) == (False, 1)
    assert "correction 1" in learner.lab("history").output


def test_who_only_takes_hints_did_not_name_it(learner):
    for _ in learner.lab_spec.spec.hints:
        learner.lab("hint")
    learner.commit(learner.right())
    assert (learner.check()[1].diagnosis.named, learner.check()[1].diagnosis.told) == (
        False,
        "hints",
    )


def test_who_reveals_did_not_name_it(learner):
    assert learner.lab("diagnose", "--reveal", "--yes").exit_code == 0
    assert (
        "Findings" in learner.lab("report").output
        or "Top operators" in learner.lab("report").output
    )
    learner.commit(learner.right())
    verdict = learner.check()[1]
    assert (verdict.diagnosis.named, verdict.diagnosis.told) == (False, "revealed")


def test_who_copies_the_solution_has_not_solved_it(learner):
    assert learner.lab("solution", "--yes").exit_code == 0
    device = next(iter(learner.lab_spec.spec.devices.values()))
    if device.judges_diagnosis:  # answers that a check measures itself are not copied
        learner.commit(learner.right())
    done, verdict = learner.check()
    assert verdict.outcome == "PASS", done.output
    assert verdict.diagnosis.copied
    assert verdict.diagnosis.named is False
    assert not learner.passed
    assert "which does not count as yours" in " ".join(done.output.split())


def test_evidence_of_another_capture_does_not_count(learner):
    """The cause is right, the stretch is somebody else's; where none is asked for, the figure is.
    The cause stays named, and the other answer wrong, whatever is corrected later.
    """
    questions, right = learner.lab_spec.spec.questions, learner.right()
    if not needs_capture(questions):
        pytest.skip("it asks for nothing that only a capture shows")
    stretches = {
        question.id: stretch(learner.timeline, question.shows, question.least, best=False)
        for question in questions
        if question.shows
    }
    figures = {
        question.id: f"{2 * float(right[question.id]):.3f}"
        for question in questions
        if question.from_capture
    }
    learner.commit(right | (stretches or figures))
    done, verdict = learner.check()
    assert verdict.reason == "wrong diagnosis"
    assert (verdict.diagnosis.named, verdict.diagnosis.measured) == (True, False)
    assert f", {' and '.join(verdict.diagnosis.missed)} wrong" in " ".join(done.output.split())
    learner.commit(right)
    _, verdict = learner.check()
    assert verdict.outcome == "PASS"
    assert (verdict.diagnosis.measured, verdict.diagnosis.corrections) == (False, 1)


def test_a_gain_to_the_reference_is_what_a_check_of_the_shipped_code_measured(
    tmp_path, monkeypatch
):
    lab = load_labs()["fused-attention"]
    learner = Learner(lab, tmp_path, monkeypatch)
    learner.commit(learner.right())
    (learner.place / lab.spec.editable[0]).write_text("// mine\n")
    assert learner.check()[1].prediction.measured is None
    shutil.copy(lab.path / lab.spec.editable[0], learner.place)
    learner.speed = 0.1
    assert learner.check()[1].prediction.measured == pytest.approx(10)
    (learner.place / lab.spec.editable[0]).write_text("// mine\n")
    learner.speed = 1.2
    assert learner.check()[1].prediction.measured == pytest.approx(10)


def test_a_case_follows_the_lab(learner):
    cases = learner.lab_spec.spec.cases
    if not cases:  # what a lab teaches may not show in a capture
        assert learner.lab("case", "--lab", learner.lab_spec.slug).exit_code == 2
        return
    learner.commit(learner.right())
    learner.check()
    draw = f"lab case --lab {learner.lab_spec.slug}"
    assert f"Next: {draw}" in learner.lab().output
    drawn = learner.lab(*draw.split()[1:])
    assert (drawn.exit_code, load_drawn()[-1].name in cases) == (0, True)
    assert "Next: lab case\n" in learner.lab().output
    assert not WORDS.search(learner.lab("report", "cases/0001").output.partition("Next:")[0])
    answers = ("cause=straggler", "evidence=20%", "line=30", "gain=1.5")
    done = learner.lab("case", *(f"-a{each}" for each in answers))
    # A healthy program has nothing to switch off.
    shown = ("Modelled, each cause switched off by itself:", "it is healthy")
    assert any(each in done.output for each in shown), done.output
    assert "  lab case, " in learner.lab("history").output
    assert "Next: lab case" not in learner.lab().output


@pytest.mark.slow  # the demonstration plays the same lab, and learners before it every other step
@pytest.mark.timeout(600)
def test_a_whole_session_with_the_real_program(tmp_path):
    """From `lab start` to the further case in processes of their own, with a real capture and a
    real verdict of an honest fix.
    """
    lab = load_labs()["stuttering-tagger"]
    place = tmp_path / "work"
    environment = {
        **os.environ,
        "BOTTLENECK_LAB_HOME": str(tmp_path / "home"),
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }

    def run(*words: str, status: int = 0) -> str:
        folder = place if place.exists() else tmp_path
        done = warm.lab(*words, at=folder, environment=environment, timeout_s=280)
        assert done.returncode == status, f"{words}: {done.stdout}{done.stderr}"
        return " ".join((done.stdout + done.stderr).split())

    assert "lab profile" in run("start", lab.slug, "work", "--device", "virtual")
    shown = run("profile") + run("report") + run("report", "--json")
    assert not WORDS.search(shown), WORDS.search(shown)
    assert "lab diagnose" in run("check", status=2), "nothing is measured before a diagnosis"
    assert f"1 of {len(lab.spec.hints)} hints taken" in run("hint")
    timeline = load(next((place / ".lab" / "captures" / "0001-torch").glob("*.json*.gz")))
    answers = measured_answers(lab, timeline)
    told = run(
        "diagnose", *(text for key, value in answers.items() for text in ("-a", f"{key}={value}"))
    )
    assert "✓" not in told, "whether it is right is not known yet"
    assert "the program waits for the device at most 1 time" in told, (
        "the limit that the brief keeps back"
    )
    assert "synchronisation" in run("report"), "the diagnosis is committed: causes are shown"
    shutil.copy(ROOT / "tests" / "variants" / lab.slug / "weighs_positions" / "train.py", place)
    verdict = run("check")
    assert "PASS" in verdict
    assert "Cause named on the first try with 1 hint" in verdict
    assert "on the first try with 1 hint." in verdict
    assert f"You predicted {float(answers['predicted_gain']):.2f}x and measured" in verdict
    history = json.loads(run("history", "--json"))
    assert [row["outcome"] for row in history["checks"]] == ["PASS"]
    assert history["checks"][0]["diagnosis"]["named"] is True
    assert history["checks"][0]["diagnosis"]["measured"] is True
    assert "lab report cases/0001" in run("case", "--lab", lab.slug)
    case = run("report", "cases/0001")
    assert not WORDS.search(case), WORDS.search(case)
    answers = ("cause=1", "evidence=20%", "line=2", "gain=1.5")
    assert "fixed.py" in run("case", *(f"-a{each}" for each in answers))
    assert "lab case, " in run("history")
