"""The advice of a verdict, fitted to the learner's own folder: general advice must hold for every
lab, and here it is known what was done already.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bottleneck_lab.course.captures import read_capture
from bottleneck_lab.course.diagnosing import where_to_look
from bottleneck_lab.errors import CaptureError, MachineError
from bottleneck_lab.grading.conclusion import (
    ADVICE,
    IN_COMMON,
    WRONG_ANSWERS,
    WRONG_AS_SHIPPED,
)
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Prediction, Verdict
from bottleneck_lab.report.words import format_bytes
from bottleneck_lab.wording import counted
from bottleneck_lab.workspace.attempts import Attempt
from bottleneck_lab.workspace.captures import capture_number, capture_of
from bottleneck_lab.workspace.commitments import Record
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.hints import next_hint

_CAPTURE_SLOW, _HINT = ADVICE["correct but slow"]
(_CAPTURE_MECHANISM,) = ADVICE["the mechanism is still there"]
_MET = re.compile(r"^Met: .*?\. (?=Not there yet: )")
"""What is reached, in advice: the verdict lists it, among all else that is met."""
_ENDED = "with which the check ended"
"""Judges' words for what they count where a check ended early."""
_SHOWS = {_CAPTURE_SLOW: "what takes the time", _CAPTURE_MECHANISM: "where it is"}
"""Subject of a report, by the advice to capture the code first."""

MEMORY_UNITS = ("KiB", "MiB", "GiB")
"""Units of criteria that limit memory."""

MOST_LINES = 4
"""Lines that advice names: those that hold most."""
MORE = 1.05
"""A gain so many times as large as that of an earlier check is worth a word."""


def note_first_fix(earlier: Sequence[Attempt], verdict: Verdict) -> Verdict:
    """Return a PASS with a note on the first earlier check of right work that was good enough at
    what the prediction is about: speed, or memory. What other criteria asked for afterwards was not
    predicted.
    """
    if verdict.outcome is not Outcome.PASS or not verdict.prediction:
        return verdict
    for attempt in earlier:
        checked = attempt.verdict
        needed = [each for each in checked.criteria if _is_predicted(each, checked.prediction)]
        right = [each for each in checked.criteria if each.kind == "correctness"]
        if (
            checked.reason != "the mechanism is still there"
            or checked.device != verdict.device
            or not checked.prediction
            or not checked.prediction.measured
            or checked.prediction.quantity == "reference"
            or not needed
            or not all(each.holds for each in (*right, *needed))
        ):
            continue
        what = "needed little enough memory"
        if checked.prediction.quantity == "time":
            what = "met the speed target"
        first, latest = checked.prediction.measured, verdict.prediction.measured
        after = "What came after it was for the other criteria."
        if latest and latest > MORE * first:
            after = f"What was changed since made that {latest:.2f}x."
        note = (
            f"Check {attempt.number} was the first with right results that {what}, at {first:.2f}x."
            f" {after}"
        )
        return msgspec.structs.replace(verdict, notes=[note, *verdict.notes])
    return verdict


def _is_predicted(criterion: CriterionResult, prediction: Prediction | None) -> bool:
    """Return True if a criterion limits what the prediction is about."""
    if prediction is not None and prediction.quantity == "memory":
        return criterion.unit in MEMORY_UNITS
    return criterion.kind == "target"


def fit_advice(workspace: Workspace, learner: Record, verdict: Verdict) -> Verdict:
    """Return the verdict with advice that is not followed yet: where to look for an answer, the
    capture that is there already in place of a new one, and no hint where all were taken. What the
    next step or the list of criteria says as well is left out.
    """
    advice = []
    for each in verdict.advice:
        if each == WRONG_ANSWERS:
            if where := where_to_look(workspace, learner):
                advice.append(f"{each} {where}")
        elif each in (IN_COMMON, WRONG_AS_SHIPPED):
            begin = _where_to_begin(verdict.criteria)
            advice += [begin] if begin else [each] * (each == IN_COMMON)
        elif each in _SHOWS:
            advice.append(_look_at(workspace, verdict, each))
        elif each != _HINT or next_hint(workspace) < len(workspace.lab.spec.hints):
            advice.append(_MET.sub("", each))
    return msgspec.structs.replace(verdict, advice=advice)


def _where_to_begin(criteria: Sequence[CriterionResult]) -> str | None:
    """Return what to mend first in wrong work of which general advice asks something that is known
    already: that its time ended, or that every case is wrong. None where neither holds.
    """
    failed = [each for each in criteria if each.holds is False]
    late = next((each for each in failed if each.kind == "target"), None)
    if late and any(_ENDED in each.sentence for each in failed):
        return (
            "Begin with the time, with which the check ended: have the loop ask `seconds_left()`,"
            " and stop while another round would still fit. The other ✗ count only the cases"
            " before that."
        )
    rights = [
        each.counted.startswith("0 of ")
        for each in failed
        if each.counted and each.kind != "target"
    ]
    at_least = all(each.direction == "at_least" for each in failed if each.counted)
    if rights and at_least and all(rights):
        return "Every case that is counted above is wrong: any one of them shows what to mend."
    return None


def _look_at(workspace: Workspace, verdict: Verdict, advice: str) -> str:
    """Return how to look at the code that was checked; `advice` if it has to be captured first."""
    if workspace.lab.spec.evidence == "run":
        return "`lab run` shows what your code does now."
    try:
        capture = capture_of(workspace, verdict.submission_hash)
        if capture is None:
            return advice
        in_memory = workspace.lab.predicts_memory(verdict.device)
        kept = _kept_lines(capture) if in_memory else ""
    except (CaptureError, MachineError):
        return advice  # what was measured must not be lost for a capture that cannot be read
    number = capture_number(capture)
    return (
        f"Capture {number} is of the code that was checked: `lab report {number}` shows"
        f" {_SHOWS[advice]}.{kept}"
    )


def _kept_lines(capture: Path) -> str:
    """Return the lines whose memory grows from step to step in a capture, as a sentence after a
    space; empty if none does.
    """
    lines = [
        f"{holder.line.partition(':')[0]} ({counted(holder.blocks, 'block')},"
        f" {format_bytes(holder.held_bytes)} at its end)"
        for use in read_capture(capture).memory
        for holder in use.holders
        if holder.grows
    ]
    if not lines:
        return ""
    return f" Its memory grows by what these lines make: {', '.join(lines[:MOST_LINES])}."
