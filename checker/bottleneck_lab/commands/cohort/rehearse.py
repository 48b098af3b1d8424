"""`lab cohort rehearse`: play a workshop beforehand, with made-up learners."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.moments import spoken
from bottleneck_lab.cohort.rehearsal.learners import (
    Block,
    lay_out,
    lay_out_before_due,
    lay_out_times,
)
from bottleneck_lab.cohort.rehearsal.measuring import measure_durations
from bottleneck_lab.cohort.rehearsal.play import Machines
from bottleneck_lab.cohort.rehearsal.summary import (
    Plan,
    Rehearsal,
    out_of_time,
    rehearse,
    span,
)
from bottleneck_lab.cohort.running.durations import load_durations, typical_s
from bottleneck_lab.cohort.running.forecast import sort_of
from bottleneck_lab.cohort.runsheet import dues_of, times_of_one_day
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.commands.cohort.options import Folder, default_slots, parse_labs
from bottleneck_lab.commands.screen import console, progress
from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.wording import counted

EXAMPLE = "lab cohort rehearse --learners 60 --labs stuttering-tagger,idle-gpu"


_Learners = Annotated[
    int, typer.Option("--learners", metavar="N", min=1, max=1000, help="How many take part.")
]
_Labs = Annotated[
    str | None,
    typer.Option(
        "--labs",
        metavar="NAMES",
        help=(
            "Labs in their order, separated by commas, or `all` (default: those of the cohort in"
            " --folder)."
        ),
        show_default=False,
    ),
]
_Gpus = Annotated[int, typer.Option("--gpus", metavar="N", min=0, help="GPUs of each machine.")]
_Machines = Annotated[
    int, typer.Option("--machines", metavar="N", min=1, help="Machines that measure.")
]
_Slots = Annotated[
    int | None,
    typer.Option(
        "--slots",
        metavar="N",
        min=1,
        help="Checks of modelled labs side by side on each machine (default: as many as here).",
        show_default=False,
    ),
]
_Tries = Annotated[
    float,
    typer.Option(
        "--tries", metavar="N", min=1.0, help="Submissions until a lab passes, on average."
    ),
]
_Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        metavar="N",
        min=1,
        help="Most submissions per learner and lab (default: no limit).",
        show_default=False,
    ),
]
_Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="First run real checks of each lab on this machine, to know how long they take.",
    ),
]
_Seed = Annotated[
    int, typer.Option("--seed", metavar="N", help="Another seed draws other learners.")
]


def command(
    learners: _Learners = 30,
    labs: _Labs = None,
    folder: Folder = Path(),
    gpus: _Gpus = 0,
    machines: _Machines = 1,
    slots: _Slots = None,
    tries: _Tries = 2.5,
    budget: _Budget = None,
    measure: _Measure = False,
    seed: _Seed = 1,
    json: Json = False,
) -> None:
    """Simulate a workshop with made-up learners.

    They work through the labs one after another, each for the minutes that the course gives it. The
    queue, its limits and the records are the server's own code; a check takes as long as runners
    on this machine have recorded. Prints waits by hour, what breaks first, and what would help.
    Where the labs of the cohort have times of one day, as a run sheet sets them, those hold, breaks
    between them included. With due dates on several days, everybody works in the last minutes
    before each.
    """
    if labs is None:
        blocks, basis = _lay_out_cohort(folder, gpus)
    else:
        blocks = lay_out([find_lab(name) for name in parse_labs(labs)], gpus)
        basis = "One lab after another, without breaks."
    room = Machines(machines, gpus, slots or default_slots())
    with progress() as show:
        if measure:
            measure_durations(blocks, show)
        plan = Plan(blocks, learners, tries, room, load_durations(), budget, seed)
        result = rehearse(plan, progress=show)
    if json:
        print_json(result)
        return
    say(basis)
    _print_plan(plan)
    _print_result(plan, result)


def _lay_out_cohort(folder: Path, gpus: int) -> tuple[list[Block], str]:
    """Return when the room works on each of the cohort's labs, and the sentence that says so."""
    with open_cohort(folder) as cohort, cohort.database.reading() as connection:
        names = workshop_labs(connection)
        times, dues = times_of_one_day(connection, names), dues_of(connection, names)
        zone = load_settings(connection).timezone
    labs = [find_lab(name) for name in names]
    if times:
        start = min(opens for opens, _ in times.values())
        own = f"By the workshop's own times, 0:00 being {spoken(start, zone)}."
        return lay_out_times(labs, gpus, times), own
    if dues:
        blocks = lay_out_before_due(labs, gpus, dues)
        start = max(dues.values()) - blocks[-1].ends
        return blocks, (
            "As if everybody worked on each lab in the last minutes before it is due, the worst"
            f" case: nothing says when they do. 0:00 is {spoken(start, zone)}."
        )
    return lay_out(labs, gpus), (
        "One lab after another, without breaks, as not every lab has a due date. `lab cohort"
        " runsheet PLAN --start TIME --use` sets them; those times then hold."
    )


_number = partial(Column, justify="right")
_RUNS = {"gpu": "one per GPU", "quiet": "alone", "modelled": "side by side"}
"""How checks run on one machine, by what they need of it."""


def _print_plan(plan: Plan) -> None:
    title = f"The plan for {counted(plan.learners, 'learner')}"
    table = Table("h:min", "lab", "device", _number("a check takes"), "checks run", title=title)
    for block in plan.blocks:
        seconds = f"{typical_s(plan.durations, block.lab, block.device):.0f} s"
        if (block.lab, block.device) not in plan.durations:
            seconds += " (assumed)"
        runs = _RUNS[sort_of(block.lab, block.device)]
        when = span(block.begins, block.ends)
        table.add_row(when, block.lab, block.device, seconds, runs)
    console().print(table)


def _print_result(plan: Plan, result: Rehearsal) -> None:
    if result.rooms > 1:
        say(
            f"Played in {result.rooms} rooms of {counted(plan.learners, 'learner')} each, as one"
            " says little; counts are those of one room on average."
        )
    waits = ("9 of 10 within", "longest")
    headings = ("h:min", "submissions", "median", *waits, "in the queue")
    table = Table(*map(_number, headings), title="Minutes until a check begins")
    for hour in result.hours:
        hours = span(hour.begins, hour.begins + 3600)
        minutes = _minutes(hour.median_s, hour.p90_s, hour.longest_s)
        table.add_row(hours, f"{hour.submissions:.3g}", *minutes, str(hour.queue))
    console().print(table)
    for sentence in result.breaks:
        say(sentence, style="yellow")
    if not result.breaks:
        say("Nobody waits for long.", style="green")
    say(f"9 of 10 submissions have their verdict within {result.verdict_s / 60:.1f} minutes.")
    if result.drained_s > 60:
        say(f"The last check ends {result.drained_s / 60:.0f} minutes after the last lab does.")
    for sentence in out_of_time(plan, result):
        say(sentence, hang=2)
    for code, count in sorted(result.refusals.items()):
        say(f"Refused: {counted(count, 'submission')} ({code}).")
    title = "Minutes until a check begins, if something changes"
    table = Table("change", *map(_number, waits), title=title)
    table.add_row("none", *_minutes(result.p90_s, result.longest_s))
    for option in (result.slower, *result.larger, *result.options):
        table.add_row(option.what, *_minutes(option.p90_s, option.longest_s))
    console().print(table)


def _minutes(*seconds: float) -> list[str]:
    return [f"{each / 60:.1f}" for each in seconds]
