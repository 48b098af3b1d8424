"""The logical clock of one rank: its host, its compute stream and its communication stream. Nothing
here sleeps or reads a real clock.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import Fabric

Stream = Literal["host", "compute", "communication"]


class Span(NamedTuple):
    """A piece of work that ran, in modelled microseconds. `launched_us`: when the host queued it;
    `gradients`: True for a collective that exchanged gradients.
    """

    stream: Stream
    name: str
    launched_us: float
    start_us: float
    end_us: float
    step: int
    elements: int = 0
    dtype: str = ""
    gradients: bool = False


class RankClock:
    """The times at which a rank's work would run on the emulated GPU.

    A stream runs one thing at a time, in the order queued; a collective starts when the compute
    stream has reached the point of its launch on every rank. The compute stream waits for one where
    the script does: before a forward pass for those that the script has no handle of, before an
    update for all.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.host_us = 0.0
        self.compute_us = 0.0
        self.communication_us = 0.0
        self.implied_us = 0.0
        """End of the last collective that the script has no handle of."""
        self._before_pass_us = 0.0
        """End of the last collective launched between an update and the next forward."""
        self._updated = True
        self.collective_ends_us: list[float] = []
        self.step_ends_us: list[float] = []
        self.spans: list[Span] = []

    @property
    def step(self) -> int:
        """Optimizer steps finished so far."""
        return len(self.step_ends_us)

    def launch(self, name: str, duration_us: float) -> None:
        """Queue a kernel on the compute stream."""
        # The launch returns before the kernel starts, and streams run in the order queued.
        launched = self.host_us
        self.host_us += self.fabric.launch_us
        start = max(self.host_us, self.compute_us)
        self.compute_us = start + duration_us
        self.spans.append(Span("compute", name, launched, start, self.compute_us, self.step))

    def join(self) -> None:
        """Have the compute stream wait for the collectives launched so far."""
        self.compute_us = max(self.compute_us, self.communication_us)

    def begin_forward(self) -> None:
        """Have the compute stream wait for what every forward needs."""
        if self._updated:
            self._updated, self._before_pass_us = False, self.communication_us
        self.compute_us = max(self.compute_us, self.implied_us)

    def begin_backward(self) -> None:
        """Have the compute stream wait for all that was launched before the step's forward:
        whatever that was for, the forward has used it, waited for or not.
        """
        self.compute_us = max(self.compute_us, self._before_pass_us)

    def wait(self, collective: int) -> None:
        """Have the compute stream wait for one of the collectives launched so far, by its
        number.
        """
        self.compute_us = max(self.compute_us, self.collective_ends_us[collective])

    def synchronise(self, name: str) -> None:
        """Have the host wait until everything that was queued has run."""
        self.join()
        start = self.host_us
        self.host_us = max(self.host_us, self.compute_us) + self.fabric.sync_us
        self.spans.append(Span("host", name, start, start, self.host_us, self.step))

    def run_dry(self) -> None:
        """Let everything that was queued run before the host goes on. Nothing shows it."""
        self.join()
        self.host_us = max(self.host_us, self.compute_us)

    def stall(self, name: str, duration_us: float) -> None:
        """Keep the host busy with work of its own: it queues nothing."""
        start = self.host_us
        self.host_us += duration_us
        self.spans.append(Span("host", name, start, start, self.host_us, self.step))

    def announce(self) -> tuple[float, float]:
        """Queue a collective. Returns when it was launched, and when this rank is ready for
        it, µs.
        """
        launched = self.host_us
        self.host_us += self.fabric.launch_us
        return launched, max(self.host_us, self.compute_us, self.communication_us)

    def communicate(
        self,
        name: str,
        announced: tuple[float, float],
        end_us: float,
        elements: int,
        dtype: str,
        *,
        gradients: bool = False,
    ) -> None:
        """Record a collective that ran until `end_us`."""
        # It is drawn from this rank's own readiness: the kernel spins until the last rank comes.
        launched, ready = announced
        what = (elements, dtype, gradients)
        self.communication_us = end_us
        self.collective_ends_us.append(end_us)
        self.spans.append(Span("communication", name, launched, ready, end_us, self.step, *what))

    def finish_step(self, optimizer_us: float) -> None:
        """Run the optimizer's update, with which a step ends."""
        self.join()
        self._updated = True
        self.launch("optimizer", optimizer_us)
        self.step_ends_us.append(self.compute_us)


def merge(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals, as disjoint intervals in order."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def covered_us(spans: list[tuple[float, float]], by: list[tuple[float, float]]) -> float:
    """Return microseconds of the union of `spans` that lie inside the union of `by`."""
    # Both are disjoint and in order, so one pass does: `at` never goes back.
    total, at, cover = 0.0, 0, merge(by)
    for start, end in merge(spans):
        while at < len(cover) and cover[at][1] <= start:
            at += 1
        look = at
        while look < len(cover) and cover[look][0] < end:
            total += min(end, cover[look][1]) - max(start, cover[look][0])
            look += 1
    return total
