"""`lab compare`: two captures side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from bottleneck_lab.commands.ui import Json

EXAMPLE = "lab compare 1 2"


def command(
    before: Annotated[
        str | None, typer.Argument(help="A capture's number; by default the first.", show_default=False)
    ] = None,
    after: Annotated[str | None, typer.Argument(help="Another's; by default the latest.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Compare two captures of this workspace, figure by figure."""
    from bottleneck_lab.commands.evidence import read_capture
    from bottleneck_lab.commands.ui import here, print_json
    from bottleneck_lab.workspace.captures import find_capture
    from bottleneck_lab.workspace.folder import numbered

    workspace = here()
    find_capture(workspace)
    first = find_capture(workspace, before or str(numbered(workspace.captures)[0][0]))
    second = find_capture(workspace, after)
    old, new = dict(read_capture(first).figures), dict(read_capture(second).figures)
    rows = [{"figure": name, "before": old.get(name), "after": new.get(name)} for name in {**old, **new}]
    if json:
        print_json({"before": first.name, "after": second.name, "figures": rows})
    else:
        _show(first.name, second.name, rows)


def _show(first: str, second: str, rows: list[dict[str, str | float | None]]) -> None:
    from rich import box
    from rich.table import Table

    from bottleneck_lab.commands.ui import console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure")
    for name in (first, second):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row["figure"]),
            *(f"{value:.4g}" if isinstance(value, float | int) else "–" for value in (row["before"], row["after"])),
        )
    console().print(table)
