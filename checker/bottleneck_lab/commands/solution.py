"""`lab solution`: the reference solution, after a confirmation."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.markdown import Markdown

from bottleneck_lab.cohort.grading.open_help import open_help
from bottleneck_lab.cohort.moments import local_iso
from bottleneck_lab.cohort.protocol import OpenHelp
from bottleneck_lab.commands.asking import confirm
from bottleneck_lab.commands.screen import console
from bottleneck_lab.commands.ui import Json, Yes, here, print_json, say, say_next
from bottleneck_lab.commands.where import say_next_step
from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.commitments import (
    load_record,
    note_solution_taken,
    open_questions,
)
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.hints import next_hint
from bottleneck_lab.workspace.progress import load_progress, note_solution
from bottleneck_lab.workspace.start import given_edited, take_solution

EXAMPLE = "lab solution --show"
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
"""For whoever renews a write-up's figures, not for its readers."""


def command(
    yes: Yes = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the write-up only; leave your files as they are.")
    ] = False,
    json: Json = False,
) -> None:
    """Copy the reference solution into this folder. Your own files are saved first."""
    workspace = here()
    allowed = open_help(workspace.lab.slug)
    if allowed.solution_from is not None:
        at = local_iso(allowed.solution_from, allowed.timezone)
        raise UsageError(
            f"Your instructor opens the solution of '{workspace.lab.slug}' at {at}.",
            _help_until_then(workspace, allowed),
        )
    entry = load_progress().labs.get(workspace.lab.slug)
    passed = entry is not None and entry.passed is not None
    # Once the lab is passed, reading the write-up costs nothing.
    if not (show and passed):
        confirm(_question(show=show, passed=passed), "lab solution", yes=yes)
    is_known = not show and load_record(workspace).help.solution is not None
    note_solution(workspace.lab.slug, str(workspace.root))
    note_solution_taken(workspace)
    is_answered = any(is_given(answer) for answer in load_answers(workspace.root).values())
    given = [] if show else given_edited(workspace)
    kept = None if show else take_solution(workspace)
    write_up = workspace.lab.solution / "README.md"
    text = write_up.read_text(encoding="utf-8") if write_up.is_file() else ""
    text = COMMENT.sub("", text)
    if json:
        print_json({"kept": str(kept) if kept else None, "copied": not show, "write_up": text})
        return
    if is_known:
        say("`lab solution --show` prints the write-up again.")
    elif console().is_terminal:
        console().print(Markdown(text))
    else:
        say(text)
    if show:
        return
    files = ", ".join(workspace.lab.spec.editable)
    answers = "Its answers are in diagnosis.toml."
    if is_answered:
        answers = "Your answers in diagnosis.toml stay."
    measured = workspace.lab.spec.devices[workspace.info.device].judges_diagnosis
    if measured:
        answers = "The answers in diagnosis.toml stay yours: the reference's are another machine's."
    say(f"\nThe reference solution is in {files}. {answers}")
    if given:
        say(f"The lab's own {', '.join(given)} {'are' if len(given) > 1 else 'is'} back as well.")
    if kept:
        say(f"Your own files are saved in {kept}")
    record, attempts = load_record(workspace), load_attempts(workspace)
    if measured or any(attempt.verdict.outcome == "PASS" for attempt in attempts):
        say_next_step(workspace, attempts, record)
        return
    # A stretch of a capture can only be the learner's own.
    say_next("lab diagnose" if open_questions(workspace, record) else "lab check")


def _help_until_then(workspace: Workspace, allowed: OpenHelp) -> str:
    """Return a remedy that names hints only where the learner can take another one now."""
    hints = len(workspace.lab.spec.hints)
    opened = hints if allowed.hints is None else min(allowed.hints, hints)
    if next_hint(workspace) < opened:
        return "`lab hint` may help until then; so may your instructor."
    if allowed.hints_from is not None:
        at = local_iso(allowed.hints_from, allowed.timezone)
        return f"Ask your instructor until then; hints open at {at}."
    return "Ask your instructor until then."


def _question(*, show: bool, passed: bool) -> str:
    """Return what to ask before the solution is shown."""
    if show:
        return (
            "Read the reference solution? A diagnosis that you commit afterwards does not count as"
            " yours."
        )
    replace = "Replace your files with the reference solution? Yours are saved."
    if passed:
        return replace
    return (
        f"{replace} Its code does not count as your solution, nor a diagnosis that you commit"
        " afterwards as yours."
    )
