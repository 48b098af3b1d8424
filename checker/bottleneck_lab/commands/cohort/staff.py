"""`lab cohort staff`: instructors and assistants, who log in with a password."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Literal

import typer

from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.members import changes, people
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import say
from bottleneck_lab.errors import UsageError

EXAMPLE = "lab cohort staff Grace --folder autumn-workshop"


def command(
    name: Annotated[str, typer.Argument(help="The name to log in with.")],
    folder: Folder = Path(),
    role: Annotated[
        Literal["assistant", "instructor"],
        typer.Option("--role", help="Assistants see and help; instructors can change everything."),
    ] = "assistant",
    new_password: Annotated[
        bool,
        typer.Option(
            "--new-password", help="Give somebody who is there another password; log them out."
        ),
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove somebody; they are logged out at once.")
    ] = False,
) -> None:
    """Add an assistant or an instructor, give a new password, or remove one.

    A password is printed once.
    """
    if new_password and remove:
        raise UsageError("Whoever is removed needs no password.", "Leave out one of the two.")
    # Drawn here: a password on the command line would stay in the shell's history.
    password = secrets.token_urlsafe(15)
    with open_cohort(folder) as cohort, cohort.database.writing() as connection:
        now, address = cohort.database.clock(), cohort.address()
        if remove:
            changes.remove(connection, people.find_staff(connection, name), now)
        elif new_password:
            person = people.find_staff(connection, name)
            people.renew_password(connection, person, password, now)
        else:
            people.add_staff(connection, role, name, password, now)
    if remove:
        say(f"{name} is removed and logged out. Settings brings them back, at {address}/settings.")
        return
    say(
        f"{name} can log in at {address}/login while `lab cohort serve` runs there, with this"
        " password, which is shown only once:"
    )
    say(password, style="bold")
