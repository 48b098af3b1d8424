"""`lab check`: measure the workspace and give a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bottleneck_lab.capture.doctor import choose_device, require_torch
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.commands.diagnose import asked_questions, commit_answers
from bottleneck_lab.commands.evidence import capture_figures, mismatch, readable
from bottleneck_lab.commands.screen import console, progress
from bottleneck_lab.commands.static import show_static
from bottleneck_lab.commands.ui import (
    DeviceName,
    Json,
    NoWait,
    here,
    note,
    print_json,
    say,
    waiting,
)
from bottleneck_lab.commands.where import tell_next
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.grading.attest import load_private_key, sign
from bottleneck_lab.grading.diagnosis import for_check, grade_diagnosis, needs_capture, problems
from bottleneck_lab.grading.verdict import Prediction, Standing, Verdict
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.quiet import wait_until_quiet
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap
from bottleneck_lab.measure.sandbox.visible import is_visible
from bottleneck_lab.measure.verifier import check_lab, without_answers
from bottleneck_lab.report.console.verdict import render_verdict
from bottleneck_lab.workspace.attempts import Attempt, load_attempts, record, submission
from bottleneck_lab.workspace.commitments import load_record
from bottleneck_lab.workspace.dataset import data_folder
from bottleneck_lab.workspace.diagnosis_file import Answer, is_given, load_answers, save_answers
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.progress import note_attempt
from bottleneck_lab.workspace.standing import standing_of as worth

EXAMPLE = "lab check --json"


Sign = Annotated[
    Path | None,
    typer.Option(
        "--sign",
        help="Sign the verdict as 'verified' with this private key of a runner (`lab dev key`).",
        show_default=False,
    ),
]


WhenQuiet = Annotated[
    float | None,
    typer.Option(
        "--when-quiet",
        metavar="MINUTES",
        min=0.1,
        help="Wait up to this long for other programs to finish.",
    ),
]


Static = Annotated[
    bool,
    typer.Option(
        "--static",
        help=(
            "Measure nothing: compile the lab's CUDA kernels and show what the compiler made of"
            " them."
        ),
    ),
]


def command(
    device: DeviceName = None,
    no_wait: NoWait = False,
    when_quiet: WhenQuiet = None,
    json: Json = False,
    sign: Sign = None,
    static: Static = False,
) -> None:
    """Measure your work and get a verdict.

    Exit code: 0 PASS, 1 FAIL, 2 usage error, 3 INCONCLUSIVE, 4 ERROR.
    """
    if static:
        show_static(here(), as_json=json)
        return
    workspace = here()
    if when_quiet is not None:
        require_diagnosis(workspace)
        _wait_until_quiet(when_quiet)
    attempt = check_here(workspace, device, no_wait=no_wait, key_file=sign)
    if json:
        print_json(attempt.verdict)
    else:
        render_verdict(attempt.verdict, console())
        _tell_of_older_capture(workspace)
        note(
            f"Recorded as check {attempt.number}. `lab history` lists all checks; `lab report"
            " --html` plots them."
        )
        tell_next(workspace)
    raise typer.Exit(attempt.verdict.outcome.exit_code)


def _wait_until_quiet(minutes: float) -> None:
    """Raises MachineError if the machine does not become quiet within the limit."""
    with progress() as show:
        wait_until_quiet(
            60 * minutes,
            lambda cores: show(f"waiting: other programs keep {cores:.1f} cores busy", 0.0),
        )


def _tell_of_older_capture(workspace: Workspace) -> None:
    """Warns when the verdict and the latest capture are about different code."""
    captures = readable(workspace)
    told = mismatch(workspace, captures[-1]) if captures else None
    if told:
        say(f"\nCapture {told}", style="yellow")


def check_here(
    workspace: Workspace,
    device: str | None = None,
    *,
    no_wait: bool = False,
    key_file: Path | None = None,
) -> Attempt:
    """Check the workspace as it is now, and record the verdict together with the files that were
    checked.

    With a runner's private key the verdict is signed. The key is read before anything is measured,
    never by a worker.
    """
    workspace.require_current()
    require_torch("`lab check`")
    lab = workspace.lab
    require_diagnosis(workspace)
    chosen = choose_device(lab, device or workspace.info.device)
    key = load_private_key(key_file) if key_file else None
    if key_file:
        _require_secret(key_file, lab)
    with (
        workspace.working("lab check", wait=not no_wait, on_wait=waiting),
        submission(workspace, lab) as folder,
    ):
        verdict = _check(workspace, folder, chosen)
        verdict = sign(verdict, key) if key else verdict
        attempt = record(workspace, verdict, folder)
    standing = verdict.diagnosis
    note_attempt(
        lab.slug,
        str(workspace.root),
        verdict.outcome.value,
        named=standing.named if standing else None,
        copied=bool(standing and standing.copied),
    )
    return attempt


def require_diagnosis(workspace: Workspace) -> None:
    """Commit the submitted diagnosis. Raises UsageError, before anything is measured, if it cannot
    be graded.
    """
    questions = asked_questions(workspace)
    answers = load_answers(workspace.root)
    wrong = problems(questions, answers)
    if wrong:
        raise UsageError(
            f"The diagnosis is incomplete. {_what_is_missing(wrong, answers)}",
            "Answer the questions with `lab diagnose`; a check measures only after that.",
        )
    if questions:
        commit_answers(workspace)


def _what_is_missing(wrong: dict[str, str], answers: Mapping[str, Answer]) -> str:
    """Which answers are missing, in one sentence, then which ones cannot be graded."""
    open_ = [id_ for id_ in wrong if not is_given(answers.get(id_))]
    told = [f"{id_}: {sentence}" for id_, sentence in wrong.items() if id_ not in open_]
    return " ".join([f"Still to answer: {', '.join(open_)}.", *told] if open_ else told)


def _require_secret(key_file: Path, lab: Lab) -> None:
    """Raises MachineError if the code under test could read the signing key."""
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


def _check(workspace: Workspace, folder: Path, device: Device) -> Verdict:
    lab = workspace.lab
    questions, solution = asked_questions(workspace), load_answers(lab.solution)
    commitments = load_record(workspace).commitments
    capture = (
        capture_figures(workspace, commitments[-1].capture)
        if commitments and needs_capture(questions)
        else None
    )
    results, prediction = grade_diagnosis(questions, load_answers(folder), solution, capture)
    with progress() as show:
        verdict = check_lab(
            lab,
            folder,
            device,
            data=data_folder(lab),
            home=home(),
            progress=show,
            diagnosis=for_check(lab.spec.devices[device].criteria, results),
            prediction=prediction.predicted if prediction else None,
        )
    quote_own_figures(workspace, verdict)
    verdict = without_answers(lab, verdict)
    if not questions:
        return verdict
    if prediction and any(question.to_reference for question in questions):
        verdict = msgspec.structs.replace(
            verdict, prediction=_to_reference(workspace, verdict, prediction)
        )
    return msgspec.structs.replace(verdict, diagnosis=standing_of(workspace, verdict, folder))


def quote_own_figures(workspace: Workspace, verdict: Verdict) -> None:
    """Replaces copied reference answers, which are another machine's, by what this one measured.
    The learner's own answers stay as they are.
    """
    copied = load_record(workspace).help.solution and load_answers(workspace.root) == load_answers(
        workspace.lab.solution
    )
    own = kind_of(workspace.lab).answers(verdict.measurement)
    if copied and own and verdict.reason == "wrong diagnosis":
        save_answers(workspace, own)
        note(
            "The reference answers come from another machine. diagnosis.toml now holds what this"
            " one measured: run `lab check` again."
        )


def _to_reference(workspace: Workspace, verdict: Verdict, prediction: Prediction) -> Prediction:
    """The prediction next to the speed-up of the reference over the shipped code, as a check of the
    shipped code measured it; unmeasured before that.
    """
    shipped = workspace.lab.code_hash(workspace.lab.path)
    verdicts = [verdict, *(attempt.verdict for attempt in load_attempts(workspace))]
    speeds = [
        criterion.value
        for checked in verdicts
        if checked.submission_hash == shipped and checked.device == verdict.device
        for criterion in checked.criteria
        if criterion.kind == "target" and criterion.unit == "x" and criterion.value
    ]
    return msgspec.structs.replace(prediction, measured=1 / speeds[0] if speeds else None)


def standing_of(workspace: Workspace, verdict: Verdict, folder: Path) -> Standing:
    """What the first committed diagnosis is worth, as an earlier check graded it if one did."""
    before = [attempt.verdict.diagnosis for attempt in load_attempts(workspace)]
    known = next((one.named for one in before if one and one.named is not None), None)
    return worth(
        workspace.lab,
        load_record(workspace),
        verdict,
        folder,
        partial(capture_figures, workspace),
        known,
    )
