"""The answers to a lab's choices as this machine measures them, by the `key.py` of a lab that has
one: what limits a piece of code may differ from one machine to the next.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import MachineError
from bottleneck_lab.workspace.diagnosis_file import load_answers

KEY = "key.py"
LONGEST_S = 120.0


def has_key(lab: Lab) -> bool:
    """Return True if the lab measures the answers to its choices."""
    return (lab.path / KEY).is_file()


def solution_here(lab: Lab, device: Device, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the solution's answers, and in place of a choice that is wrong by them what this
    machine measures, if that is what `answers` say: nobody is wrong whose answer holds here.

    Measures only if a choice differs. Raises MachineError if that fails.
    """
    solution = load_answers(lab.solution)
    choices = [question.id for question in lab.spec.questions if question.type == "choice"]
    if not has_key(lab) or all(answers.get(id_) == solution.get(id_) for id_ in choices):
        return solution
    measured = measure_key(lab, device)
    return solution | {id_: one for id_, one in measured.items() if answers.get(id_) == one}


def measure_key(lab: Lab, device: Device) -> dict[str, str]:
    """Run the lab's `key.py`, and return the right choice for each question that it answers.

    Raises MachineError if it does not answer within two minutes.
    """
    try:
        run = subprocess.run(
            [sys.executable, KEY, "--device", device],
            cwd=lab.path,
            capture_output=True,
            timeout=LONGEST_S,
            check=True,
        )
        return msgspec.json.decode(run.stdout, type=dict[str, str])
    except (subprocess.SubprocessError, OSError, msgspec.MsgspecError) as error:
        raise MachineError(
            f"What is right on this machine could not be measured: {error}.",
            "Close other programs and check again.",
        ) from error
