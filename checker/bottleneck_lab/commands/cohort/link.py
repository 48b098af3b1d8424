"""`lab cohort link`: a new link to the instructor's page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.members import people, sessions
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import say

EXAMPLE = "lab cohort link --folder autumn-workshop"


def command(
    folder: Folder = Path(),
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="The server's URL (default: the one it was last served at).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a new link to the instructor's page. It works once, within 15 minutes."""
    with open_cohort(folder) as cohort:
        address = (url or cohort.address()).rstrip("/")
        with cohort.database.writing() as connection:
            now = cohort.database.clock()
            token = sessions.new_link(connection, people.the_instructor(connection, now), now)
    say(f"{address}/login/{token}")
