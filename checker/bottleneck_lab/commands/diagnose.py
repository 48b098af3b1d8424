"""`lab diagnose`: commit to a cause, to evidence measured in your own capture, and to the gain from
a fix.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.cohort.grading.open_hints import unlocked_hints
from bottleneck_lab.commands.answers import ask, describe_choices, parse_answers
from bottleneck_lab.commands.evidence import capture_figures, evidence_capture
from bottleneck_lab.commands.sibling import diagnose_sibling
from bottleneck_lab.commands.ui import Json, here, print_json, say
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.criteria import describe_criterion
from bottleneck_lab.grading.diagnosis import (
    format_answer,
    misplaced_stretch,
    needs_capture,
    problems,
)
from bottleneck_lab.workspace.commitments import (
    Commitment,
    commit,
    is_blind,
    load_record,
    note_revealed,
)
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers, save_answers
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.hints import take_hint
from bottleneck_lab.workspace.progress import note_diagnosis, note_hint
from bottleneck_lab.workspace.standing import questions_of

EXAMPLE = "lab diagnose --answer cause=2 --answer evidence=0.6"


def command(
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer",
            "-a",
            metavar="ID=VALUE",
            help="Answer one question. Give a choice by its number or how it begins.",
        ),
    ] = None,
    draft: Annotated[
        bool, typer.Option("--draft", help="Save the answers without committing them.")
    ] = False,
    reveal: Annotated[
        bool,
        typer.Option(
            "--reveal",
            help="Show causes without a diagnosis. Counts as taking every hint, and is recorded.",
        ),
    ] = False,
    sibling: Annotated[
        bool,
        typer.Option(
            "--sibling", help="Diagnose another case of the same kind from its capture alone."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Commit to a diagnosis: the cause, the evidence in your capture, and the gain you predict.

    Answers are saved in diagnosis.toml, which you can also edit. Once every question is answered,
    the diagnosis is committed: from then on, reports show causes, findings and ceilings, with your
    figures next to the tool's. Only the first diagnosis counts as naming the cause; later ones are
    corrections.
    """
    workspace = here()
    if sibling:
        diagnose_sibling(workspace, answer or [], json=json)
        return
    if reveal:
        _reveal(workspace)
        return
    questions = workspace.lab.spec.questions
    wrong: list[str] = []
    if answer:
        given, wrong = parse_answers(questions, answer)
        save_answers(workspace, given)
    elif sys.stdin.isatty() and not json:
        for (
            question
        ) in questions:  # Each answer is saved at once, so leaving halfway loses nothing.
            known = load_answers(workspace.root).get(question.id)
            save_answers(workspace, {question.id: ask(question, known)})
    asks = sys.stdin.isatty() and not answer and not json
    committed = (
        _commit_if_whole(workspace, asks=asks)
        if (answer or asks) and not wrong and not draft
        else None
    )
    _report(workspace, committed, json=json)
    if wrong:
        raise UsageError(" ".join(wrong), "Your other answers are saved.")


def _commit_if_whole(workspace: Workspace, *, asks: bool) -> Commitment | None:
    """Commit the answers once they are complete; None until then, or if the learner prefers to
    wait.
    """
    questions, answers = workspace.lab.spec.questions, load_answers(workspace.root)
    if not questions or problems(questions, answers):
        return None
    if asks and is_blind(workspace) and not typer.confirm("\nCommit this diagnosis?", default=True):
        return None
    return commit_answers(workspace)


def asked_questions(workspace: Workspace) -> list[QuestionSpec]:
    """The lab's questions; after the solution was looked at, without those that only the learner's
    own capture can answer.
    """
    return questions_of(workspace.lab, load_record(workspace))


def commit_answers(workspace: Workspace) -> Commitment:
    """Commit the answers in diagnosis.toml. Raises UsageError if evidence is required and there is
    no capture to check it against.
    """
    questions, answers = asked_questions(workspace), load_answers(workspace.root)
    capture = evidence_capture(workspace)
    if capture is None and needs_capture(questions):
        raise UsageError(
            "Your answers are saved, but you have no capture to measure them against.",
            "Make one with `lab profile`, then run `lab diagnose` again.",
        )
    given = {question.id: answers[question.id] for question in questions}
    _require_visible(workspace, questions, given)
    made = commit(workspace, given, capture.name if capture else "")
    note_diagnosis(workspace.lab.slug, str(workspace.root))
    return made


