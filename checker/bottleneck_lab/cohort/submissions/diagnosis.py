"""The diagnosis of a submission: answers, their record, and the capture that they are based on.

A runner grades it, and notes what it took on trust.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bottleneck_lab.analysis.selection import parse_stretch
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.cohort.submissions.capture_reading import read_figures
from bottleneck_lab.errors import CaptureError, LabError
from bottleneck_lab.grading.diagnosis import grade_diagnosis, needs_capture
from bottleneck_lab.grading.figures import CaptureFigures
from bottleneck_lab.grading.verdict import Graded, Standing, Verdict
from bottleneck_lab.measure.measured_key import solution_here
from bottleneck_lab.workspace.captures import whose_code
from bottleneck_lab.workspace.commitments import Help, Record, questions_of
from bottleneck_lab.workspace.diagnosis_file import load_answers
from bottleneck_lab.workspace.standing import is_copied, standing_of

FROM_CAPTURE = (
    "The diagnosis was compared with the learner's own capture{capture}; no runner can vouch for"
    " it, wherever it was made."
)
NO_CAPTURE = "The diagnosis was not compared with the learner's own capture: {why}"
AS_REPORTED = (
    "When the diagnosis was committed, and with what help, is as reported by the learner's machine."
)
NOTHING = Record([], Help(), 0)
"""The record of a learner who submitted none."""


class Diagnosis:
    """The diagnosis of one submission.

    `capture` is the folder of the capture that came with it, which may be missing. `questions` are
    those that are graded, `notes` what the verdict must say of them.
    """

    def __init__(self, lab: Lab, files: Path, capture: Path, record: Record | None) -> None:
        self._lab, self._files = lab, files
        self._record = record or NOTHING
        self._solution: dict[str, Any] | None = None
        try:
            self._answers = load_answers(files)
        except LabError:  # broken TOML answers nothing
            self._answers = {}
        self.questions = questions_of(lab, self._record)
        self.notes = [AS_REPORTED] if self._record.commitments else []
        self._seen = self._read(capture) if needs_capture(self.questions) else None
        if self._seen is None:
            # A missing capture is not held against anybody: what needs it is left out.
            self.questions = [
                question for question in self.questions if not needs_capture([question])
            ]

    def _read(self, capture: Path) -> CaptureFigures | None:
        """Return the figures of the learner's capture; None, and a note why, if it has none."""
        if not capture.is_dir():
            self.notes.append(NO_CAPTURE.format(why="none came with the submission."))
            return None
        # Every stretch that an answer names, in what was submitted and in what was committed first.
        answered = [self._answers, *(one.answers for one in self._record.commitments[:1])]
        stretches = set()
        for answers in answered:
            for question in self.questions:
                stretch = parse_stretch(str(answers.get(question.id))) if question.shows else None
                if stretch and stretch.length > 0:
                    stretches.add(stretch)
        try:
            files = {path.name: path.read_bytes() for path in capture.iterdir()}
            seen = read_figures(files, sorted(stretches))
        except CaptureError as error:
            self.notes.append(NO_CAPTURE.format(why=error.message))
            return None
        self.notes.append(FROM_CAPTURE.format(capture=self._name(capture)))
        return seen

    def _name(self, capture: Path) -> str:
        """Return what the learner calls the capture and whose code it shows, as a sentence goes on
        with it.
        """
        name = self._record.commitments[-1].capture if self._record.commitments else ""
        try:
            code = whose_code(self._lab, capture)
        except LabError:  # its description cannot be read, which its traces do not need
            code = ""
        # Names come from the learner's machine, and notes go to terminals.
        shown = f" {name}" if re.fullmatch(r"[\w.-]{1,80}", name) else ""
        return f"{shown}, {code}" if code else shown

    def graded(self, device: Device) -> Graded:
        """Return the answers as they are graded on this machine.

        Raises MachineError if what is right on this machine has to be measured, and cannot be.
        """
        self._solution = solution_here(self._lab, device, self._answers)
        commitments = self._record.commitments
        return grade_diagnosis(
            self.questions,
            self._answers,
            self._solution,
            self._seen,
            commitments[0].answers if commitments else None,
        )

    def standing(self, verdict: Verdict) -> Standing | None:
        """Grade the diagnosis committed first; None if none was, and nothing was copied."""
        record = self._record
        if record.commitments and self._lab.spec.questions:
            # Only the capture of the last commitment came along; earlier ones stay unknown.
            last = record.commitments[-1].capture
            return standing_of(
                self._lab,
                record,
                verdict,
                self._files,
                lambda name: self._seen if name == last else None,
                solution=self._solution,
            )
        return Standing(None, copied=True) if is_copied(self._lab, self._files) else None
