"""The logical clock of a virtual GPU: one host thread that launches, one stream that runs, nothing
that depends on this machine's speed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from bottleneck_lab.measure.virtual_gpu.spec import Arithmetic, GpuSpec

Kind = Literal[
    "kernel",
    "h2d",
    "d2h",
    "wait",
    "await_event",
    "launch",
    "copy",
    "pin",
    "allocate",
    "collect",
    "step",
    "range",
]
_OLDEST = 2
"""The generation whose collection looks at every object."""
LOOP = "fixed charge of a step (modelled)"
FROM_WORKER = "batch from a worker (modelled)"
COLLECT = "gc.collect()"
FREE_QUESTIONS = 4
"""How often in a step a program may ask whether the device has done work of that step, and be told
that it has not: a glance at each of a few events, but no wait in disguise.
"""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One row of the timeline in µs of the logical clock. `name`: of a step or a range, else of the
    operator that causes it. `line` is the program's line that causes it, `pinned` the host's memory
    of a copy.
    """

    kind: Kind
    name: str
    start_us: float
    end_us: float
    correlation: int
    line: str = ""
    nbytes: int = 0
    pinned: bool = False


@dataclass
class Clock:
    """Times of the host and of the device's stream, and what was counted on the way."""

    spec: GpuSpec
    host_us: float = 0.0
    device_us: float = 0.0
    launches: int = 0
    waits: int = 0
    awaited_us: float = 0.0
    """Until when the host knows that the stream has run: it has waited, or asked an event."""
    flops: float = 0.0
    step_starts_us: list[float] = field(default_factory=list)
    step_launches: list[int] = field(default_factory=list)
    step_waits: list[int] = field(default_factory=list)
    """How many launches and waits had been counted when each step began."""
    line_waits: Counter[str] = field(default_factory=Counter)
    """How many waits each line of the program has had since the first step."""
    setup_waits: int = 0
    """How many had been counted when the first product ran: until then a program sets up."""
    report_waits: list[int] = field(default_factory=list)
    """How many had been counted at each report that the program made."""
    returned_bytes: int = 0
    """Bytes copied to the host."""
    spans: list[Span] | None = None
    """The timeline, where one is recorded."""
    _correlation: int = 0
    _queried: set[float] = field(default_factory=set)
    """The events for which the program has asked in this step, and which had not happened."""
    _begun_us: float = 0.0
    """When all that had been queued as this step began is done."""

    def kernel(
        self,
        name: str,
        flops: float,
        nbytes: float,
        line: str = "",
        *,
        reduces: bool = False,
        arithmetic: Arithmetic = "full",
    ) -> None:
        """Launch one kernel: the host goes on as soon as it is queued."""
        self.launches += 1
        if not self.flops:
            self.setup_waits = self.waits
        self.flops += flops
        # The host first: a kernel cannot start before its launch has returned.
        self._launch("launch", name, line)
        length_us = self.spec.kernel_time_us(flops, nbytes, reduces=reduces, arithmetic=arithmetic)
        self._queue("kernel", name, length_us, line, int(nbytes))

    def copy(
        self,
        direction: Literal["h2d", "d2h"],
        operator: str,
        nbytes: int,
        *,
        pinned: bool,
        blocking: bool,
        line: str,
    ) -> None:
        """Queue a copy over the host link, for an operator; wait for it if `blocking`."""
        # From pageable memory the driver stages the copy through its own buffer, and the host waits
        # for the stream whatever it wanted.
        self._launch("copy", operator, line)
        length_us = self.spec.copy_time_us(nbytes, pinned=pinned)
        self._queue(direction, operator, length_us, line, nbytes, pinned=pinned)
        if direction == "d2h":
            self.returned_bytes += nbytes
        if blocking or not pinned:
            self.wait(line, operator)

    def wait(self, line: str, operator: str = "") -> None:
        """Have the host wait until the stream has run everything that is queued: for an operator,
        unless the program asks for just that.
        """
        self._wait_until(self.device_us, line, operator)

    def record_event(self) -> float:
        """Return when an event that is recorded now will have happened: after what is queued."""
        return max(self.host_us, self.device_us)

    def wait_event(self, at_us: float, line: str) -> None:
        """Have the host wait for an event. It does not wait for one that has happened."""
        if at_us > self.host_us:
            self._wait_until(at_us, line, kind="await_event")
        self.awaited_us = max(self.awaited_us, at_us)

    def query_event(self, at_us: float, line: str) -> bool:
        """Return True if an event has happened. A host that asks for the same one again in a step
        waits, whatever it launches meanwhile; so does one that keeps asking about the step's work.
        """
        # Whoever asks the stream, or records an event for each question, never asks twice for the
        # same one; nor does a loop over events between small kernels. All of them are of this step.
        of_this_step = sum(event_us > self._begun_us for event_us in self._queried)
        again = at_us in self._queried or (
            at_us > self._begun_us and of_this_step >= FREE_QUESTIONS
        )
        if at_us > self.host_us and again:
            self._wait_until(at_us, line, kind="await_event")
        if at_us > self.host_us:
            self._queried.add(at_us)
            self.host_us += self.spec.wait_us
            return False
        self.awaited_us = max(self.awaited_us, at_us)
        return True

    def _wait_until(self, at_us: float, line: str, operator: str = "", kind: Kind = "wait") -> None:
        self.waits += 1
        if self.step_starts_us:
            self.line_waits[line] += 1
        start = self.host_us
        self.host_us = max(self.host_us, at_us) + self.spec.wait_us
        self.awaited_us = max(self.awaited_us, at_us)
        self._record(kind, operator, start, self.host_us, line)

    def pin(self, nbytes: int, line: str) -> None:
        """Charge the host for a buffer that the launching thread pins itself. What a loader's own
        thread pins costs that nothing.

        Raises ValueError for a negative number of bytes: the program says how many, and no clock
        runs backwards.
        """
        if nbytes < 0:
            raise ValueError(f"{nbytes} bytes cannot be pinned")
        start = self.host_us
        self.host_us += self.spec.pin_time_us(nbytes)
        self._record("pin", "", start, self.host_us, line, nbytes=nbytes)

    def allocate(self, blocks: int, line: str) -> None:
        """Have the allocator ask the driver for more memory: the host waits for the stream, as in
        cudaMalloc, and then for the driver.
        """
        start = self.host_us
        self.host_us = max(self.host_us, self.device_us) + blocks * self.spec.malloc_us
        self._record("allocate", "", start, self.host_us, line)

    def collect(self, generation: int, line: str) -> None:
        """Charge the host for a garbage collection that the program has run: of all objects
        (generation 2), or of the young ones.
        """
        start, full = self.host_us, generation >= _OLDEST
        self.host_us += self.spec.collect_us if full else self.spec.collect_young_us
        self._record("collect", COLLECT, start, self.host_us, line)

    def step(self, samples: int = 0, *, at_once: bool = False) -> None:
        """Begin a step with a batch: of `samples` samples that the launching thread loads, one
        after the other or `at_once`, or, of none, from a loader's worker. Raises ValueError for a
        negative number.
        """
        if samples < 0:
            raise ValueError(f"a batch cannot have {samples} samples")
        # The first step has none before it to close.
        if self.spans is not None and self.step_starts_us:
            self._close_step()
        self.step_starts_us.append(self.host_us)
        self.step_launches.append(self.launches)
        self.step_waits.append(self.waits)
        self._queried.clear()
        self._begun_us = self.device_us
        start = self.host_us
        if not samples:
            self.host_us += self.spec.batch_us
        elif at_once:
            self.host_us += self.spec.fetch_us + samples * self.spec.slice_us
        else:
            self.host_us += samples * self.spec.sample_us
        name = "enumerate(DataLoader)#__next__" if samples else FROM_WORKER
        self._record("range", name, start, self.host_us, "")
        start = self.host_us
        self.host_us += self.spec.loop_us
        self._record("range", LOOP, start, self.host_us, "")

    def begin_pass(self) -> None:
        """Begin a pass through the data: the steps so far were no more than a look at it."""
        self.step_starts_us.clear()
        self.step_launches.clear()
        self.step_waits.clear()
        self.line_waits.clear()
        if self.spans is not None:
            self.spans[:] = [span for span in self.spans if span.kind != "step"]

    def report(self) -> None:
        """Note that the program makes a report."""
        self.report_waits.append(self.waits)

    def finish(self) -> None:
        """End the run: the last step is closed, and the stream runs dry."""
        if self.spans is not None and self.step_starts_us:
            self._close_step()
        self.host_us = max(self.host_us, self.device_us)

    def _close_step(self) -> None:
        self._record(
            "step", f"{len(self.step_starts_us) - 1}", self.step_starts_us[-1], self.host_us, ""
        )

    def _launch(self, kind: Literal["launch", "copy"], name: str, line: str) -> None:
        self._correlation += 1
        start = self.host_us
        self.host_us += self.spec.launch_us
        self._record(kind, name, start, self.host_us, line)

    def _queue(
        self,
        kind: Kind,
        name: str,
        length_us: float,
        line: str,
        nbytes: int,
        *,
        pinned: bool = False,
    ) -> None:
        # One stream: work starts when it has reached the device and all before it has run.
        start = max(self.host_us + self.spec.start_us, self.device_us)
        self.device_us = start + length_us
        self._record(kind, name, start, self.device_us, line, nbytes, pinned=pinned)

    def _record(
        self,
        kind: Kind,
        name: str,
        start: float,
        end: float,
        line: str,
        nbytes: int = 0,
        *,
        pinned: bool = False,
    ) -> None:
        if self.spans is not None:
            self.spans.append(Span(kind, name, start, end, self._correlation, line, nbytes, pinned))
