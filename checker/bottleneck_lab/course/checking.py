"""`lab check` as a use case: measure a workspace, grade the diagnosis, and record the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bottleneck_lab.capture.devices import choose_device, require_torch
from bottleneck_lab.catalog import Device, Lab, QuestionSpec
from bottleneck_lab.course.advice import fit_advice, note_first_fix
from bottleneck_lab.course.captures import capture_figures, compared_with
from bottleneck_lab.course.diagnosing import require_diagnosis
from bottleneck_lab.course.progress import ShowProgress
from bottleneck_lab.course.regrading import regrade
from bottleneck_lab.errors import MachineError
from bottleneck_lab.grading.attest import load_private_key, sign
from bottleneck_lab.grading.diagnosis import grade_diagnosis, needs_capture
from bottleneck_lab.grading.verdict import Graded, Prediction, Verdict
from bottleneck_lab.measure.measured_key import solution_here
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap
from bottleneck_lab.measure.sandbox.visible import is_visible
from bottleneck_lab.measure.verifier import check_lab, without_answers
from bottleneck_lab.report.verdict_words import mark_of
from bottleneck_lab.wording import list_files
from bottleneck_lab.workspace.attempts import Attempt, load_attempts, record, submission
from bottleneck_lab.workspace.commitments import Record, load_record, questions_of
from bottleneck_lab.workspace.dataset import data_folder
from bottleneck_lab.workspace.diagnosis_file import load_answers
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.progress import note_attempt
from bottleneck_lab.workspace.standing import standing_of
from bottleneck_lab.workspace.start import describe_given


@dataclass(frozen=True)
class Checked:
    """One check: the new attempt, the earlier ones, the learner's record, and remarks on it."""

    attempt: Attempt
    earlier: list[Attempt]
    record: Record
    remarks: list[str] = field(default_factory=list)

    @property
    def attempts(self) -> list[Attempt]:
        """Return all attempts of the workspace, oldest first."""
        return [*self.earlier, self.attempt]


def check_workspace(
    workspace: Workspace,
    device: str | None,
    *,
    show_progress: ShowProgress,
    wait: bool = True,
    on_wait: Callable[[str], None] | None = None,
    key_file: Path | None = None,
) -> Checked:
    """Check the workspace as it is now, and record the verdict with the files that were checked.

    With `wait` False a check that is already running is an error; otherwise `on_wait` is called
    with its name. With a runner's private key the verdict is signed. Raises UsageError for a
    diagnosis that cannot be graded, MachineError if this machine cannot measure, both before
    anything is measured.
    """
    lab, learner = workspace.lab, require_ready(workspace)
    chosen = choose_device(lab, device or workspace.info.device)
    key = _load_secret_key(key_file, lab) if key_file else None
    with (
        workspace.working("lab check", wait=wait, on_wait=on_wait),
        submission(workspace, lab) as folder,
    ):
        # Inside the lock: a check that was waited for has added its own attempt.
        earlier = load_attempts(workspace)
        answers = _grade_answers(workspace, learner, folder, chosen)
        # A signature vouches for a measurement, so a runner always measures.
        last = earlier[-1].verdict if earlier and not key else None
        verdict = _measure(lab, folder, chosen, answers.graded, last, show_progress)
        verdict = without_answers(lab, verdict)
        if answers.questions:
            verdict = _with_diagnosis(workspace, learner, earlier, folder, verdict, answers)
        verdict = note_first_fix(earlier, fit_advice(workspace, learner, verdict))
        if key:
            verdict = sign(verdict, key)
        attempt = record(workspace, verdict, folder)
    diagnosis = verdict.diagnosis
    note_attempt(
        lab.slug,
        str(workspace.root),
        verdict.outcome.value,
        named=diagnosis.named if diagnosis else None,
        copied=bool(diagnosis and diagnosis.copied),
    )
    remarks = [given] if (given := describe_given(workspace, "the check used the lab's")) else []
    if lab.code_of(workspace.root) == lab.code_of(lab.path):
        remarks = [_UNEDITED.format(files=list_files(lab.spec.editable)), *remarks]
    return Checked(attempt, earlier, learner, remarks)


_UNEDITED = "Nothing is edited yet: this verdict is on {files} as shipped."


def require_ready(workspace: Workspace) -> Record:
    """Return the workspace's record. Raises the error of whatever forbids a check before it begins:
    files of another edition, a missing package, an incomplete diagnosis.
    """
    workspace.require_current()
    require_torch("`lab check`")
    return require_diagnosis(workspace, load_record(workspace))


def _load_secret_key(key_file: Path, lab: Lab) -> Ed25519PrivateKey:
    """Return the signing key, read before anything is measured, and never by a worker. Raises
    MachineError if the code under test could read it.
    """
    key = load_private_key(key_file)
    if bubblewrap() is None:
        raise MachineError(
            "A verdict is signed only if the code under test runs in a sandbox; otherwise that code"
            " could read the key.",
            "Install bubblewrap (`lab doctor` shows whether it works), or check without --sign.",
        )
    if is_visible(key_file, [data_folder(lab)]):
        raise MachineError(
            f"The code under test can read {key_file.parent} inside the sandbox, and the key"
            " with it.",
            "Move the key to a folder in your home that holds nothing else.",
        )
    return key


