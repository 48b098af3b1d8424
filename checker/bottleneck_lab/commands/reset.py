"""`lab reset`: restore the original files without losing edits."""

from __future__ import annotations

from typing import Annotated

import typer

from bottleneck_lab.commands.asking import confirm
from bottleneck_lab.commands.ui import Json, Yes, here, print_json, say
from bottleneck_lab.workspace.start import edited, reset_workspace

EXAMPLE = "lab reset --update"


def command(
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Only update the lab's own files; leave the files you edit alone."
        ),
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Restore the lab's original files. Your edited files are saved first.

    That empties diagnosis.toml as well; a diagnosis that was committed stays on record.
    """
    workspace = here()
    replaced = [] if update else edited(workspace)
    if replaced:
        question = f"Replace {', '.join(replaced)}? Your versions are saved."
        confirm(question, "lab reset", yes=yes)
    kept = reset_workspace(workspace, update_only=update)
    if json:
        print_json({"workspace": str(workspace.root), "kept": str(kept) if kept else None})
        return
    if update:
        say("The lab's own files match the installed lab again.")
    else:
        say("The lab's original files are back.")
        if "diagnosis.toml" in replaced:
            say(
                "diagnosis.toml is empty again, and a check needs its answers: `lab diagnose`. What"
                " you committed stays on record, and the first diagnosis still counts."
            )
    if kept:
        say(f"Your edited files are saved in {kept}")
    else:
        say("None of your files were replaced.")
