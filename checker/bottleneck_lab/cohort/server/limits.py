"""Rate limits, counted in memory by whatever names the one who asks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from bottleneck_lab.cohort.refused import RefusedError

MOST_NAMES = 10_000


class Limit:
    """At most `most` within `window_s` seconds for each name."""

    def __init__(
        self, most: int, window_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._window_s, self._clock = most, window_s, clock
        self._times: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def count(self, name: str) -> None:
        """Count one more. Raises RefusedError when that is too many."""
        with self._lock:
            times = self._recent(name)
            if len(times) >= self._most:
                raise self._refusal(times)
            times.append(self._clock())

    def require(self, name: str) -> None:
        """Raise RefusedError if there were too many; for what is counted only when it fails."""
        with self._lock:
            times = self._recent(name)
            if len(times) >= self._most:
                raise self._refusal(times)

    def _recent(self, name: str) -> deque[float]:
        if len(self._times) > MOST_NAMES:
            # A flood of names; whoever is known by a token is limited by the database too
            self._times.clear()
        times = self._times.setdefault(name, deque())
        # A sliding window: no burst at its edge, as fixed windows allow.
        while times and times[0] <= self._clock() - self._window_s:
            times.popleft()
        return times

    def _refusal(self, times: deque[float]) -> RefusedError:
        wait_s = max(1.0, times[0] + self._window_s - self._clock())
        return RefusedError(
            "too-fast",
            "Too many requests in a short time.",
            f"Wait {wait_s:.0f} s and try again.",
            wait_s,
        )
