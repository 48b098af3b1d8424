"""Values of form fields, each refused in words if it cannot be read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bottleneck_lab.catalog import QuestionSpec, find_lab
from bottleneck_lab.cohort.moments import parse_moment
from bottleneck_lab.cohort.refused import RefusedError
from bottleneck_lab.errors import UsageError
from bottleneck_lab.grading.answers import form_problem, read_answer
from bottleneck_lab.workspace.diagnosis_file import is_given

MAX_NUMBER = 1_000_000


def moment_field(text: str, zone: str) -> float | None:
    """Return seconds since the epoch of a moment in `zone`; None for an empty field.

    Raises RefusedError.
    """
    try:
        return parse_moment(text, zone) if text.strip() else None
    except UsageError as error:
        raise RefusedError("bad-request", error.message, error.remedy) from error


def number_field(text: str) -> int | None:
    """Return a whole number; None for an empty field. Raises RefusedError."""
    if not text.strip():
        return None
    if not text.strip().isdecimal() or int(text) > MAX_NUMBER:
        raise RefusedError(
            "bad-request",
            f"'{text[:40]}' is not a whole number.",
            "Write a number, or leave it empty.",
        )
    return int(text)


def amount_field(text: str, default: float) -> float:
    """Return a number that need not be whole, at least 0; `default` for an empty field.

    A comma is taken for the decimal point, as half of Europe types it. Raises RefusedError.
    """
    if not text.strip():
        return default
    try:
        amount = float(text.strip().replace(",", "."))
    except ValueError:
        amount = math.nan
    if not 0 <= amount <= MAX_NUMBER:  # false for NaN
        raise RefusedError(
            "bad-request", f"'{text[:40]}' is not a number.", "Write one such as 7.5."
        )
    return amount


def lab_field(name: str) -> str:
    """Return the present name of a lab. Raises RefusedError for one that there is not."""
    try:
        return find_lab(name).slug
    except UsageError:
        raise RefusedError(
            "unknown-lab", "This cohort has no lab with that name.", "Go back to the room."
        ) from None


def answer_fields(questions: Iterable[QuestionSpec], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the answers to all questions, by id. Raises RefusedError if one cannot be graded."""
    answers = {}
    for question in questions:
        answer = read_answer(question, fields.get(f"answer-{question.id}", ""))
        fault = (
            form_problem(question, answer, typed=True)
            if is_given(answer)
            else "It is not answered yet."
        )
        if fault:
            raise RefusedError("bad-request", f"“{question.ask}” {fault}", "Answer it.")
        answers[question.id] = answer
    return answers
