"""`lab` on its own: where you are and what to do next."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from bottleneck_lab.catalog import load_course, load_labs
from bottleneck_lab.commands.ui import say, say_next
from bottleneck_lab.grading.cases import habits
from bottleneck_lab.wording import counted
from bottleneck_lab.workspace.attempts import Attempt, latest_pass, load_attempts
from bottleneck_lab.workspace.cases import load_counted, load_drawn, open_case
from bottleneck_lab.workspace.commitments import Record, load_record
from bottleneck_lab.workspace.folder import Workspace, workspace_above
from bottleneck_lab.workspace.next_step import NextStep, next_edit, next_here, next_lab
from bottleneck_lab.workspace.progress import load_progress


def command() -> None:
    """Show where you are in the course and what to do next."""
    workspace = workspace_above(Path.cwd())
    if workspace:
        attempts = load_attempts(workspace)
        _describe(workspace, attempts)
        say_next_step(workspace, attempts, load_record(workspace))
        return
    labs, progress = load_labs(), load_progress()
    passed = {slug for slug in labs if slug in progress.labs and progress.labs[slug].passed}
    say(f"You have passed {len(passed)} of {len(labs)} labs. There is no lab in this folder.")
    for stage in load_course().stages:
        line = f"  {stage.name:13} {len(passed & set(stage.labs))} of {len(stage.labs)}"
        if stage.able:
            line += f"  by the end you can {stage.able}"
        say(line, hang=22)
    case = open_case()
    if case:
        capture = f"`lab report {shlex.quote(case.folder)}`"
        say(f"\nA case waits for your diagnosis; {capture} shows its capture.")
        say_next("lab case")
        return
    if passed or load_drawn():
        _mention_cases()
    say_step(next_lab(labs, progress))


def _mention_cases() -> None:
    """Say how the learner does on cases, or that there are some."""
    answered = load_counted()
    if not answered:
        say("\n`lab case` gives you a program that you have never seen: what slows it down?")
        return
    past = [case.past for case in answered if case.past]
    named = sum(each.called == each.cause for each in past)
    how = f"Cause named in {named} of {counted(len(past), 'case')}; `lab case` draws another."
    say(" ".join([f"\n{how}", *habits(past)]))


def _describe(workspace: Workspace, attempts: list[Attempt]) -> None:
    lab = workspace.lab
    say(f"{lab.slug}: {lab.spec.title} ({lab.stage}, on {workspace.info.device})", style="bold")
    say(lab.spec.symptom)
    passed, last = latest_pass(attempts), attempts[-1] if attempts else None
    if passed and passed is not last:
        say(f"Passed with check {passed.number}.", style="green")
    if last:
        summary = last.verdict.summary
        for each in last.verdict.criteria:
            # That all is met says it already, where no figure goes with it.
            if last.verdict.outcome == "PASS" and each.value is None:
                summary = summary.replace(each.sentence, "")
        if last.verdict.reason == "wrong diagnosis":
            # What to do about it is the next step.
            summary = re.split(r"(?<=\.) (?=[A-Z`])", summary)[0]
        say(f"Check {last.number}: {last.verdict.outcome}. {summary.strip()}")
    change = workspace.changed_lab()
    if change:
        say(change, style="yellow")


def say_next_step(
    workspace: Workspace, attempts: list[Attempt], record: Record, missed: Sequence[str] = ()
) -> None:
    """Print what to do next in a lab, as the last line of a command: no check, while the capture
    that was just made or compared has `missed` limits of one.
    """
    step = next_here(workspace, attempts, record, load_labs(), load_progress())
    if missed and step.command == "lab check":
        step = next_edit(
            workspace.lab, f"A check would not pass yet, by this capture: {'; '.join(missed)}."
        )
    say_step(step)


def say_step(step: NextStep) -> None:
    """Print a step, as the last line of a command."""
    if step.command:
        say_next(step.command)
    say(step.why)
