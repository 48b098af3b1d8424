"""The device process: takes training batches from a script and runs them one at a time, as a GPU
would.

Owned by the verifier and run apart from both sides: `python -I -m
bottleneck_lab.measure.kinds.input_pipeline.device`. It keeps the time each step arrived, started
and ended on the machine's monotonic clock, the labels, and the samples of the rows that the
verifier drew in secret. It believes nothing else. The `emulated` engine takes the emulated time of
a step and does nothing; the `cuda` engine takes the lab's own training step, as often as fits into
that time.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from bottleneck_lab.measure.channel.messages import (
    AskEpoch,
    Broken,
    DeviceReady,
    Done,
    EpochAsked,
    Failed,
    Gone,
    HandOut,
    Infer,
    MeasureStep,
    Message,
    NextEpoch,
    Ready,
    SlotFree,
    Sync,
    Synced,
    TrainBatch,
    Trained,
)
from bottleneck_lab.measure.channel.wire import Arena, Channel, Closed, Malformed, WireError
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import SLOTS
from bottleneck_lab.measure.kinds.input_pipeline.samples import Samples
from bottleneck_lab.measure.rehearsed import stand_in
from bottleneck_lab.measure.worker import load_module

TUNING_STEPS, CALIBRATION_STEPS = 5, 10

Train = Callable[[Any, Any], None]
"""A lab's training step on a batch and its labels, both tensors on the GPU: queues it there."""


class Engine(Protocol):
    """What runs steps, one at a time."""

    def start(
        self,
        samples: np.ndarray[Any, Any],
        labels: np.ndarray[Any, Any],
        arrived_ns: int,
    ) -> int:
        """Starts a step and returns when it started, in ns of the monotonic clock."""

    def ended_ns(self) -> int | None:
        """When the running step ended, or None while it runs."""

    def patience_s(self) -> float:
        """How long to wait before asking again."""

    def step_s(self, batch: int) -> float:
        """Seconds that a step of a full batch takes when nothing has to be waited for."""

    def step_again_s(self, batch: int) -> float:
        """The same of the same step, later."""


class EmulatedEngine:
    """Takes `step_s` seconds a full batch of `batch` samples and computes nothing.

    Times are the ideal ones: a step starts when it has arrived and the one before has ended,
    however late this process is woken.
    """

    def __init__(self, step_s: float, batch: int) -> None:
        self._sample_ns = step_s * 1e9 / batch
        self._end_ns = 0

    def start(
        self,
        samples: np.ndarray[Any, Any],
        labels: np.ndarray[Any, Any],  # noqa: ARG002 - an engine's signature
        arrived_ns: int,
    ) -> int:
        started_ns = max(arrived_ns, self._end_ns)
        self._end_ns = started_ns + round(self._sample_ns * len(samples))
        return started_ns

    def ended_ns(self) -> int | None:
        return self._end_ns if time.monotonic_ns() >= self._end_ns else None

    def patience_s(self) -> float:
        return max(0.0, (self._end_ns - time.monotonic_ns()) / 1e9)

    def step_s(self, batch: int) -> float:
        return self._sample_ns * batch / 1e9

    def step_again_s(self, batch: int) -> float:
        return self.step_s(batch)


class CudaEngine:
    """Real training steps on the GPU, on each batch as many as come nearest to `wanted_s` seconds.

    Two cores feed no data centre's GPU at one step a batch, however well a script loads. Has never
    run on a GPU: docs/measured/README.md.
    """

    def __init__(self, wanted_s: float, train: Train, form: Samples) -> None:
        import torch

        self._torch = torch
        self._wanted_s, self._repeats = wanted_s, 1
        self._train, self._form = train, form
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch publishes no types for it

    def start(
        self,
        samples: np.ndarray[Any, Any],
        labels: np.ndarray[Any, Any],
        arrived_ns: int,  # noqa: ARG002 - an engine's signature
    ) -> int:
        torch, started_ns = self._torch, time.monotonic_ns()
        batch = torch.from_numpy(np.array(samples)).pin_memory().cuda(non_blocking=True)
        targets = torch.from_numpy(np.array(labels)).cuda(non_blocking=True)
        for _ in range(self._repeats):
            self._train(batch, targets)
        self._event.record()
        return started_ns

    def ended_ns(self) -> int | None:
        return time.monotonic_ns() if self._event.query() else None

    def patience_s(self) -> float:
        return 0.0005

    def step_s(self, batch: int) -> float:
        """Measured as it will be repeated, on a batch that lies ready in the host's memory."""
        self._repeats = max(1, round(self._wanted_s / self._measured_s(batch)))
        return self._measured_s(batch)

    def step_again_s(self, batch: int) -> float:
        return self._measured_s(batch)

    def _measured_s(self, batch: int) -> float:
        """Of a batch with as many repeats as are set; the first ones tune and allocate and do not
        count.
        """
        samples, labels = self._form.values(self._form.types[0], batch), np.zeros(batch, np.int64)
        times_ns = []
        for _ in range(TUNING_STEPS + CALIBRATION_STEPS):
            began_ns = self.start(samples, labels, 0)
            self._event.synchronize()
            times_ns.append(time.monotonic_ns() - began_ns)
        return median(times_ns[TUNING_STEPS:]) / 1e9


@dataclass
class Batch:
    """A batch that has arrived. `kept_samples` are the rows that the verifier drew, copied on
    arrival: what lies in the slot later does not count.
    """

    slot: int
    samples: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    kept_samples: np.ndarray[Any, Any]
    arrived_ns: int
    started_ns: int = 0


