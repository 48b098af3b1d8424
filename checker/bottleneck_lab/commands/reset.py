"""`lab reset`: the shipped files again, without losing what was edited."""

from __future__ import annotations

from typing import Annotated

import typer

from bottleneck_lab.commands.ui import Json, here, print_json, say
from bottleneck_lab.workspace.start import reset_workspace

EXAMPLE = "lab reset --update"


def command(
    update: Annotated[
        bool, typer.Option("--update", help="Only follow a changed lab: keep the files that you edit as they are.")
    ] = False,
    json: Json = False,
) -> None:
    """Put the lab's shipped files back. Your own versions are kept, and you are told where."""
    workspace = here()
    kept = reset_workspace(workspace, update_only=update)
    if json:
        print_json({"workspace": str(workspace.root), "kept": str(kept) if kept else None})
        return
    say(
        "The lab's own files follow the installed lab again." if update else "The lab's files are as they were shipped."
    )
    say(f"What you had edited is kept in {kept}" if kept else "Nothing of yours was replaced.")
