"""Committing a diagnosis: the answers in `diagnosis.toml`, once they can be graded."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bottleneck_lab.catalog import QuestionSpec
from bottleneck_lab.course.captures import (
    capture_figures,
    committed_capture,
    evidence_capture,
    read_timeline,
)
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.answers import form_problems, read_answer
from bottleneck_lab.grading.diagnosis import misplaced_stretch, needs_capture
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.commitments import Record, commit, questions_of
from bottleneck_lab.workspace.diagnosis_file import Answer, is_given, load_answers, save_answers
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.progress import note_diagnosis


def write_out_choices(workspace: Workspace) -> None:
    """Write each choice in diagnosis.toml out that stands there as `lab diagnose -a` takes it: by
    its number, or by how it begins. Raises UsageError for a file that cannot be edited.
    """
    answers, whole = load_answers(workspace.root), dict[str, Answer]()
    for question in workspace.lab.spec.questions:
        given = answers.get(question.id)
        if question.type != "choice" or not is_given(given):
            continue
        choice = read_answer(question, str(given))
        if choice in question.choices and choice != given:
            whole[question.id] = choice
    if whole:
        save_answers(workspace, whole)


def misplaced_answers(
    workspace: Workspace, questions: list[QuestionSpec], answers: Mapping[str, Any]
) -> dict[str, str]:
    """Return why a stretch of the capture shows nothing that a check could grade, by question.

    Nothing is wrong with a stretch while there is no capture.
    """
    marked = [question.id for question in questions if question.shows and question.id in answers]
    figures = capture_figures(workspace) if marked else None
    if figures is None:
        return {}
    faults = {id_: misplaced_stretch(str(answers[id_]), figures) for id_ in marked}
    return {id_: fault for id_, fault in faults.items() if fault}


def refused_answers(
    workspace: Workspace, questions: list[QuestionSpec], answers: Mapping[str, Any]
) -> dict[str, str]:
    """Return why answers are refused when they are given, by question: stretches that show nothing,
    and operators that the capture does not have.
    """
    faults = misplaced_answers(workspace, questions, answers)
    ids = [each.id for each in questions if _asks_for_operator(each) and each.id in answers]
    folder = evidence_capture(workspace) if ids else None
    if folder is None:
        return faults
    timeline = read_timeline(folder)
    names = {timeline.strings[name] for name in np.unique(timeline.operators.name).tolist()}
    for id_ in ids:
        name = str(answers[id_])
        if not {name, f"aten::{name}"} & names:
            # Without the namespace, which makes any two names alike.
            short = {each.rpartition("::")[2]: each for each in sorted(names)}
            near = difflib.get_close_matches(name.rpartition("::")[2], short, n=3)
            like = f" Near it: {', '.join(short[each] for each in near)}." if near else ""
            faults[id_] = f"Capture {folder.name} has no operator '{name}'.{like}"
    return faults


def _asks_for_operator(question: QuestionSpec) -> bool:
    """Return True if the form of a question is that of an operator's name, with or without its
    namespace.
    """
    names = ("addmm", "aten::addmm")
    return bool(question.form) and all(re.fullmatch(question.form, name) for name in names)


def require_committable(workspace: Workspace, record: Record) -> None:
    """Raise UsageError for well-formed answers that cannot be committed, as `commit_answers` does,
    before anybody is asked whether they should be.
    """
    questions = questions_of(workspace.lab, record)
    if evidence_capture(workspace) is None and needs_capture(questions):
        raise UsageError(
            "Your answers are saved, but you have no capture to measure them against.",
            "Make one with `lab profile`, then run `lab diagnose` again.",
        )
    # The first diagnosis counts, so a slip in marking a stretch is refused before it is committed.
    # `lab diagnose` saves no such answer: this one was written into diagnosis.toml by hand.
    if not record.commitments:
        answers = load_answers(workspace.root)
        for id_, fault in misplaced_answers(workspace, questions, answers).items():
            raise UsageError(
                f"{id_}: {fault} Nothing is committed yet.",
                f"Mark another: `lab diagnose -a {id_}=START-END`.",
            )


def commit_answers(workspace: Workspace, record: Record) -> Record:
    """Commit the answers in diagnosis.toml, and return the record with them.

    `record` is the workspace's, as just loaded. Raises UsageError if evidence is required and there
    is no capture to check it against, or if the first diagnosis marks a stretch of time that shows
    nothing a check could grade.
    """
    require_committable(workspace, record)
    questions = questions_of(workspace.lab, record)
    stored = load_answers(workspace.root)
    answers = {question.id: stored[question.id] for question in questions}
    if record.commitments and record.commitments[-1].answers == answers:
        return record
    capture = evidence_capture(workspace)
    record = commit(workspace, answers, capture.name if capture else "")
    note_diagnosis(workspace.lab.slug, str(workspace.root))
    return record


def judged_answers(workspace: Workspace, answers: Mapping[str, Any]) -> dict[str, bool]:
    """Return the answers that the latest check which graded them found right or wrong, by question.
    One that has changed since is not judged, nor is one whose choice has.
    """
    judged: dict[str, bool] = {}
    choices = {question.id: question.follows for question in workspace.lab.spec.questions}
    for attempt in load_attempts(workspace):
        checked = load_answers(attempt.submission)
        for result in attempt.verdict.criteria:
            if result.kind == "diagnosis" and result.holds is not None:
                judged.pop(result.id, None)
                rests_on = [result.id, choices.get(result.id) or result.id]
                same = all(checked.get(id_) == answers.get(id_) for id_ in rests_on)
                if same and is_given(checked.get(result.id)):
                    judged[result.id] = result.holds
    return judged


def where_to_look(workspace: Workspace, record: Record) -> str:
    """Return where the answers to the lab's questions can be read off again, in a sentence or two:
    the capture that the diagnosis is about, or the output of the shipped code. Empty where a check
    compares them with captures of its own.
    """
    lab = workspace.lab
    if lab.spec.devices[workspace.info.device].judges_diagnosis:
        return ""
    is_edited = lab.code_hash(workspace.root) != lab.code_hash(lab.path)
    shipped = f"The answers are about the shipped code{', not about yours' * is_edited}"
    if lab.spec.evidence == "run":
        return f"{shipped}: `lab run{' --shipped' * is_edited}` runs it again."
    name = record.commitments[-1].capture if record.commitments else ""
    folder = committed_capture(workspace, name)
    if folder:
        number = int(folder.name.split("-")[0])
        return f"The answers are about one capture: `lab report {number}` shows it."
    if is_edited:
        return f"{shipped}: `lab reset` brings it back, and keeps yours; `lab profile` captures it."
    return f"{shipped}: `lab profile` captures it."


def require_diagnosis(workspace: Workspace, record: Record) -> Record:
    """Commit the diagnosis that is to be checked, and return the record with it.

    `record` is the workspace's, as just loaded. Raises UsageError if the diagnosis cannot be
    graded.
    """
    write_out_choices(workspace)
    questions = questions_of(workspace.lab, record)
    answers = load_answers(workspace.root)
    wrong = form_problems(questions, answers)
    if wrong:
        missing = [id_ for id_ in wrong if not is_given(answers.get(id_))]
        sentences = [f"{id_}: {wrong[id_]}" for id_ in wrong if id_ not in missing]
        if missing:
            sentences.insert(0, f"Still to answer: {', '.join(missing)}.")
        raise UsageError(
            f"The diagnosis is incomplete. {' '.join(sentences)}",
            "Answer the questions with `lab diagnose`; a check measures only after that.",
        )
    return commit_answers(workspace, record) if questions else record
