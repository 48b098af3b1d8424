"""`lab dev check`: prove that labs work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from bottleneck_lab.capture.devices import require_torch
from bottleneck_lab.catalog import find_lab, load_labs
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.screen import progress
from bottleneck_lab.commands.ui import DeviceName, Json, print_json, say
from bottleneck_lab.course.proving import prove
from bottleneck_lab.errors import ExitCode
from bottleneck_lab.grading.criteria import format_figure
from bottleneck_lab.grading.margins import Margin, Part, Row
from bottleneck_lab.measure.lab_rules import check_files
from bottleneck_lab.measure.lab_rules.course import check_course

EXAMPLE = "lab dev check idle-gpu --static"


def command(
    labs: Annotated[
        list[str] | None,
        typer.Argument(
            help="The labs to check (default: all).", autocompletion=completion.lab_names
        ),
    ] = None,
    static: Annotated[
        bool, typer.Option("--static", help="Check the files only; measure nothing.")
    ] = False,
    only: Annotated[
        Part | None, typer.Option("--only", help="Measure only this part of each lab.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Measure only the variant or mutant with this name."
        ),
    ] = None,
    device: DeviceName = None,
    json: Json = False,
) -> None:
    """Prove that labs work.

    The brief, hints and diagnosis exist, with no stray files; a capture of the starter shows what
    the lab teaches; the starter is correct and FAILs for its declared reason; the solution and
    every variant PASS; every mutant FAILs for its declared reason.
    """
    if not static:
        require_torch("`lab dev check`")
    rows = []
    for row in _rows_of(labs, static=static, only=only, name=name, device=device):
        rows.append(row)
        if not json:  # at once, since the next may take a minute
            _show_row(row)
    if json:
        print_json(rows)
    if any(row.problems for row in rows):
        raise typer.Exit(ExitCode.FAIL)


def _rows_of(
    names: list[str] | None,
    *,
    static: bool,
    only: Part | None,
    name: str | None,
    device: str | None,
) -> Iterator[Row]:
    """Yield the results for the labs with these names, or for the course and all its labs."""
    if names:
        labs = [find_lab(lab) for lab in names]
    else:
        labs = list(load_labs().values())
        yield Row("the course", "files", check_course())
    for lab in labs:
        yield Row(lab.slug, "files", check_files(lab))
        if not static:
            yield from prove(lab, device, only, name, progress)


def _show_row(row: Row) -> None:
    if row.problems:
        say(f"✗ {row.lab}: {row.what}", style="red")
    else:
        say(f"✓ {row.lab}: {row.what}")
    for margin in row.proof.margins if row.proof else []:
        say(f"    {_distance(margin)}", style="dim")
    for problem in row.problems:
        say(f"    {problem}")


def _distance(margin: Margin) -> str:
    """Describe a measured criterion: its interval, its target, and how far it is beyond that."""
    value, low, high, bar = (
        format_figure(number, margin.unit)
        for number in (margin.value, margin.low, margin.high, margin.bar)
    )
    between = f" ({low} to {high})" if margin.low != margin.high else ""
    aim = "at least" if margin.at_least else "at most"
    times = f"at least {margin.least:.2f}"
    if margin.least >= 1000:  # a quantity that should be small is zero
        times = "over 1000"
    return (
        f"{margin.criterion} {value}{between}, wanted {aim} {bar}: {times} times as good as"
        " required"
    )
