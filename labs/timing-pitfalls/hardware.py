"""A device that really works: its calls keep a core of this machine busy, and host and events read this machine's clock.

How long a call is to take follows from the emulator's caches, clocks and stalls and a secret seed. What this machine does to it comes on top.
Run by the verifier alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.benchmark.bench import Bench, disturbance

STEADY, SHARE = 0.05, 0.05
"""By how much work may take longer than it was to take, and the share of a function's work that may exceed it."""


def core_scale(emulator: Any) -> Any:
    """How long things take on a core: longer than on a GPU, so that passing work on is as little of it as a launch is there."""
    return emulator.Scale((1e-4, 2e-3), (5e-3, 8e-3), (1e-5, 2e-5), 2e-4, (1.5e-4, 1e-3, 3e-4, 6e-3))


def device_class(emulator: Any) -> type:
    """The emulator's Device, whose work is worked off on a bench."""

    class Device(emulator.Device):  # type: ignore[misc]  # the emulator is loaded by its path
        """`bench` works, `clock` tells the time, in seconds.

        The host's time stands still while the learner's process has the word and the device nothing to do: what their messages take
        would otherwise be in every window.
        """

        def __init__(
            self,
            function: Any,
            rng: np.random.Generator,
            budget_s: float,
            bench: Bench,
            clock: Callable[[], float] = time.perf_counter,
        ) -> None:
            super().__init__(function, rng, budget_s, core_scale(emulator))
            self.bench, self._real = bench, clock
            bench.report()  # of what the benchmark before has left
            self._began_s = self._stood_still_s = clock()
            self._queued_events: list[int | None] = []
            self._reports: list[np.ndarray[Any, np.dtype[np.float64]]] = []

        def serve(self, commands: list[tuple[int, int, int]]) -> tuple[int, float]:
            """Carries out what the benchmark sent; a status and the value of the last command."""
            self._stood_still_s += max(0.0, self._now_s() - self.used_s)
            status, value = super().serve(commands)
            self._until(0.0)
            return status, value

        @property
        def disturbed(self) -> str:
            """Whether this machine kept too much of the work from taking its time: empty, or what was seen."""
            rows = np.concatenate(self._reports) if self._reports else np.empty((0, 3))
            return disturbance(rows[rows[:, 0] > 0], STEADY, SHARE)

        def _now_s(self) -> float:
            return self._real() - self._stood_still_s

        def _until(self, host_s: float) -> None:
            self.host_s = self._now_s()
            while self.host_s < host_s:
                self.host_s = self._now_s()

        def _wait(self) -> None:
            report = self.bench.report()
            for event, (_, _, end_s) in zip(self._queued_events, report.tolist(), strict=True):
                if event is not None:
                    self.events[event] = end_s - self._began_s
            self._queued_events.clear()
            self._reports.append(report)
            super()._wait()

        def _run(self, seconds: float) -> None:
            self._queued_events.append(None)
            self.bench.work(seconds)

        def _mark(self, event: int) -> None:
            self.events.pop(event, None)
            self._queue(0.0)
            self._queued_events.append(event)
            self.bench.work(0.0)

        def _reached(self, event: int) -> bool:
            return event in self.events

    return Device
