"""`lab diagnose`: commit to a cause, to evidence measured in your own capture, and to the gain from
fixing it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.cohort.grading.open_help import open_help
from bottleneck_lab.commands.asking import COUNTS, NEVER_WRONG, ask_question, confirm
from bottleneck_lab.commands.ui import (
    STYLES,
    Answers,
    Json,
    Yes,
    here,
    note,
    print_json,
    say,
    say_next,
)
from bottleneck_lab.commands.where import say_next_step
from bottleneck_lab.course.captures import capture_figures, evidence_capture
from bottleneck_lab.course.diagnosing import (
    commit_answers,
    judged_answers,
    refused_answers,
    require_committable,
    where_to_look,
    write_out_choices,
)
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.answers import (
    describe_choices,
    form_problems,
    format_answer,
    parse_answers,
    question_about,
)
from bottleneck_lab.grading.criteria import describe_criterion
from bottleneck_lab.grading.diagnosis import (
    beyond_ceiling,
    describe_check_ceiling,
    needs_capture,
    stretch_rule,
)
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.report.check_ceiling import check_ceiling
from bottleneck_lab.report.verdict_words import SIGNS, Mark, mark_of
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.captures import whose_code
from bottleneck_lab.workspace.commitments import (
    Record,
    hides_causes,
    is_blind,
    load_record,
    note_revealed,
    questions_of,
)
from bottleneck_lab.workspace.diagnosis_file import Answer, is_given, load_answers, save_answers
from bottleneck_lab.workspace.folder import Workspace, numbered
from bottleneck_lab.workspace.hints import take_hint
from bottleneck_lab.workspace.next_step import has_looked
from bottleneck_lab.workspace.progress import note_hint

EXAMPLE = "lab diagnose --answer cause=2 --answer evidence=0.6"


def command(
    answer: Answers = None,
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
    sibling: Annotated[bool, typer.Option("--sibling", hidden=True)] = False,  # of version 0.2
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Commit to a diagnosis: the cause, the evidence in your capture, and the gain you predict.

    Answers are saved in diagnosis.toml, which you can also edit, and committed once all are given.
    Without a terminal to ask on, -a commits once it gives the last answer; answers that stand there
    already are committed with --yes only.
    From then on, reports show causes and findings. A later diagnosis is a correction: a right one
    passes the check; where work is graded, points go to the first. The exit code is 2 if an answer
    is refused, and otherwise 0.
    """
    workspace = here()
    if sibling:
        raise UsageError(
            "The program after a lab is a case now.",
            f"`lab case --lab {workspace.lab.slug}` draws one that was chosen for the lab.",
        )
    if draft and reveal:
        raise UsageError(
            "--draft saves answers to this lab's own questions only; nothing was done.",
            "Leave it out: `lab diagnose --reveal` is final.",
        )
    if reveal:
        _reveal(workspace, yes=yes)
        return
    write_out_choices(workspace)
    questions = workspace.lab.spec.questions
    if not json and _lacks_capture(workspace):
        say("You have no capture yet, and some answers are read from one: `lab profile` makes it.")
    at_terminal = sys.stdin.isatty() and not answer and not json
    if yes and not form_problems(questions, load_answers(workspace.root)):
        at_terminal = False  # nothing is left to ask
    wrong = _save(workspace, answer, draft=draft) if answer else []
    if at_terminal:
        # Each answer is saved at once, so leaving halfway loses nothing.
        for question in questions:
            known = load_answers(workspace.root)
            seen = capture_figures(workspace) if question.shows else None
            about, drafted = question_about(question, known), known.get(question.id)
            given = ask_question(about, drafted, partial(_refusal, workspace), seen)
            save_answers(workspace, {question.id: given})
    record, committed = load_record(workspace), False
    corrections = {} if json or wrong else _show_answers(workspace, record)
    # Answers that were drafted, or written by hand, are committed by the bare command too.
    if (answer or not json) and not wrong and not draft:
        asks = sys.stdin.isatty() and not json and not yes
        agreed = bool(answer) or yes or sys.stdin.isatty()
        record, committed = _commit_if_whole(workspace, record, asks=asks, agreed=agreed)
    if json:
        _print_answers(workspace, record)
    elif questions and not wrong:
        _conclude(workspace, record, list(corrections), committed=committed)
    if wrong:
        raise UsageError(
            "\n".join(wrong), "Nothing was saved: mend that and give all of these answers again."
        )


def _save(workspace: Workspace, texts: list[str], *, draft: bool) -> list[str]:
    """Save the answers given as ID=VALUE, all or none: a check would commit what is left of a
    refused command. Returns one sentence for each that is refused.
    """
    questions = workspace.lab.spec.questions
    answers, wrong = parse_answers(questions, texts)
    for id_, fault in refused_answers(workspace, questions, answers).items():
        wrong.append(f"{id_}: {fault}")
    if not draft and not wrong:
        wrong = _left_behind(workspace, answers)
    if not wrong:
        save_answers(workspace, answers)
    return wrong


