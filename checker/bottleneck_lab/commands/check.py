"""`lab check`: measure what stands in the workspace, and give a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.capture.doctor import choose_device, require_torch
from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.commands.evidence import figures, mismatch, readable
from bottleneck_lab.commands.screen import console, progress
from bottleneck_lab.commands.static import show_static
from bottleneck_lab.commands.ui import DeviceName, Json, NoWait, here, note, print_json, say, waiting
from bottleneck_lab.errors import MachineError
from bottleneck_lab.grading.attest import load_private_key, sign
from bottleneck_lab.grading.diagnosis import for_check, grade_diagnosis
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.measure.sandbox.bubblewrap import bubblewrap
from bottleneck_lab.measure.sandbox.process import shown
from bottleneck_lab.measure.verifier import check_lab
from bottleneck_lab.report.console import render_verdict
from bottleneck_lab.workspace.attempts import Attempt, record, submission
from bottleneck_lab.workspace.dataset import data_folder
from bottleneck_lab.workspace.diagnosis_file import load_answers
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.home import home
from bottleneck_lab.workspace.progress import note_attempt

EXAMPLE = "lab check --json"


Sign = Annotated[
    Path | None,
    typer.Option(
        "--sign",
        help="A runner's private key (`lab dev key`): the verdict is signed as 'verified'.",
        show_default=False,
    ),
]


Static = Annotated[
    bool, typer.Option("--static", help="Measure nothing: compile the lab's CUDA kernels and say what became of them.")
]


def command(
    device: DeviceName = None, no_wait: NoWait = False, json: Json = False, sign: Sign = None, static: Static = False
) -> None:
    """Measure your work and get a verdict.

    Exit code: 0 PASS, 1 FAIL, 2 wrong use, 3 INCONCLUSIVE, 4 ERROR.
    """
    if static:
        show_static(here(), as_json=json)
        return
    workspace = here()
    attempt = check_here(workspace, device, no_wait=no_wait, key_file=sign)
    if json:
        print_json(attempt.verdict)
    else:
        render_verdict(attempt.verdict, console())
        _tell_of_older_capture(workspace)
        note(f"Recorded as check {attempt.number}; `lab history` lists them, `lab report --html` draws them.")
    raise typer.Exit(attempt.verdict.outcome.exit_code)


def _tell_of_older_capture(workspace: Workspace) -> None:
    """Nobody shall read a verdict beside a timeline of other code without knowing it."""
    captures = readable(workspace)
    told = mismatch(workspace, captures[-1]) if captures else None
    if told:
        say(f"\nCapture {told}", style="yellow")


def check_here(
    workspace: Workspace, device: str | None = None, *, no_wait: bool = False, key_file: Path | None = None
) -> Attempt:
    """Check the workspace as it is at this moment, and record the verdict with what was handed in.

    With a runner's private key, the verdict is signed. The key is read before anything is measured, and never by a worker.
    """
    workspace.require_current()
    require_torch("`lab check`")
    lab = workspace.lab
    chosen = choose_device(lab, device or workspace.info.device)
    key = load_private_key(key_file) if key_file else None
    if key_file:
        _require_secret(key_file, lab)
    with workspace.working("lab check", wait=not no_wait, on_wait=waiting), submission(workspace, lab) as folder:
        verdict = _measure(workspace, folder, chosen)
        verdict = sign(verdict, key) if key else verdict
        attempt = record(workspace, verdict, folder)
    note_attempt(lab.slug, str(workspace.root), verdict.outcome.value)
    return attempt


def _require_secret(key_file: Path, lab: Lab) -> None:
    """Raises MachineError where the code under test could read the key that is to vouch for it."""
    if bubblewrap() is None:
        raise MachineError(
            "A verdict is signed only where the code under test is in a sandbox: without one it can read the key.",
            "Install bubblewrap (`lab doctor` says whether it works), or check without --sign.",
        )
    if shown(key_file, [data_folder(lab)]):
        raise MachineError(
            f"The sandbox shows {key_file.parent} to the code under test, and the key with it.",
            "Keep the key in a folder of your home that holds nothing else.",
        )


def _measure(workspace: Workspace, folder: Path, device: Device) -> Verdict:
    lab = workspace.lab
    questions = lab.spec.questions
    seen = figures(workspace) if any(question.from_capture for question in questions) else None
    results, prediction = grade_diagnosis(questions, load_answers(folder), load_answers(lab.solution), seen)
    with progress() as show:
        return check_lab(
            lab,
            folder,
            device,
            data=data_folder(lab),
            home=home(),
            progress=show,
            diagnosis=for_check(lab.spec.devices[device].criteria, results),
            prediction=prediction.predicted if prediction else None,
        )
