"""What the judge of a `benchmark` lab is made of, and the two ends of the conversation that a trial is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from bottleneck_lab.measure.channel.messages import Value


class Open(str):
    """What is wrong with a criterion, where that may be chance: it stays undecided."""

    __slots__ = ()


Found = tuple[str | None, int, float | None]
"""Of one criterion: what is wrong (None: nothing), how many trials were judged, and its figure (None: it has none)."""
Row = tuple[str, bool, float, float]
"""What an emulated machine did: a name, whether the host did it, begin and end in seconds of its own time."""


class Trial(Protocol):
    """One thing of known cost. The machine that it runs on is emulated, and belongs to the verifier."""

    name: str

    @property
    def arguments(self) -> Sequence[Value]:
        """What the harness is called with."""

    @property
    def late(self) -> bool:
        """Whether the learner's code has used more of the machine's time than it was given: an exception then is no crash."""

    def serve(self, values: list[Any]) -> Sequence[Value]:
        """Answers one question of the learner's code. Raises ValueError for what no harness asks."""

    def finish(self, values: list[Any]) -> None:
        """Takes what the learner's code returned, whatever that is."""


class Judge(Protocol):
    """The functions of a lab's judge.py; `settings` are `judge`'s in lab.toml."""

    def trials(self, rng: np.random.Generator, settings: dict[str, Any]) -> Iterator[Trial]:
        """Secret trials, each drawn when the ones before are done."""

    def judge(self, done: list[Any], settings: dict[str, Any]) -> dict[str, Found]:
        """What became of each criterion; one that is left out was not reached."""

    def practice(self, settings: dict[str, Any]) -> Iterable[Trial]:
        """What `lab run` shows: trials that are the same every time."""

    def practice_line(self, trial: Any) -> str:
        """What `lab run` prints of one; empty for nothing."""


Ask = Callable[..., list[Value]]
"""How a harness asks the machine: values there, values back."""
