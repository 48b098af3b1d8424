"""`lab` on its own: where you are and what to do next."""

from __future__ import annotations

from pathlib import Path

from bottleneck_lab.catalog import load_course, load_labs
from bottleneck_lab.commands.ui import say
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.folder import Workspace, workspace_above
from bottleneck_lab.workspace.next_step import NextStep, next_here, next_lab
from bottleneck_lab.workspace.progress import load_progress


def command() -> None:
    """Show where you are in the course and what to do next."""
    labs, progress = load_labs(), load_progress()
    workspace = workspace_above(Path.cwd())
    if workspace:
        _describe(workspace)
        _tell_step(next_here(workspace, labs, progress))
    else:
        passed = sum(1 for slug in labs if slug in progress.labs and progress.labs[slug].passed)
        say(f"You have passed {passed} of {len(labs)} labs. There is no lab in this folder.")
        for stage in load_course().stages:
            done = sum(
                slug in progress.labs and progress.labs[slug].passed is not None
                for slug in stage.labs
            )
            say(
                f"  {stage.name:13} {done} of {len(stage.labs)} "
                f" {stage.able and f'by the end you can {stage.able}'}".rstrip(),
                hang=22,
            )
        _tell_step(next_lab(labs, progress))


def _describe(workspace: Workspace) -> None:
    lab = workspace.lab
    say(f"{lab.slug}: {lab.spec.title} ({lab.stage}, on {workspace.info.device})", style="bold")
    say(lab.spec.symptom)
    attempts = load_attempts(workspace)
    if attempts:
        say(
            f"Check {attempts[-1].number}: {attempts[-1].verdict.outcome}."
            f" {attempts[-1].verdict.summary}"
        )
    change = workspace.changed_lab()
    if change:
        say(
            f"{change} `lab reset --update` brings in the new files and leaves your edits as they"
            " are.",
            style="yellow",
        )


def tell_next(workspace: Workspace) -> None:
    """What to do next in a lab, as the last line of a command."""
    _tell_step(next_here(workspace, load_labs(), load_progress()))


def _tell_step(step: NextStep) -> None:
    if step.command:
        say(f"\nNext: {step.command}", style="bold")
    say(step.why)
