"""`lab dev play`: go through a lab as its learners will."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bottleneck_lab.capture.devices import choose_device, require_torch
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.ui import DeviceName, say
from bottleneck_lab.course.playing import play
from bottleneck_lab.errors import ExitCode, UsageError

EXAMPLE = "lab dev play my-lab --solution"


def command(
    lab: Annotated[
        str, typer.Argument(help="The lab to play.", autocompletion=completion.lab_names)
    ],
    device: DeviceName = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Skip the verdict: measure nothing.")
    ] = False,
    solution: Annotated[
        bool, typer.Option("--solution", help="Then check the solution's files, too.")
    ] = False,
) -> None:
    """Play a lab the way a learner will: brief, blind report, hints, questions, and the verdict on
    the shipped files.

    This runs in a temporary folder, with the solution's diagnosis. Look for anything that gives the
    cause away too early.
    """
    if no_check and solution:
        raise UsageError(
            "--no-check measures nothing, so --solution cannot be checked.",
            "Use only one of the two.",
        )
    require_torch("`lab dev play`")
    played = find_lab(lab)
    status = play(
        played,
        choose_device(played, device),
        measure=not no_check,
        solve=solution,
        announce=_announce,
        show=say,
    )
    if status not in (ExitCode.OK, ExitCode.FAIL):  # the shipped files have to fail
        raise typer.Exit(status)


def _announce(command: str) -> None:
    say(f"\n$ {command}", style="bold")
    sys.stdout.flush()  # the command itself writes to the same stream
