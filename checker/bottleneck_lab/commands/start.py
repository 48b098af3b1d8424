"""`lab start`: start a lab in a new folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.capture.doctor import choose_device, gpus, gpus_missing
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.data import make
from bottleneck_lab.commands.ui import DeviceName, Json, print_json, say
from bottleneck_lab.errors import MachineError
from bottleneck_lab.workspace.dataset import is_made
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.progress import note_start
from bottleneck_lab.workspace.start import start_workspace

EXAMPLE = "lab start idle-gpu ~/labs/idle-gpu"


def command(
    lab: Annotated[
        str,
        typer.Argument(
            help="The lab's name; `lab list` shows them.",
            show_default=False,
            autocompletion=completion.lab_names,
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(help="A new or empty folder (default: one here, named after the lab)."),
    ] = None,
    device: DeviceName = None,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Do not create the data set now.")
    ] = False,
    all_data: Annotated[
        bool,
        typer.Option(
            "--all-data",
            help="Also create the data sets that the lab works without, if this machine can.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Start a lab: copy its files into a folder, and create its data set if it is missing."""
    found = find_lab(lab)
    root = (folder or Path(found.slug)).expanduser().absolute()
    workspace, new = start_workspace(found, root, choose_device(found, device))
    note_start(found.slug, str(root))
    if not no_data:
        for name in found.spec.datasets:
            make(name)
    optional = [
        _optional(name, create=all_data)
        for name in found.spec.optional_datasets
        if not is_made(name)
    ]
    if json:
        print_json(
            {"lab": found.slug, "workspace": str(root), "device": workspace.info.device, "new": new}
        )
    else:
        _tell(workspace, new=new)
        for line in filter(None, optional):
            say(line, style="dim")


def _optional(name: str, *, create: bool) -> str:
    """What to say of a data set that is missing and that the lab works without; with `create` it is
    created where this machine can.
    """
    if not create:
        return f"Optional: `lab data {name}` sets up {name}. The lab works without it."
    try:
        make(name)
    except MachineError as error:
        return f"{error.message} The lab works without it."
    return ""


def _tell(workspace: Workspace, *, new: bool) -> None:
    spec = workspace.lab.spec
    if not new:
        say(f"'{workspace.lab.slug}' was already started in this folder; nothing was changed.")
    else:
        say(f"Started '{workspace.lab.slug}' on {workspace.info.device}: {spec.title}")
        if workspace.info.device == "virtual":
            say(
                "`virtual` is an emulated accelerator: your host code runs for real; the device's"
                " times are modelled.",
                style="dim",
            )
        if "cuda" in spec.devices and gpus() and (missing := gpus_missing(workspace.lab)):
            say(missing, style="dim")
    say(f"  read   README.md\n  edit   {', '.join(spec.editable) or 'diagnosis.toml'}")
    say(f"\nNext: cd {_quoted(workspace.root)} && lab {spec.evidence}", style="bold")


def _quoted(path: Path) -> str:
    """A path, quoted for the shell."""
    relative = os.path.relpath(path)
    return shlex.quote(relative if len(relative) < len(str(path)) else str(path))
