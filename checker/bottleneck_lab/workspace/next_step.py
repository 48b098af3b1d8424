"""The learner's next step, from what is recorded."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import Lab
from bottleneck_lab.grading.verdict import WHEN_QUIET, Verdict
from bottleneck_lab.wording import counted
from bottleneck_lab.workspace.attempts import Attempt, latest_pass
from bottleneck_lab.workspace.captures import (
    capture_number,
    capture_of,
    lacks_parts,
    latest_capture,
)
from bottleneck_lab.workspace.cases import load_drawn, open_case
from bottleneck_lab.workspace.commitments import Record, open_questions
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers
from bottleneck_lab.workspace.folder import Workspace, is_workspace
from bottleneck_lab.workspace.looks import has_run, is_report_read, load_looks
from bottleneck_lab.workspace.progress import Progress

OPTIONAL = "You have passed this lab: whatever a report still lists is optional here."
WRITE_UP = "`lab solution --show` explains the reference solution and what it gained."
NOT_RUN = ("crashed", "timed out", "does not compile")
"""Reasons of a FAIL in which the code did not run to its end."""
FAILED_RUN = "Your code ended with an error when it last ran: mend that first; `lab run` shows it."
NOT_RIGHT = ("wrong output", "tampered", "forbidden call")
"""Reasons of a FAIL in which the code ran, and did not do what was asked."""


class NextStep(msgspec.Struct, frozen=True):
    """The next command, or `edit` with the files to change, and why. An empty `command` means that
    nothing is left to do.
    """

    command: str
    why: str


def next_lab(labs: dict[str, Lab], progress: Progress, done: str = "") -> NextStep:
    """Return the way to the next lab that is not done, the same from every folder.

    A lab that is under way comes first, the latest start before others; then the rest of the stage
    of the latest pass, from there on; then later stages, and then earlier ones. `done` is left out:
    work there has passed, be it the reference's.
    """
    slugs = list(labs)
    passed = [slug for slug in slugs if slug in progress.labs and progress.labs[slug].passed]
    if passed:
        latest = slugs.index(max(passed, key=lambda slug: progress.labs[slug].passed or ""))
        stage = [slug for slug in slugs if labs[slug].stage == labs[slugs[latest]].stage]
        slugs = [*slugs[latest + 1 :], *slugs[:latest]]
        slugs.sort(key=lambda slug: slug not in stage)  # stable: else as they were
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
            stop = "" if spec.title.endswith("?") else "."
            why = f"About {spec.minutes} minutes, {labs[slug].stage}: {spec.title}{stop}"
            fresh.append(NextStep(f"lab start {slug}", f"{why}{_left_behind(slug, labs, passed)}"))
    if begun:
        return max(begun, key=lambda pair: pair[0])[1]
    if fresh:
        return fresh[0]
    return NextStep("", "You have been through every lab in the course.")


def _left_behind(slug: str, labs: dict[str, Lab], passed: list[str]) -> str:
    """Return a sentence, after a space, where labs before the next one are still open; empty
    otherwise, and before the first pass.
    """
    slugs = list(labs)
    earlier = [each for each in slugs[: slugs.index(slug)] if each not in passed]
    if not passed or not earlier:
        return ""
    be = "is" if len(earlier) == 1 else "are"
    open_ = f"{counted(len(earlier), 'lab')} before it {be} still open (`lab list`)"
    return f" It goes on from your last pass; you can also go back: {open_}."


def next_here(
    workspace: Workspace,
    attempts: list[Attempt],
    record: Record,
    labs: dict[str, Lab],
    progress: Progress,
) -> NextStep:
    """Return the next step inside a workspace: never one that was taken already.

    The steps are: look, capture, explain, change, check, and explain another case. A lab that was
    passed stays passed, whatever later checks say; while the work is worse than what passed, the
    next step is about that.
    """
    latest = latest_capture(workspace)
    if first := _mend_first(workspace, attempts):
        return first
    passed = latest_pass(attempts)
    if any(_is_what_passed(workspace, each, attempts) for each in attempts):
        return _after_pass(workspace, record, labs, progress)
    if not attempts and (step := _first_look(workspace, record)):
        return step
    if step := _explain(workspace, record, latest):
        return step
    predicted = "" if passed else _recall_prediction(workspace, record)
    if not attempts:
        return _before_first_check(workspace, latest, predicted)
    step = _after_check(workspace, attempts[-1].verdict, record, latest, predicted)
    return NextStep(step.command, f"{step.why} {_way_back(workspace, passed)}") if passed else step


def next_after_run(workspace: Workspace, attempts: list[Attempt]) -> NextStep | None:
    """Return the step after a run of code that no check has seen, in a lab that was passed; None
    otherwise: then what comes next does not depend on the run.
    """
    passed = latest_pass(attempts)
    code = workspace.lab.code_hash(workspace.root)
    if passed is None or any(each.verdict.submission_hash == code for each in attempts):
        return None
    why = "Your code has changed since it passed: a check says whether it still does."
    return NextStep("lab check", f"{why} {_way_back(workspace, passed)}")


def _is_what_passed(workspace: Workspace, attempt: Attempt, attempts: list[Attempt]) -> bool:
    """Return True if an attempt passed and no later check speaks against it, or the code is that
    again after a check of other code.
    """
    code, last = attempt.verdict.submission_hash, attempts[-1]
    if attempt.verdict.outcome != "PASS":
        return False
    return last is attempt or (
        last.verdict.submission_hash != code and workspace.lab.code_hash(workspace.root) == code
    )


def _way_back(workspace: Workspace, passed: Attempt) -> str:
    """Return that an earlier check passed, and where the files are that it checked."""
    folder = passed.submission.relative_to(workspace.root)
    return (
        f"Check {passed.number} passed, and so has the lab; the files of that check are kept in"
        f" {folder}: copy them from there to get that version back."
    )


def _mend_first(workspace: Workspace, attempts: list[Attempt]) -> NextStep | None:
    """Return what has to be put right before any other step; None if nothing has."""
    lab = workspace.lab
    if workspace.changed_lab():
        return NextStep(
            "lab reset --update", "It brings in the new files and leaves your edits as they are."
        )
    # The shipped code may end so by design: what to learn from it comes first.
    is_theirs = attempts or lab.code_hash(workspace.root) != lab.code_hash(lab.path)
    if is_theirs and has_run(workspace) is False:
        return next_edit(lab, FAILED_RUN)
    return None


def has_looked(workspace: Workspace, record: Record) -> bool:
    """Return True if there is something to answer the lab's questions from: a capture, or the
    output of a run where that is the evidence.
    """
    if latest_capture(workspace):
        return True
    ran = record.commitments or any(load_looks(workspace).runs.values())
    return workspace.lab.spec.evidence == "run" and bool(ran)


def _is_unread(workspace: Workspace, record: Record, latest: Path | None) -> bool:
    """Return True if nothing is answered yet and no report of a capture was read, which is the
    evidence: after a capture, its top alone is shown.
    """
    answers = load_answers(workspace.root)
    begun = record.commitments or any(map(is_given, answers.values()))
    looked = latest is None or load_looks(workspace).reports
    return workspace.lab.spec.evidence == "profile" and not begun and not looked


def _first_look(workspace: Workspace, record: Record) -> NextStep | None:
    """Return the step to what the lab's questions are answered from; None once it is there."""
    if has_looked(workspace, record):
        return _change(workspace) if _records_too_little(workspace) else None
    lab = workspace.lab
    looks = "`lab report` and " if lab.spec.evidence == "profile" else ""
    then = f" Then run {looks}`lab diagnose`." if lab.spec.questions else ""
    if ends_on_small_cards(workspace) and not load_looks(workspace).runs:
        how = "The script ends in the middle: see how. Then capture it with `lab profile`."
        return NextStep("lab run", how)
    if not records_itself(workspace):
        return NextStep(
            f"lab {lab.spec.evidence}",
            f"Look before you change anything. README.md describes the symptom.{then}",
        )
    if lab.code_hash(workspace.root) == lab.code_hash(lab.path):
        return next_edit(lab, "README.md says what it has to record. Then run `lab profile`.")
    return NextStep("lab profile", f"It runs your code and keeps what that records.{then}")


