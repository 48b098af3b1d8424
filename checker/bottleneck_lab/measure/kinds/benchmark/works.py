"""The work that a device is given, and one core of this machine that does it."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

HELD_S = 5e-5
"""A piece of work that starts at most this late still ends on time. One that starts later was held
up, and ends late.
"""
Note = tuple[float, float, float]
"""Of a piece of work: the seconds it should take, then its begin and its end in seconds of
time.perf_counter.
"""


class Works(Protocol):
    """Something that does timed work: a Core, or a Gpu (gpu.py)."""

    def work(self, seconds: float, waited: bool) -> None:
        """Take on one piece of work. `waited`: this process had run out of commands."""

    def wait(self) -> None:
        """Return when all work has run."""

    def take_notes(self) -> list[Note]:
        """Return the notes since the last call, once all work has run."""


class Core:
    """One core of this machine, which works while `work` runs."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._a, self._out = np.random.default_rng(0).random(300), np.empty(300)
        self._due = 0.0

    def work(self, seconds: float, waited: bool) -> None:
        """Keep the core busy for that long. A piece that was already queued begins when the one
        before it was due to end, so fetching it costs nothing.
        """
        begin = now = time.perf_counter()
        if not waited and now < self._due + HELD_S:
            begin = self._due
        self._due = begin + seconds
        # Arithmetic, not a loop over the clock alone: the core's clock must be that of real work.
        while now < self._due:
            np.sqrt(self._a, out=self._out)
            now = time.perf_counter()
        self._notes.append((seconds, begin, now))

    def wait(self) -> None:
        """Return at once: `work` returns when its piece has run."""

    def take_notes(self) -> list[Note]:
        """Return the notes since the last call."""
        notes, self._notes = self._notes, []
        return notes
