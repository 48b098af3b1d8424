"""`lab cohort token`: how another machine joins as a runner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.commands.cohort.options import Folder
from bottleneck_lab.commands.ui import note

EXAMPLE = "lab cohort token --folder autumn-workshop"


def command(
    folder: Folder = Path(),
    new: Annotated[
        bool, typer.Option("--new", help="Make a new token. Runners that have the old one stop.")
    ] = False,
) -> None:
    """Print the command that makes another machine a runner, with the token in it."""
    with open_cohort(folder) as cohort:
        token, url = cohort.runner_token(renew=new), cohort.address()
    typer.echo(f"lab cohort runner --server {url} --token {token}")
    note(
        "Whoever has this token can hand in verdicts: give it to machines that you trust, and only"
        " over TLS or a network of your own."
    )
