"""`lab cohort runsheet`: what happens when, for the labs of the workshop."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.grading.preview import trying
from bottleneck_lab.cohort.moments import find_zone, parse_moment
from bottleneck_lab.cohort.runsheet import Plan, make_run_sheet, render_markdown, use_run_sheet
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import say

EXAMPLE = "lab cohort runsheet half-day --start 2026-11-30T09:00 --folder autumn-workshop"


def command(
    plan: Annotated[Plan, typer.Argument(help="How long the workshop is.")],
    start: Annotated[
        str,
        typer.Option("--start", metavar="TIME", help="When it begins, in the cohort's time zone."),
    ],
    folder: Folder = Path(),
    use: Annotated[
        bool,
        typer.Option(
            "--use",
            help="Put it in force: its labs are the workshop, its times their due dates and locks.",
        ),
    ] = False,
) -> None:
    """Print a run sheet of the workshop's labs, as Markdown."""
    labs = load_labs()
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        zone = load_settings(connection).timezone
        begins = datetime.fromtimestamp(parse_moment(start, zone), find_zone(zone))
        sheet = make_run_sheet(plan, [labs[slug] for slug in workshop_labs(connection)], begins)
        form = "%H:%M" if plan == "half-day" else "%a %d %b"
        day = begins.strftime("%A, %d %B %Y, %H:%M")
        title = f"{cohort.config.name}, {day} ({zone})"
        with trying(
            connection,
            verdict_reader_of(cohort.public_key),
            lambda: use_run_sheet(connection, sheet, cohort.database.clock()),
        ) as attempt:
            attempt.keep = use
    typer.echo(render_markdown(sheet, title, lambda at: at.strftime(form)), nl=False)
    if use:
        say(f"The workshop is now {', '.join(sheet.labs)}, with these times.", err=True)
    for change in attempt.preview.changes:
        verb = f"{change.name} now has" if use else f"With --use, {change.name} would have"
        say(f"{verb} {change.after:g} points instead of {change.before:g}.", err=True)