def _left_behind(workspace: Workspace, answers: dict[str, Answer]) -> list[str]:
    """Return a sentence for each committed answer that would stay as it was, though the choice that
    it rests on is corrected.
    """
    known = load_answers(workspace.root)
    if not load_record(workspace).commitments:
        return []
    return [
        f"{question.id}: {known[question.id]} was given for another `{question.follows}`. Give it"
        " again if it holds for this one."
        for question in workspace.lab.spec.questions
        if is_given(known.get(question.id))
        and question.id not in answers
        and question.follows in answers
        and answers[question.follows] != known.get(question.follows)
    ]


def _lacks_capture(workspace: Workspace) -> bool:
    """Return True if answers are checked against a capture, and there is none."""
    return needs_capture(workspace.lab.spec.questions) and evidence_capture(workspace) is None


def _refusal(workspace: Workspace, question: QuestionSpec, answer: Answer) -> str | None:
    return refused_answers(workspace, [question], {question.id: answer}).get(question.id)


def _commit_if_whole(
    workspace: Workspace, record: Record, *, asks: bool, agreed: bool
) -> tuple[Record, bool]:
    """Commit the answers if they are complete: the first ones, which count, after a question if
    `asks`, else with a remark. `agreed`: somebody gave answers, or can be asked.

    Returns the record, and True if they are committed now and were not before. Raises UsageError
    for answers that are not committed yet and that nobody agreed to.
    """
    questions, answers = questions_of(workspace.lab, record), load_answers(workspace.root)
    if not questions or form_problems(questions, answers):
        return record, False
    _warn_of_edited_code(workspace, questions)
    is_first = hides_causes(workspace.lab, record)
    if is_first:
        require_committable(workspace, record)
    given = {question.id: answers[question.id] for question in questions}
    if not agreed and given not in [each.answers for each in record.commitments[-1:]]:
        raise UsageError(
            "Nothing was committed: `lab diagnose` asks first, and there is no terminal to ask on."
            " Your answers are saved in diagnosis.toml.",
            "`lab diagnose --yes` commits them.",
        )
    if is_first:
        capture = evidence_capture(workspace) if needs_capture(questions) else None
        about = f", compared with capture {capture.name}" if capture else ""
        if not asks:
            note(f"Committing these answers{about}.")
        elif not _agrees(f"\nCommit these answers{about}? It is {COUNTS}."):
            return record, False
    now = commit_answers(workspace, record)
    return now, len(now.commitments) > len(record.commitments)


def _agrees(question: str) -> bool:
    """Ask at the terminal. Where its input ends, say what became of the answers."""
    try:
        return typer.confirm(question, default=True)
    except typer.Abort:
        note(
            "\nNothing was committed: your answers are saved in diagnosis.toml. `lab diagnose` asks"
            " again; `lab diagnose --yes` commits them, and so does `lab check`."
        )
        raise


def _warn_of_edited_code(workspace: Workspace, questions: list[QuestionSpec]) -> None:
    """Say that answers are compared with a capture of edited code, where that is so: the questions
    are about the shipped code.
    """
    folder = evidence_capture(workspace) if needs_capture(questions) else None
    if folder is None or whose_code(workspace.lab, folder) != "of edited code":
        return
    note(
        f"Your answers are compared with {folder.name}, which shows edited code, and the questions"
        " are about the shipped code. `lab reset` brings that back and keeps yours; `lab profile`"
        " then captures it, and answers are compared with that."
    )


def _reveal(workspace: Workspace, *, yes: bool) -> None:
    """Record that the causes were shown, and every hint with them."""
    if not is_blind(workspace):
        say("Nothing is hidden any more in this lab.")
        return
    opened = open_help(workspace.lab.slug).hints
    if opened is not None and opened < len(workspace.lab.spec.hints):
        raise UsageError(
            "--reveal would show hints that your instructor has not opened yet.",
            "`lab hint` shows the ones that are open.",
        )
    question = "Show the causes? This counts as taking all hints, and is recorded."
    confirm(question, "lab diagnose --reveal", yes=yes)
    while take_hint(workspace) is not None:
        note_hint(workspace.lab.slug, str(workspace.root))
    note_revealed(workspace)
    say("Reports now show causes, findings and the ceiling; `lab hint --again` shows all hints.")
    if numbered(workspace.captures):
        say_next("lab report")
    else:
        say_next(f"lab {workspace.lab.spec.evidence}")


