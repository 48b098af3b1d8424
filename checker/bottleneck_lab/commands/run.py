"""`lab run`: run the workload as it stands."""

from __future__ import annotations

import typer

from bottleneck_lab.commands.ui import DeviceName, NoWait

EXAMPLE = "lab run --device cpu"


def command(device: DeviceName = None, no_wait: NoWait = False) -> None:
    """Run the workload as it stands in this folder, and print what it prints."""
    from bottleneck_lab.capture import run_workload
    from bottleneck_lab.capture.doctor import require_torch
    from bottleneck_lab.commands.ui import data_folder, device_for, here, say, waiting
    from bottleneck_lab.errors import ExitCode
    from bottleneck_lab.workspace.home import home

    workspace = here()
    workspace.require_current()
    require_torch()
    lab = workspace.lab
    chosen, data = device_for(lab, device, workspace.info.device), data_folder(lab)
    with workspace.working("lab run", wait=not no_wait, on_wait=waiting):
        status = run_workload(
            lab, workspace.root, chosen, data=data, home=home(), on_line=lambda line: say(line.rstrip("\n"))
        )
    if status:
        say(f"The workload ended with status {status}.", style="red")
        raise typer.Exit(ExitCode.FAIL)
