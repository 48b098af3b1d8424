"""Every command that a message suggests works as it is printed, in that lab, at that moment.

A lab, of the miniature course or a real one, is brought into each state that it can be in. There
every message is read, and the commands that it suggests are typed, in the order in which it names
them. The measurement and the profiler are stood in for; everything between them and the messages
is real.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cli import app
from bottleneck_lab.commands import check as check_command
from bottleneck_lab.commands import profile, run, start
from bottleneck_lab.course import checking
from bottleneck_lab.errors import LabError
from bottleneck_lab.grading.conclusion import ADVICE
from bottleneck_lab.grading.verdict import WHEN_QUIET, Outcome, Verdict
from bottleneck_lab.workspace.diagnosis_file import load_answers

ROOT = Path(__file__).parents[2]
MINI = Path(__file__).parent / "mini"
COURSE = tomllib.loads((ROOT / "labs" / "course.toml").read_text())
LABS = [slug for stage in COURSE["stages"] for slug in stage["labs"]]
TRACE = ROOT / "datasets" / "captures" / "synthetic-input.json.gz"
PLACEHOLDER = re.compile(r"\b(N|[A-Z][A-Z-]+)\b|…")
"""What a learner has to fill in: N, LAB, FILE, START-END, `-a cause=…`."""
ELSEWHERE = re.compile(
    r"lab (data|join|watch|doctor --measure|profile --tool (nsys|ncu|sanitizer|memory)"
    r"|profile --|status|submit|list|solution$|run --ranks|check --static|report step\.json)"
)
"""Needs a network, a data set, a GPU's tools, a compiler or a terminal, takes minutes, or reads
what another program writes; each has tests of its own.
"""


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> Path:
    """The miniature course, with unseen cases, and with a lab that is not captured."""
    content = tmp_path_factory.mktemp("course") / "content"
    shutil.copytree(MINI, content)
    (content / "datasets").symlink_to(ROOT / "datasets")
    slow = content / "labs" / "slow" / "lab.toml"
    printed = slow.read_text().replace(
        'starter_fails = "correct but slow"',
        'starter_fails = "correct but slow"\nevidence = "run"',
    )
    text = slow.read_text()
    first = 'starter_fails = "correct but slow"'
    slow.write_text(text.replace(first, f'{first}\ncases = ["price-tags"]'))
    for part in ("labs", "solutions"):
        shutil.copytree(content / part / "slow", content / part / "printed")
    (content / "labs" / "printed" / "lab.toml").write_text(printed)
    course = content / "labs" / "course.toml"
    course.write_text(course.read_text().replace('"slow"', '"slow", "printed"'))
    return content


class Learner:
    """A learner in a folder of their own; `outcome` and `reason` are what a check finds."""

    def __init__(self, folder: Path, content: Path, monkeypatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.outcome, self.reason = Outcome.FAIL, "correct but slow"
        monkeypatch.setenv("BOTTLENECK_LAB_CONTENT", str(content))
        monkeypatch.setattr(checking, "check_lab", self._measure)
        # What is right on this machine is a measurement too: roofline's takes seconds.
        monkeypatch.setattr(checking, "solution_here", lambda lab, *_: load_answers(lab.solution))
        monkeypatch.setattr(check_command, "_mind_others", lambda *_: None)
        monkeypatch.setattr(profile, "profile_workload", _capture)
        # Data sets count as made: nothing reads them, since nothing is measured.
        for name in ("photos", "tritonserver"):
            made = folder / "home" / "datasets" / name / "manifest.json"
            made.parent.mkdir(parents=True)
            made.write_text('{"complete": true}')
        monkeypatch.setattr(start, "make", lambda _name: None)
        monkeypatch.setattr(run, "describe_others", lambda _: "")
        monkeypatch.setattr(run, "_scale", lambda *_: None)
        monkeypatch.setattr(run, "run_workload", lambda _, on_line: on_line("285.0") or 0)
        load_labs.cache_clear()
        self.at(folder)

    def at(self, folder: Path) -> None:
        """Go to a copy of the learner's folder: home and work move with it."""
        self.monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(folder / "home"))
        work = folder / "work"
        os.chdir(work if work.exists() else folder)

    def type(self, *words: str) -> SimpleNamespace:
        """Exit code and everything printed, with an error as `main` prints it."""
        done = CliRunner().invoke(app, list(words), prog_name="lab")
        error = done.exception
        if isinstance(error, LabError):
            shown = f"{done.output}{error.message}\n→ {error.remedy}"
            return SimpleNamespace(status=int(error.exit_code), shown=shown)
        assert error is None or isinstance(error, SystemExit), (words, done.exc_info)
        return SimpleNamespace(status=done.exit_code, shown=done.output)

    def _measure(self, lab, folder, device, *, graded, **_):
        advice = list(ADVICE.get(self.reason, []))
        if self.outcome == "INCONCLUSIVE":
            advice = [WHEN_QUIET, "Then run `lab check` again."]
        return Verdict(
            outcome=self.outcome,
            reason=self.reason,
            summary="A summary.",
            advice=advice,
            lab=lab.slug,
            lab_hash=lab.content_hash(),
            submission_hash=lab.code_hash(folder),
            device=device,
            criteria=[] if lab.spec.devices[device].judges_diagnosis else graded.results,
            environment={},
            isolation={},
            started_at="2026-01-02T00:00:00+00:00",
            duration_s=1.0,
            prediction=graded.prediction and replace(graded.prediction, measured=2.0),
        )