def _explain(workspace: Workspace, record: Record, latest: Path | None) -> NextStep | None:
    """Return the step to the answers of the lab's questions; None once they are given."""
    why = _why_diagnose(workspace, record, latest)
    if why and _is_unread(workspace, record, latest):
        return NextStep("lab report", "It shows what was recorded. Then run `lab diagnose`.")
    return NextStep("lab diagnose", why) if why else None


def _why_diagnose(workspace: Workspace, record: Record, latest: Path | None) -> str:
    """Return why the questions come next; empty if they are answered. `latest` is the folder of the
    latest capture.
    """
    spec = workspace.lab.spec
    if not spec.questions:
        return ""
    if record.commitments:
        open_ = open_questions(workspace, record)  # `lab reset` empties diagnosis.toml
        return f"diagnosis.toml has no answer to {', '.join(open_)}." if open_ else ""
    why = "Answer the lab's questions before you change what the code does."
    if records_itself(workspace):
        why = "Answer the lab's questions from your capture."
    if spec.asks_for_cause:
        why = "Name the cause, the evidence for it and the gain that a fix would bring."
    answers = load_answers(workspace.root)
    drafted = sum(is_given(answers.get(question.id)) for question in spec.questions)
    if drafted:
        why += f" {drafted} of {len(spec.questions)} answers are drafted."
    if latest and not is_report_read(workspace, latest.name):
        why += " `lab report --html` draws the timeline."
    return why


