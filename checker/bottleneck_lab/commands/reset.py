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
        typer.Option("--update", help="Only bring in changes to the lab itself; leave the files you edit as they are."),
    ] = False,
    json: Json = False,
) -> None:
    """Restore the lab's original files. Your own versions are kept, and you are told where."""
    workspace = here()
    kept = reset_workspace(workspace, update_only=update)
    if json:
        print_json({"workspace": str(workspace.root), "kept": str(kept) if kept else None})
        return
    say("The lab's own files match the installed lab again." if update else "The lab's original files are back.")
    say(f"Your edited files are kept in {kept}" if kept else "None of your files were replaced.")
