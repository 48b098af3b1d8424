"""The bar that a learner watches while a check or a capture goes on."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress_bar import ProgressBar

from bottleneck_lab.commands.screen import STILL_S, bar_of


class Watched:
    """A bar on a clock that stands until the test moves it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.bar, self.report = bar_of(Console(file=io.StringIO()), lambda: self.now)

    def drawn(self) -> ProgressBar:
        """Return the bar as its column draws it now."""
        return self.bar.columns[1](self.bar.tasks[0])


def test_no_bar_is_full_before_the_end():
    watched = Watched()
    for share in (0.0, 0.5, 0.99, 1.0, 7.0):
        watched.report("measuring", share)
        bar = watched.drawn()
        assert bar.completed <= 0.95 * bar.total


def test_a_bar_that_stands_moves_to_and_fro_until_more_is_known():
    watched = Watched()
    watched.report("measuring", 0.97)
    assert not watched.drawn().pulse
    watched.now += STILL_S + 1
    watched.report("measuring", 0.97)
    assert watched.drawn().pulse, "that something was reported again moves nothing"
    watched.report("checking answers", 0.98)
    assert not watched.drawn().pulse
