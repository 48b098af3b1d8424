"""How long a worker's threads are ready to run and have no core: on a busy machine what they computed is not all that they would have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import psutil

from bottleneck_lab.measure.sandbox.freezer import of_threads

MOST_OF_RUN = 4
"""How many times what it ran a thread's waiting counts at most. One that only wakes for a moment, as all do when a worker is thawed, may wait for the
scheduler's next tick: 5 ms for 0.05 ms, with nobody else on the machine.
"""


class Waiting:
    """Adds up the waiting of all living threads of some processes, from its making on."""

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]]) -> None:
        self._processes = processes
        self._before = self._read()

    def seconds(self, within_s: float = math.inf) -> float:
        """Seconds so far, of all threads together; 0 where the kernel does not tell.

        Of a thread that did not run for all of the `within_s` that count, at most the rest: it also waits as it is thawed and frozen.
        """
        total = 0.0
        for thread, (ran, waited) in self._read().items():
            ran_before, waited_before = self._before.get(thread, (0, 0))
            own = ran - ran_before
            total += min(waited - waited_before, MOST_OF_RUN * own, max(0.0, within_s * 1e9 - own))
        return total / 1e9

    def _read(self) -> dict[int, tuple[int, int]]:
        """For each thread the ns that it ran, and that it was ready to run (proc(5), schedstat)."""
        told = of_threads(self._processes(), "schedstat")
        return {thread: (int(text.split()[0]), int(text.split()[1])) for thread, text in told}
