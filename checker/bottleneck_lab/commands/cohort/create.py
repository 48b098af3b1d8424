"""`lab cohort create`: a folder with a cohort's database, key and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.cohort.folder import Config, create_cohort, folder_name
from bottleneck_lab.cohort.moments import machine_zone
from bottleneck_lab.cohort.runsheet import starting_labs
from bottleneck_lab.cohort.settings import Settings
from bottleneck_lab.cohort.store.database import explained
from bottleneck_lab.cohort.workshop import as_setting
from bottleneck_lab.commands.cohort.options import Database, parse_labs
from bottleneck_lab.commands.ui import say

EXAMPLE = 'lab cohort create "Autumn workshop"'


def command(
    name: Annotated[str, typer.Argument(help="The cohort's name.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            "-f",
            metavar="FOLDER",
            help="Folder to create (default: one here, named after the cohort).",
            show_default=False,
        ),
    ] = None,
    database: Database = "",
    labs: Annotated[
        str | None,
        typer.Option(
            "--labs",
            metavar="NAMES",
            help=(
                "Labs in their order, separated by commas, or `all` (default: the first of the"
                " course, as many as half a day holds)."
            ),
            show_default=False,
        ),
    ] = None,
) -> None:
    """Create a cohort: a folder with its database, key and settings."""
    target = folder or Path(folder_name(name))
    chosen = starting_labs() if labs is None else parse_labs(labs)
    settings = Settings(timezone=machine_zone(), labs=as_setting(chosen))
    with explained():
        create_cohort(target, Config(name, database), settings)
    key = target / "key" / "cohort.pem"
    say(f"Created '{name}' in {target}.", style="green")
    say(
        f"Its verdicts are signed with {key}: keep that file private. {key}.pub is for everybody:"
        " publish it."
    )
    why = ", as many as half a day holds" if labs is None else ""
    say(
        f"Its labs are {', '.join(chosen)}{why}. You can choose others at any time, on the page"
        " Workshop."
    )
    say(f"Next: lab cohort serve --folder {target}", style="bold")
