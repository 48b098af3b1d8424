"""The functions that a `benchmark` lab's judge and its trials provide. A trial is a conversation
between the learner's code and the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from bottleneck_lab.measure.channel.messages import Value


class Open(str):
    """A sentence on what is wrong with a criterion where it may be chance: the criterion stays
    undecided.
    """

    __slots__ = ()


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
        """Return the line that `lab run` prints for a trial; empty for none."""


Ask = Callable[..., list[Value]]
"""How a harness asks the machine: values in, values out."""
