"""`lab cohort backup`: the whole cohort in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.cohort.backup import back_up
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import say
from bottleneck_lab.wording import counted

EXAMPLE = "lab cohort backup autumn.tar --folder autumn-workshop"


def command(
    file: Annotated[
        Path, typer.Argument(help="File to create. It contains the signing key: keep it private.")
    ],
    folder: Folder = Path(),
) -> None:
    """Back up the whole cohort to one file, while it runs."""
    with open_cohort(folder) as cohort:
        count = back_up(cohort, file)
    say(f"Wrote {file}: {counted(count, 'submission')}, readable only by you.", style="green")
