"""`lab cohort restore`: a cohort from its backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.cohort.backup import restore
from bottleneck_lab.cohort.store.database import explained
from bottleneck_lab.commands.cohort.options import Database
from bottleneck_lab.commands.ui import say

EXAMPLE = "lab cohort restore autumn.tar --folder restored"


def command(
    file: Annotated[Path, typer.Argument(help="A file written by `lab cohort backup`.")],
    folder: Annotated[
        Path, typer.Option("--folder", "-f", metavar="FOLDER", help="Folder to create.")
    ],
    database: Database = "",
) -> None:
    """Recreate a cohort from a backup, on either kind of database."""
    with explained():
        name = restore(file, folder, database)
    say(f"Restored '{name}' in {folder}. Next: lab cohort serve --folder {folder}", style="green")
