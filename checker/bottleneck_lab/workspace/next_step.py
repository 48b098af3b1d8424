"""The learner's next step, from what is recorded."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec

from bottleneck_lab.catalog import Lab
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.wording import counted
from bottleneck_lab.workspace.attempts import Attempt
from bottleneck_lab.workspace.commitments import Record, hides_causes, open_questions
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers
from bottleneck_lab.workspace.folder import Workspace, is_workspace, numbered, read_json
from bottleneck_lab.workspace.progress import Progress
from bottleneck_lab.workspace.siblings import load_siblings

WRITE_UP = "`lab solution --show` explains the reference solution and what it gained."
NOT_RUN = ("crashed", "timed out", "does not compile")
"""Reasons of a FAIL in which the code did not run to its end."""
NOT_RIGHT = ("wrong output", "tampered", "forbidden call")
"""Reasons of a FAIL in which the code ran, and did not do what was asked."""


class NextStep(msgspec.Struct, frozen=True):
    """The next command, and why. An empty `command` means that nothing is left to do."""

    command: str
    why: str


def next_lab(labs: dict[str, Lab], progress: Progress, done: str = "") -> NextStep:
    """Return the way to the next lab that is not done, the same from every folder.

    A lab that is under way comes first, the latest start before others; then those that follow the
    latest pass in the course, and then the ones before it. `done` is left out: work there has
    passed, be it the reference's.
    """
    slugs = list(labs)
    passed = [slug for slug in slugs if slug in progress.labs and progress.labs[slug].passed]
    if passed:
        latest = slugs.index(max(passed, key=lambda slug: progress.labs[slug].passed or ""))
        slugs = [*slugs[latest + 1 :], *slugs[:latest]]
    begun: list[tuple[str, NextStep]] = []
    fresh: list[NextStep] = []
    for slug in slugs:
        entry = progress.labs.get(slug)
        if slug == done or (entry and entry.passed is not None):
            continue
        # The reference's pass is not the learner's, but the lab is behind them.
        if entry and entry.solution_seen and entry.outcome == "PASS":
            continue
        # The folder may be gone; then the lab is started again.
        if entry and is_workspace(Path(entry.workspace)):
            step = NextStep(
                f"cd {shlex.quote(entry.workspace)}", f"You have started '{slug}' there."
            )
            begun.append((entry.started, step))
        else:
            spec = labs[slug].spec
            why = f"About {spec.minutes} minutes, {labs[slug].stage}: {spec.title.rstrip('.')}."
            fresh.append(NextStep(f"lab start {slug}", f"{why}{_left_behind(slug, labs, passed)}"))
    if begun:
        return max(begun, key=lambda pair: pair[0])[1]
    if fresh:
        return fresh[0]
    return NextStep("", "You have been through every lab in the course.")


def _left_behind(slug: str, labs: dict[str, Lab], passed: list[str]) -> str:
    """Return a sentence, after a space, where the way to a lab is not simply on through the course;
    empty otherwise.
    """
    slugs = list(labs)
    if not passed:
        return ""
    earlier = [each for each in slugs[: slugs.index(slug)] if each not in passed]
    if earlier:
        be = "is" if len(earlier) == 1 else "are"
        return f" {counted(len(earlier), 'lab')} before it {be} still open: `lab list`."
    if all(slugs.index(each) > slugs.index(slug) for each in passed):
        return " It is the first of the labs that you have left out."
    return ""


def next_here(
    workspace: Workspace,
    attempts: list[Attempt],
    record: Record,
    labs: dict[str, Lab],
    progress: Progress,
) -> NextStep:
    """Return the next step inside a workspace.

    The steps are: look, capture, explain, change, check, and explain another case. A lab that was
    passed stays passed, whatever later checks say.
    """
    lab = workspace.lab
    if workspace.changed_lab():
        return NextStep(
            "lab reset --update", "It brings in the new files and leaves your edits as they are."
        )
    if any(attempt.verdict.outcome == "PASS" for attempt in attempts):
        return _after_pass(workspace, record, labs, progress)
    captures = numbered(workspace.captures)
    seen = captures or (lab.spec.evidence == "run" and record.commitments)
    if not seen and not attempts:
        why = "Look before you change anything. README.md describes the symptom."
        if records_itself(workspace):
            why = f"First complete {', '.join(lab.spec.editable)}: README.md says what to record."
        if lab.spec.questions:
            why += " Then run `lab diagnose`."
        return NextStep(f"lab {lab.spec.evidence}", why)
    if lab.spec.questions and (hides_causes(lab, record) or not record.commitments):
        why = "Answer the lab's questions before you change anything."
        if records_itself(workspace):
            why = "Answer the lab's questions from your capture."
        if lab.spec.asks_for_cause:
            why = "Name the cause, the evidence for it and the gain that a fix would bring."
        answers = load_answers(workspace.root)
        drafted = sum(is_given(answers.get(question.id)) for question in lab.spec.questions)
        if drafted:
            why += f" {drafted} of {len(lab.spec.questions)} answers are drafted."
        if captures:
            why += " `lab report --html` draws the timeline."
        return NextStep("lab diagnose", why)
    if open_ := open_questions(workspace, record):  # `lab reset` empties diagnosis.toml, too
        return NextStep("lab diagnose", f"diagnosis.toml has no answer to {', '.join(open_)}.")
    latest = captures[-1][1] if captures else None
    return _after_diagnosis(workspace, attempts, record, latest)


def _after_diagnosis(
    workspace: Workspace, attempts: list[Attempt], record: Record, latest: Path | None
) -> NextStep:
    """Return the step after a diagnosis; `latest` is the folder of the latest capture."""
    lab = workspace.lab
    files = ", ".join(lab.spec.editable)
    see = "`lab profile` and `lab compare`" if lab.spec.evidence == "profile" else "`lab run`"
    change = (
        f"Change {files} one thing at a time, and see with {see} what each change brings. One may"
        " not be enough: `lab check` judges all of them together."
    )
    if records_itself(workspace):
        change = f"Mend {files} until its capture holds what README.md asks for."
    if not attempts:
        return _before_first_check(workspace, latest, change)
    last = attempts[-1].verdict
    # A check commits before it starts to measure: only a correction is younger. Both are UTC to the
    # second, with one ending or another: `Z`, `+00:00`.
    committed = max((made.at[:19] for made in record.commitments), default="")
    corrected = committed > last.started_at[:19]
    if last.reason == "wrong diagnosis":
        if corrected:
            return NextStep("lab check", "You have corrected your diagnosis: check it.")
        return NextStep(
            "lab diagnose",
            "It marks the answers that the last check found wrong. Correct them; then `lab check`.",
        )
    if last.outcome in ("INCONCLUSIVE", "ERROR"):
        return NextStep(
            "lab check", "The last check could not decide: follow its advice, then check again."
        )
    if not corrected and any(c.kind == "diagnosis" and c.holds is False for c in last.criteria):
        change += " Answers that the check found wrong are corrected by `lab diagnose`."
    # Speed is nothing to look at before the results are right; a task to record is another matter.
    if last.reason in NOT_RIGHT and not lab.spec.devices[workspace.info.device].judges_diagnosis:
        mend = NextStep("lab run", f"First mend in {files} what the ✗ names. Then `lab check`.")
        changed = NextStep("lab check", "Your code has changed: see whether its results are right.")
        return mend if lab.code_hash(workspace.root) == last.submission_hash else changed
    return _after_fail(workspace, last, latest, change)


def _before_first_check(workspace: Workspace, latest: Path | None, change: str) -> NextStep:
    """Return the step from a diagnosis to the first check; `change` asks for a change."""
    lab = workspace.lab
    if records_itself(workspace):
        return NextStep(
            "lab check", "It makes captures of its own, and compares your answers with them."
        )
    code = lab.code_hash(workspace.root)
    if code == lab.code_hash(lab.path):
        if latest is None:
            return NextStep("lab run", change)
        why = "It sets your answers beside what the tool measured. Then "
        return NextStep("lab report --html", f"{why}{change[0].lower()}{change[1:]}")
    if latest and read_json(latest / "capture.json", dict[str, Any]).get("code") != code:
        return NextStep("lab profile", f"Your code has changed: see what that brought. {change}")
    return NextStep("lab check", "Your code has changed: a check says whether it is enough.")


def records_itself(workspace: Workspace) -> bool:
    """Return True if the task is to record the workload, and a check compares the answers with
    captures of its own.
    """
    device = workspace.lab.spec.devices.get(workspace.info.device)
    return device is not None and device.judges_diagnosis


def _after_fail(workspace: Workspace, last: Verdict, latest: Path | None, change: str) -> NextStep:
    """Return the step after a FAIL that the code is to blame for; `change` asks for a change."""
    lab = workspace.lab
    captured = read_json(latest / "capture.json", dict[str, Any]) if latest else {}
    # What was checked may have been captured already: then it is there to be looked at.
    other_code = captured.get("code") != last.submission_hash
    older = str(captured.get("made_at", ""))[:19] <= last.started_at[:19]
    if last.reason in NOT_RUN and (older or not other_code):
        # Nothing was measured, and a capture would meet the same error.
        return NextStep(
            "lab run",
            "Mend what stopped the last check first. Once `lab run` runs to its end, `lab check`.",
        )
    code = lab.code_hash(workspace.root)
    if lab.spec.evidence == "run":
        return NextStep("lab run", change)
    if code == last.submission_hash and other_code:
        return NextStep("lab profile", f"Look at what is left. {change}")
    if code == last.submission_hash:
        return NextStep("lab report --html", f"Your latest capture shows what is left. {change}")
    if code != captured.get("code"):
        return NextStep("lab profile", f"Your code has changed: see what that brought. {change}")
    return NextStep(
        "lab check", "Your code has changed since the last check, and its capture is made."
    )


def _after_pass(
    workspace: Workspace, record: Record, labs: dict[str, Lab], progress: Progress
) -> NextStep:
    lab = workspace.lab
    answered = any(case.named is not None for case in load_siblings(workspace))
    if lab.spec.siblings and not answered:
        step = NextStep(
            "lab diagnose --sibling",
            "Another program takes five minutes: can you tell its cause from its capture?",
        )
    else:
        step = next_lab(labs, progress, done=workspace.lab.slug)
    if record.help.solution is None:
        step = NextStep(step.command, f"{step.why} {WRITE_UP}")
    return step
