"""`lab check` as a use case: measure a workspace, grade the diagnosis, and record the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from bottleneck_lab.capture.doctor import choose_device, require_torch
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.course.captures import capture_figures
from bottleneck_lab.course.diagnosing import require_diagnosis
from bottleneck_lab.course.progress import ShowProgress
from bottleneck_lab.course.regrading import regrade
from bottleneck_lab.errors import MachineError
from bottleneck_lab.grading.attest import load_private_key, sign
from bottleneck_lab.grading.diagnosis import grade_diagnosis, needs_capture
from bottleneck_lab.grading.verdict import Prediction, Verdict
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.measured_key import solution_here
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap
from bottleneck_lab.measure.sandbox.visible import is_visible
from bottleneck_lab.measure.verifier import check_lab, without_answers
from bottleneck_lab.workspace.attempts import Attempt, load_attempts, record, submission
from bottleneck_lab.workspace.commitments import Record, load_record
from bottleneck_lab.workspace.dataset import data_folder
from bottleneck_lab.workspace.diagnosis_file import load_answers, save_answers
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.progress import note_attempt
from bottleneck_lab.workspace.standing import questions_of, standing_of


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
    # The key is read before anything is measured, and never by a worker.
    key = load_private_key(key_file) if key_file else None
    if key_file:
        _require_secret(key_file, lab)
    with (
        workspace.working("lab check", wait=wait, on_wait=on_wait),
        submission(workspace, lab) as folder,
    ):
        # Inside the lock: a check that was waited for has added its own attempt.
        earlier = load_attempts(workspace)
        # A signature vouches for a measurement, so a runner always measures.
        verdict, remarks = _measure(
            workspace, learner, earlier, folder, chosen, show_progress, reuse=key is None
        )
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
    return Checked(attempt, earlier, learner, remarks)


def require_ready(workspace: Workspace) -> Record:
    """Return the workspace's record. Raises the error of whatever forbids a check before it begins:
    files of another edition, a missing package, an incomplete diagnosis.
    """
    workspace.require_current()
    require_torch("`lab check`")
    return require_diagnosis(workspace, load_record(workspace))


def _require_secret(key_file: Path, lab: Lab) -> None:
    """Raise MachineError if the code under test could read the signing key."""
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


def _measure(
    workspace: Workspace,
    learner: Record,
    earlier: list[Attempt],
    folder: Path,
    device: Device,
    show_progress: ShowProgress,
    *,
    reuse: bool,
) -> tuple[Verdict, list[str]]:
    """Return the verdict on the submission in `folder`, and remarks for the learner. With `reuse`,
    nothing is measured where only answers have changed since the last check.
    """
    lab, answers = workspace.lab, load_answers(folder)
    questions = questions_of(lab, learner)
    solution = solution_here(lab, device, answers)
    capture = None
    if learner.commitments and needs_capture(questions):
        capture = capture_figures(workspace, learner.commitments[-1].capture)
    first = learner.commitments[0].answers if learner.commitments else None
    graded = grade_diagnosis(questions, answers, solution, capture, first)
    verdict = None
    if reuse and earlier:
        verdict = regrade(lab, device, earlier[-1].verdict, folder, graded)
    if verdict is None:
        with show_progress() as show:
            verdict = check_lab(
                lab,
                folder,
                device,
                data=data_folder(lab),
                progress=show,
                graded=graded,
            )
    # In this order: the figures that answer the questions are quoted to those who may have them,
    # and then leave the verdict.
    remarks = quote_own_figures(workspace, learner, verdict)
    verdict = without_answers(lab, verdict)
    if not questions:
        return verdict, remarks
    if graded.prediction and any(question.to_reference for question in questions):
        verdict = msgspec.structs.replace(
            verdict, prediction=_to_reference(lab, earlier, verdict, graded.prediction)
        )
    standings = [attempt.verdict.diagnosis for attempt in earlier]
    named = [standing.named for standing in standings if standing and standing.named is not None]
    standing = standing_of(
        lab,
        learner,
        verdict,
        folder,
        partial(capture_figures, workspace),
        named[0] if named else None,
        solution,
    )
    return msgspec.structs.replace(verdict, diagnosis=standing), remarks


def quote_own_figures(workspace: Workspace, learner: Record, verdict: Verdict) -> list[str]:
    """Replace copied reference answers by what this machine measured; return a remark about it.

    Some reference answers are figures, and those hold for the machine they were measured on. The
    learner's own answers stay as they are.
    """
    if verdict.reason != "wrong diagnosis" or not learner.help.solution:
        return []
    own = kind_of(workspace.lab).answers(verdict.measurement)
    if not own or load_answers(workspace.root) != load_answers(workspace.lab.solution):
        return []
    save_answers(workspace, own)
    return [
        "The reference answers come from another machine. diagnosis.toml now holds what this one"
        " measured: run `lab check` again."
    ]


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
                return Prediction(prediction.predicted, 1 / criterion.value, "reference")
    return Prediction(prediction.predicted, None, "reference")
