"""The learner's next step, from what is recorded."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import Lab
from bottleneck_lab.workspace.attempts import Attempt
from bottleneck_lab.workspace.commitments import Record, hides_causes
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers
from bottleneck_lab.workspace.folder import Workspace, is_workspace, numbered
from bottleneck_lab.workspace.progress import Progress
from bottleneck_lab.workspace.siblings import load_drawn

WRITE_UP = "`lab solution --show` explains the reference solution and what it gained."


class NextStep(msgspec.Struct, frozen=True):
    """The next command, and why. An empty `command` means that nothing is left to do."""

    command: str
    why: str


def next_lab(labs: dict[str, Lab], progress: Progress, after: str | None = None) -> NextStep:
    """Return the way to the next lab that is not done.

    From the lab `after`, that is the next one in the course, then the ones before it. Without it,
    a lab that is under way comes before one that is not started.
    """
    slugs = list(labs)
    if after in slugs:
        here = slugs.index(after)
        slugs = [*slugs[here + 1 :], *slugs[:here]]
    steps = []
    for slug in slugs:
        entry = progress.labs.get(slug)
        if entry and entry.passed is not None:
            continue
        # The reference's pass is not the learner's, but the lab is behind them.
        if entry and entry.solution_seen and entry.outcome == "PASS":
            continue
        # The folder may be gone; then the lab is started again.
        under_way = entry is not None and is_workspace(Path(entry.workspace))
        if entry and under_way:
            step = NextStep(
                f"cd {shlex.quote(entry.workspace)}", f"You have started '{slug}' there."
            )
        else:
            spec = labs[slug].spec
            step = NextStep(f"lab start {slug}", f"{spec.title}: about {spec.minutes} minutes.")
        steps.append((under_way, step))
    if not steps:
        return NextStep("", "You have been through every lab in the course.")
    if after is None:
        steps.sort(key=lambda pair: not pair[0])  # stable: the course's order otherwise
    return steps[0][1]


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
        if lab.spec.questions:
            why += " Then run `lab diagnose`."
        return NextStep(f"lab {lab.spec.evidence}", why)
    if lab.spec.questions and (hides_causes(lab, record) or not record.commitments):
        why = "Answer the lab's questions before you change anything."
        if any(question.id == "cause" for question in lab.spec.questions):
            why = "Name the cause, the evidence for it and the gain that a fix would bring."
        if captures:
            why += " `lab report --html` draws the timeline."
        return NextStep("lab diagnose", why)
    answers = load_answers(workspace.root)
    open_ = [
        question.id for question in lab.spec.questions if not is_given(answers.get(question.id))
    ]
    if open_ and record.help.solution is None:  # `lab reset` empties diagnosis.toml, too
        return NextStep("lab diagnose", f"diagnosis.toml has no answer to {', '.join(open_)}.")
    return _after_diagnosis(lab, attempts, record, captured=bool(captures))


def _after_diagnosis(
    lab: Lab, attempts: list[Attempt], record: Record, *, captured: bool
) -> NextStep:
    if not attempts:
        files = ", ".join(lab.spec.editable)
        return NextStep("lab check", f"Change one thing in {files}, then measure what it gained.")
    last = attempts[-1].verdict
    if last.reason == "wrong diagnosis":
        # A check commits before it starts to measure: only a correction is younger. Both are UTC to
        # the second, with one ending or another: `Z`, `+00:00`.
        committed = max((made.at[:19] for made in record.commitments), default="")
        if committed > last.started_at[:19]:
            return NextStep("lab check", "You have corrected your diagnosis: check it.")
        return NextStep(
            "lab diagnose",
            "Correct the answers that the last check found wrong; then run `lab check`.",
        )
    if last.outcome in ("INCONCLUSIVE", "ERROR"):
        return NextStep(
            "lab check", "The last check could not decide: follow its advice, then check again."
        )
    if lab.spec.evidence == "run":
        return NextStep("lab run", "Change one thing and see what it gained; then run `lab check`.")
    if captured:
        why = (
            "Change one thing, capture again, and see with `lab compare` what it gained; then run"
            " `lab check`."
        )
    else:
        why = "See where the time goes; then change one thing and run `lab check`."
    return NextStep("lab profile", why)


def _after_pass(
    workspace: Workspace, record: Record, labs: dict[str, Lab], progress: Progress
) -> NextStep:
    lab = workspace.lab
    answered = any(case.named is not None for case in load_drawn(workspace))
    if lab.spec.siblings and not answered:
        step = NextStep(
            "lab diagnose --sibling",
            "Another case of this kind takes five minutes: can you tell its cause from its"
            " capture?",
        )
    else:
        step = next_lab(labs, progress, after=lab.slug)
    if record.help.solution is None:
        step = NextStep(step.command, f"{step.why} {WRITE_UP}")
    return step
