"""`lab run`: run the workload as it stands."""

from __future__ import annotations

from typing import Annotated

import typer

from bottleneck_lab.commands.ui import DeviceName, NoWait

EXAMPLE = "lab run --device cpu"


Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        help="For a distributed lab: carry its modelled scaling on to these numbers of ranks.",
        metavar="N,N,…",
    ),
]


def command(device: DeviceName = None, no_wait: NoWait = False, ranks: Ranks = None) -> None:
    """Run the workload as it stands in this folder, and print what it prints."""
    from bottleneck_lab.capture import run_workload
    from bottleneck_lab.capture.doctor import require_torch
    from bottleneck_lab.commands.ui import data_folder, device_for, here, note, say, waiting
    from bottleneck_lab.errors import ExitCode
    from bottleneck_lab.workspace.home import home

    workspace = here()
    workspace.require_current()
    require_torch()
    lab = workspace.lab
    chosen, data = device_for(lab, device, workspace.info.device), data_folder(lab)
    first = " Its speed is first set by what this machine can load." if lab.spec.measure == "feed" else ""
    note(f"Running {lab.spec.entry} on {chosen}.{first if chosen == 'virtual' else ''}")
    with workspace.working("lab run", wait=not no_wait, on_wait=waiting):
        status = run_workload(
            lab,
            workspace.root,
            chosen,
            data=data,
            home=home(),
            on_line=lambda line: say(line.rstrip("\n")),
            ranks=_numbers(ranks),
        )
    if status:
        say(f"The workload ended with status {status}.", style="red")
        raise typer.Exit(ExitCode.FAIL)


def _numbers(text: str | None) -> list[int]:
    """`64,512` as numbers. Raises UsageError."""
    from bottleneck_lab.errors import UsageError

    parts = [part.strip() for part in text.split(",")] if text else []
    if any(not part.isdigit() or not 1 <= int(part) <= 65536 for part in parts):
        raise UsageError(f"'{text}' is no list of numbers of ranks.", "Write for instance `--ranks 64,512,4096`.")
    return [int(part) for part in parts]
