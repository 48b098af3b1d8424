"""What a learner should do next, from what is recorded."""

from __future__ import annotations

import msgspec

from bottleneck_lab.catalog import Lab
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.commitments import is_blind, load_record
from bottleneck_lab.workspace.folder import Workspace, numbered
from bottleneck_lab.workspace.progress import Progress
from bottleneck_lab.workspace.siblings import load_drawn


class NextStep(msgspec.Struct, frozen=True):
    """The next command, and why. An empty `command` means nothing is left to do."""

    command: str
    why: str


def next_lab(labs: dict[str, Lab], progress: Progress) -> NextStep:
    """The first lab of the course that is not done; one that is under way continues in its folder."""
    for slug, lab in labs.items():
        entry = progress.labs.get(slug)
        if entry is None:
            return NextStep(
                f"lab start {lab.slug}", f"{lab.spec.title}: about {lab.spec.minutes} minutes."
            )
        if entry.passed is None and not (entry.solution_seen and entry.outcome == "PASS"):
            return NextStep(f"cd '{entry.workspace}'", f"You have started '{lab.slug}' there.")
    return NextStep("", "You have been through every lab in the course.")


def next_here(workspace: Workspace, labs: dict[str, Lab], progress: Progress) -> NextStep:
    """The next step inside a workspace: look, capture, explain, change, check, and explain another
    case.
    """
    attempts, questions = load_attempts(workspace), workspace.lab.spec.questions
    last = attempts[-1].verdict.outcome if attempts else None
    if last == "PASS":
        return _after_pass(workspace, labs, progress)
    seen = numbered(workspace.captures) or (
        workspace.lab.spec.evidence == "run" and load_record(workspace).commitments
    )
    if not seen and not attempts:
        return NextStep(
            f"lab {workspace.lab.spec.evidence}",
            "Look before you change anything. README.md describes the symptom. Then run `lab"
            " diagnose`.",
        )
    if questions and (is_blind(workspace) or not load_record(workspace).commitments):
        return NextStep(
            "lab diagnose",
            "Name the cause, the evidence for it and the gain that a fix would bring. `lab report"
            " --html` draws the timeline.",
        )
    return _after_diagnosis(workspace, last)


def _after_pass(workspace: Workspace, labs: dict[str, Lab], progress: Progress) -> NextStep:
    if workspace.lab.spec.siblings and not any(
        case.named is not None for case in load_drawn(workspace)
    ):
        return NextStep(
            "lab diagnose --sibling",
            "Another case of this kind takes five minutes: can you tell its cause from its"
            " capture?",
        )
    return next_lab(labs, progress)


def _after_diagnosis(workspace: Workspace, last: str | None) -> NextStep:
    if last in ("INCONCLUSIVE", "ERROR"):
        return NextStep(
            "lab check", "The last check could not decide: follow its advice, then check again."
        )
    if last and workspace.lab.spec.evidence == "run":
        return NextStep("lab run", "Change one thing and see what it gained; then run `lab check`.")
    if last:
        return NextStep(
            "lab profile",
            "Change one thing, capture again, and see with `lab compare` what it gained; then run"
            " `lab check`.",
        )
    return NextStep(
        "lab check",
        f"Change one thing in {', '.join(workspace.lab.spec.editable)}, then measure what it"
        " gained.",
    )
