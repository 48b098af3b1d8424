"""A device that does real work: its calls keep a core or the GPU of this machine busy, and host and
events read real clocks.

How long a call should take follows from the emulator's caches, clocks and stalls and a secret seed.
This machine's own disturbances come on top. Only the verifier runs this file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.benchmark.bench import Bench, disturbance
from bottleneck_lab.measure.kinds.benchmark.works import HELD_S

STEADY, SHARE = 0.05, 0.05
"""By how much work may miss the time it should take, and the share of a function's work that may
miss it by more.
"""
LONGER_S, LONGER = 2e-4, 0.01
"""How much longer a wait for the device may take than it should: seconds, or a share of the work,
if that is longer. An interval that misses the cost by more is wrong (`nearly` in lab.toml), and
pauses that are too rare to disturb SHARE of short calls can lengthen every batch of them. So the
host's clock stands still for as long as the device was held up, or the host learned late that it
was done.
"""
LAUNCH_S = {"cpu": (1e-5, 2e-5), "cuda": (5e-6, 1e-5)}
"""From and to, as of `Scale`. On a GPU a real launch in the device's process follows, of another 10
µs or so.
"""


Report = np.ndarray[Any, np.dtype[np.float64]]


def real_scale(emulator: Any, device: str) -> Any:
    """How long things take on a real device: longer than on the emulated GPU, so that handing work
    to another process is as small a part as a launch there.
    """
    return emulator.Scale(
        quiet_s=(1e-4, 2e-3),
        quiet_jitter=(0.02, 0.05),
        grain_s=2e-6,
        noisy_s=(2e-3, 12e-3),
        launch_s=LAUNCH_S[device],
        flush_s=2e-4,
        practice_s=(1.5e-4, 1e-3, 3e-4, 6e-3, 2.4e-3),
    )


def device_class(emulator: Any) -> type:
    """The emulator's Device, with its work done on a bench."""

    class Device(emulator.Device):  # type: ignore[misc]  # the emulator is loaded by its path
        """`bench` works, `clock` tells the time, and `computed` how much of it this thread has had
        a core, in seconds.

        The host's time stands still while the learner's process computes and the device has nothing
        to do, and while the device's notes are taken: every window would otherwise include messages
        between processes, and what the judge writes down. And it does while other programs hold up
        a wait.
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
            super().__init__(function, rng, budget_s, real_scale(emulator, bench.device))
            self.bench, self._real, self._computed_s = bench, clock, computed
            bench.report()  # of what the previous benchmark left
            self._began_s = self._stood_still_s = clock()
            self._queued_events: list[int | None] = []
            self._reports: list[Report] = []
            self._lengthened: list[bool] = []
            self._asleep_s = self._held_up_s = 0.0

        def serve(self, commands: list[tuple[int, int, int]]) -> tuple[int, float]:
            """Carries out the benchmark's commands; a status and the value of the last one."""
            self._stood_still_s += max(0.0, self._now_s() - self.used_s)
            self._asleep_s = self._off_core_s()
            status, value = super().serve(commands)
            self._until(0.0)
            return status, value

        @property
        def disturbed(self) -> str:
            """The cause why too much of the work took longer than it should; empty if little did,
            or nothing is measured.
            """
            rows = np.concatenate(self._reports) if self._reports else np.empty((0, 3))
            if seen := disturbance(rows[rows[:, 0] > 0], STEADY, SHARE):
                return seen
            lengthened, waits = sum(self._lengthened), len(self._lengthened)
            return (
                f"other programs lengthened {lengthened} of {waits} waits for the device"
                if lengthened > max(1, SHARE * waits)
                else ""
            )

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
            held_up_s = _held_up(report)
            if len(report):
                most_s = max(LONGER_S, LONGER * report[:, 0].sum())
                late_s = self.bench.done_s - max(since_s, report[-1, 2] - held_up_s[-1])
                if late_s > most_s:
                    self._stood_still_s += late_s
                # What the host lost before may have kept the device waiting, or may not.
                self._lengthened.append(bool(before_s > most_s))
            ends_s = report[:, 2] - held_up_s - self._began_s - self._held_up_s
            for event, end_s in zip(self._queued_events, ends_s.tolist(), strict=True):
                if event is not None:
                    self.events[event] = end_s
            self._held_up_s += float(held_up_s[-1]) if len(report) else 0.0
            self._queued_events.clear()
            self._reports.append(report)
            self._asleep_s = self._off_core_s()
            self._stood_still_s += self._real() - self.bench.done_s
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


def _held_up(report: Report) -> Report:
    """Return how long other programs had held up the device when each piece of work ended, in
    seconds since the first began.
    """
    over_s = report[:, 2] - report[:, 1] - report[:, 0]
    # A piece that ends less late is made up for by the next.
    return np.cumsum(np.where(over_s > HELD_S, over_s, 0.0))
