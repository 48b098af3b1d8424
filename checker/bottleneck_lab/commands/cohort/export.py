"""`lab cohort export`: the grades as a file for another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.cohort.folder import folder_name, open_cohort
from bottleneck_lab.cohort.grading.exports import (
    EXPORTS,
    export_grades,
    find_export,
    guests,
    unmeasured,
)
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import say
from bottleneck_lab.errors import UsageError
from bottleneck_lab.workspace.atomic import write_bytes

EXAMPLE = "lab cohort export nbgrader --folder autumn-workshop"


def command(
    kind: Annotated[
        str,
        typer.Argument(
            help="; ".join(f"{export.name}: {export.purpose}" for export in EXPORTS.values()) + ".",
            metavar=f"[{'|'.join(EXPORTS)}]",
            autocompletion=lambda: list(EXPORTS),
        ),
    ],
    folder: Folder = Path(),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write (default: named after the cohort).",
            show_default=False,
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the file if it is there already.")
    ] = False,
    allow_altered: Annotated[
        bool,
        typer.Option(
            "--allow-altered",
            help="Export even if records differ from what was signed; those score nothing.",
        ),
    ] = False,
) -> None:
    """Export the grades, or the graded files, for another program. Only you can read the file.

    Exit code 4 if a record in the database differs from what the cohort's key signed.
    """
    export = find_export(kind)
    with open_cohort(folder) as cohort:
        target = output or Path(export.file_name(folder_name(cohort.config.name)))
        if target.exists() and not replace:  # somebody may have worked on it since
            raise UsageError(
                f"{target} already exists.", "Name another with --output, or add --replace."
            )
        with cohort.database.reading() as connection:
            data = export_grades(connection, cohort, export, allow_altered=allow_altered)
            warnings = [unmeasured(connection), guests(connection)]
    write_bytes(target, data, replace=replace, mode=0o600)  # names and grades
    say(f"Wrote {target}.", style="green")
    for warning in filter(None, warnings):
        say(warning, style="yellow")