def _print_answers(workspace: Workspace, record: Record) -> None:
    """Print the answers as JSON."""
    answers = load_answers(workspace.root)
    wrong = form_problems(questions_of(workspace.lab, record), answers)
    rows = [
        {
            "id": question.id,
            "ask": question.ask,
            "answer": answers.get(question.id),
            "choices": question.choices,
            "problem": wrong.get(question.id),
        }
        for question in workspace.lab.spec.questions
    ]
    print_json({"questions": rows, "commitments": record.commitments})


def _show_answers(workspace: Workspace, record: Record) -> dict[str, str]:
    """Print the questions with their answers. Returns those that the last check found wrong, with
    its sentences.
    """
    questions, answers = workspace.lab.spec.questions, load_answers(workspace.root)
    wrong = form_problems(questions_of(workspace.lab, record), answers)
    if not questions:
        say("This lab asks no questions.")
    corrections, right = _found_wrong(workspace), _found_right(workspace, answers)
    unjudged = _unjudged(workspace)
    for question in questions:
        about = question_about(question, answers)
        _show(workspace, about, answers.get(question.id), wrong.get(question.id))
        if question.id in right:
            say(f"    {SIGNS['right']} {right[question.id]}", style=STYLES["right"], hang=6)
        if question.id in corrections:
            mark: Mark = "not judged" if question.id in unjudged else "wrong"
            say(f"    {SIGNS[mark]} {corrections[question.id]}", style=STYLES[mark], hang=6)
        _remark_on_gain(workspace, question, answers)
    return corrections


def _remark_on_gain(
    workspace: Workspace, question: QuestionSpec, answers: Mapping[str, Any]
) -> None:
    """Say what speaks against a prediction: Amdahl's law, and the most that a check measures."""
    gain, most = answers.get(question.id), check_ceiling(workspace.lab, workspace.info.device)
    if remark := beyond_ceiling(question, answers):
        say(f"    {remark}", style="yellow")
    if (
        question.predicts_gain
        and most is not None
        and isinstance(gain, int | float)
        and gain > 1.005 * most
    ):
        say(f"    {describe_check_ceiling(most)}", style="yellow")


def _unjudged(workspace: Workspace) -> set[str]:
    """Return the questions whose answers the last check did not judge: their choice is wrong."""
    attempts = load_attempts(workspace)
    criteria = attempts[-1].verdict.criteria if attempts else []
    return {each.id for each in criteria if mark_of(each) == "not judged"}


def _found_wrong(workspace: Workspace) -> dict[str, str]:
    """Return the answers in diagnosis.toml that the last check found wrong, with its sentences.

    What rests on a choice that has changed since is not among them, nor what quotes an answer to
    another question that has, or that is wrong itself, nor what names another question that has
    been answered anew.
    """
    attempts = load_attempts(workspace)
    if not attempts:
        return {}
    now, checked = load_answers(workspace.root), load_answers(attempts[-1].submission)
    faults = [
        fault
        for each in attempts[-1].verdict.criteria
        if each.kind == "diagnosis" and each.holds is False
        for fault in _faults(workspace, each)
    ]
    wrong = {id_ for id_, _ in faults}
    unsettled = {
        id_: answer
        for id_, answer in checked.items()
        if isinstance(answer, str) and answer and (now.get(id_) != answer or id_ in wrong)
    }
    changed = [id_ for id_, answer in checked.items() if now.get(id_) != answer]
    rests_on = {question.id: question.follows for question in workspace.lab.spec.questions}
    return {
        id_: f"Check {attempts[-1].number}: {sentence}"
        for id_, sentence in faults
        if rests_on.get(id_) not in changed
        and not any(
            answer in sentence and answer != checked.get(id_)
            for other, answer in unsettled.items()
            if other != id_
        )
        and not any(f"`{other}`" in sentence for other in changed if other != id_)
        and is_given(now.get(id_))
        and now.get(id_) == checked.get(id_)
    }


