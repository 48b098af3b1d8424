"""What a learner should do next, from what is recorded."""

from __future__ import annotations

import msgspec

from bottleneck_lab.catalog import Lab
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.diagnosis_file import is_answered
from bottleneck_lab.workspace.folder import Workspace, numbered
from bottleneck_lab.workspace.progress import Progress


class Step(msgspec.Struct, frozen=True):
    """A command to type next, and why. An empty `command` means that there is nothing left to do."""

    command: str
    why: str


def next_lab(labs: dict[str, Lab], progress: Progress) -> Step:
    """The first lab of the course that has not been passed; one that is under way is gone on with in its folder."""
    for slug, lab in labs.items():
        entry = progress.labs.get(slug)
        if entry is None:
            return Step(f"lab start {slug}", f"{lab.spec.title}: about {lab.spec.minutes} minutes.")
        if entry.passed is None:
            return Step(f"cd '{entry.workspace}'", f"You have started '{slug}' there.")
    return Step("", "You have passed every lab of the course.")


def next_here(workspace: Workspace, labs: dict[str, Lab], progress: Progress) -> Step:
    """The next step inside a workspace: look, capture, explain, change, check."""
    attempts = load_attempts(workspace)
    if attempts and attempts[-1].verdict.outcome == "PASS":
        return next_lab(labs, progress)
    if not numbered(workspace.captures) and not attempts:
        return Step(
            "lab profile", "See where the time goes before you change anything. README.md says what the symptom is."
        )
    if workspace.lab.spec.questions and not is_answered(workspace):
        return Step("lab diagnose", "Say what the cause is and what a fix would bring, from the capture that you made.")
    if attempts and attempts[-1].verdict.outcome in ("INCONCLUSIVE", "ERROR"):
        return Step("lab check", "The last check could not decide. `lab report` says why; mend that, and check again.")
    if attempts:
        return Step("lab check", "Read why the last check failed (`lab report`), change one thing, and check again.")
    return Step("lab check", f"Change {', '.join(workspace.lab.spec.editable)}, then measure what it brought.")
