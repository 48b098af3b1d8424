"""Grading what a learner says: the cause, the evidence read off the capture, and the gain that a fix should bring.

Pure: answers, the solution's answers and the capture's figures go in, criteria come out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bottleneck_lab.catalog import CriterionSpec, QuestionSpec
from bottleneck_lab.grading.verdict import CriterionResult, Prediction

if TYPE_CHECKING:
    from bottleneck_lab.analysis.device import DeviceUse
    from bottleneck_lab.analysis.summary import Summary


def grade_diagnosis(
    questions: list[QuestionSpec],
    answers: Mapping[str, Any],
    solution: Mapping[str, Any],
    figures: Mapping[str, float] | None,
) -> tuple[list[CriterionResult], Prediction | None]:
    """One result for each question, and the prediction if a usable one was made.

    `solution` holds the right choices; `figures` what the learner's own capture shows, None without a capture. A number that is
    asked for without `from_capture`, and a choice that the solution does not answer, only has to be given: whoever measures
    judges it.
    """
    results = [_grade(question, answers.get(question.id), solution.get(question.id), figures) for question in questions]
    return results, _prediction(questions, answers)


def for_check(criteria: list[CriterionSpec], results: list[CriterionResult]) -> list[CriterionResult]:
    """The results that a check takes over: none where the lab's own criteria judge the diagnosis against the verifier's captures."""
    return [] if any(criterion.kind == "diagnosis" for criterion in criteria) else results


def figures_of(summary: Summary) -> dict[str, float]:
    """What a capture shows, as the numbers that a question's `from_capture` may name: shares of the wall time (0–1) and one ratio.

    `<range>_share` for every marked range (`data_wait_share` is `data`'s other name); over all devices together `busy_share`,
    `idle_share`, `compute_share`, `communication_share`, `copy_share`, `exposed_communication_share`, `exposed_copy_share`,
    `overlap_share` and `idle_<cause>_share`; `top_operator_share`; and `largest_gain_ratio`, the most that removing the
    costliest finding can bring.
    """
    ranges = {f"{name}_share": share for name, share in summary.range_shares.items()}
    waiting = {"data_wait_share": ranges["data_share"]} if "data_share" in ranges else {}
    gains = [finding.expected_gain_ratio for finding in summary.findings]
    own = [row.self_ns if summary.cpu_only else row.device_self_ns for row in summary.operators]
    return {
        **ranges,
        **waiting,
        **_device_figures(summary.devices),
        **({"top_operator_share": max(own) / sum(own)} if sum(own) else {}),
        **({"largest_gain_ratio": max(gains)} if gains else {}),
    }


def _device_figures(devices: Sequence[DeviceUse]) -> dict[str, float]:
    wall = sum(use.wall_ns for use in devices)
    if not wall:
        return {}
    parts = ("busy", "idle", "compute", "communication", "copy", "exposed_communication", "exposed_copy")
    shares = {f"{part}_share": sum(getattr(use, f"{part}_ns") for use in devices) / wall for part in parts}
    for use in devices:
        for cause in use.gap_causes:
            key = f"idle_{cause.cause}_share"
            shares[key] = shares.get(key, 0.0) + cause.idle_ns / wall
    sent, exposed = shares["communication_share"], shares["exposed_communication_share"]
    return {**shares, "overlap_share": 1 - exposed / sent if sent else 1.0}


def problem(question: QuestionSpec, answer: object) -> str | None:
    """What is wrong with the form of an answer, as one sentence; None when it can be graded."""
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        return "Not answered yet: `lab diagnose` asks for it."
    if question.type == "choice":
        return (
            None if answer in question.choices else f"'{answer}' is none of the choices: {', '.join(question.choices)}."
        )
    if question.type == "text":
        return None if isinstance(answer, str) else "Write a text, in quotes."
    return _number_problem(question, answer)


def _number_problem(question: QuestionSpec, answer: object) -> str | None:
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not abs(answer) <= sys.float_info.max:
        return "Write a plain number, without quotes or units."
    if question.type == "share" and not 0 <= answer <= 1:
        return f"A share runs from 0 to 1: write 0.6 for 60%, not {answer:g}."
    if question.type == "ratio" and answer < 1:
        return f"A speed-up is at least 1: write 2.5 for two and a half times as fast, not {answer:g}."
    return None


def disagreement(question: QuestionSpec, answer: float, figures: Mapping[str, float] | None) -> str | None:
    """Why a number does not agree with the learner's capture.

    None when it does, or when it is not read off a capture.
    """
    if question.from_capture is None:
        return None
    if figures is None:
        return "There is no capture to compare this with: `lab profile` makes one."
    if question.from_capture not in figures:
        return f"The latest capture does not show `{question.from_capture}`: make another with `lab profile`."
    if _agrees(question, answer, figures[question.from_capture]):
        return None
    return (
        f"{shown(question, figures).rstrip('.')}; you wrote {_number(question, answer)}. Look again with `lab report`."
    )


def shown(question: QuestionSpec, figures: Mapping[str, float]) -> str:
    """What the learner's capture says to a number that is asked for, as one sentence; empty when it says nothing."""
    if question.from_capture is not None and question.from_capture in figures:
        return f"Your capture shows {_number(question, figures[question.from_capture])}."
    if question.predicts_gain and "largest_gain_ratio" in figures:
        gain = figures["largest_gain_ratio"]
        return f"In your capture, removing the costliest finding would bring at most {_number(question, gain)}."
    return ""


def _agrees(question: QuestionSpec, answer: float, seen: float) -> bool:
    """A share may be off by `tolerance` itself, a ratio by that part of what is seen."""
    allowed = question.tolerance * (abs(seen) if question.type == "ratio" else 1.0)
    return abs(answer - seen) <= allowed + 1e-9


def _number(question: QuestionSpec, value: float) -> str:
    return f"{value:.2f}×" if question.type == "ratio" else f"{value:.2f} ({value:.0%})"


def _grade(question: QuestionSpec, answer: Any, right: object, figures: Mapping[str, float] | None) -> CriterionResult:
    wrong = problem(question, answer)
    number = float(answer) if wrong is None and question.type in ("share", "ratio") else None
    if wrong is None and question.type == "choice" and right is not None and answer != right:
        wrong = f"'{answer}' is not what this workload shows. Look again with `lab report`; `lab hint` helps."
    if wrong is None and number is not None:
        wrong = disagreement(question, number, figures)
    return CriterionResult(
        id=question.id,
        kind="diagnosis",
        holds=wrong is None,
        sentence=wrong or _praise(question, answer),
        value=number,
    )


def _praise(question: QuestionSpec, answer: Any) -> str:
    if question.predicts_gain:
        return f"You predicted {_number(question, float(answer))}; it is set beside what is measured."
    if question.from_capture:
        return f"{_number(question, float(answer))} is what your capture shows."
    return f"'{answer}' is right." if question.type == "choice" else "Answered."


def _prediction(questions: list[QuestionSpec], answers: Mapping[str, Any]) -> Prediction | None:
    for question in questions:
        answer = answers.get(question.id)
        if question.predicts_gain and problem(question, answer) is None and isinstance(answer, int | float):
            return Prediction(predicted=float(answer), measured=None)
    return None
