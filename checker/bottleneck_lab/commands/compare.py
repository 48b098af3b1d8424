"""`lab compare`: two captures side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from bottleneck_lab.commands.ui import Json

EXAMPLE = "lab compare 1 2"


def command(
    before: Annotated[str | None, typer.Argument(help="A capture's number; by default the first.")] = None,
    after: Annotated[str | None, typer.Argument(help="Another's; by default the latest.")] = None,
    json: Json = False,
) -> None:
    """Compare two captures of this workspace: what got better, what got worse, what is only noise."""
    from bottleneck_lab.analysis.compare import compare
    from bottleneck_lab.commands.evidence import read_capture
    from bottleneck_lab.commands.ui import console, here, print_json
    from bottleneck_lab.errors import UsageError
    from bottleneck_lab.report.console import render_comparison
    from bottleneck_lab.workspace.captures import find_capture
    from bottleneck_lab.workspace.folder import numbered

    workspace = here()
    second = find_capture(workspace, after)
    first = find_capture(workspace, before or str(numbered(workspace.captures)[0][0]))
    if first == second:
        raise UsageError(f"{first.name} is the only capture here." if before is None else "These are the same capture.",
                         "Change the code and make another with `lab profile`.")  # fmt: skip
    comparison = compare(read_capture(first), read_capture(second))
    if json:
        print_json({"before": first.name, "after": second.name, "comparison": comparison})
    else:
        render_comparison(comparison, console())
