"""`lab cohort roster`: who may join, from a CSV file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.members.joining import kinds_of_id
from bottleneck_lab.cohort.members.roster import describe_roster, enter_roster, read_roster
from bottleneck_lab.cohort.settings import change_settings
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import say
from bottleneck_lab.errors import UsageError

EXAMPLE = "lab cohort roster students.csv --folder autumn-workshop --only"


def command(
    file: Annotated[
        Path,
        typer.Argument(
            help=(
                "A CSV file with a student_id column, or as exported by Canvas, Moodle or"
                " Gradescope."
            )
        ),
    ],
    folder: Folder = Path(),
    only: Annotated[
        bool, typer.Option("--only", help="From now on, let only people on the roster join.")
    ] = False,
) -> None:
    """Add a roster's learners, or correct their entries. They join with `lab join URL CODE --id
    STUDENT_ID`.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.", "Name a CSV file.") from error
    roster = read_roster(data)
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        added, corrected = enter_roster(connection, roster.learners, cohort.database.clock())
        if only:
            change_settings(connection, roster_only=True)
        kinds = kinds_of_id(connection)
    say(describe_roster(roster, added, corrected), style="green")
    only_they = "From now on, only they can join" if only else "They join"
    say(
        f"{only_they} with `lab join URL CODE --id STUDENT_ID`: their {kinds}, spelt as in the"
        " file."
    )
