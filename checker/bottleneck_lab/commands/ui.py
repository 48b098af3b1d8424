"""What the commands share: consoles, JSON, progress, and finding the workspace that one stands in."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from bottleneck_lab.catalog import Device, Lab
    from bottleneck_lab.workspace.folder import Workspace

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DeviceName = Annotated[
    str | None,
    typer.Option("--device", "-d", metavar="cuda|cpu|virtual", help="Measure on this device.", show_default=False),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for a check that is under way in this folder.")]

Progress = Callable[[str, float], None]
"""Called with what is being done and the share (0–1) that is done."""


@cache
def console() -> Console:
    """Where results go: stdout."""
    from rich.console import Console

    return Console(highlight=False)


@cache
def notes() -> Console:
    """Where progress and remarks go: stderr, so that results can be piped."""
    from rich.console import Console

    return Console(highlight=False, stderr=True)


_STYLES: dict[str, dict[str, Any]] = {
    "bold": {"bold": True},
    "dim": {"dim": True},
    "red": {"fg": "red"},
    "green": {"fg": "green"},
    "yellow": {"fg": "yellow"},
    "magenta": {"fg": "magenta"},
}


def say(text: str, style: str | None = None, *, err: bool = False, hang: int = 0) -> None:
    """Print sentences as they are; file names may hold anything, so nothing in them is markup.

    Wrapped and styled only for a terminal; `hang` indents what is wrapped by so many columns more than its first line.
    Rich could do it too, but takes 40 ms to load: half of what `lab list` needs otherwise.
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
            typer.echo(part if plain or style is None else typer.style(part, **_STYLES[style]), err=err)


def note(text: str) -> None:
    """The same, to stderr."""
    say(text, "dim", err=True)


def print_json(value: Any) -> None:
    """Print `value`, of built-in types or msgspec structs, as indented JSON."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def here() -> Workspace:
    """The workspace of the current folder. Raises UsageError where there is none."""
    from bottleneck_lab.workspace.folder import find_workspace

    return find_workspace(Path.cwd())


def waiting(holder: str) -> None:
    """Say that a lock is taken, and by whom."""
    note(f"{holder} is at work in this folder; waiting for it to finish (Ctrl-C gives up).")


def data_folder(lab: Lab) -> Path:
    """The folder of the lab's data set, which must be there; the folder of all data sets for a lab that needs none."""
    from bottleneck_lab.workspace.dataset import require_dataset
    from bottleneck_lab.workspace.home import home

    folders = [require_dataset(name) for name in lab.spec.datasets]
    return folders[0] if folders else home() / "datasets"


def device_for(lab: Lab, asked: str | None, otherwise: Device | None = None) -> Device:
    """The device to measure `lab` on: the one asked for, else the workspace's, else the best that this machine has.

    Raises UsageError for a device that the lab does not know, MachineError for a GPU where there is none.
    """
    from bottleneck_lab.capture.doctor import choose_device

    return choose_device(lab, asked or otherwise)


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress bar on a terminal; elsewhere one line for each new stage, so that logs stay readable."""
    if not notes().is_terminal:
        yield _plain_progress()
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TimeElapsedColumn())
    with Bar(*columns, console=notes(), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda text, share: bar.update(task, description=text, completed=min(1.0, max(0.0, share)))


def _plain_progress() -> Progress:
    last = ""

    def report(text: str, _share: float) -> None:
        nonlocal last
        if text != last:
            last = text
            note(text)

    return report