def next_edit(lab: Lab, why: str) -> NextStep:
    """Return an edit of the lab's files as the next step."""
    first, *others = editable = lab.spec.editable or ["diagnosis.toml"]
    files = " and ".join(editable) if len(others) < 2 else f"{first} or another of your files"
    return NextStep(f"edit {files}", why)


def _records_too_little(workspace: Workspace) -> bool:
    """Return True if the task is to record the workload, and the code as it is now was captured
    without all that is asked for.
    """
    capture = capture_of(workspace, workspace.lab.code_hash(workspace.root))
    return records_itself(workspace) and capture is not None and lacks_parts(capture)


def _change(workspace: Workspace) -> NextStep:
    """Return a change of the code as the next step, with what shows its effect."""
    if records_itself(workspace):
        return next_edit(workspace.lab, "Mend it until its capture holds what README.md asks for.")
    looks = "`lab profile` and `lab compare` show"
    if workspace.lab.spec.evidence == "run":
        looks = "`lab run` shows"
    return next_edit(
        workspace.lab,
        f"Change one thing at a time: {looks} what each change brings. One change may not be"
        " enough: `lab check` judges all of them together.",
    )


def _recall_prediction(workspace: Workspace, record: Record) -> str:
    """Return a sentence on the gain that was predicted for all changes together, after a space;
    empty where none was committed, or none of speed.
    """
    lab, answers = workspace.lab, record.commitments[-1].answers if record.commitments else {}
    for question in lab.spec.questions:
        gain = answers.get(question.id)
        in_time = question.predicts_gain and not lab.predicts_memory(workspace.info.device)
        if in_time and not question.to_reference and isinstance(gain, int | float):
            return f" You predicted {gain:.2f}x for all your changes: check now, or go on first."
    return ""


def _before_first_check(workspace: Workspace, latest: Path | None, predicted: str) -> NextStep:
    """Return the step from a diagnosis to the first check."""
    lab = workspace.lab
    if records_itself(workspace):
        return NextStep(
            "lab check", "It makes captures of its own, and compares your answers with them."
        )
    if lab.code_hash(workspace.root) != lab.code_hash(lab.path):
        return _after_change(workspace, latest, predicted)
    if lab.spec.evidence == "profile" and latest and not is_report_read(workspace, latest.name):
        of_memory = lab.predicts_memory(workspace.info.device)
        shows = "says what it finds" if of_memory else "names the causes that it finds"
        return NextStep("lab report", f"It now {shows}.")
    return _change(workspace)


