"""What a learner's diagnosis is worth, from the record submitted with it: the same on the learner's
machine and on a runner.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bottleneck_lab.catalog import Lab, QuestionSpec
from bottleneck_lab.grading.diagnosis import CaptureFigures, grade_diagnosis, needs_capture
from bottleneck_lab.grading.verdict import Standing, Verdict
from bottleneck_lab.workspace.commitments import Record
from bottleneck_lab.workspace.diagnosis_file import load_answers

Captured = Callable[[str], CaptureFigures | None]
"""The capture with that name; None if it is not here."""


def questions_of(lab: Lab, record: Record) -> list[QuestionSpec]:
    """The lab's questions; after the solution was looked at, without those that only the learner's
    own capture can answer.
    """
    if record.help.solution is None:
        return lab.spec.questions
    return [question for question in lab.spec.questions if not needs_capture([question])]


def standing_of(
    lab: Lab,
    record: Record,
    verdict: Verdict,
    files: Path,
    captured: Captured,
    known: bool | None = None,
) -> Standing:
    """What the first committed diagnosis is worth, as it was first graded (`known`, where it was
    before), and what helped with it.
    """
    first, *later = record.commitments
    named = known if known is not None else _named(lab, record, verdict, captured)
    return Standing(
        named,
        copied=is_copied(lab, record, files),
        corrections=len(later),
        hints=first.hints,
        told=first.told,
    )


def is_copied(lab: Lab, record: Record, files: Path) -> bool:
    """Whether the reference solution was looked at, or was submitted."""
    return record.help.solution is not None or lab.code_hash(files) == lab.code_hash(lab.solution)


def _named(lab: Lab, record: Record, verdict: Verdict, captured: Captured) -> bool | None:
    """Whether the first committed diagnosis named cause and evidence, with nothing told before;
    None if this check does not know.
    """
    first, *later = record.commitments
    if first.told:
        return False
    if any(result.kind == "diagnosis" and result.holds is None for result in verdict.criteria):
        return None  # the work was not measured, and no answer is graded without that
    if any(
        criterion.kind == "diagnosis" for criterion in lab.spec.devices[verdict.device].criteria
    ):
        # Judged against the verifier's own captures: of the first diagnosis that says something
        # only while there is no other.
        holds = [result.holds for result in verdict.criteria if result.kind == "diagnosis"]
        return False if later or False in holds else None if None in holds else True
    questions = lab.spec.questions
    capture = captured(first.capture) if needs_capture(questions) else None
    if capture is None and needs_capture(questions):
        return None
    results, _ = grade_diagnosis(questions, first.answers, load_answers(lab.solution), capture)
    return all(result.holds for result in results)
