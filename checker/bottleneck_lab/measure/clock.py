"""Where the seconds of a check go: one clock, whose phases are named once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal

Phase = Literal["imports", "workers", "reference", "learner", "judging", "waiting", "rest"]

PHASES: dict[Phase, str] = {
    "imports": "loading code, with its imports: the checker's own and that of both sides",
    "workers": "starting processes: sandboxes, interpreters, devices",
    "reference": "the reference, or the shipped code, at work; beside yours, what it takes longer",
    "learner": "your code at work",
    "judging": "making inputs and judging answers",
    "waiting": "waiting for processes to stop or end",
    "rest": "everything else: statistics, files",
}


class PhaseClock:
    """Adds up seconds by phase. Phases may be nested: a second belongs to the innermost one.

    Only the thread that made the clock counts. Threads beside it would count seconds twice.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = self._since = now()
        self._open: list[Phase] = []
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._thread = threading.get_ident()

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Count the seconds of the `with` for this phase."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._settle()
        self._open.append(name)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def move(self, seconds: float, source: Phase, target: Phase) -> None:
        """Count seconds of one phase for another: these, or as many as it has."""
        moved = min(max(0.0, seconds), self._seconds[source])
        self._seconds[source] -= moved
        self._seconds[target] += moved

    def total_s(self) -> float:
        """Return the seconds since the clock was made."""
        return self._now() - self._began

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase so far. Together they are the total."""
        self._settle()
        seconds = {str(phase): value for phase, value in self._seconds.items()}
        seconds["rest"] += self._since - self._began - sum(seconds.values())
        return seconds

    def _settle(self) -> None:
        now = self._now()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now


class TimedModule(ModuleType):
    """A lab's judge, each of whose functions counts as judging."""

    def __init__(self, module: ModuleType, clock: PhaseClock) -> None:
        super().__init__(module.__name__, module.__doc__)
        self._module = module
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)  # raises AttributeError, as the module itself does
        if not callable(value) or isinstance(value, type):
            return value

        def timed(*arguments: Any, **named: Any) -> Any:
            with self._clock.phase("judging"):
                return value(*arguments, **named)

        return timed
