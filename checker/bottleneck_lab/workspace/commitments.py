"""Diagnoses as they were committed, and whether the workspace is still blind: whether causes are
the learner's to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from bottleneck_lab.workspace.diagnosis_file import Answer
from bottleneck_lab.workspace.folder import Workspace, now, read_json, workspace_above
from bottleneck_lab.workspace.hints import load_hints

RevealedBy = Literal["", "hints", "revealed", "solution"]
"""What gave the cause away before it was named: all hints, `lab diagnose --reveal`, or the
solution.
"""


class Commitment(msgspec.Struct, frozen=True):
    """One committed diagnosis. `capture` is the folder's name in which its evidence was measured,
    `hints` how many had been taken.
    """

    at: str
    answers: dict[str, Answer]
    capture: str = ""
    hints: int = 0
    told: RevealedBy = ""


class Help(msgspec.Struct, frozen=True):
    """When the causes were revealed without a diagnosis, and when the solution was looked at; None
    for never.
    """

    revealed: str | None = None
    solution: str | None = None


class Record(msgspec.Struct, frozen=True):
    """Everything that a workspace records of its learner's diagnosis. It is submitted with the
    work.
    """

    commitments: list[Commitment]
    help: Help
    hints: int


def load_record(workspace: Workspace) -> Record:
    """What has been committed, oldest first, and the help that was taken. Raises MachineError for a
    file that is not ours.
    """
    diagnoses, help_ = workspace.state / "diagnoses.json", workspace.state / "help.json"
    return Record(
        read_json(diagnoses, list[Commitment]) if diagnoses.exists() else [],
        read_json(help_, Help) if help_.exists() else Help(),
        len(load_hints(workspace)),
    )


def is_blind(workspace: Workspace) -> bool:
    """Whether evidence is shown without causes, findings and ceilings: until a diagnosis is
    committed, or a hint has given them away.
    """
    record = load_record(workspace)
    told = record.commitments or record.help.revealed or record.help.solution
    return bool(workspace.lab.spec.questions) and not told


def is_blind_at(path: Path) -> bool:
    """The same of the workspace that a file or folder lies in; outside labs nothing is hidden."""
    workspace = workspace_above(path.absolute())
    return workspace is not None and is_blind(workspace)


def commit(workspace: Workspace, answers: Mapping[str, Answer], capture: str) -> Commitment:
    """Record `answers` as the learner's diagnosis; the latest commitment as it stands where they
    are no different.
    """
    with workspace.writing("lab diagnose"):
        record = load_record(workspace)
        if record.commitments and record.commitments[-1].answers == dict(answers):
            return record.commitments[-1]
        made = Commitment(now(), dict(answers), capture, record.hints, _told(workspace, record))
        _write(workspace, "diagnoses.json", [*record.commitments, made])
    return made


def _told(workspace: Workspace, record: Record) -> RevealedBy:
    if record.help.solution:
        return "solution"
    if record.help.revealed:
        return "revealed"
    hints = len(workspace.lab.spec.hints)
    return "hints" if hints and record.hints >= hints else ""


def note_revealed(workspace: Workspace) -> None:
    """Record that the causes were shown without a diagnosis."""
    _help(workspace, revealed=now())


def note_solution_taken(workspace: Workspace) -> None:
    """Record that the solution was looked at."""
    _help(workspace, solution=now())


def _help(workspace: Workspace, **moments: str) -> None:
    """The first time counts."""
    with workspace.writing("lab"):
        help_ = load_record(workspace).help
        new = {name: moment for name, moment in moments.items() if getattr(help_, name) is None}
        _write(workspace, "help.json", msgspec.structs.replace(help_, **new))


def _write(workspace: Workspace, name: str, content: object) -> None:
    workspace.write(workspace.state / name, msgspec.json.format(msgspec.json.encode(content)))
