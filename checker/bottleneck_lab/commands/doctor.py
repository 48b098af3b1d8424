"""`lab doctor`: what this machine has, what is missing and what that would unlock; with --measure,
its ceilings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from bottleneck_lab.analysis.counters.roofline import Machine
from bottleneck_lab.capture.doctor import examine, gpus
from bottleneck_lab.commands.screen import progress
from bottleneck_lab.commands.ui import Json, note, print_json, say
from bottleneck_lab.course.captures import lab_threads
from bottleneck_lab.errors import ExitCode
from bottleneck_lab.measure.ceilings import CeilingDevice, ceilings_of, stored_ceilings
from bottleneck_lab.report.words import describe_ceilings

EXAMPLE = "lab doctor --json"

_Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help=(
            "Measure this machine's peak bandwidth and arithmetic once; reports then draw them as"
            " ceilings."
        ),
    ),
]
_Again = Annotated[
    bool,
    typer.Option("--again", help="With --measure: discard the saved figures and measure again."),
]


def command(measure: _Measure = False, again: _Again = False, json: Json = False) -> None:
    """Check this machine: what works, what is missing, what that would unlock, and how to get it.

    With --measure, measure its bandwidth and arithmetic: the ceilings of a roofline, with as many
    threads as the lab of this folder uses, outside of labs with all cores. Takes about ten seconds
    per device; close other programs first.
    """
    if measure:
        _show_ceilings(again=again, as_json=json)
        return
    findings = examine()
    unfit = [
        finding.name for finding in findings if finding.need == "required" and not finding.present
    ]
    if json:
        print_json(findings)
    else:
        for finding in findings:
            if finding.present:
                say(f"✓ {finding.name}: {finding.found}")
                continue
            if finding.need == "required":
                say(f"✗ {finding.name}: {finding.found}", style="red")
            else:
                say(f"– {finding.name}: {finding.found}")
            say(f"    unlocks  {finding.unlocks}\n    remedy   {finding.remedy}", style="dim")
        for device in get_args(CeilingDevice):
            ceilings = stored_ceilings(device, lab_threads(Path.cwd()))
            if ceilings:
                say(
                    f"✓ ceilings of {ceilings.name}: measured on {ceilings.measured}; `lab doctor"
                    " --measure` shows them"
                )
        if unfit:
            say(f"\nThis machine lacks what every lab needs: {', '.join(unfit)}.", style="bold")
        else:
            say("\nThis machine can run the labs.", style="bold")
    if unfit:
        raise typer.Exit(ExitCode.ERROR)


def _show_ceilings(*, again: bool, as_json: bool) -> None:
    """Show the ceilings of this machine's CPU, and of its first GPU if it has one.

    Raises MachineError without torch.
    """
    devices: list[CeilingDevice] = ["cpu", "cuda"] if gpus() else ["cpu"]
    with progress() as show:
        threads = lab_threads(Path.cwd())
        machines: list[Machine] = [
            ceilings_of(device, show, again=again, threads=threads if device == "cpu" else None)
            for device in devices
        ]
    if as_json:
        print_json(machines)
        return
    for machine in machines:
        for line in describe_ceilings(machine):
            say(line, hang=2)
    note("Saved for this machine; `lab doctor --measure --again` measures again.")
