"""The worth of a learner's diagnosis, from the record submitted with it: the same on the learner's
machine and on a runner.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bottleneck_lab.catalog import Lab, QuestionSpec
from bottleneck_lab.grading.diagnosis import CaptureFigures, grade_diagnosis, needs_capture
from bottleneck_lab.grading.likeness import is_the_references
from bottleneck_lab.grading.verdict import Standing, Verdict
from bottleneck_lab.workspace.commitments import Record
from bottleneck_lab.workspace.diagnosis_file import load_answers

ReadCapture = Callable[[str], CaptureFigures | None]
"""Read the figures of the capture with that name; None if it is not here."""


def questions_of(lab: Lab, record: Record) -> list[QuestionSpec]:
    """Return the lab's questions.

    After the solution was looked at, those that only the learner's own capture can answer are left
    out.
    """
    if record.help.solution is None:
        return lab.spec.questions
    return [question for question in lab.spec.questions if not needs_capture([question])]


def standing_of(
    lab: Lab,
    record: Record,
    verdict: Verdict,
    files: Path,
    read_capture: ReadCapture,
    graded_before: bool | None = None,
) -> Standing:
    """Return the worth of the first committed diagnosis, and what helped with it.

    An earlier check's grade of it, `graded_before`, stands.
    """
    first, *corrections = record.commitments
    named = graded_before
    if named is None:
        named = _named(lab, record, verdict, read_capture)
    return Standing(
        named,
        copied=is_copied(lab, files),
        corrections=len(corrections),
        hints=first.hints,
        told=first.told,
    )


def is_copied(lab: Lab, files: Path) -> bool:
    """Return True if the code in `files` is the reference solution's, whatever was looked at."""
    return is_the_references(
        *(lab.code_of(folder) for folder in (files, lab.path, lab.solution)),
    )


def _named(lab: Lab, record: Record, verdict: Verdict, read_capture: ReadCapture) -> bool | None:
    """Return True if the first committed diagnosis named cause and evidence without being told.

    None if this check cannot decide it.
    """
    first, *corrections = record.commitments
    if first.told:
        return False
    holds = [result.holds for result in verdict.criteria if result.kind == "diagnosis"]
    if None in holds:
        return None  # the work was not measured, and no answer is graded without that
    criteria = lab.spec.devices[verdict.device].criteria
    if any(criterion.kind == "diagnosis" for criterion in criteria):
        # These answers are graded against the verifier's own captures, and only the latest answers
        # are: they tell of the first diagnosis only while there is no correction.
        return not corrections and False not in holds
    questions = lab.spec.questions
    capture = read_capture(first.capture) if needs_capture(questions) else None
    if capture is None and needs_capture(questions):
        return None
    results, _ = grade_diagnosis(questions, first.answers, load_answers(lab.solution), capture)
    return all(result.holds for result in results)
