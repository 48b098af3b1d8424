"""`lab doctor`: what this machine has, what is missing and what that would unlock; with --measure,
its ceilings.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, get_args

import typer

from bottleneck_lab.analysis.counters.roofline import Machine
from bottleneck_lab.capture.devices import gpus
from bottleneck_lab.capture.doctor import Requirement, examine
from bottleneck_lab.commands.screen import progress
from bottleneck_lab.commands.ui import Json, note, print_json, say
from bottleneck_lab.course.captures import lab_threads
from bottleneck_lab.errors import ExitCode
from bottleneck_lab.measure.ceilings import CeilingDevice, ceilings_of, stored_ceilings
from bottleneck_lab.measure.sandbox.cgroup import in_charge
from bottleneck_lab.needs import EXTRAS, require_packages
from bottleneck_lab.report.capture_words import describe_ceilings
from bottleneck_lab.workspace.dataset import missing_datasets

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


_Runner = Annotated[
    bool,
    typer.Option(
        "--runner",
        help="Try whether this machine can measure for a cohort, as `lab cohort serve` does.",
    ),
]


def command(
    measure: _Measure = False, again: _Again = False, runner: _Runner = False, json: Json = False
) -> None:
    """Check this machine: what works, what is missing, what that would unlock, and how to get it.

    With --measure, measure its bandwidth and arithmetic: the ceilings of a roofline, with as many
    threads as the lab of this folder uses, outside of labs with all cores. Takes about ten seconds
    per device; close other programs first.
    """
    if measure:
        _show_ceilings(again=again, as_json=json)
        return
    if runner:
        _try_runner()
        return
    findings = examine()
    unfit = [
        finding.name for finding in findings if finding.need == "required" and not finding.present
    ]
    if json:
        print_json(findings)
    else:
        _show(findings, unfit)
    if unfit:
        raise typer.Exit(ExitCode.ERROR)


def _show(findings: list[Requirement], unfit: list[str]) -> None:
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


def _try_runner() -> None:
    """Report that a runner can start here. Raises MachineError with all reasons if it cannot."""
    require_packages("cohort", **EXTRAS["cohort"])
    # Only now: these need the packages of a cohort.
    from bottleneck_lab.cohort.running.preflight import Preflight  # noqa: PLC0415
    from bottleneck_lab.commands.cohort.options import default_slots  # noqa: PLC0415

    preflight = Preflight()
    with in_charge():
        preflight.check_containment(allow_unsandboxed=False, allow_no_cgroup=False)
        preflight.check_slot_users(None, len(gpus()) + default_slots(), allow_unsandboxed=False)
    preflight.finish("This machine cannot measure for a cohort")
    say("This machine can measure for a cohort.", style="bold")
    for name in missing_datasets():
        say(f"Labs that need the data set {name} wait until `lab data {name}` has made it.")


def _show_ceilings(*, again: bool, as_json: bool) -> None:
    """Show the ceilings of this machine's CPU, and of its first GPU if it has one.

    Raises MachineError without torch.
    """
    devices: list[CeilingDevice] = ["cpu", "cuda"] if gpus() else ["cpu"]
    threads = lab_threads(Path.cwd())
    with progress() as show:
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
    others = machines[0].disturbed_by
    if others:
        note(
            f"Other programs kept {others:.1f} of {os.cpu_count()} cores busy meanwhile, so these"
            " figures may be too low. Close them and measure again."
        )
    note("Saved for this machine; `lab doctor --measure --again` measures again.")
