"""Questions at the terminal: those of a diagnosis, and whether to commit one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.commands.ui import note, say
from bottleneck_lab.course.diagnosing import require_committable, write_out_choices
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.answers import (
    describe_choices,
    form_problem,
    form_problems,
    read_answer,
)
from bottleneck_lab.grading.diagnosis import stretch_rule
from bottleneck_lab.grading.figures import CaptureFigures
from bottleneck_lab.workspace.commitments import hides_causes, load_record
from bottleneck_lab.workspace.diagnosis_file import Answer, is_given, load_answers
from bottleneck_lab.workspace.folder import Workspace

NEVER_WRONG = "No prediction counts as wrong: a check sets the measured gain beside it."
COUNTS = "your first diagnosis, the one that counts"
"""The reason to look at answers once more before they are committed."""


def show_question(question: QuestionSpec) -> None:
    """Print a question under its name, how its answer is measured, and its choices."""
    say(f"\n{question.id}: {question.ask}", style="bold")
    if question.measure:
        say(f"  {question.measure}", style="dim", hang=2)
    for line in describe_choices(question):
        say(f"  {line}", hang=3)


def ask_question(
    question: QuestionSpec,
    known: Any = None,
    refuse: Callable[[QuestionSpec, Answer], str | None] | None = None,
    seen: CaptureFigures | None = None,
) -> Answer:
    """Ask at the terminal until the answer has the right form and `refuse` gives no reason against
    it. `seen` is the capture in which a stretch is to be marked.
    """
    say(f"\n{question.ask}", style="bold")
    if question.measure:
        say(question.measure, style="dim")
    if question.predicts_gain:
        say(NEVER_WRONG, style="dim")
    if question.shows:
        say(stretch_rule(question, seen), style="dim")
    for line in describe_choices(question):
        say(f"  {line}", hang=3)
    default = known if is_given(known) else None
    while True:
        answer = read_answer(question, str(typer.prompt(question.id, default=default)))
        complaint = form_problem(question, answer, typed=True)
        if complaint is None and refuse is not None:
            complaint = refuse(question, answer)
        if complaint is None:
            return answer
        say(complaint, style="red")


def confirm(question: str, command: str, *, yes: bool) -> None:
    """Ask before files are replaced or causes given away, unless `yes`; a no ends the command.

    Raises UsageError where there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"`{command}` asks first, and there is no terminal to ask on: {question}",
            "`--yes` answers that with yes.",
        )
    if not typer.confirm(question, err=True):
        note("Nothing was changed.")
        raise typer.Exit


def confirm_first_diagnosis(workspace: Workspace, *, json: bool) -> None:
    """Say that a check commits the answers in diagnosis.toml, where nothing is committed yet; at a
    terminal, ask. Raises UsageError for a no. Answers that cannot be committed are left alone.
    """
    write_out_choices(workspace)
    record = load_record(workspace)
    is_first = hides_causes(workspace.lab, record)
    if not is_first or form_problems(workspace.lab.spec.questions, load_answers(workspace.root)):
        return
    try:
        require_committable(workspace, record)
    except UsageError:
        return  # what follows refuses them, in its own order
    if json or not sys.stdin.isatty():
        note(f"This commits the answers in diagnosis.toml: {COUNTS}.")
    elif not typer.confirm(
        "Your diagnosis is not committed yet. Commit it now? Your first is the one that counts.",
        default=True,
    ):
        raise UsageError(
            "Nothing was checked: a check needs a committed diagnosis.",
            "`lab diagnose` goes through the answers again.",
        )