def _capture(workload, tool, out, _progress):
    """Stands for the profiler: a made-up capture of the code as it is now."""
    shutil.copy(TRACE, out / "trace.json.gz")
    code = workload.lab.code_hash(workload.folder)
    described = {"files": ["trace.json.gz"], "tool": tool, "code": code}
    (out / "capture.json").write_text(json.dumps({**described, "made_at": "2026-01-01"}))


ANSWER = ["diagnose", "-a", "cause=1", "-a", "gain=3"]
GIVEN = {"choice": "1", "share": "0.5", "ratio": "2", "number": "5", "interval": "10-20 ms"}
"""An answer of the right form to each type of question but a text."""
OPERATOR = "addmm"
"""An operator of that capture."""
DIAGNOSED = [["profile"], ANSWER]
CASE = ["case", "-a", "cause=2", "-a", "evidence=20%", "-a", "line=2", "-a", "gain=2"]
FAIL = ("FAIL", "correct but slow")
PASS = ("PASS", None)
ERROR, INCONCLUSIVE = ("ERROR", None), ("INCONCLUSIVE", None)
STATES = {
    "just started": [],
    "looked at by running": [["run"]],
    "captured": [["profile"]],
    "half answered": [["profile"], ["diagnose", "-a", "cause=1"]],
    "answered wrongly": [["profile"], ["diagnose", "-a", "cause=riddle"]],
    "answered, not committed": [["profile"], [*ANSWER, "--draft"]],
    "diagnosed": DIAGNOSED,
    "diagnosed without a capture": [ANSWER],
    "corrected": [*DIAGNOSED, ["diagnose", "-a", "gain=4"]],
    "revealed": [["profile"], ["diagnose", "--reveal", "--yes"]],
    "revealed without a capture": [["diagnose", "--reveal", "--yes"]],
    "all hints taken": [["profile"], ["hint"], ["hint"], ["hint"]],
    **{f"failed: {reason}": [*DIAGNOSED, ("FAIL", reason)] for reason in ADVICE},
    "failed without a capture": [ANSWER, FAIL],
    "failed, captured again": [*DIAGNOSED, FAIL, ["profile"]],
    "undecided": [*DIAGNOSED, INCONCLUSIVE],
    "the machine failed": [*DIAGNOSED, ERROR],
    "passed": [*DIAGNOSED, PASS],
    "passed without a capture": [ANSWER, PASS],
    "passed, then failed": [*DIAGNOSED, PASS, FAIL],
    "passed, a case drawn": [*DIAGNOSED, PASS, ["case", "--lab", "slow"]],
    "passed, a case answered": [*DIAGNOSED, PASS, ["case", "--lab", "slow"], CASE],
    "passed, solution read": [*DIAGNOSED, PASS, ["solution", "--show"]],
    "solution taken": [["solution", "--yes"]],
    "solution taken and checked": [["solution", "--yes"], PASS],
    "reset": [*DIAGNOSED, FAIL, ["reset", "--yes"]],
    "of another version": [["older"]],
}
"""The way to each state: commands, or the outcome of a check."""

READING = [
    [],
    ["list"],
    ["hint", "--again"],
    ["report"],
    ["report", "--recorded", "ncu"],
    ["report", "9"],
    ["report", "--gap", "99"],
    ["report", "--at", "never"],
    ["compare"],
    ["history"],
    ["history", "--course"],
]
CHANGING = [
    ["hint"],
    ["diagnose"],
    ["diagnose", "--reveal", "--yes"],
    ["run"],
    ["profile"],
    ["check"],
    ["reset", "--yes"],
    ["solution", "--show"],
]
"""Commands whose messages are read in every state. What changes the state is typed in a copy."""