def _after_change(workspace: Workspace, latest: Path | None, predicted: str) -> NextStep:
    """Return the step after a change of the code that was not checked: see what it brought, and
    then check it. `predicted`: a sentence on the gain that is expected of all changes.
    """
    lab, ran = workspace.lab, has_run(workspace)
    see = "Your code has changed: see what that brought."
    if lab.spec.evidence == "run" and ran is None:
        return NextStep("lab run", see)
    if lab.spec.evidence == "run":
        return NextStep(
            "lab check", "Once `lab run` shows what you want, a check says whether it is enough."
        )
    if latest is None:
        return NextStep("lab check", "Your code has changed: a check says whether it is enough.")
    if not capture_of(workspace, lab.code_hash(workspace.root)):
        return NextStep("lab profile", see)
    if records_itself(workspace):
        return NextStep("lab check", "Your change is captured: a check says whether it is enough.")
    return NextStep(
        "lab check",
        "Your change is captured, and `lab compare` shows what it brought. A check says whether"
        f" that is enough: once it passes, whatever a report still lists is optional.{predicted}",
    )


def ends_on_small_cards(workspace: Workspace) -> bool:
    """Return True where `lab run` plays a card on which the shipped program runs out of memory."""
    device = workspace.info.device
    return device == "virtual" and workspace.lab.predicts_memory(device)


def records_itself(workspace: Workspace) -> bool:
    """Return True if the task is to record the workload, and a check compares the answers with
    captures of its own.
    """
    device = workspace.lab.spec.devices.get(workspace.info.device)
    return device is not None and device.judges_diagnosis


def _after_check(
    workspace: Workspace, last: Verdict, record: Record, latest: Path | None, predicted: str
) -> NextStep:
    """Return the step after a check that was no PASS."""
    # A check commits before it starts to measure: only a correction is younger. Both are UTC to the
    # second, with one ending or another: `Z`, `+00:00`.
    committed = max((made.at[:19] for made in record.commitments), default="")
    corrected = committed > last.started_at[:19]
    answers_decide = last.reason == "wrong diagnosis" or any(
        each.kind == "diagnosis" and each.holds is None for each in last.criteria
    )
    if corrected and answers_decide and last.outcome != "ERROR":
        return NextStep("lab check", "You have corrected your diagnosis: check it.")
    if last.reason == "wrong diagnosis":
        return NextStep(
            "lab diagnose",
            "It marks the answers that the last check found wrong. Correct them; then `lab check`.",
        )
    if WHEN_QUIET in last.advice:
        return _after_disturbance(workspace, last, latest, predicted)
    if last.outcome in ("INCONCLUSIVE", "ERROR"):
        return NextStep(
            "lab check", "The last check could not decide: follow its advice, then check again."
        )
    step = _after_fail(workspace, last, latest, predicted)
    if not corrected and any(c.kind == "diagnosis" and c.holds is False for c in last.criteria):
        correct = "Answers that the check found wrong are corrected by `lab diagnose`."
        step = NextStep(step.command, f"{step.why} {correct}")
    return step


def _after_disturbance(
    workspace: Workspace, last: Verdict, latest: Path | None, predicted: str
) -> NextStep:
    """Return the step after a check that other programs kept from deciding: what leads on with the
    code, where there is something, else a check that waits for them.
    """
    quiet = "lab check --when-quiet 10"
    if workspace.lab.code_hash(workspace.root) != last.submission_hash:
        step = _after_change(workspace, latest, predicted)
        return NextStep(quiet, step.why) if step.command == "lab check" else step
    if _misses_by_far(last):
        step = _what_is_left(workspace)
        why = "Your change is probably not enough, whatever a quiet machine shows: keep going."
        return NextStep(step.command, f"{why} {step.why}")
    return NextStep(
        quiet, "The last check could not decide beside other programs; this one waits for them."
    )


_FAR = 1.5
"""A figure misses its target by far if not even the better end of its interval, made so many times
as good, would meet it.
"""


