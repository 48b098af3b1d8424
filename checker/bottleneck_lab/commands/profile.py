"""`lab profile`: capture the workload, then say where the time went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.commands.ui import DeviceName, Json, NoWait

EXAMPLE = "lab profile --tool torch"


def command(
    tool: Annotated[str, typer.Option("--tool", "-t", help="Which profiler.")] = "torch",
    device: DeviceName = None,
    no_wait: NoWait = False,
    json: Json = False,
) -> None:
    """Capture the workload under a profiler, and show where the time went."""
    from bottleneck_lab.commands.evidence import read_capture, readable
    from bottleneck_lab.commands.ui import console, here, note, print_json, say

    workspace = here()
    folder = capture(workspace.root, tool, device, no_wait=no_wait)
    summary = read_capture(folder) if folder in readable(workspace) else None
    if json:
        print_json(
            {"capture": str(folder), "files": sorted(path.name for path in folder.iterdir()), "summary": summary}
        )
        return
    if summary:
        from bottleneck_lab.report.console import render_summary

        render_summary(summary, console())
    note(f"The capture is in {folder}")
    say("\nNext: lab diagnose", style="bold")


def capture(workspace_root: Path, tool: str, device: str | None, *, no_wait: bool) -> Path:
    """Make one capture of the workspace's workload; its folder. Leaves nothing behind when it fails."""
    from bottleneck_lab import capture as capturing
    from bottleneck_lab.capture.doctor import require_torch
    from bottleneck_lab.commands.ui import data_folder, device_for, progress, waiting
    from bottleneck_lab.workspace.captures import make_capture
    from bottleneck_lab.workspace.folder import open_workspace
    from bottleneck_lab.workspace.home import home

    workspace = open_workspace(workspace_root)
    workspace.require_current()
    require_torch()
    lab = workspace.lab
    chosen, data = device_for(lab, device, workspace.info.device), data_folder(lab)

    def fill(out: Path) -> None:
        with progress() as show:
            capturing.profile(lab, workspace.root, chosen, tool, data=data, home=home(), out=out, progress=show)

    with workspace.working("lab profile", wait=not no_wait, on_wait=waiting):
        return make_capture(workspace, tool, fill)