@dataclass
class Device:
    """The queue, the engine, and both channels. One step runs at a time."""

    host: Channel
    verifier: Channel
    arena: Arena
    engine: Engine
    form: Samples
    batch: int
    rows_to_keep: deque[list[int]] = field(default_factory=deque)
    queue: deque[Batch] = field(default_factory=deque)
    running: Batch | None = None
    syncs: int = 0
    steps: int = 0

    def run(self) -> None:
        """Serves until the verifier closes its channel."""
        poll = select.epoll()
        poll.register(self.verifier.sock, select.EPOLLIN)
        poll.register(self.host.sock, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll(self.engine.patience_s() if self.running else None):
                if descriptor == self.verifier.sock.fileno():
                    self._from_verifier()
                elif trouble := self._from_host():
                    poll.unregister(self.host.sock)
                    self.verifier.send(trouble)
                    with contextlib.suppress(OSError):  # it has gone already
                        self.host.sock.shutdown(socket.SHUT_RDWR)
            self._advance()

    def _from_verifier(self) -> None:
        message = self.verifier.receive(10)
        if isinstance(message, HandOut):
            self.rows_to_keep.extend(message.rows.tolist())
            self._to_host(NextEpoch(message.epoch, message.seed, message.order))
        elif isinstance(message, MeasureStep):
            self.verifier.send(DeviceReady(self.engine.step_again_s(self.batch)))

    def _from_host(self) -> Gone | Broken | None:
        """Reads a message of the script; if it was the last, what to tell the verifier."""
        try:
            self._take(self.host.receive(10))
        except Closed:
            return Gone()
        except WireError as error:
            return Broken(str(error))
        return None

    def _take(self, message: Message) -> None:
        if isinstance(message, TrainBatch):
            self.queue.append(self._batch(message))
            self.steps += 1
        elif isinstance(message, Sync):
            self.syncs += 1
        elif isinstance(message, AskEpoch):
            self.verifier.send(EpochAsked(self.steps))
        elif isinstance(message, Ready | Done | Failed):
            self.verifier.send(message)
        else:
            raise Malformed(f"unexpected {type(message).__name__}")

    def _batch(self, sent: TrainBatch) -> Batch:
        arrived_ns = time.monotonic_ns()
        self._require_free(sent)
        if sent.count not in range(1, self.batch + 1) or sent.labels.shape != (sent.count,):
            raise Malformed("the labels do not match the samples")
        samples = self._samples(sent)
        rows = self.rows_to_keep.popleft() if self.rows_to_keep else []
        kept_samples = np.array(samples[[row for row in rows if row < sent.count]])
        return Batch(sent.slot, samples, sent.labels, kept_samples, arrived_ns)

    def _require_free(self, sent: TrainBatch | Infer) -> None:
        taken = [batch.slot for batch in self.queue] + ([self.running.slot] if self.running else [])
        if sent.slot not in range(SLOTS) or sent.slot in taken or sent.dtype not in self.form.types:
            raise Malformed("the slot is not free, or the device does not take this type")

    def _samples(self, sent: TrainBatch | Infer) -> np.ndarray[Any, Any]:
        """What lies in the slot: a view, `count` samples long."""
        at = sent.slot * (self.arena.size // SLOTS)
        return self.arena.view(np.dtype(sent.dtype), (sent.count, *self.form.shape), at)

    def _advance(self) -> None:
        if self.running and (ended_ns := self.engine.ended_ns()) is not None:
            self._finish(self.running, ended_ns)
        if not self.running and self.queue:
            self.running = self.queue.popleft()
            self.running.started_ns = self.engine.start(
                self.running.samples, self.running.labels, self.running.arrived_ns
            )
        while self.syncs and not self.running and not self.queue:
            self.syncs -= 1
            self._to_host(Synced())

    def _finish(self, batch: Batch, ended_ns: int) -> None:
        self.running = None
        self._to_host(SlotFree(batch.slot))
        self.verifier.send(
            Trained(batch.arrived_ns, batch.started_ns, ended_ns, batch.labels, batch.kept_samples)
        )

    def _to_host(self, message: Message) -> None:
        with contextlib.suppress(Closed):  # a script that has gone is reported when its end is read
            self.host.send(message)


def main() -> None:
    """Entry point of the device process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=int, required=True)
    parser.add_argument("--verifier", type=int, required=True)
    parser.add_argument("--arena", type=int, required=True)
    parser.add_argument("--engine", choices=["emulated", "cuda"], required=True)
    parser.add_argument("--wanted-s", type=float, default=0.0)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--samples", type=Samples.told, required=True)
    parser.add_argument("--judge", type=Path, required=True)
    options = parser.parse_args()
    form: Samples = options.samples
    engine: Engine = EmulatedEngine(options.wanted_s, options.batch)
    if options.engine == "cuda":
        stand_in("cuda")
        engine = CudaEngine(options.wanted_s, load_module(options.judge).training_step(), form)
    verifier = Channel(socket.socket(fileno=options.verifier))
    host = Channel(socket.socket(fileno=options.host))
    device = Device(host, verifier, Arena.attach(options.arena), engine, form, options.batch)
    verifier.send(DeviceReady(engine.step_s(options.batch)))
    with contextlib.suppress(Closed):
        device.run()


if __name__ == "__main__":
    main()
