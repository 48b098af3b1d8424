"""`lab reset`: restore the original files without losing edits."""

from __future__ import annotations

from typing import Annotated

import typer

from bottleneck_lab.commands.ui import Json, here, print_json, say
from bottleneck_lab.workspace.start import reset_workspace

EXAMPLE = "lab reset --update"


def command(
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Only update the lab's own files; leave the files you edit alone."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Restore the lab's original files. Your edited files are saved first."""
    workspace = here()
    kept = reset_workspace(workspace, update_only=update)
    if json:
        print_json({"workspace": str(workspace.root), "kept": str(kept) if kept else None})
        return
    if update:
        say("The lab's own files match the installed lab again.")
    else:
        say("The lab's original files are back.")
    if kept:
        say(f"Your edited files are saved in {kept}")
    else:
        say("None of your files were replaced.")
