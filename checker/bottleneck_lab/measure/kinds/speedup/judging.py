"""The judgement of an answer, whatever its types: by the lab's judge."""

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
    """Return a sentence on why the answer is wrong; None when it is right. An answer that the judge
    cannot compare is wrong.

    Raises LabError for a judge that says neither, and whatever a judge raises that cannot take the
    reference's own answer.
    """
    try:
        verdict = judge.judge(case, inputs, answer, reference, settings)
    except Exception as error:
        # A judge that cannot take the reference's own answer is broken: that is no learner's fault.
        judge.judge(case, inputs, reference, reference, settings)
        why = f"{type(error).__name__}: {error}"
        return (
            f"The answer cannot be compared: expected {form(reference)}, got {form(answer)}"
            f" ({why})."
        )
    if verdict is None or isinstance(verdict, str):
        return verdict
    raise LabError(
        f"The lab's judge.py: `judge` returned {verdict!r}, which is neither None nor a sentence.",
        "The lab's author must correct it: return None when the answer is right, else one sentence"
        " that says what is wrong.",
    )


def form(values: list[Any]) -> str:
    """Describe an answer's types and shapes: `float32 3×4, int`."""
    parts = []
    for value in values:
        if isinstance(value, np.ndarray):
            parts.append(f"{value.dtype} {'×'.join(map(str, value.shape)) or 'scalar'}")
        else:
            parts.append(type(value).__name__)
    return ", ".join(parts) or "nothing"
