"""`lab doctor`: what this machine has, what is missing, and what that would unlock."""

from __future__ import annotations

import typer

from bottleneck_lab.capture.doctor import Requirement, examine
from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.errors import ExitCode

EXAMPLE = "lab doctor --json"


def command(json: Json = False) -> None:
    """Examine this machine: what is here, what is missing, what it would unlock, and how to get it."""
    findings = examine()
    unfit = [finding.name for finding in findings if finding.need == "required" and not finding.present]
    if json:
        print_json(findings)
    else:
        for finding in findings:
            _show(finding)
        say(
            f"\nThis machine lacks what every lab needs: {', '.join(unfit)}."
            if unfit
            else "\nThis machine can run the labs.",
            style="bold",
        )
    if unfit:
        raise typer.Exit(ExitCode.ERROR)


def _show(finding: Requirement) -> None:
    mark = "✓" if finding.present else ("✗" if finding.need == "required" else "–")
    say(f"{mark} {finding.name}: {finding.found}", style="red" if mark == "✗" else None)
    if not finding.present:
        say(f"    unlocks  {finding.unlocks}\n    remedy   {finding.remedy}", style="dim")