def _faults(workspace: Workspace, result: CriterionResult) -> list[tuple[str, str]]:
    """Return the questions that a missed criterion finds answered wrongly, each with the sentences
    about it: that of the same name, or those whose names, as in `first`, begin a sentence.
    """
    ids = [question.id for question in workspace.lab.spec.questions]
    if result.id in ids:
        fault = result.sentence.removeprefix(f"{result.id}: ")
        device = workspace.lab.spec.devices.get(workspace.info.device)
        for spec in device.criteria if device else []:
            if spec.id == result.id:
                fault = fault.removeprefix(f"Not met: {describe_criterion(spec)}. ")
        return [(result.id, fault)]
    parts = re.split(rf"(?<=[.] )`({'|'.join(ids)})`", result.sentence)
    return [
        (id_, f"`{id_}`{text}".strip()) for id_, text in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _found_right(workspace: Workspace, answers: Mapping[str, Any]) -> dict[str, str]:
    """Return those of `answers` that the latest check which graded them found right, with its
    number and its sentence about them, as the tool's own figure.
    """
    judged, right = judged_answers(workspace, answers), {}
    questions = {question.id: question for question in workspace.lab.spec.questions}
    for attempt in load_attempts(workspace):
        for each in attempt.verdict.criteria:
            if each.holds and judged.get(each.id) and each.id in questions:
                shown = format_answer(questions[each.id], answers[each.id])
                figure = each.sentence.removeprefix(f"{each.id}: ")
                figure = figure.removeprefix(f"'{shown}' is right.").strip()
                right[each.id] = f"Check {attempt.number}{f': {figure}' * bool(figure)}"
    return right


def _show(workspace: Workspace, question: QuestionSpec, answer: Any, wrong: str | None) -> None:
    """Print one question with its answer, or in full if it is still open."""
    if is_given(answer):
        say(f"  {question.id}: {format_answer(question, answer)}", hang=4)
        if wrong:
            say(f"    {wrong}", style="red")
        return
    say(f"  {question.id}: …", style="dim")
    say(f"    {question.ask}", style="dim")
    if question.measure:
        say(f"    {question.measure}", style="dim")
    if question.predicts_gain:
        say(f"    {NEVER_WRONG}", style="dim")
    if question.shows:
        say(f"    {stretch_rule(question, capture_figures(workspace))}", style="dim")
    for line in describe_choices(question):
        say(f"      {line}", style="dim", hang=3)


_GRADED = "`lab check` says whether the answers are right; `lab diagnose -a ID=VALUE` corrects one."


def _conclude(
    workspace: Workspace, record: Record, incorrect: list[str], *, committed: bool
) -> None:
    """Print what became of the answers, and the next command."""
    answers = load_answers(workspace.root)
    missing = list(form_problems(questions_of(workspace.lab, record), answers))
    if missing:
        _ask_for_missing(workspace, record, missing)
    elif not committed:
        if incorrect:
            _ask_for_corrections(where_to_look(workspace, record), incorrect)
        elif record.commitments and record.commitments[-1].answers == answers:
            graded = {each.id for each in workspace.lab.spec.questions if not each.predicts_gain}
            if graded <= _found_right(workspace, answers).keys():
                say("\nThese answers are committed, and a check found them right.")
            else:
                say(f"\nThese answers are committed already. {_GRADED}")
            say_next_step(workspace, load_attempts(workspace), record)
        else:
            say(
                "\nSaved in diagnosis.toml; not committed yet. `lab check` commits the answers that"
                " stand there, too."
            )
            say_next("lab diagnose" if sys.stdin.isatty() else "lab diagnose --yes")
    elif len(record.commitments) == 1:
        _explain_first_commitment(workspace)
        say_next_step(workspace, load_attempts(workspace), record)
    else:
        say(
            f"\nCommitted as correction {len(record.commitments) - 1}. A right one passes the"
            " check; your first diagnosis stays the one that counts."
        )
        say_next_step(workspace, load_attempts(workspace), record)


def _ask_for_missing(workspace: Workspace, record: Record, missing: list[str]) -> None:
    """Print the questions that are still to be answered, and the next command."""
    saved = ""
    if len(missing) < len(workspace.lab.spec.questions):
        saved = " Your answers so far are saved in diagnosis.toml."
    say(f"\nStill to answer: {', '.join(missing)}.{saved}")
    attempts = load_attempts(workspace)
    if not attempts and not has_looked(workspace, record):
        say_next_step(workspace, attempts, record)
    elif _lacks_capture(workspace):
        say_next("lab profile")
    elif sys.stdin.isatty():
        say_next("lab diagnose")
    else:
        say_next(f"lab diagnose{''.join(f' -a {id_}=…' for id_ in missing)}")
        say("Giving the last answer commits them all; with `--draft` they are only saved.")


def _ask_for_corrections(where: str, incorrect: list[str]) -> None:
    """Print where the answers can be read off, if known, and the command that corrects them."""
    if where:
        say(f"\n{where}")
    say_next(f"lab diagnose{''.join(f' -a {id_}=…' for id_ in incorrect)}")


def _explain_first_commitment(workspace: Workspace) -> None:
    """Print what the commitment is worth, and what a check asks for besides right answers."""
    say(f"\nCommitted as your first diagnosis: where work is graded, it gets the points. {_GRADED}")
    # The brief withholds some of these limits, because they give the cause away.
    device = workspace.lab.spec.devices.get(workspace.info.device)
    criteria = device.criteria if device else []
    # Where the shipped code is wrong, what right results are is what the lab is about.
    wrong = workspace.lab.spec.starter_fails == "wrong output"
    limits = [
        each
        for each in criteria
        if each.kind in ("target", "mechanism") or (wrong and each.kind == "correctness")
    ]
    if limits:
        say("\nA check also asks for:")
    for limit in limits:
        say(f"  {describe_criterion(limit)}", hang=2)
