"""`lab start`: start a lab in a new folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.capture.devices import choose_device, gpus, gpus_missing
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.data import make
from bottleneck_lab.commands.ui import DeviceName, Json, print_json, say, say_next
from bottleneck_lab.errors import MachineError
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.needs import require_lab_packages
from bottleneck_lab.wording import list_files
from bottleneck_lab.workspace.dataset import is_made
from bottleneck_lab.workspace.folder import Workspace
from bottleneck_lab.workspace.next_step import ends_on_small_cards, records_itself
from bottleneck_lab.workspace.progress import note_start
from bottleneck_lab.workspace.start import in_repository, start_workspace

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
    """Start a lab: copy its files into a folder, and create its data set if it is missing.

    `lab case --lab LAB` draws another program to diagnose, chosen for a lab.
    """
    started = find_lab(lab)
    # Before the folder is made: a lab that cannot be run here does not count as started.
    require_lab_packages()
    root = (folder or Path(started.slug)).expanduser().absolute()
    workspace, new = start_workspace(started, root, choose_device(started, device))
    note_start(started.slug, str(root))
    if not no_data:
        for name in started.spec.datasets:
            make(name)
    remarks = []
    for name in started.spec.optional_datasets:
        remark = None if is_made(name) else _prepare_optional(name, create=all_data)
        if remark:
            remarks.append(remark)
    if json:
        print_json(
            {
                "lab": started.slug,
                "workspace": str(root),
                "device": workspace.info.device,
                "new": new,
            }
        )
    else:
        if lab != started.slug:
            say(f"The lab '{lab}' is called '{started.slug}' now.", style="yellow")
        _show(workspace, new=new)
        for remark in remarks:
            say(remark, style="dim")


def _prepare_optional(name: str, *, create: bool) -> str | None:
    """Create a data set that the lab works without, if `create` is set and this machine can.

    Returns a remark if it is still missing.
    """
    if not create:
        return f"Optional: `lab data {name}` sets up {name}. The lab works without it."
    try:
        make(name)
    except MachineError as error:
        return f"{error.message} The lab works without it."
    return None


def _show(workspace: Workspace, *, new: bool) -> None:
    spec = workspace.lab.spec
    if not new:
        say(f"'{workspace.lab.slug}' was already started in this folder; nothing was changed.")
    else:
        say(f"Started '{workspace.lab.slug}' on {workspace.info.device}: {spec.title}")
        if workspace.info.device == "virtual":
            times = "its times are modelled, and your host code runs for real"
            if workspace.info.device in kind_of(workspace.lab).modelled_on:
                times = "its times and the host's are modelled, the same on every machine"
            say(
                f"`virtual` is an emulated accelerator: {times}.",
                style="dim",
            )
        if "cuda" in spec.devices and gpus():
            missing = gpus_missing(workspace.lab)
            if missing:
                say(missing, style="dim")
    say(f"  read   README.md\n  edit   {list_files(spec.editable or ['diagnosis.toml'])}")
    if new and in_repository(workspace.root):
        say(
            "This folder lies in a git repository; a .gitignore of its own keeps it out of that.",
            style="dim",
        )
    folder = min(os.path.relpath(workspace.root), str(workspace.root), key=len)
    if records_itself(workspace):
        say_next(f"cd {shlex.quote(folder)}")
        say(f"README.md says what {', '.join(spec.editable)} has to record before `lab profile`.")
    else:
        look = "run" if ends_on_small_cards(workspace) else spec.evidence
        say_next(f"cd {shlex.quote(folder)} && lab {look}")
