"""`lab cohort rehearse`: play a workshop beforehand, with made-up learners."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.rehearsal.learners import lay_out
from bottleneck_lab.cohort.rehearsal.measuring import measure_durations
from bottleneck_lab.cohort.rehearsal.play import Machines
from bottleneck_lab.cohort.rehearsal.summary import Rehearsal, clock, rehearse
from bottleneck_lab.cohort.running.durations import load_durations, typical_s
from bottleneck_lab.cohort.running.forecast import needs_quiet
from bottleneck_lab.cohort.words import counted
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.commands.cohort.options import default_slots, parse_labs
from bottleneck_lab.commands.screen import console, progress
from bottleneck_lab.commands.ui import Json, print_json, say

EXAMPLE = "lab cohort rehearse --learners 60 --labs stuttering-tagger,idle-gpu"


def command(
    learners: Annotated[
        int, typer.Option("--learners", min=1, max=1000, help="How many take part.")
    ] = 30,
    labs: Annotated[
        str | None,
        typer.Option(
            "--labs",
            help=(
                "Labs in their order, separated by commas, or `all` (default: those of the cohort"
                " in --folder)."
            ),
            show_default=False,
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", "-f", help="The cohort's folder.")] = Path(),
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs of each machine.")] = 0,
    machines: Annotated[int, typer.Option("--machines", min=1, help="Machines that measure.")] = 1,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            min=1,
            help="Checks of modelled labs side by side on each machine (default: as many as here).",
            show_default=False,
        ),
    ] = None,
    tries: Annotated[
        float,
        typer.Option("--tries", min=1.0, help="Submissions until a lab passes, on average."),
    ] = 2.5,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            min=1,
            help="Most submissions per learner and lab (default: no limit).",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="First run real checks of each lab on this machine, to know how long they take.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Another seed draws other learners.")] = 1,
    json: Json = False,
) -> None:
    """Simulate a workshop with made-up learners.

    They work through the labs one after another, each for the minutes that the course gives it. The
    queue, its limits and the records are the server's own code; a check takes as long as runners
    on this machine have recorded. Prints waits by hour, what breaks first, and what would help.
    """
    if labs is None:
        with open_cohort(folder) as cohort, cohort.database.reading() as connection:
            names = workshop_labs(connection)
    else:
        names = parse_labs(labs)
    blocks = lay_out([find_lab(name) for name in names], gpus)
    with progress() as show:
        if measure:
            measure_durations(blocks, show)
        durations = load_durations()
        result = rehearse(
            blocks,
            learners,
            tries,
            Machines(machines, gpus, slots or default_slots()),
            durations,
            budget=budget,
            seed=seed,
            progress=show,
        )
    if json:
        print_json(result)
        return
    table = Table(title=f"The plan for {counted(learners, 'learner')}")
    for heading in ("h:min", "lab", "device", "a check takes", "checks run"):
        table.add_column(heading, justify="right" if "takes" in heading else "left")
    for block in blocks:
        known = (block.lab, block.device) in durations
        seconds = f"{typical_s(durations, block.lab, block.device):.0f} s"
        seconds += "" if known else " (assumed)"
        alone = needs_quiet(block.lab, block.device)
        runs = "one per GPU" if block.device == "cuda" else "alone" if alone else "side by side"
        table.add_row(clock(block.begins), block.lab, block.device, seconds, runs)
    console().print(table)
    _print_result(result)


def _print_result(result: Rehearsal) -> None:
    table = Table(title="Minutes until a check begins")
    headings = ("h:min", "submissions", "median", *_WAITS, "in the queue")
    for heading in headings:
        table.add_column(heading, justify="right")
    for hour in result.hours:
        hours = f"{clock(hour.begins)}–{clock(hour.begins + 3600)}"
        waits = _minutes(hour.median_s, hour.p90_s, hour.longest_s)
        table.add_row(hours, str(hour.submissions), *waits, str(hour.queue))
    console().print(table)
    for sentence in result.breaks:
        say(sentence, style="yellow")
    if not result.breaks:
        say("Nobody waits for long.", style="green")
    if result.drained_s > 60:
        say(f"The last check ends {result.drained_s / 60:.0f} minutes after the last lab does.")
    for code, count in sorted(result.refusals.items()):
        say(f"Refused: {counted(count, 'submission')} ({code}).")
    table = Table(title="Minutes until a check begins, if something changes")
    for heading in ("change", *_WAITS):
        table.add_column(heading, justify="left" if heading == "change" else "right")
    table.add_row("none", *_minutes(result.p90_s, result.longest_s))
    for option in (result.slower, *result.options):
        table.add_row(option.what, *_minutes(option.p90_s, option.longest_s))
    console().print(table)


_WAITS = ("9 of 10 within", "longest")


def _minutes(*seconds: float) -> list[str]:
    return [f"{each / 60:.1f}" for each in seconds]
