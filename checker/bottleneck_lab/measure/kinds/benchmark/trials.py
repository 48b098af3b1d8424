"""The functions that a `benchmark` lab's judge and its trials provide. A trial is a conversation
between the learner's code and the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from bottleneck_lab.grading.criteria import format_figure
from bottleneck_lab.measure.channel.messages import Value


class Open(str):
    """A sentence on what is wrong with a criterion where it may be chance: the criterion stays
    undecided.
    """

    __slots__ = ()


class Counted(float):
    """A share (0–1) with the count behind it. `words`, such as `3 of 576 jobs (0.52%)`, stand on a
    card in its place.
    """

    words: str

    def __new__(
        cls, count: int, of: int, things: str = "", *, against: float | None = None, note: str = ""
    ) -> Counted:
        """Return `count` of `of`, which is at least 1. `against` is a share that it must not be
        rounded to, `note` follows after a semicolon.
        """
        share = super().__new__(cls, count / of)
        words = f"{count:,} of {of:,} {things}".rstrip()
        share.words = f"{words} ({format_figure(share, 'share', against)})"
        if note:
            share.words += f"; {note}"
        return share


Judged = tuple[str | None, int, float | None]
"""Of one criterion: a sentence on what is wrong (None if nothing is), the number of trials judged,
and its figure (None if it has none).
"""
Row = tuple[str, bool, float, float]
"""Something an emulated machine did: its name, whether the host did it, and begin and end in
seconds of the machine's own time.
"""


class Trial(Protocol):
    """One thing of known cost, on a machine that belongs to the verifier."""

    name: str

    @property
    def arguments(self) -> Sequence[Value]:
        """The arguments of the harness."""

    @property
    def late(self) -> bool:
        """True once the learner's code has used more machine time than it was given. An exception
        is then no crash.
        """

    def serve(self, values: list[Any]) -> Sequence[Value]:
        """Answer one question from the learner's code. Raises ValueError for a question that the
        harness never asks.
        """

    def finish(self, values: list[Any]) -> None:
        """Take whatever the learner's code returned."""


class Judge(Protocol):
    """The functions of a lab's judge.py; `settings` are `judge`'s in lab.toml."""

    def trials(self, rng: np.random.Generator, settings: dict[str, Any]) -> Iterator[Trial]:
        """Yield secret trials, each drawn after the previous one is done."""

    def judge(self, done: list[Any], settings: dict[str, Any]) -> dict[str, Judged]:
        """Return the result for each criterion; one that is missing was not reached."""

    def practice(self, settings: dict[str, Any]) -> Iterable[Trial]:
        """Return the trials of `lab run`, the same every time."""

    def practice_line(self, trial: Any) -> str:
        """Return the line that `lab run` prints for a trial, also for one that ran out of machine
        time; empty for none.
        """

    def practice_summary(self, done: list[Any], settings: dict[str, Any]) -> str:
        """Return the line that `lab run` ends with: what a check would count in these trials."""


Ask = Callable[..., list[Value]]
"""How a harness asks the machine: values in, values out."""
