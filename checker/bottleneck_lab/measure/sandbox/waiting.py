"""How long a worker's threads are ready to run and have no core: on a busy machine what they
computed is not all that they would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil

from bottleneck_lab.measure.sandbox.freezer import of_threads

SLIGHT_SHARE = 0.1
"""Share of a call's computing that the threads which only wake may have run, together. All of a
worker's threads wake as it is thawed, and for 0.05 ms one may wait 5 ms, with nobody else on the
machine.
"""


class Waiting:
    """Adds up the waiting of all living threads of some processes, from its making on; nothing
    where the kernel does not tell (proc(5), schedstat).
    """

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]]) -> None:
        self._processes = processes
        self._before = self._read()

    def seconds(self) -> float:
        """Return seconds so far, of all threads together."""
        return sum(waited for _, waited in self._so_far())

    def seconds_within(self, call_s: float) -> float:
        """Return the seconds that threads waited which computed during a call of `call_s`."""
        # Threads that only woke waited for nothing that mattered: those with the least CPU time are
        # left out, up to SLIGHT_SHARE of all. A thread cannot have waited longer than it did not
        # run: what is more was the thaw.
        times = sorted(self._so_far())
        slight_s = SLIGHT_SHARE * sum(ran for ran, _ in times)
        total = 0.0
        for ran, waited in times:
            slight_s -= ran
            if slight_s < 0:
                total += min(waited, max(0.0, call_s - ran))
        return total

    def computing(self) -> int:
        """Return how many threads have computed so far, each at least SLIGHT_SHARE of the whole."""
        times = [ran for ran, _ in self._so_far()]
        return sum(ran > 0 and ran >= SLIGHT_SHARE * sum(times) for ran in times)

    def _so_far(self) -> list[tuple[float, float]]:
        """Return for each thread the seconds that it ran, and those that it was ready to run."""
        return [
            (ran - before[0], waited - before[1])
            for thread, (ran, waited) in self._read().items()
            for before in [self._before.get(thread, (0.0, 0.0))]
        ]

    def _read(self) -> dict[int, tuple[float, float]]:
        # schedstat: ns on a core, ns runnable without one, number of turns.
        texts = of_threads(self._processes(), "schedstat")
        return {
            thread: (int(text.split()[0]) / 1e9, int(text.split()[1]) / 1e9)
            for thread, text in texts
        }
