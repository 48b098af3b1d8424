"""Take training batches from a script and run them one at a time, as a GPU would.

The device process, owned by the verifier and run apart from both sides: `python -I -m
bottleneck_lab.measure.kinds.input_pipeline.device`. It records when each step arrived, started and
ended on the machine's monotonic clock, its labels, and the samples of the rows that the verifier
drew in secret. It believes nothing else that a script sends. The `emulated` engine takes the
emulated time of a step and computes nothing; the `cuda` engine runs the lab's own training step, as
often as fits into that time.
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
    Loading,
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
from bottleneck_lab.measure.worker import load_module

TUNING_STEPS, CALIBRATION_STEPS = 5, 10

Train = Callable[[Any, Any], None]
"""A lab's training step: takes a batch and its labels, both tensors on the GPU, and queues it."""


class Engine(Protocol):
    """Runs steps, one at a time. Times are in ns of the machine's monotonic clock."""

    def start(
        self,
        samples: np.ndarray[Any, Any],
        labels: np.ndarray[Any, Any],
        arrived_ns: int,
    ) -> int:
        """Start a step on N samples and N labels; return when it started."""

    def ended_ns(self) -> int | None:
        """Return when the running step ended, or None while it runs."""

    def patience_s(self) -> float:
        """Return the seconds to wait before `ended_ns` is worth another call."""

    def step_s(self, batch: int) -> float:
        """Return the seconds that a step of a full batch takes with nothing to wait for."""

    def step_again_s(self, batch: int) -> float:
        """Measure the same step again, later."""


class EmulatedEngine:
    """Takes `step_s` seconds for a full batch of `batch` samples and computes nothing.

    A step starts when it has arrived and the one before has ended, however late this process is
    woken.
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
        # Not the time now: whoever is woken late must not make the device look slower.
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
    """Runs real training steps on the GPU: each batch as many times as come nearest to `wanted_s`
    seconds, since two cores cannot feed a data centre's GPU at one step a batch.

    Has never run on a GPU: docs/measured/README.md.
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
        # Pinned memory, or the copy to the GPU would wait for the steps queued before it. The copy
        # in np.array is needed as well: the slot is free for the script once the step has ended.
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
        """Choose the repeats, then measure the step as it will be repeated."""
        self._repeats = max(1, round(self._wanted_s / self._measured_s(batch)))
        return self._measured_s(batch)

    def step_again_s(self, batch: int) -> float:
        return self._measured_s(batch)

    def _measured_s(self, batch: int) -> float:
        """Time a batch from host memory with the present number of repeats."""
        samples, labels = self._form.values(self._form.types[0], batch), np.zeros(batch, np.int64)
        times_ns = []
        for _ in range(TUNING_STEPS + CALIBRATION_STEPS):
            began_ns = self.start(samples, labels, 0)
            self._event.synchronize()
            times_ns.append(time.monotonic_ns() - began_ns)
        # The first ones tune kernels and allocate memory.
        return median(times_ns[TUNING_STEPS:]) / 1e9


@dataclass
class Batch:
    """A batch that has arrived. `kept_samples` are the rows that the verifier drew, copied on
    arrival: a script that fills the slot only later is caught.
    """

    slot: int
    samples: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    kept_samples: np.ndarray[Any, Any]
    arrived_ns: int
    started_ns: int = 0


@dataclass
class Device:
    """The queue, the engine, and the channels to script and verifier. One step runs at a time."""

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
        """Serve until the verifier closes its channel."""
        poll = select.epoll()
        poll.register(self.verifier.sock, select.EPOLLIN)
        poll.register(self.host.sock, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll(self.engine.patience_s() if self.running else None):
                if descriptor == self.verifier.sock.fileno():
                    self._from_verifier()
                elif trouble := self._from_host():
                    # The verifier decides what a script's end means; nothing more is read of it.
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
        """Read a message of the script. Returns a message for the verifier if it was the last."""
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
        elif isinstance(message, Loading | Ready | Done | Failed):
            self.verifier.send(message)
        else:
            raise Malformed(f"unexpected {type(message).__name__}")

    def _batch(self, sent: TrainBatch) -> Batch:
        arrived_ns = time.monotonic_ns()
        self._require_free(sent)
        # A script may write anything into its messages; the arena behind the slots is ours.
        if sent.count not in range(1, self.batch + 1) or sent.labels.shape != (sent.count,):
            raise Malformed("the labels do not match the samples")
        samples = self._samples(sent)
        rows = self.rows_to_keep.popleft() if self.rows_to_keep else []
        kept_samples = np.array(samples[[row for row in rows if row < sent.count]])
        return Batch(sent.slot, samples, sent.labels, kept_samples, arrived_ns)

    def _require_free(self, sent: TrainBatch | Infer) -> None:
        taken = {batch.slot for batch in self.queue}
        if self.running:
            taken.add(self.running.slot)
        if sent.slot not in range(SLOTS) or sent.slot in taken or sent.dtype not in self.form.types:
            raise Malformed("the slot is not free, or the device does not take this type")

    def _samples(self, sent: TrainBatch | Infer) -> np.ndarray[Any, Any]:
        """View the `count` samples in the slot, without a copy."""
        at = sent.slot * (self.arena.size // SLOTS)
        return self.arena.view(np.dtype(sent.dtype), (sent.count, *self.form.shape), at)

    def _advance(self) -> None:
        if self.running and (ended_ns := self.engine.ended_ns()) is not None:
            batch, self.running = self.running, None
            self._finish(batch, ended_ns)
        if not self.running and self.queue:
            self.running = self.queue.popleft()
            self.running.started_ns = self.engine.start(
                self.running.samples, self.running.labels, self.running.arrived_ns
            )
        while self.syncs and not self.running and not self.queue:
            self.syncs -= 1
            self._to_host(Synced())

    def _finish(self, batch: Batch, ended_ns: int) -> None:
        """Report a batch that has run; a device that serves answers it instead."""
        self._to_host(SlotFree(batch.slot))
        times_ns = (batch.arrived_ns, batch.started_ns, ended_ns)
        self.verifier.send(Trained(*times_ns, batch.labels, batch.kept_samples))

    def _to_host(self, message: Message) -> None:
        with contextlib.suppress(Closed):  # its end is reported when the channel is read
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
    parser.add_argument("--samples", type=Samples.from_option, required=True)
    parser.add_argument("--judge", type=Path, required=True)
    options = parser.parse_args()
    form: Samples = options.samples
    engine: Engine = EmulatedEngine(options.wanted_s, options.batch)
    if options.engine == "cuda":
        engine = CudaEngine(options.wanted_s, load_module(options.judge).training_step(), form)
    verifier = Channel(socket.socket(fileno=options.verifier))
    host = Channel(socket.socket(fileno=options.host))
    device = Device(host, verifier, Arena.attach(options.arena), engine, form, options.batch)
    verifier.send(DeviceReady(engine.step_s(options.batch)))
    with contextlib.suppress(Closed):
        device.run()


if __name__ == "__main__":
    main()