def _misses_by_far(last: Verdict) -> bool:
    """Return True if all figures that a check left open miss their targets by far."""
    open_ = [
        each.high * _FAR < each.target
        if each.direction == "at_least"
        else each.low > each.target * _FAR
        for each in last.criteria
        if each.holds is None
        and each.target is not None
        and each.low is not None
        and each.high is not None
    ]
    return bool(open_) and all(open_)


def _after_fail(
    workspace: Workspace, last: Verdict, latest: Path | None, predicted: str
) -> NextStep:
    """Return the step after a FAIL that the code is to blame for."""
    lab = workspace.lab
    is_checked = lab.code_hash(workspace.root) == last.submission_hash
    if last.reason in NOT_RUN:
        # Nothing was measured, and a capture would meet the same error.
        if is_checked:
            return next_edit(lab, "Mend what stopped the check; `lab run` shows the whole error.")
        return _after_mending(workspace)
    # Speed is nothing to look at before the results are right, and what a recording lacks is not in
    # a report on it.
    if last.reason in NOT_RIGHT:
        return _after_wrong(workspace, is_checked=is_checked)
    return _what_is_left(workspace) if is_checked else _after_change(workspace, latest, predicted)


def _after_wrong(workspace: Workspace, *, is_checked: bool) -> NextStep:
    """Return the step after wrong results, of the code as it is now or before a change."""
    lab = workspace.lab
    runs = lab.spec.evidence == "run"
    if is_checked:
        then = "`lab run` shows what each change brings." if runs else "Then run `lab check`."
        return next_edit(lab, f"First mend what the check says is wrong. {then}")
    if records_itself(workspace) and not capture_of(workspace, lab.code_hash(workspace.root)):
        return NextStep("lab profile", "Your code has changed: see what it records now.")
    if _records_too_little(workspace):
        return _change(workspace)
    if runs and has_run(workspace) is None:
        return NextStep("lab run", "Your code has changed: see whether its results are right.")
    return NextStep("lab check", "Your code has changed: see whether its results are right.")


def _after_mending(workspace: Workspace) -> NextStep:
    """Return the step after a change of code that did not run to its end."""
    code = workspace.lab.code_hash(workspace.root)
    if has_run(workspace) or capture_of(workspace, code):
        return NextStep("lab check", "Your code has changed, and runs to its end.")
    return NextStep("lab run", "Your code has changed: see whether it runs to its end now.")


def _what_is_left(workspace: Workspace) -> NextStep:
    """Return the step from a check of the code as it is now to the next change."""
    lab = workspace.lab
    if lab.spec.evidence == "run":
        return _change(workspace)
    capture = capture_of(workspace, lab.code_hash(workspace.root))
    if capture is None:
        return NextStep("lab profile", "Look at what is left.")
    if is_report_read(workspace, capture.name):
        return _change(workspace)
    if capture == latest_capture(workspace):
        command, name = "lab report", "Your latest capture"
    else:
        number = capture_number(capture)
        command, name = f"lab report {number}", f"Capture {number}"
    unedited = lab.code_hash(workspace.root) == lab.code_hash(lab.path)
    return NextStep(command, f"{name} shows {'where to begin' if unedited else 'what is left'}.")


def _after_pass(
    workspace: Workspace, record: Record, labs: dict[str, Lab], progress: Progress
) -> NextStep:
    lab = workspace.lab
    met = any(drawn.lab == lab.slug for drawn in load_drawn())
    if open_case():
        step = NextStep("lab case", "A case waits for your diagnosis.")
    elif met or not lab.spec.cases:
        step = next_lab(labs, progress, done=lab.slug)
        step = NextStep(step.command, f"{OPTIONAL} {step.why}")
    else:
        step = NextStep(
            f"lab case --lab {lab.slug}",
            f"{OPTIONAL} Ten minutes more: can you diagnose another program, chosen for this lab?",
        )
    if record.help.solution is None:
        step = NextStep(step.command, f"{step.why} {WRITE_UP}")
    return step
