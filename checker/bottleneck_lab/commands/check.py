"""`lab check`: measure the workspace and give a verdict."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.capture.devices import choose_device
from bottleneck_lab.catalog import Device
from bottleneck_lab.commands.asking import confirm_first_diagnosis
from bottleneck_lab.commands.screen import console, notes, progress
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
from bottleneck_lab.commands.where import say_next_step
from bottleneck_lab.course.captures import mismatch, shipped_remedies
from bottleneck_lab.course.checking import check_workspace, require_ready
from bottleneck_lab.course.compiling import compile_kernels
from bottleneck_lab.course.solution_gains import ALIKE, SOLUTION, comparable_gains
from bottleneck_lab.errors import CaptureError
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.quiet import busy_cores_allowed, describe_others, wait_until_quiet
from bottleneck_lab.report.console.compiled import render_compiled
from bottleneck_lab.report.console.seconds import render_seconds
from bottleneck_lab.report.console.verdict import render_verdict
from bottleneck_lab.workspace.captures import capture_of, readable
from bottleneck_lab.workspace.commitments import is_blind
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.next_step import NOT_RIGHT, NOT_RUN

EXAMPLE = "lab check --json"

Sign = Annotated[
    Path | None,
    typer.Option(
        "--sign",
        metavar="KEYFILE",
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
        help="Wait up to this long until other programs leave enough cores free.",
    ),
]
ExplainTime = Annotated[
    bool,
    typer.Option(
        "--explain-time",
        help="Show where the seconds of the check went. With --json they are always there.",
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
    explain_time: ExplainTime = False,
) -> None:
    """Measure your work and get a verdict.

    Exit code: 0 PASS, 1 FAIL, 2 usage error, 3 INCONCLUSIVE, 4 ERROR.
    """
    workspace = here()
    if static:
        _show_kernels(workspace, as_json=json)
        return
    confirm_first_diagnosis(workspace, json=json)
    # What would be refused is refused before a wait, not after it.
    require_ready(workspace)
    chosen = choose_device(workspace.lab, device or workspace.info.device)
    _mind_others(workspace, chosen, when_quiet)
    checked = check_workspace(
        workspace,
        chosen,
        show_progress=progress,
        wait=not no_wait,
        on_wait=waiting,
        key_file=sign,
    )
    attempt = checked.attempt
    for remark in checked.remarks:
        note(remark)
    if json:
        print_json(attempt.verdict)
    else:
        render_verdict(attempt.verdict, console())
        if explain_time:
            render_seconds(attempt.verdict, console())
        captures = readable(workspace)
        captured = capture_of(workspace, attempt.verdict.submission_hash)
        warning = None
        if captures and not captured and workspace.lab.spec.evidence == "profile":
            warning = mismatch(captures[-1], attempt.verdict)
        if warning and attempt.verdict.reason not in (*NOT_RUN, *NOT_RIGHT, "wrong diagnosis"):
            say(f"\nCapture {warning}", style="yellow")
        if others := _others_gains(workspace, attempt.verdict):
            say(f"\n{others}")
        if attempt.verdict.outcome == "PASS" and (number := _remedies(workspace)):
            say(
                f"\n`lab report {number}` says what usually helps against what it found in the"
                " shipped code."
            )
        note(f"Recorded as check {attempt.number}; `lab history` lists all.")
        say_next_step(workspace, checked.attempts, checked.record)
    raise typer.Exit(attempt.verdict.outcome.exit_code)


def _others_gains(workspace: Workspace, verdict: Verdict) -> str:
    """Return what the reference solution gains, and the fastest script of its write-up; "" before a
    pass, and where neither was measured or speed is not what the lab is about.
    """
    gains, prediction = comparable_gains(workspace.lab, verdict), verdict.prediction
    if not gains or prediction is None:
        return ""
    reference, most = gains[SOLUTION], max(gains.values())
    fastest = f", the fastest script known to us {most:.2f}x" if most > reference else ""
    measured, yours = prediction.measured or 0.0, ""
    if measured > most / ALIKE:
        yours = ": yours is faster than any"
    elif measured > ALIKE * most:
        yours = ": yours is as fast"
    return f"The reference solution reaches {reference:.2f}x{fastest}{yours}."


def _remedies(workspace: Workspace) -> int | None:
    """Return the number of the capture whose report says what helps against the shipped code's
    bottleneck; None without one that can be read: the verdict stands without it.
    """
    try:
        return shipped_remedies(workspace)
    except CaptureError:
        return None


def _mind_others(workspace: Workspace, device: Device, when_quiet: float | None) -> None:
    """Wait up to `when_quiet` minutes for other programs, or say at once that they may spoil it.

    A check whose times are modelled is not disturbed by them: of those nothing is said.
    """
    needed = kind_of(workspace.lab).cores(workspace.lab, device)
    if not needed:
        if when_quiet is not None:
            note("All times of this check are modelled, so it does not wait for other programs.")
        return
    allowed = busy_cores_allowed(needed)
    if when_quiet is not None:
        note(
            f"Waiting up to {when_quiet:g} minutes until other programs keep at most {allowed:.2g}"
            " cores busy for some seconds."
        )
        began, limit_s = time.monotonic(), 60 * when_quiet
        with progress() as show:

            def tell(cores: float) -> None:
                waited_s = time.monotonic() - began
                share = min(waited_s / limit_s, 1.0) if limit_s else 1.0
                show(_waiting_for(cores, allowed, limit_s - waited_s), share)

            wait_until_quiet(limit_s, tell, allowed=allowed)
        return
    if others := describe_others(needed):
        note(
            f"{others}: this check may not be able to decide. Close them, or let `lab check"
            " --when-quiet 10` wait for them."
        )


def _waiting_for(cores: float, allowed: float, left_s: float) -> str:
    """Return the wait in one line: with its changing figures only where the line is rewritten."""
    if notes().is_terminal:
        minutes, seconds = divmod(max(0, round(left_s)), 60)
        return (
            f"waiting: other programs keep {cores:.1f} cores busy, {allowed:.2g} would do;"
            f" {minutes}:{seconds:02} left"
        )
    return "waiting for other programs to finish"


def _show_kernels(workspace: Workspace, *, as_json: bool) -> None:
    kernels = compile_kernels(workspace, progress)
    if as_json:
        print_json(kernels)
        return
    for source in kernels:
        render_compiled(source, console(), blind=is_blind(workspace))
