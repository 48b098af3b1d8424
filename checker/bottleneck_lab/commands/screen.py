"""Consoles and progress bars, drawn with Rich.

A file of its own, because Rich takes 40 ms to load and `lab list` does without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from rich.console import Console
from rich.progress import BarColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.progress_bar import ProgressBar

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


FULLEST = 0.95
"""The most that a bar is filled: what is done is known, how long the rest takes is not."""
STILL_S = 5.0
"""A bar that has stood for this long moves to and fro: no share of what goes on is known."""


class _HonestBar(BarColumn):
    """A bar that is not full before the end, and does not stand still while work goes on."""

    def render(self, task: Task) -> ProgressBar:
        bar = super().render(task)
        bar.pulse = task.get_time() - task.fields["moved"] > STILL_S
        return bar


def bar_of(console: Console, clock: Callable[[], float] = time.monotonic) -> tuple[Bar, Report]:
    """Return a bar to show on a console, and what moves it. `clock` counts seconds."""
    columns = (
        TextColumn("{task.description}", markup=False),
        _HonestBar(bar_width=20),
        TimeElapsedColumn(),
    )
    bar = Bar(*columns, console=console, transient=True, get_time=clock)
    task = bar.add_task("", total=1.0, moved=clock())
    stood_at = -1.0

    def report(text: str, share: float) -> None:
        nonlocal stood_at
        if share != stood_at:
            stood_at = share
            bar.update(task, completed=FULLEST * min(1.0, max(0.0, share)), moved=clock())
        bar.update(task, description=text)

    return bar, report


@contextmanager
def progress() -> Iterator[Report]:
    """Show a progress bar on a terminal; elsewhere print one line for each new stage."""
    if not notes().is_terminal:
        yield _plain_progress()
        return
    bar, report = bar_of(notes())
    with bar:
        yield report


def _plain_progress() -> Report:
    last = ""

    def report(text: str, _share: float) -> None:
        nonlocal last
        if text != last:  # a log stays readable
            last = text
            note(text)

    return report