def suggested(shown: str) -> list[str]:
    """The commands that a message suggests, in its order, without those to be filled in."""
    quoted = re.finditer(r"`(lab|(?:lab|cd) [^`]*)`", shown)
    steps = re.finditer(r"^ *(?:Next|Then): ((?:lab|cd)\b.*)$", shown, re.MULTILINE)
    found = sorted((match.start(), match[1]) for match in (*quoted, *steps))
    commands = [" ".join(command.split()).rstrip(".") for _, command in found]
    return [command for command in commands if not PLACEHOLDER.search(command)]


EVERY_DAY = ("just started", "captured", "diagnosed", "failed: correct but slow", "passed")
"""The states that `make long` walks; `make slow` walks them all, which takes minutes."""


@pytest.mark.long
@pytest.mark.parametrize("lab", ["slow", "printed"])
@pytest.mark.parametrize(
    "state",
    [pytest.param(state, marks=() if state in EVERY_DAY else pytest.mark.slow) for state in STATES],
)
def test_suggested_commands_work(state, lab, content, tmp_path, monkeypatch):
    if lab == "printed" and "another case" in state:
        pytest.skip("this lab has no other cases")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me").mkdir()
    learner = Learner(tmp_path / "me", content, monkeypatch)
    looks = [*READING, *CHANGING]
    if state.startswith("failed: "):
        looks = [[], ["report"], ["check"]]  # only the check's own message differs
    elif state == "of another version":
        looks = [[]]  # whatever else it suggests ends in the remedy that `lab` names
    wrong = _walk(learner, lab, STATES[state], looks)
    load_labs.cache_clear()
    assert not wrong, "\n".join(wrong)


def _walk(learner: Learner, lab: str, steps: list, looks: list[list[str]]) -> list[str]:
    """What is wrong with the commands suggested on the way to a state, and by the looks there."""
    messages = [learner.type("start", lab, "work", "--no-data")]
    assert messages[0].status == 0, messages[0].shown
    learner.at(learner.folder)
    for step in steps:
        if isinstance(step, tuple):
            learner.outcome, learner.reason = Outcome(step[0]), step[1]
            messages.append(learner.type("check"))
        elif step == ["older"]:
            file = Path(".lab/workspace.json")
            file.write_text(file.read_text().replace('"lab_version": 1', '"lab_version": 0'))
            messages.append(learner.type())
        else:
            messages.append(learner.type(*step))
        refused = messages[-1].status == 2 and "riddle" in step[-1]  # that state is a refusal
        assert messages[-1].status in (0, 1, 3, 4) or refused, messages[-1].shown
    wrong = _problems(
        learner, "the last step", messages[-1].shown, learner.folder, at_start=len(messages) == 1
    )
    tried = set()
    for number, look in enumerate(looks):
        folder = learner.folder
        if look in CHANGING:
            folder = shutil.copytree(learner.folder, learner.folder.parent / f"look-{number}")
        learner.at(folder)
        message = learner.type(*look)
        commands = suggested(message.shown)
        if look == []:
            assert commands or "been through every lab" in message.shown, message.shown
        if look in READING:
            # The same suggestion in the same state works or not, whoever makes it.
            if tuple(commands) in tried:
                continue
            tried.add(tuple(commands))
        wrong += _problems(learner, f"`lab {' '.join(look)}`", message.shown, folder)
    return wrong


def given_answers(lab) -> list[str]:
    """Return an answer of the right form to each question. An operator is one of the capture's, and
    another text that must have a form of its own is the solution's.
    """

    def given(question) -> str:
        if question.form and re.fullmatch(question.form, OPERATOR):
            return OPERATOR
        if question.form:
            return str(load_answers(lab.solution)[question.id])
        return GIVEN.get(question.type, "3 x 3")

    return [f"{each.id}={given(each)}" for each in lab.spec.questions]


