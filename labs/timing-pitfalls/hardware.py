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
HELD_UP_S = 2e-4
"""For how long something else may have the host's core while the host has something to do, or as long as STEADY of what it waits for."""


def core_scale(emulator: Any) -> Any:
    """How long things take on a core: longer than on a GPU, so that passing work on is as little of it as a launch is there."""
    return emulator.Scale((1e-4, 2e-3), (5e-3, 8e-3), (1e-5, 2e-5), 2e-4, (1.5e-4, 1e-3, 3e-4, 6e-3))


def device_class(emulator: Any) -> type:
    """The emulator's Device, whose work is worked off on a bench."""

    class Device(emulator.Device):  # type: ignore[misc]  # the emulator is loaded by its path
        """`bench` works, `clock` tells the time and `computed` how much of it this thread has had a core, in seconds.

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
            computed: Callable[[], float] = time.thread_time,
        ) -> None:
            super().__init__(function, rng, budget_s, core_scale(emulator))
            self.bench, self._real, self._computed_s = bench, clock, computed
            bench.report()  # of what the benchmark before has left
            self._began_s = self._stood_still_s = clock()
            self._queued_events: list[int | None] = []
            self._reports: list[np.ndarray[Any, np.dtype[np.float64]]] = []
            self._held_up: list[bool] = []
            self._asleep_s = 0.0

        def serve(self, commands: list[tuple[int, int, int]]) -> tuple[int, float]:
            """Carries out what the benchmark sent; a status and the value of the last command."""
            self._stood_still_s += max(0.0, self._now_s() - self.used_s)
            self._asleep_s = self._off_core_s()
            status, value = super().serve(commands)
            self._until(0.0)
            return status, value

        @property
        def disturbed(self) -> str:
            """Whether this machine kept too much of the work from taking its time: empty, or what was seen."""
            if sum(self._held_up) > SHARE * len(self._held_up):
                return f"other programs had the host's core in {sum(self._held_up)} of {len(self._held_up)} waits for the device"
            rows = np.concatenate(self._reports) if self._reports else np.empty((0, 3))
            return disturbance(rows[rows[:, 0] > 0], STEADY, SHARE)

        def _off_core_s(self) -> float:
            return self._real() - self._computed_s()

        def _now_s(self) -> float:
            return self._real() - self._stood_still_s

        def _until(self, host_s: float) -> None:
            self.host_s = self._now_s()
            while self.host_s < host_s:
                self.host_s = self._now_s()

        def _wait(self) -> None:
            before_s, since_s = max(0.0, self._off_core_s() - self._asleep_s), self._real()
            report = self.bench.report()
            if len(report):
                late_s = before_s + self._real() - max(since_s, report[-1, 2])
                self._held_up.append(bool(late_s > max(HELD_UP_S, STEADY * report[:, 0].sum())))
            self._asleep_s = self._off_core_s()
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
