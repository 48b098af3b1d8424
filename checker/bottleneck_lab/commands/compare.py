"""`lab compare`: two captures side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from bottleneck_lab.analysis.compare import compare
from bottleneck_lab.commands import completion
from bottleneck_lab.commands.evidence import read_capture, readable
from bottleneck_lab.commands.screen import console
from bottleneck_lab.commands.ui import Json, here, print_json
from bottleneck_lab.errors import UsageError
from bottleneck_lab.report.console import render_comparison
from bottleneck_lab.workspace.captures import find_capture

EXAMPLE = "lab compare 1 2"


def command(
    before: Annotated[
        str | None,
        typer.Argument(
            help="A capture's number; by default the first with a timeline.", autocompletion=completion.capture_numbers
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Argument(
            help="Another's; by default the latest with a timeline.", autocompletion=completion.capture_numbers
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare two captures of this workspace: what got better, what got worse, what is only noise."""
    workspace = here()
    captures = readable(workspace)
    second = captures[-1] if captures and after is None else find_capture(workspace, after)
    first = captures[0] if captures and before is None else find_capture(workspace, before)
    for capture in (first, second):
        if capture not in captures:
            raise UsageError(
                f"{capture.name} holds no timeline to compare.",
                "`lab report` reads it; `lab profile` makes a capture that has one.",
            )
    if first == second:
        raise UsageError(f"{first.name} is the only capture with a timeline here." if before is None else "These are the same capture.",
                         "Change the code and make another with `lab profile`.")  # fmt: skip
    comparison = compare(read_capture(first), read_capture(second))
    if json:
        print_json({"before": first.name, "after": second.name, "comparison": comparison})
    else:
        render_comparison(comparison, console())
