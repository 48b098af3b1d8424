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
"""For how long the host may lose its core before it waits for the device: seconds, or a share of
the work, if that is longer. The device may have run out of work meanwhile.
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
        the device, or keep the host from learning that it is done: pauses too rare to disturb SHARE
        of short calls lengthen every batch of them by more than an interval may miss.
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
            self._sent: list[tuple[int | None, float]] = []
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
            events = [event for event, _ in self._sent]
            held_up_s = _held_up(report, np.array([sent_s for _, sent_s in self._sent]))
            ends_s = report[:, 2] - held_up_s
            if len(report):
                self._stood_still_s += max(0.0, self.bench.done_s - max(since_s, ends_s[-1]))
                # What the host lost before may have kept the device waiting, or may not.
                most_s = max(LONGER_S, LONGER * report[:, 0].sum())
                self._lengthened.append(bool(before_s > most_s))
            ends_s -= self._began_s + self._held_up_s
            for event, end_s in zip(events, ends_s.tolist(), strict=True):
                if event is not None:
                    self.events[event] = end_s
            self._held_up_s += float(held_up_s[-1]) if len(report) else 0.0
            self._sent.clear()
            self._reports.append(report)
            self._asleep_s = self._off_core_s()
            self._stood_still_s += self._real() - self.bench.done_s
            super()._wait()

        def _run(self, seconds: float) -> None:
            self._sent.append((None, self._real()))
            self.bench.work(seconds)

        def _mark(self, event: int) -> None:
            self.events.pop(event, None)
            self._queue(0.0)
            self._sent.append((event, self._real()))
            self.bench.work(0.0)

        def _reached(self, event: int) -> bool:
            return event in self.events

    return Device


def _held_up(report: Report, sent_s: Report) -> Report:
    """Return for how long other programs had held up the device when each piece of work ended, in
    seconds since the first began. `sent_s`: when the host had queued each.
    """
    due_s = report[:, 0] + report[:, 1]
    free_s = np.append(-np.inf, due_s)[:-1]
    late_s = report[:, 1] - np.maximum(free_s, sent_s)
    # A device that waited for the host takes a moment to begin.
    late_s[(sent_s > free_s) & (late_s <= HELD_S)] = 0.0
    return np.cumsum(late_s) + report[:, 2] - due_s
