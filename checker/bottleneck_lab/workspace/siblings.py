"""The unseen cases of a lab: which were drawn, and the learner's answers."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import Lab, SiblingSpec, content_root
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.workspace import cases
from bottleneck_lab.workspace.cases import find_case
from bottleneck_lab.workspace.diagnosis_file import Answer
from bottleneck_lab.workspace.folder import Workspace, now, read_json

GENERATE_S = 120


class DrawnSibling(msgspec.Struct, frozen=True):
    """One case that was drawn.

    `answers` are empty, and `named` None, until the learner has answered: once, and for good.
    """

    program: str
    seed: int
    at: str
    answers: dict[str, Answer] = {}
    named: bool | None = None


def load_siblings(workspace: Workspace) -> list[DrawnSibling]:
    """Return the cases drawn so far, oldest first."""
    file = workspace.state / "siblings.json"
    return read_json(file, list[DrawnSibling]) if file.exists() else []


def specs_of(lab: Lab) -> dict[str, SiblingSpec]:
    """Return the lab's siblings by name; those of the library with their case's story, cause and
    gain. Raises UsageError for a case that is not in the library.
    """
    specs = {}
    for declared in lab.spec.siblings:
        spec = declared
        if spec.case:
            case = find_case(spec.case)
            spec = msgspec.structs.replace(
                spec,
                program=case.name,
                story=case.story,
                cause=case.cause,
                gain=case.entire or case.gain,
            )
        specs[spec.program] = spec
    return specs


def spec_of(workspace: Workspace, drawn: DrawnSibling) -> SiblingSpec:
    """Return the lab's declaration of a case that was drawn.

    Raises UsageError if this edition of the lab does not have it.
    """
    spec = specs_of(workspace.lab).get(drawn.program)
    if spec is not None:
        return spec
    raise UsageError(
        f"This edition of the lab has no case '{drawn.program}'.",
        "`lab` shows what to do next.",
    )


def open_sibling(workspace: Workspace) -> DrawnSibling | None:
    """Return the case that waits for an answer; None when there is none."""
    drawn = load_siblings(workspace)
    return drawn[-1] if drawn and drawn[-1].named is None else None


def latest_name(workspace: Workspace) -> str:
    """Return the name of the capture of the case drawn last, below the folder of the state."""
    return f"siblings/{len(load_siblings(workspace)):04}"


def latest_traces(workspace: Workspace) -> list[Path]:
    """Return the traces of the case drawn last, one per rank; none before the first."""
    return sorted((workspace.state / latest_name(workspace)).glob("*.json.gz"))


def draw(workspace: Workspace, rng: random.Random) -> DrawnSibling:
    """Return the open case, or draw a new one: of those that this learner has met least often.

    Raises UsageError if the lab has none.
    """
    waiting = open_sibling(workspace)
    if waiting and latest_traces(workspace):
        return waiting
    specs = specs_of(workspace.lab)
    if not specs:
        raise UsageError("This lab has no more cases to diagnose.", "`lab` shows what to do next.")
    with workspace.writing("lab diagnose"):
        # A case without an answer here has lost its traces; it is replaced.
        drawn = [case for case in load_siblings(workspace) if case.named is not None]
        names = [*(case.program for case in drawn), *(case.name for case in cases.load_drawn())]
        met = {name: names.count(name) for name in specs}
        program = rng.choice([name for name, times in met.items() if times == min(met.values())])
        case = DrawnSibling(program, rng.randrange(1, 1_000_000), now())
        folder = workspace.state / "siblings" / f"{len(drawn) + 1:04}"
        generate(workspace.lab, specs[program], case.seed, folder)
        workspace.write_state("siblings.json", [*drawn, case])
    return case


def answer(workspace: Workspace, answers: dict[str, Answer], *, named: bool) -> None:
    """Record the learner's answer to the open case."""
    with workspace.writing("lab diagnose"):
        *before, case = load_siblings(workspace)
        case = msgspec.structs.replace(case, answers=answers, named=named)
        workspace.write_state("siblings.json", [*before, case])


def generate(lab: Lab, spec: SiblingSpec, seed: int, folder: Path) -> list[Path]:
    """Write the capture of a sibling into `folder`, and return its traces, one per rank.

    A case of the library has its own. A pack has programs of its own, or uses those of this
    project. Raises MachineError if the program writes no trace.
    """
    if spec.case:
        folder.mkdir(parents=True, exist_ok=True)
        for trace in cases.traces_of(find_case(spec.case)):
            shutil.copyfile(trace, folder / trace.name)
        return sorted(folder.glob("*.json.gz"))
    script = lab.root / "datasets" / "siblings.py"
    if not script.is_file():
        script = content_root() / "datasets" / "siblings.py"
    options = ["--program", spec.program, "--seed", str(seed), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, str(script), *options],
        capture_output=True,
        text=True,
        timeout=GENERATE_S,
        check=False,
    )
    traces = sorted(folder.glob("*.json.gz"))
    if done.returncode or not traces:
        reason = done.stderr.strip()[-300:] or "it wrote no trace*.json.gz"
        raise MachineError(
            f"{script} makes no capture of '{spec.program}': {reason}", "Tell the lab's author."
        )
    return traces
