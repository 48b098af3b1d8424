"""The diagnoses that were committed, and whether the workspace still hides causes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from bottleneck_lab.catalog import Lab, QuestionSpec
from bottleneck_lab.errors import LabError
from bottleneck_lab.workspace.attempts import load_attempts
from bottleneck_lab.workspace.diagnosis_file import Answer, is_given, load_answers
from bottleneck_lab.workspace.folder import (
    Workspace,
    is_workspace,
    now,
    open_workspace,
    read_json,
    workspace_above,
)
from bottleneck_lab.workspace.hints import load_hints
from bottleneck_lab.workspace.progress import load_progress

RevealedBy = Literal["", "hints", "revealed", "solution"]
"""What gave the cause away before it was named: all hints, `lab diagnose --reveal`, or the
solution.
"""


class Commitment(msgspec.Struct, frozen=True):
    """One committed diagnosis.

    `capture` is the folder's name in which its evidence was measured, `hints` how many had been
    taken, `told` what had given the cause away before.
    """

    at: str
    answers: dict[str, Answer]
    capture: str = ""
    hints: int = 0
    told: RevealedBy = ""


class Help(msgspec.Struct, frozen=True):
    """When the causes were revealed without a diagnosis, and when the solution was looked at.

    None for never.
    """

    revealed: str | None = None
    solution: str | None = None


class Record(msgspec.Struct, frozen=True):
    """Everything that a workspace records of its learner's diagnosis: submitted with the work."""

    commitments: list[Commitment]
    help: Help
    hints: int


def load_record(workspace: Workspace) -> Record:
    """Return what has been committed, oldest first, and the help that was taken.

    Raises MachineError for a file that this version did not write.
    """
    diagnoses, help_ = workspace.state / "diagnoses.json", workspace.state / "help.json"
    return Record(
        read_json(diagnoses, list[Commitment]) if diagnoses.exists() else [],
        read_json(help_, Help) if help_.exists() else Help(),
        len(load_hints(workspace)),
    )


def questions_of(lab: Lab, record: Record) -> list[QuestionSpec]:
    """Return the lab's questions that a check grades.

    Once the solution was looked at, a question that only the learner's own capture can answer is
    left out, unless it was answered in a committed diagnosis.
    """
    if record.help.solution is None:
        return lab.spec.questions
    answered = {id_ for made in record.commitments for id_ in made.answers}
    return [
        question
        for question in lab.spec.questions
        if not question.reads_capture or question.id in answered
    ]


def open_questions(workspace: Workspace, record: Record) -> list[str]:
    """Return the questions that a check grades and diagnosis.toml leaves open, by their ids."""
    answers = load_answers(workspace.root)
    questions = questions_of(workspace.lab, record)
    return [question.id for question in questions if not is_given(answers.get(question.id))]


def hides_causes(lab: Lab, record: Record) -> bool:
    """Return True if evidence is shown without causes, findings and ceilings.

    That ends when a diagnosis is committed, or help has given the causes away.
    """
    open_ = record.commitments or record.help.revealed or record.help.solution
    return bool(lab.spec.questions) and not open_


def is_blind(workspace: Workspace) -> bool:
    """Return True if the workspace still hides causes, as `hides_causes` explains."""
    return hides_causes(workspace.lab, load_record(workspace))


def is_blind_at(path: Path) -> bool:
    """Return True if `path` lies in a workspace that still hides causes.

    Outside labs nothing is hidden.
    """
    workspace = workspace_above(path.absolute())
    return workspace is not None and is_blind(workspace)


def hides_remedies_at(path: Path) -> bool:
    """Return True if `path` lies in a workspace whose findings come without advice.

    That ends with the first check, or with help that gives more away.
    """
    workspace = workspace_above(path.absolute())
    if workspace is None or not workspace.lab.spec.questions:
        return False
    record, hints = load_record(workspace), workspace.lab.spec.hints
    helped = record.help.revealed or record.help.solution or (hints and record.hints >= len(hints))
    return not helped and not load_attempts(workspace)


def untried_findings() -> set[str]:
    """Return the findings, by their ids, whose remedy this learner is still to find: what the labs
    teach that were started and not checked yet.
    """
    taught = set()
    for entry in load_progress().labs.values():
        folder = Path(entry.workspace)
        if entry.attempts or not is_workspace(folder):
            continue
        with contextlib.suppress(LabError):  # of a lab that this edition does not have
            if hides_remedies_at(folder):
                taught.add(open_workspace(folder).lab.spec.taught)
    return taught


def commit(workspace: Workspace, answers: Mapping[str, Answer], capture: str) -> Record:
    """Record `answers` as the learner's diagnosis, and return the record with it.

    Answers that equal the latest commitment's are not recorded again.
    """
    # The record is read under the lock: another command may have committed meanwhile.
    with workspace.writing("lab diagnose"):
        record = load_record(workspace)
        if record.commitments and record.commitments[-1].answers == dict(answers):
            return record
        revealed_by: RevealedBy = ""
        if record.help.solution:
            revealed_by = "solution"
        elif record.help.revealed:
            revealed_by = "revealed"
        elif any(hint.index == len(workspace.lab.spec.hints) - 1 for hint in load_hints(workspace)):
            revealed_by = "hints"  # the last one: of those before it, needless ones are skipped
        made = Commitment(now(), dict(answers), capture, record.hints, revealed_by)
        record = msgspec.structs.replace(record, commitments=[*record.commitments, made])
        workspace.write_state("diagnoses.json", record.commitments)
    return record


def note_revealed(workspace: Workspace) -> None:
    """Record that the causes were shown without a diagnosis."""
    _note_help(workspace, "revealed")


def note_solution_taken(workspace: Workspace) -> None:
    """Record that the solution was looked at."""
    _note_help(workspace, "solution")


def _note_help(workspace: Workspace, name: Literal["revealed", "solution"]) -> None:
    with workspace.writing("lab"):
        help_ = load_record(workspace).help
        if getattr(help_, name) is None:  # the first time counts
            help_ = msgspec.structs.replace(help_, **{name: now()})
        workspace.write_state("help.json", help_)