class _Answers(NamedTuple):
    """The lab's questions for this learner, the right answers here, and the learner's as graded."""

    questions: list[QuestionSpec]
    right: Mapping[str, Any]
    graded: Graded


def _grade_answers(workspace: Workspace, learner: Record, folder: Path, device: Device) -> _Answers:
    """Grade the answers in `folder`."""
    lab, answers = workspace.lab, load_answers(folder)
    questions, right = questions_of(lab, learner), solution_here(lab, device, answers)
    capture, first = None, None
    if learner.commitments:
        first = learner.commitments[0].answers
        if needs_capture(questions):
            capture = capture_figures(workspace, learner.commitments[-1].capture)
    return _Answers(questions, right, grade_diagnosis(questions, answers, right, capture, first))


def _measure(
    lab: Lab,
    folder: Path,
    device: Device,
    graded: Graded,
    last: Verdict | None,
    show_progress: ShowProgress,
) -> Verdict:
    """Return the verdict on the submission in `folder`: the `last` one with its answers graded
    again, where nothing else has changed since; otherwise a measured one.
    """
    verdict = regrade(lab, device, last, folder, graded) if last else None
    if verdict is None:
        with show_progress() as show:
            data = data_folder(lab)
            verdict = check_lab(lab, folder, device, data=data, progress=show, graded=graded)
    return verdict


def _with_diagnosis(
    workspace: Workspace,
    learner: Record,
    earlier: list[Attempt],
    folder: Path,
    verdict: Verdict,
    answers: _Answers,
) -> Verdict:
    """Return the verdict with the worth of the diagnosis, with what a prediction about the
    reference is measured by, and with a note on what is not graded.
    """
    lab, prediction = workspace.lab, answers.graded.prediction
    if prediction and any(question.to_reference for question in answers.questions):
        prediction = _to_reference(lab, earlier, verdict, prediction)
        verdict = msgspec.structs.replace(verdict, prediction=prediction)
    # What an earlier check has graded of the first diagnosis stands: a check that measures nothing
    # grades no answers.
    graded = [each for attempt in earlier if (each := attempt.verdict.diagnosis)]
    named = [each.named for each in graded if each.named is not None]
    measured = [each for each in graded if each.measured is not msgspec.UNSET]
    standing = standing_of(
        workspace.lab,
        learner,
        verdict,
        folder,
        partial(capture_figures, workspace),
        named[0] if named else None,
        answers.right,
    )
    if measured and standing.measured is msgspec.UNSET:
        standing = msgspec.structs.replace(
            standing, measured=measured[0].measured, missed=measured[0].missed
        )
    left_out = [each.id for each in lab.spec.questions if each not in answers.questions]
    note = (
        f"Not graded: {', '.join(left_out)}. The solution was looked at before that was answered,"
        " and only your own capture can answer it."
    )
    notes = [note, *verdict.notes] if left_out else verdict.notes
    read = {question.id for question in answers.questions if question.reads_capture}
    if learner.commitments and read:
        judged = any(
            mark_of(each) in ("right", "wrong") for each in verdict.criteria if each.id in read
        )
        capture = compared_with(workspace, learner.commitments[-1].capture) if judged else ""
        before = earlier[-1].verdict.notes if earlier else []
        notes = with_comparison(notes, capture, before)
    return msgspec.structs.replace(verdict, diagnosis=standing, notes=notes)


_COMPARED = "Answers were compared with the capture "


def with_comparison(notes: list[str], capture: str, before: list[str]) -> list[str]:
    """Return notes with the capture that answers were compared with: first of all where it is not
    the one of the check `before`, or not of the shipped code, which the questions are about.
    """
    notes = [each for each in notes if not each.startswith(_COMPARED)]
    if not capture:
        return notes
    note = f"{_COMPARED}{capture}."
    previous = next((each for each in before if each.startswith(_COMPARED)), note)
    if previous != note:
        earlier = previous.removeprefix(_COMPARED).partition(". ")[0].removesuffix(".")
        if earlier != capture:
            return [f"{note} The check before compared them with {earlier}.", *notes]
    return [*notes, note] if capture.endswith("of the shipped code") else [note, *notes]


def _to_reference(
    lab: Lab, earlier: list[Attempt], verdict: Verdict, prediction: Prediction
) -> Prediction:
    """Return the prediction next to the speed-up of the reference over the shipped code.

    A check of the shipped code measures that: its `target` is the shipped code's speed in units of
    the reference's. Unmeasured before such a check.
    """
    shipped = lab.code_hash(lab.path)
    for checked in (verdict, *(attempt.verdict for attempt in earlier)):
        if checked.submission_hash != shipped or checked.device != verdict.device:
            continue
        for criterion in checked.criteria:
            if criterion.kind == "target" and criterion.unit == "x" and criterion.value:
                measured = 1 / criterion.value
                return msgspec.structs.replace(prediction, measured=measured, quantity="reference")
    return msgspec.structs.replace(prediction, measured=None, quantity="reference")
