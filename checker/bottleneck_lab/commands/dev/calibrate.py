"""`lab dev calibrate`: whether each target is safe on every machine it was tried on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.errors import ExitCode, UsageError
from bottleneck_lab.grading.criteria import format_figure, format_limit
from bottleneck_lab.grading.margins import Row, TargetSafety, judge_targets

EXAMPLE = "lab dev calibrate laptop.json h100.json"


def command(
    files: Annotated[
        list[Path], typer.Argument(help="Outputs of `lab dev check --json`, one per machine.")
    ],
    json: Json = False,
) -> None:
    """Show whether each target is safe on every machine it was tried on.

    A target is safe if all correct work beats it, and all slow work misses it, by at least 10%.
    """
    rows: list[Row] = []
    for file in files:
        try:
            rows += msgspec.json.decode(file.read_bytes(), type=list[Row])
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(
                f"{file} is not the output of `lab dev check`: {error}.",
                "`lab dev check LAB --json > FILE` writes one.",
            ) from error
    targets = judge_targets(rows)
    if json:
        print_json(targets)
    else:
        for target in targets:
            _show_target(target)
    if any(target.problems for target in targets):
        raise typer.Exit(ExitCode.FAIL)


def _show_target(target: TargetSafety) -> None:
    aim = "at least" if target.at_least else "at most"
    bar = format_limit(target.bar, target.unit)
    about = f"{target.lab} on {target.device}: {target.criterion} {aim} {bar}"
    if target.problems:
        say(f"✗ {about}", style="red")
    else:
        say(f"✓ {about} is safe")
    for side, which in ((target.right, "right"), (target.slow, "slow")):
        for distance in side[:1]:
            say(
                f"    nearest {which} work: {distance.ratio:.2f} times as good as required"
                f" ({distance.work})",
                style="dim",
            )
    for problem in target.problems:
        say(f"    {problem}")
    if target.problems and target.safe_from is not None and target.safe_to is not None:
        low, high = (
            format_figure(number, target.unit) for number in (target.safe_from, target.safe_to)
        )
        say(f"    Safe on these machines: {low} to {high}.")