def _require_visible(
    workspace: Workspace, questions: list[QuestionSpec], given: dict[str, Any]
) -> None:
    """Raises UsageError for a stretch that no check could judge: the first diagnosis counts, and a
    slip is none.
    """
    earlier = load_record(workspace).commitments
    asked = [question.id for question in questions if question.shows]
    if not asked or (earlier and earlier[-1].answers == given):
        return
    seen = capture_figures(workspace)
    for id_ in asked if seen else []:
        assert seen is not None
        if wrong := misplaced_stretch(given[id_], seen):
            raise UsageError(
                f"{id_}: {wrong} Nothing is committed yet.",
                f"Mark another: `lab diagnose -a {id_}=START-END`.",
            )


def _reveal(workspace: Workspace) -> None:
    """Record that the causes were shown, and every hint with them."""
    if not is_blind(workspace):
        say("Nothing is hidden any more: `lab report` shows causes, findings and the ceiling.")
        return
    opened = unlocked_hints(workspace.lab.slug)
    if opened is not None and opened < len(workspace.lab.spec.hints):
        raise UsageError(
            "--reveal would show hints that your instructor has not opened yet.",
            "`lab hint` shows the ones that are open.",
        )
    if sys.stdin.isatty() and not typer.confirm(
        "Show the causes? This counts as taking all hints, and is recorded."
    ):
        raise typer.Exit
    while take_hint(workspace) is not None:
        note_hint(workspace.lab.slug, str(workspace.root))
    note_revealed(workspace)
    say(
        "`lab report` now shows causes, findings and the ceiling; `lab hint --again` shows all"
        " hints."
    )
    say("\nNext: lab report", style="bold")


def _report(workspace: Workspace, committed: Commitment | None, *, json: bool) -> None:
    questions, answers = workspace.lab.spec.questions, load_answers(workspace.root)
    wrong = problems(questions, answers)
    if json:
        rows = [
            {
                "id": question.id,
                "ask": question.ask,
                "answer": answers.get(question.id),
                "choices": question.choices,
                "problem": wrong.get(question.id),
            }
            for question in questions
        ]
        print_json({"questions": rows, "commitments": load_record(workspace).commitments})
        return
    if not questions:
        say("This lab asks no questions.")
        return
    for question in questions:
        _show(question, answers.get(question.id), wrong.get(question.id))
    _conclude(workspace, committed, list(wrong))


def _show(question: QuestionSpec, answer: Any, wrong: str | None) -> None:
    """One line per question: saved, or still open."""
    if is_given(answer):
        say(f"  {question.id}: {format_answer(question, answer)}", hang=4)
        if wrong:
            say(f"    {wrong}", style="red")
    else:
        say(f"  {question.id}: …", style="dim")
        say(f"    {question.ask}", style="dim")
        if question.measure:
            say(f"    {question.measure}", style="dim")
        for line in describe_choices(question):
            say(f"      {line}", style="dim", hang=3)


def _conclude(workspace: Workspace, committed: Commitment | None, missing: list[str]) -> None:
    record = load_record(workspace)
    if missing:
        say(
            f"\nStill to answer: {', '.join(missing)}. Your answers so far are saved in"
            " diagnosis.toml."
        )
        how = "" if sys.stdin.isatty() else "".join(f" -a {id_}=…" for id_ in missing)
        say(f"\nNext: lab diagnose{how}", style="bold")
    elif committed is None:
        say("\nSaved in diagnosis.toml; not committed yet.")
        say("\nNext: lab diagnose", style="bold")
    elif len(record.commitments) == 1:
        say(
            "\nCommitted. Causes, findings and the ceiling are now in the report, with your figures"
            " next to the tool's."
        )
        _tell_mechanisms(workspace)
        say("\nNext: lab report --html report.html", style="bold")
    else:
        say(
            f"\nCommitted as correction {len(record.commitments) - 1}. Only the first diagnosis"
            " counts as naming the cause."
        )
        say("\nNext: lab check", style="bold")


def _tell_mechanisms(workspace: Workspace) -> None:
    """The limits that a brief withholds because they give the cause away."""
    device = workspace.lab.spec.devices.get(workspace.info.device)
    limits = [
        describe_criterion(each)
        for each in (device.criteria if device else [])
        if each.kind == "mechanism"
    ]
    if limits:
        say("\nBesides the brief's targets, a check makes sure that the cause is gone:")
    for limit in limits:
        say(f"  {limit}", hang=2)
