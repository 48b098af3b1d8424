"""What commands draw with Rich: consoles and progress bars. A separate file, because Rich takes 40
ms to load and `lab list` does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from bottleneck_lab.commands.ui import note

Progress = Callable[[str, float], None]
"""Called with the current activity and the share (0–1) that is done."""


@cache
def console() -> Console:
    """Where results go: stdout."""
    return Console(highlight=False)


@cache
def notes() -> Console:
    """Where progress and remarks go: stderr, so that results can be piped."""
    return Console(highlight=False, stderr=True)


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress bar on a terminal; elsewhere one line for each new stage, so that logs stay
    readable.
    """
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


def _plain_progress() -> Progress:
    last = ""

    def report(text: str, _share: float) -> None:
        nonlocal last
        if text != last:
            last = text
            note(text)

    return report
