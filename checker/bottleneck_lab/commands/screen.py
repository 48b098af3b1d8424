"""Consoles and progress bars, drawn with Rich.

A file of its own, because Rich takes 40 ms to load and `lab list` does without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from bottleneck_lab.commands.ui import note
from bottleneck_lab.course.progress import Report


@cache
def console() -> Console:
    """Return the console for results: stdout."""
    return Console(highlight=False)


@cache
def notes() -> Console:
    """Return the console for progress and remarks: stderr, so that results can be piped."""
    return Console(highlight=False, stderr=True)


@contextmanager
def progress() -> Iterator[Report]:
    """Show a progress bar on a terminal; elsewhere print one line for each new stage."""
    if not notes().is_terminal:
        yield _plain_progress()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=notes(), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda text, share: bar.update(
            task, description=text, completed=min(1.0, max(0.0, share))
        )


def _plain_progress() -> Report:
    last = ""

    def report(text: str, _share: float) -> None:
        nonlocal last
        if text != last:  # a log stays readable
            last = text
            note(text)

    return report
