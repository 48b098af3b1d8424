"""The unseen cases of a lab: which were drawn, and the learner's answers."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import Lab, SiblingSpec, content_root
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.workspace.diagnosis_file import Answer
from bottleneck_lab.workspace.folder import Workspace, now, read_json

GENERATE_S = 120


class DrawnCase(msgspec.Struct, frozen=True):
    """One case that was drawn. `answers` are empty, and `named` None, until the learner has
    answered: once, and for good.
    """

    program: str
    seed: int
    at: str
    answers: dict[str, Answer] = {}
    named: bool | None = None


def load_drawn(workspace: Workspace) -> list[DrawnCase]:
    """The cases drawn so far, oldest first."""
    file = workspace.state / "siblings.json"
    return read_json(file, list[DrawnCase]) if file.exists() else []


def spec_of(workspace: Workspace, drawn: DrawnCase) -> SiblingSpec:
    """What the lab says of a case that was drawn. Raises UsageError if this edition of the lab does
    not have it.
    """
    for spec in workspace.lab.spec.siblings:
        if spec.program == drawn.program:
            return spec
    raise UsageError(
        f"This edition of the lab has no case '{drawn.program}'.",
        "`lab diagnose --sibling` draws another.",
    )


def open_case(workspace: Workspace) -> DrawnCase | None:
    """The case that waits for an answer; None when there is none."""
    drawn = load_drawn(workspace)
    return drawn[-1] if drawn and drawn[-1].named is None else None


def traces_of(workspace: Workspace, number: int | None = None) -> list[Path]:
    """The traces of the case of that place among those drawn, the latest by default; one a rank."""
    place = len(load_drawn(workspace)) if number is None else number
    return sorted((workspace.state / "siblings" / f"{place:04}").glob("*.json.gz"))


def draw(workspace: Workspace, rng: random.Random) -> DrawnCase:
    """The open case, or a new one: of those that this learner has met least often. Raises
    UsageError if the lab has none.
    """
    found = open_case(workspace)
    if found and traces_of(workspace):
        return found
    specs = workspace.lab.spec.siblings
    if not specs:
        raise UsageError("This lab has no more cases to diagnose.", "`lab` shows what to do next.")
    with workspace.writing("lab diagnose"):
        drawn = [each for each in load_drawn(workspace) if each.named is not None]
        met = {spec.program: sum(each.program == spec.program for each in drawn) for spec in specs}
        program = rng.choice([name for name, times in met.items() if times == min(met.values())])
        case = DrawnCase(program, rng.randrange(1, 1_000_000), now())
        generate(
            workspace.lab,
            case.program,
            case.seed,
            workspace.state / "siblings" / f"{len(drawn) + 1:04}",
        )
        _write(workspace, [*drawn, case])
    return case


def answer(workspace: Workspace, answers: dict[str, Answer], *, named: bool) -> None:
    """Record the learner's answer to the open case."""
    with workspace.writing("lab diagnose"):
        *before, case = load_drawn(workspace)
        _write(workspace, [*before, msgspec.structs.replace(case, answers=answers, named=named)])


def _write(workspace: Workspace, drawn: list[DrawnCase]) -> None:
    workspace.write(
        workspace.state / "siblings.json", msgspec.json.format(msgspec.json.encode(drawn))
    )


def generate(lab: Lab, program: str, seed: int, folder: Path) -> list[Path]:
    """Has the lab's script write the capture of a case into `folder`: its traces, one a rank.
    Raises MachineError if it writes none.

    A pack has programs of its own, or uses those of this project.
    """
    own = lab.root / "datasets" / "siblings.py"
    script = own if own.is_file() else content_root() / "datasets" / "siblings.py"
    command = [
        sys.executable,
        str(script),
        "--program",
        program,
        "--seed",
        str(seed),
        "--out",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GENERATE_S, check=False)
    traces = sorted(folder.glob("*.json.gz"))
    if done.returncode or not traces:
        said = done.stderr.strip()[-300:] or "it wrote no trace*.json.gz"
        raise MachineError(
            f"{script} makes no capture of '{program}': {said}", "Tell the lab's author."
        )
    return traces
