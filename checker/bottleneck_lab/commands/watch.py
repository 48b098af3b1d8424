"""`lab watch`: check again whenever an edited file changes."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from bottleneck_lab.commands.screen import console, progress
from bottleneck_lab.commands.ui import DeviceName, here, note, say, waiting
from bottleneck_lab.course.checking import check_workspace
from bottleneck_lab.errors import UsageError
from bottleneck_lab.report.console.verdict import render_verdict
from bottleneck_lab.workspace.folder import Workspace

EXAMPLE = "lab watch"

_POLL_S = 0.5
"""Cheap enough for the handful of files of a lab; an editor's save shows up within half a second.
"""


def command(
    device: DeviceName = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after the first check.")] = False,
) -> None:
    """Run a check every time you save one of the lab's editable files. Stop with Ctrl-C."""
    workspace = here()
    names = [*workspace.lab.spec.editable, "diagnosis.toml"]
    seen = _stamps(workspace, names)
    say(f"Watching {', '.join(names)}. Save one of them to run a check; Ctrl-C stops.")
    while True:
        time.sleep(_POLL_S)
        current = _stamps(workspace, names)
        if current == seen:
            continue
        seen = current
        try:
            checked = check_workspace(workspace, device, show_progress=progress, on_wait=waiting)
        except UsageError as error:
            # A mistake in the learner's files: the next save may fix it.
            say(f"{error.message}\n→ {error.remedy}", style="red")
        else:
            for remark in checked.remarks:
                note(remark)
            render_verdict(checked.attempt.verdict, console())
        if once:
            return
        say("\nWatching again.", style="dim")


def _stamps(workspace: Workspace, names: list[str]) -> dict[str, tuple[int, int] | None]:
    """Return modification time in ns and size of each file; None while an editor has it away."""
    stamps: dict[str, tuple[int, int] | None] = {}
    for name in names:
        try:
            status = (workspace.root / name).stat()
        except OSError:
            stamps[name] = None
        else:
            stamps[name] = status.st_mtime_ns, status.st_size
    return stamps
