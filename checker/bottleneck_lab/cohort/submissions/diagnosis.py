"""What a learner submits about the work: the diagnosis, its record, and the capture it is based on.
A runner grades it, and notes what it took on trust.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bottleneck_lab.analysis.selection import parse_stretch
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.catalog import Lab
from bottleneck_lab.cohort.submissions.capture_reading import read_figures
from bottleneck_lab.errors import CaptureError, LabError
from bottleneck_lab.grading.diagnosis import CaptureFigures, grade_diagnosis, needs_capture
from bottleneck_lab.grading.verdict import CriterionResult, Prediction, Standing, Verdict
from bottleneck_lab.workspace.commitments import Help, Record
from bottleneck_lab.workspace.diagnosis_file import load_answers
from bottleneck_lab.workspace.standing import is_copied, questions_of, standing_of

FROM_CAPTURE = (
    "The diagnosis was compared with the learner's own capture, which was made on the learner's"
    " machine; no runner can vouch for it."
)
NO_CAPTURE = "The diagnosis was not compared with the learner's own capture: {why}"
AS_TOLD = (
    "When the diagnosis was committed, and with what help, is as reported by the learner's machine."
)
NOTHING = Record([], Help(), 0)
"""The record of a learner who submitted none."""


class Diagnosis:
    """The diagnosis of one submission. `capture` is the folder of the capture that came with it,
    which may be missing.

    `questions` are those that are graded, `notes` what the verdict must say of them.
    """

    def __init__(self, lab: Lab, files: Path, capture: Path, record: Record | None) -> None:
        self._lab, self._files = lab, files
        self._record = record or NOTHING
        self._answers = _answers(files)
        self.questions, self.notes = (
            questions_of(lab, self._record),
            ([AS_TOLD] if self._record.commitments else []),
        )
        self._seen = self._read(capture) if needs_capture(self.questions) else None
        if self._seen is None:
            self.questions = [
                question for question in self.questions if not needs_capture([question])
            ]

    def _read(self, capture: Path) -> CaptureFigures | None:
        """The learner's capture as answers are compared with it; None, and a note why, where there
        is none to be read.
        """
        if not capture.is_dir():
            self.notes.append(NO_CAPTURE.format(why="none came with the submission."))
            return None
        try:
            seen = read_figures(
                {path.name: path.read_bytes() for path in capture.iterdir()}, self._stretches()
            )
        except CaptureError as error:
            self.notes.append(NO_CAPTURE.format(why=error.message))
            return None
        self.notes.append(FROM_CAPTURE)
        return seen

    def _stretches(self) -> list[Window]:
        """Every stretch that an answer names, in what was submitted and in what was committed
        first.
        """
        told = [self._answers, *(commitment.answers for commitment in self._record.commitments[:1])]
        named = (
            parse_stretch(str(answers.get(question.id)))
            for answers in told
            for question in self.questions
            if question.shows
        )
        return sorted({stretch for stretch in named if stretch and stretch.length > 0})

    def graded(self) -> tuple[list[CriterionResult], Prediction | None]:
        """One result for each question that can be graded here, and the prediction."""
        return grade_diagnosis(
            self.questions, self._answers, load_answers(self._lab.solution), self._seen
        )

    def standing(self, verdict: Verdict) -> Standing | None:
        """What the diagnosis that was committed first is worth; None if none was, and nothing was
        copied.
        """
        record = self._record
        if record.commitments and self._lab.spec.questions:
            return standing_of(self._lab, record, verdict, self._files, self._captured)
        return Standing(None, copied=True) if is_copied(self._lab, record, self._files) else None

    def _captured(self, name: str) -> CaptureFigures | None:
        return self._seen if name == self._record.commitments[-1].capture else None


def _answers(files: Path) -> dict[str, Any]:
    """Broken TOML answers nothing."""
    try:
        return load_answers(files)
    except LabError:
        return {}
