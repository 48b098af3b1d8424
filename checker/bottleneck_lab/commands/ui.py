"""What the commands share: consoles, JSON, progress, and finding the current workspace."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from bottleneck_lab.workspace.folder import Workspace, find_workspace

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DeviceName = Annotated[
    str | None,
    typer.Option(
        "--device",
        "-d",
        metavar="cuda|cpu|virtual",
        help="Measure on this device.",
        show_default=False,
    ),
]
NoWait = Annotated[
    bool,
    typer.Option(
        "--no-wait", help="Do not wait for a check that is already running in this folder."
    ),
]

_STYLES: dict[str, dict[str, Any]] = {
    "bold": {"bold": True},
    "dim": {"dim": True},
    "red": {"fg": "red"},
    "green": {"fg": "green"},
    "yellow": {"fg": "yellow"},
    "magenta": {"fg": "magenta"},
}


def say(text: str, style: str | None = None, *, err: bool = False, hang: int = 0) -> None:
    """Print sentences literally: file names may hold anything, so nothing is treated as markup.

    Wrapped and styled only for a terminal; `hang` indents what is wrapped by so many columns more
    than its first line. Rich could do it too, but takes 40 ms to load: half of what `lab list`
    needs otherwise.
    """
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        typer.echo(text, err=err)
        return
    width = shutil.get_terminal_size().columns
    plain = style is None or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())] + " " * hang
        for part in textwrap.wrap(line, width, subsequent_indent=indent) or [""]:
            typer.echo(
                part if plain or style is None else typer.style(part, **_STYLES[style]), err=err
            )


def note(text: str) -> None:
    """The same, to stderr."""
    say(text, "dim", err=True)


def print_json(value: Any) -> None:
    """Print `value`, of built-in types or msgspec structs, as indented JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def here() -> Workspace:
    """The workspace of the current folder. Raises UsageError if there is none."""
    return find_workspace(Path.cwd())


def waiting(holder: str) -> None:
    """Report that a lock is taken, and by whom."""
    note(f"{holder} is running in this folder; waiting for it to finish (Ctrl-C to give up).")
