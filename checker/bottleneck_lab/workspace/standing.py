"""The worth of a learner's diagnosis, from the record submitted with it: the same on the learner's
machine and on a runner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from bottleneck_lab.catalog import Lab
from bottleneck_lab.grading.diagnosis import grade_diagnosis, needs_capture
from bottleneck_lab.grading.figures import CaptureFigures
from bottleneck_lab.grading.likeness import is_the_references
from bottleneck_lab.grading.verdict import Standing, Verdict
from bottleneck_lab.workspace.commitments import Record
from bottleneck_lab.workspace.diagnosis_file import load_answers

ReadCapture = Callable[[str], CaptureFigures | None]
"""Read the figures of the capture with that name; None if it is not here."""


def standing_of(
    lab: Lab,
    record: Record,
    verdict: Verdict,
    files: Path,
    read_capture: ReadCapture,
    graded_before: bool | None = None,
    solution: Mapping[str, Any] | None = None,
) -> Standing:
    """Return the worth of the first committed diagnosis, and what helped with it.

    An earlier check's grade of its cause, `graded_before`, stands. `solution` are the right answers
    on this machine, by default the reference solution's.
    """
    first = record.commitments[0]
    if solution is None:
        solution = load_answers(lab.solution)
    named, missed = _grade_first(lab, record, verdict, read_capture, solution)
    return Standing(
        named if graded_before is None else graded_before,
        copied=is_copied(lab, files),
        corrections=_count_corrections(lab, record),
        hints=first.hints,
        told=first.told,
        measured=UNSET if missed is UNSET else not missed,
        missed=missed or UNSET,
    )


def _count_corrections(lab: Lab, record: Record) -> int:
    """Return how many later diagnoses answer what a check judges as none before them did: another
    prediction is no other answer, nor is one that was given before.
    """
    judged = [question.id for question in lab.spec.questions if not question.predicts_gain]
    answered = {
        tuple(str(commitment.answers.get(id_)) for id_ in judged)
        for commitment in record.commitments
    }
    return len(answered) - 1


def is_copied(lab: Lab, files: Path) -> bool:
    """Return True if the code in `files` is the reference solution's, whatever was looked at."""
    return is_the_references(
        *(lab.code_of(folder) for folder in (files, lab.path, lab.solution)),
    )


def _grade_first(
    lab: Lab,
    record: Record,
    verdict: Verdict,
    read_capture: ReadCapture,
    solution: Mapping[str, Any],
) -> tuple[bool | None, list[str] | UnsetType]:
    """Return True if the first committed diagnosis named the cause without being told, and which
    others of its answers were wrong; None and UNSET if this check cannot decide it.
    """
    first = record.commitments[0]
    if first.told:
        return False, UNSET
    graded = [result for result in verdict.criteria if result.kind == "diagnosis"]
    device = lab.spec.devices[verdict.device]
    unjudged = device.judges_diagnosis and not graded
    if unjudged or any(result.holds is None for result in graded):
        # The work was not measured, and no answer is graded without that.
        return None, UNSET
    if device.judges_diagnosis:
        # These answers are graded against the verifier's own captures, and only the latest answers
        # are: they tell of the first diagnosis only while there is no correction.
        if _count_corrections(lab, record):
            return False, UNSET
        names = {criterion.id for criterion in device.criteria if criterion.names_cause}
        wrong = {result.id for result in graded if not result.holds}
        return not wrong & names, sorted(wrong - names)
    # A cause is named in words, which need no capture. Evidence that was misread is told apart.
    words = [question for question in lab.spec.questions if question.type in ("choice", "text")]
    others = [question for question in lab.spec.questions if question not in words]
    named = all(one.holds for one in grade_diagnosis(words, first.answers, solution, None)[0])
    capture = read_capture(first.capture) if needs_capture(others) else None
    if capture is None and needs_capture(others):
        return named, UNSET
    results, _ = grade_diagnosis(others, first.answers, solution, capture)
    return named, [result.id for result in results if not result.holds]
