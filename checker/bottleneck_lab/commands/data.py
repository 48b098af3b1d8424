"""`lab data`: create the data set, or verify the one that is here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bottleneck_lab.commands.screen import progress
from bottleneck_lab.commands.ui import Json, print_json, say
from bottleneck_lab.workspace.dataset import make_dataset

EXAMPLE = "lab data photos --images 10000"


def command(
    name: Annotated[str, typer.Argument(help="The data set's name.")] = "photos",
    images: Annotated[
        int | None,
        typer.Option(
            "--images",
            metavar="N",
            min=1,
            help="How many photographs of about 500×375 pixels.",
            show_default=False,
        ),
    ] = None,
    large: Annotated[
        int | None,
        typer.Option(
            "--large",
            metavar="N",
            min=0,
            help="How many photographs of 2 to 4 megapixels.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Create the labs' data set, or verify and complete an existing one."""
    options = {}
    if images is not None:
        options["small"] = images
    if large is not None:
        options["large"] = large
    root = make(name, options)
    if json:
        print_json({"dataset": name, "folder": str(root)})
    else:
        say(f"The data set '{name}' is complete: {root}")


def make(name: str, options: dict[str, int] | None = None) -> Path:
    """Create the data set `name`, showing progress, and return its folder."""
    with progress() as show:
        return make_dataset(
            name,
            lambda done, total: show(f"Preparing the data set '{name}'", done / max(total, 1)),
            options=options,
        )
