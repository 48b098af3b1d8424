"""`lab cohort runsheet`: what happens when, for the labs of the workshop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.grading.preview import Preview, trying
from bottleneck_lab.cohort.moments import find_zone, parse_moment
from bottleneck_lab.cohort.runsheet import (
    Plan,
    RunSheet,
    make_run_sheet,
    overdue_labs,
    render_markdown,
    use_run_sheet,
)
from bottleneck_lab.cohort.settings import load_settings
from bottleneck_lab.cohort.view.verdicts import verdict_reader_of
from bottleneck_lab.cohort.workshop import workshop_labs
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import say
from bottleneck_lab.errors import UsageError

EXAMPLE = "lab cohort runsheet half-day --start 2026-11-30T09:00 --folder autumn-workshop"


def command(
    plan: Annotated[Plan, typer.Argument(help="How long the workshop is: half-day or six-weeks.")],
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
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Do not ask before points change, or with a start that is past."
        ),
    ] = False,
) -> None:
    """Print a run sheet of the workshop's labs, as Markdown.

    Where --use would change points, or labs would be overdue at once, it says so and asks first.
    """
    labs = load_labs()
    with open_cohort(folder) as cohort, cohort.database.reading() as connection:
        zone = load_settings(connection).timezone
        begins = datetime.fromtimestamp(parse_moment(start, zone), find_zone(zone))
        sheet = make_run_sheet(plan, [labs[slug] for slug in workshop_labs(connection)], begins)
        form = "%H:%M" if plan == "half-day" else "%a %d %b"
        day = begins.strftime("%A, %d %B %Y, %H:%M")
        title = f"{cohort.config.name}, {day} ({zone})"
        overdue = overdue_labs(sheet, cohort.database.clock())
    typer.echo(render_markdown(sheet, title, lambda at: at.strftime(form)), nl=False)
    preview = _try(folder, sheet, keep=lambda preview: use and not (preview.changes or overdue))
    condition = "" if use else "With --use, "
    for one in preview.settings:
        say(f"{condition}{one.lab}: {one.name} {one.after} instead of {one.before}.", err=True)
    for change in preview.changes:
        say(
            f"{condition}{change.name} would have {change.after:g} points instead of"
            f" {change.before:g}.",
            err=True,
        )
    if overdue:
        say(
            f"{condition}{', '.join(overdue)} would be overdue at once: that start is past.",
            err=True,
            style="yellow",
        )
    if use and (preview.changes or overdue):
        if not yes:
            _confirm()
        # Nobody waits for the answer with the database locked, so grades may have changed since.
        if _try(folder, sheet, keep=lambda now: now.digest == preview.digest) != preview:
            raise UsageError("Grades changed meanwhile; nothing was saved.", "Run it again.")
    if use:
        say(f"The workshop is now {', '.join(sheet.labs)}, with these times.", err=True)


def _try(folder: Path, sheet: RunSheet, *, keep: Callable[[Preview], bool]) -> Preview:
    """Put a run sheet in force if `keep` agrees to what it does to grades; return that."""
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        with trying(
            connection,
            verdict_reader_of(cohort.public_key),
            lambda: use_run_sheet(connection, sheet, cohort.database.clock()),
        ) as attempt:
            attempt.keep = keep(attempt.preview)
        return attempt.preview


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "Nothing was saved: that asks first, and there is no terminal to ask on.",
            "Name a start to come, or add `--yes` if it is to be so.",
        )
    if not typer.confirm("Use this run sheet?", err=True):
        say("Nothing was saved.", err=True)
        raise typer.Exit
