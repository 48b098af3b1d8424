"""`lab report`: what the latest capture and the latest check say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck_lab.commands.ui import Json

if TYPE_CHECKING:
    from bottleneck_lab.workspace.folder import Workspace

EXAMPLE = "lab report --html report.html"


def command(
    capture: Annotated[
        str | None, typer.Argument(help="A capture's number; by default the latest.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page there.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Read the capture top-down: where the time went, the largest block, what is inside it; then the last verdict."""
    from bottleneck_lab.commands.evidence import read_capture
    from bottleneck_lab.commands.ui import console, here, print_json
    from bottleneck_lab.report.console import render_summary, render_verdict
    from bottleneck_lab.workspace.attempts import load_attempts
    from bottleneck_lab.workspace.captures import find_capture

    workspace = here()
    folder = find_capture(workspace, capture)
    if html:
        write_html(workspace, folder, html)
        return
    summary, attempts = read_capture(folder), load_attempts(workspace)
    if json:
        print_json({"capture": str(folder), "summary": summary, "verdict": attempts[-1].verdict if attempts else None})
        return
    render_summary(summary, console())
    if attempts:
        render_verdict(attempts[-1].verdict, console())


def write_html(workspace: Workspace, folder: Path, target: Path) -> None:
    """Write the page to `target`, whole or not at all, and say where it is."""
    raise NotImplementedError
