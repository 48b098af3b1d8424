"""What is right: the sum of the squares, whatever way it was added up."""

from __future__ import annotations

from typing import Any

import numpy as np


def cases(rng: np.random.Generator, settings: dict[str, Any]) -> list[str]:
    """One case; a lab with several shapes names each of them."""
    return ["numbers"]


def make_inputs(rng: np.random.Generator, case: str, data: object, settings: dict[str, Any]) -> list[np.ndarray]:
    """Whole numbers, so that every order of adding gives the same sum."""
    return [rng.integers(0, 1000, size=settings["size"]).astype(np.float64)]


def judge(
    case: str, inputs: list[Any], answer: list[np.ndarray], reference: list[np.ndarray], settings: dict[str, Any]
) -> str | None:
    """None when right, else one sentence on what is wrong."""
    if len(answer) != 1 or answer[0].size != 1:
        return "The answer is not one number."
    return None if float(answer[0]) == float(reference[0]) else "The sum is wrong."