@pytest.mark.long
@pytest.mark.parametrize("lab", ["slow", "printed", *LABS])
def test_whoever_follows_the_next_step_gets_through_the_lab(lab, content, tmp_path, monkeypatch):
    """Type what `lab` says comes next, edit where it says so: it never says the same again."""
    course = content if lab in ("slow", "printed") else ROOT
    monkeypatch.chdir(tmp_path)
    learner = Learner(tmp_path, course, monkeypatch)
    answers = [f"-a{text}" for text in given_answers(load_labs()[lab])]
    learner.type("start", lab, "work", "--no-data")
    learner.at(tmp_path)
    steps: list[str] = []
    while not any(step.startswith(("lab start", "cd ")) for step in steps[-1:]):
        shown = learner.type().shown
        step = re.search(r"^Next: (.*)$", shown, re.MULTILINE)[1]
        assert step != (steps or [""])[-1], f"after {steps}: {shown}"
        assert len(steps) < 20, f"that goes round in circles: {steps}"
        steps.append(step)
        program, *words = step.split()
        if program == "edit":
            with Path(words[0]).open("a") as file:
                file.write("\n# A change.\n")
        elif words == ["diagnose"]:
            learner.type("diagnose", *answers)
        elif words == ["case"]:
            learner.type(*CASE)
        elif program == "lab" and words[0] != "start":
            # The second change is enough.
            if [each.split()[0] for each in steps].count("edit") == 2:
                learner.outcome, learner.reason = Outcome.PASS, None
            learner.type(*words)
    load_labs.cache_clear()
    assert steps.count("lab check") == 2, steps


@pytest.mark.long
def test_after_a_pass_the_solution_leads_on_and_the_rest_is_optional(
    content, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    learner = Learner(tmp_path, content, monkeypatch)
    learner.type("start", "slow", "work", "--no-data")
    learner.at(tmp_path)
    for step in DIAGNOSED:
        learner.type(*step)
    learner.outcome, learner.reason = Outcome.PASS, None
    assert "`lab report 1` says what usually helps" in learner.type("check").shown
    assert "→ " in learner.type("report", "1").shown
    for command in ([], ["report"], ["solution", "--yes"]):
        shown = learner.type(*command).shown
        assert "Next: lab case --lab slow" in shown
        assert "whatever a report still lists is optional" in shown
    load_labs.cache_clear()


AFTER = ("just started", "captured", "diagnosed", "failed: correct but slow", "passed")
"""The states of the real labs that are walked: the last one every day."""


@pytest.mark.long
@pytest.mark.parametrize("lab", LABS)
@pytest.mark.parametrize(
    "state",
    [pytest.param(state, marks=() if state == "passed" else pytest.mark.slow) for state in AFTER],
)
def test_suggested_commands_work_in_every_lab(state, lab, tmp_path, monkeypatch):
    answers = given_answers(load_labs()[lab])
    answer = ["diagnose", *(word for text in answers for word in ("-a", text))]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me").mkdir()
    learner = Learner(tmp_path / "me", ROOT, monkeypatch)
    steps = [answer if step is ANSWER else step for step in STATES[state]]
    wrong = _walk(learner, lab, steps, [*READING, *CHANGING])
    load_labs.cache_clear()
    assert not wrong, "\n".join(wrong)


def _problems(
    learner: Learner, source: str, shown: str, folder: Path, *, at_start=False
) -> list[str]:
    """Return what is wrong with the commands that a message suggests, typed in a copy of the
    folder: in another one after a reset, which is an alternative to what follows.
    """
    learner.outcome, learner.reason = Outcome.FAIL, "correct but slow"
    wrong = []
    afresh = True
    for command in suggested(shown):
        if afresh:
            copies = len(list(folder.parent.glob("try-*")))
            copy = shutil.copytree(folder, folder.parent / f"try-{copies}")
            learner.at(copy)
            if at_start:
                os.chdir(copy)  # where `lab start` was typed, above the workspace
        problem = try_command(learner, command)
        if problem:
            wrong.append(f"after {source}: `{command}`: {problem}")
        afresh = command == "lab reset"
    return wrong


def try_command(learner: Learner, command: str) -> str | None:
    """What is wrong with a command that was suggested; None if it works."""
    for part in command.split(" && "):
        program, *words = shlex.split(part)
        if program == "cd":
            if not Path(words[0]).is_dir():
                return "there is no such folder"
            os.chdir(words[0])
            continue
        if ELSEWHERE.match(part):
            continue
        asks_first = words[:1] == ["reset"] or words == ["diagnose"] or "--reveal" in words
        done = learner.type(*words, *["--yes"] * asks_first)
        if done.status not in (0, 1, 3):
            return " ".join(done.shown.split())[-200:]
    return None
