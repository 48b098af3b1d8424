"""A lab's judgement of an answer, whatever its types."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.channel.messages import Value


def complaint(
    judge: ModuleType,
    case: str,
    inputs: list[Value],
    answer: list[Any],
    reference: list[Any],
    settings: dict[str, Any],
) -> str | None:
    """Why the answer is wrong; None when it is right. An answer that the judge cannot compare is
    wrong.

    Raises LabError for a judge that says neither, and whatever a judge raises that cannot take the
    reference's own answer.
    """
    try:
        said = judge.judge(case, inputs, answer, reference, settings)
    except Exception as error:
        judge.judge(case, inputs, reference, reference, settings)
        why = f"{type(error).__name__}: {error}"
        return (
            f"The answer cannot be compared: expected {form(reference)}, got {form(answer)}"
            f" ({why})."
        )
    if said is None or isinstance(said, str):
        return said
    raise LabError(
        f"The lab's judge.py: `judge` returned {said!r}, which is neither None nor a sentence.",
        "The lab's author must correct it: return None when the answer is right, else one sentence"
        " that says what is wrong.",
    )


def form(values: list[Any]) -> str:
    """What an answer is made of: `float32 3×4, int`."""
    parts = [
        (
            f"{value.dtype} {'×'.join(map(str, value.shape)) or 'scalar'}"
            if isinstance(value, np.ndarray)
            else type(value).__name__
        )
        for value in values
    ]
    return ", ".join(parts) or "nothing"
