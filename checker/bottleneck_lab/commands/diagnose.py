"""`lab diagnose`: say what the cause is, what shows it, and what a fix would bring."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.commands.evidence import of_shipped_code, read_capture
from bottleneck_lab.commands.ui import Json, here, print_json, say
from bottleneck_lab.errors import ExitCode, UsageError
from bottleneck_lab.grading.diagnosis import disagreement, figures_of, problem, shown
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers, save_answers
from bottleneck_lab.workspace.folder import Workspace

EXAMPLE = "lab diagnose --answer evidence=0.6"


def command(
    answer: Annotated[
        list[str] | None,
        typer.Option("--answer", "-a", metavar="ID=VALUE", help="Answer one question without being asked."),
    ] = None,
    json: Json = False,
) -> None:
    """Answer the lab's questions: cause, evidence from your capture, and the gain you predict.

    The answers go into diagnosis.toml, which you may also edit. What can be read off your capture is compared at once;
    `lab check` grades it all.
    """
    workspace = here()
    questions = workspace.lab.spec.questions
    known = load_answers(workspace.root)
    if answer:
        given = _parse(questions, answer)
    elif sys.stdin.isatty() and not json:
        given = {}
        for question in questions:  # Each is saved at once: whoever leaves in the middle keeps what was answered.
            given[question.id] = _ask(question, known.get(question.id))
            save_answers(workspace, {question.id: given[question.id]})
    else:
        given = {}
    if answer:
        save_answers(workspace, given)
    _report(workspace, {**known, **given}, json=json)


def _parse(questions: list[QuestionSpec], answers: list[str]) -> dict[str, str | float]:
    by_id = {question.id: question for question in questions}
    given = {}
    for text in answers:
        key, equals, value = text.partition("=")
        if not equals or key not in by_id:
            raise UsageError(
                f"'{text}' answers no question of this lab.",
                f"Write ID=VALUE, with one of: {', '.join(by_id) or 'none'}.",
            )
        given[key] = _value(by_id[key], value)
    return given


def _value(question: QuestionSpec, text: str) -> str | float:
    """The typed answer. Raises UsageError when it has not the form that the question asks for."""
    value: str | float = text.strip()
    if question.type in ("share", "ratio"):
        try:
            value = float(text)
        except ValueError:
            raise UsageError(
                f"{question.id}: '{text}' is not a number.", "Write a plain number, such as 0.6."
            ) from None
    wrong = problem(question, value)
    if wrong:
        raise UsageError(f"{question.id}: {wrong}", f"The question: {question.ask}")
    return value


def _ask(question: QuestionSpec, known: Any) -> str | float:
    """Ask at the terminal until the answer has the right form."""
    say(f"\n{question.ask}", style="bold")
    for number, choice in enumerate(question.choices, 1):
        say(f"  {number}  {choice}", hang=3)
    while True:
        text = str(typer.prompt(question.id, default=known if known not in (None, "") else None))
        if question.choices and text.isdecimal() and 1 <= int(text) <= len(question.choices):
            text = question.choices[int(text) - 1]
        elif question.choices and text not in question.choices:
            say(f"Type a number from 1 to {len(question.choices)}.", style="red")
            continue
        try:
            return _value(question, text)
        except UsageError as error:
            say(error.message, style="red")


def compare_answers(
    workspace: Workspace, answers: dict[str, Any], read: Callable[[Path], Summary] = read_capture
) -> list[dict[str, Any]]:
    """Each answer with what the capture shows, and what is wrong with its form or disagrees with that.

    A choice is graded by `lab check` only.
    """
    questions = workspace.lab.spec.questions
    summary = of_shipped_code(workspace, read) if questions else None
    seen = figures_of(summary) if summary else None
    rows = []
    for question in questions:
        given = answers.get(question.id)
        wrong = problem(question, given)
        if wrong is None and question.from_capture:
            wrong = disagreement(question, float(given or 0), seen)
        row = {"id": question.id, "ask": question.ask, "answer": given, "choices": question.choices}
        rows.append({**row, "evidence": _evidence(question, summary, seen), "problem": wrong})
    return rows


def _evidence(question: QuestionSpec, summary: Summary | None, seen: dict[str, float] | None) -> str:
    """The capture's sentence on what is asked: its figure, or for a cause the costliest finding that is one of the choices."""
    if summary is None or seen is None:
        return ""
    found = (each.evidence for each in summary.findings if {each.id, each.cause} & set(question.choices))
    return shown(question, seen) or next(found, "")


def _report(workspace: Workspace, answers: dict[str, Any], *, json: bool) -> None:
    rows = compare_answers(workspace, answers)
    if json:
        print_json(rows)
    elif not rows:
        say("This lab asks no questions.")
    else:
        for row in rows:
            _show(row)
        say("diagnosis.toml holds your answers; `lab check` grades them together with your fix.")
    if any(row["problem"] for row in rows):
        raise typer.Exit(ExitCode.FAIL)


def _show(row: dict[str, Any]) -> None:
    say(f"{'✗' if row['problem'] else '✓'} {row['id']} = {row['answer'] if is_given(row['answer']) else '…'}")
    for line in filter(None, (row["ask"], row["problem"] or row["evidence"])):
        say(f"    {line}", style="dim")
