"""`lab cohort staff`: instructors and assistants, who log in with a password."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Literal

import typer

from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.members import people
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import say

EXAMPLE = "lab cohort staff Grace --folder autumn-workshop"


def command(
    name: Annotated[str, typer.Argument(help="The name to log in with.")],
    folder: Folder = Path(),
    role: Annotated[
        Literal["assistant", "instructor"],
        typer.Option("--role", help="Assistants see and help; instructors can change everything."),
    ] = "assistant",
) -> None:
    """Add an assistant or an instructor. Prints the password once."""
    # Drawn here: a password on the command line would stay in the shell's history.
    password = secrets.token_urlsafe(15)
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        people.add_staff(connection, role, name, password, cohort.database.clock())
        address = cohort.address()
    say(f"{name} can log in at {address}/login with this password, which is shown only once:")
    say(password, style="bold")
