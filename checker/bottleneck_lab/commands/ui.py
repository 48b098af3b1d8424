"""Shared by the commands: printing, JSON, common options, and finding the current workspace."""

from __future__ import annotations

import codecs
import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bottleneck_lab.errors import UsageError
from bottleneck_lab.report.ascii import to_ascii
from bottleneck_lab.workspace.cases import case_at, load_drawn, open_case
from bottleneck_lab.workspace.folder import Workspace, find_workspace, to_json, workspace_above

if TYPE_CHECKING:
    from bottleneck_lab.report.verdict_words import Mark

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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Answers = Annotated[
    list[str] | None,
    typer.Option(
        "--answer",
        "-a",
        metavar="ID=VALUE",
        help="Answer one question. A numbered choice may be given by its number or beginning.",
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

OUTCOME_STYLES = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow", "ERROR": "magenta"}
"""The style of each verdict."""


def say(text: str, style: str | None = None, *, err: bool = False, hang: int = 0) -> None:
    """Print sentences literally, wrapped and styled only for a terminal.

    `hang` indents wrapped lines by this many columns more than the first.
    """
    # Rich could do it, but takes 40 ms to load: half of what `lab list` needs otherwise. It would
    # also treat brackets as markup, and file names may hold anything.
    stream = sys.stderr if err else sys.stdout
    # Click would write UTF-8 there all the same.
    if codecs.lookup(stream.encoding or "utf-8").name == "ascii":
        text = to_ascii(text)
    if not stream.isatty():
        typer.echo(text, err=err)
        return
    width = shutil.get_terminal_size().columns
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())] + " " * hang
        for part in textwrap.wrap(line, width, subsequent_indent=indent) or [""]:
            if style and not plain:
                typer.echo(typer.style(part, **_STYLES[style]), err=err)
            else:
                typer.echo(part, err=err)


def say_next(command: str) -> None:
    """Print the command to run next, after an empty line."""
    say(f"\nNext: {command}", style="bold")


STYLES: dict[Mark, str] = {
    "right": "green",
    "wrong": "red",
    "undecided": "yellow",
    "not judged": "dim",
}
"""Colour of a result, beside its sign."""


def note(text: str) -> None:
    """Print a remark to stderr, so that results can be piped."""
    say(text, "dim", err=True)


def print_json(value: Any) -> None:
    """Print `value`, of built-in types or msgspec structs, as indented JSON."""
    sys.stdout.write(to_json(value).decode() + "\n")


def here() -> Workspace:
    """Return the workspace of the current folder. Raises UsageError if there is none."""
    case = case_at(Path.cwd())
    if case is not None and workspace_above(Path.cwd()) is None:
        raise UsageError(
            "This folder is a case's, not a lab's: it has no hints, no check and no solution.",
            "`lab case` shows its questions and takes the answers."
            if case == open_case()
            else "`lab case` draws another case; `lab list` shows the labs.",
        )
    cases = [each for each in load_drawn() if Path(each.folder).is_relative_to(Path.cwd())]
    if cases and workspace_above(Path.cwd()) is None:
        raise UsageError(
            "There is no lab in this folder.",
            "`lab case --progress` is about the cases here; `lab list` shows the labs.",
        )
    return find_workspace(Path.cwd())


def waiting(holder: str) -> None:
    """Report that a lock is taken, and by whom."""
    note(f"{holder} is running in this folder; waiting for it to finish (Ctrl-C to give up).")
