"""What a training script sees of the device process: an asynchronous queue of training steps, as a
GPU is to its host.

Runs in the learner's process, next to the learner's code; nothing it says is believed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bottleneck_lab.measure.channel.messages import (
    AskEpoch,
    Done,
    Message,
    MessageT,
    NextEpoch,
    SlotFree,
    Sync,
    Synced,
    TrainBatch,
)
from bottleneck_lab.measure.channel.wire import Arena, Channel, Malformed
from bottleneck_lab.measure.kinds.input_pipeline.samples import Samples

SLOTS = 3
"""Batches the device holds at once: one running and two waiting."""

Range = Callable[[str], contextlib.AbstractContextManager[Any]]


class Epoch(NamedTuple):
    """What to train next: the samples `order`, each exactly once and in this order, augmented as
    `seed` and `number` say.
    """

    number: int
    seed: int
    order: list[int]


class Accelerator:
    """The lab's device. `epochs` hands out work, `step` queues a batch and returns, `synchronize`
    waits until all of it has run.
    """

    def __init__(
        self,
        channel: Channel,
        arena: Arena,
        form: Samples,
        range_: Range | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.channel = channel
        self._arena = arena
        self._free = list(range(SLOTS))
        self._form = form
        self._batch = arena.size // SLOTS // form.largest_bytes
        self._range: Range = range_ or (lambda _: contextlib.nullcontext())
        self._on_step = on_step or (lambda: None)

    def epochs(self) -> Iterator[Epoch]:
        """Epochs until the device has seen enough. The order and the seed of an epoch are not known
        before it is asked for.
        """
        while True:
            self.channel.send(AskEpoch())
            given = self._receive(NextEpoch)
            if not len(given.order):
                return
            yield Epoch(given.epoch, given.seed, given.order.tolist())

    def step(self, samples: Any, labels: Any) -> None:
        """Queues one training step on a batch and returns, like a kernel launch; waits only while
        the queue is full.

        `samples`: N of them in one tensor or array, of the lab's shape and types, on the host;
        `labels`: N integers. Raises ValueError for anything else.
        """
        with self._range("h2d"):
            samples, labels = np.asarray(samples), np.asarray(labels, dtype=np.int64)
            self._require_batch(samples, labels)
            slot = self._slot()
            self._write(slot, samples)
        with self._range("step"):
            self.channel.send(TrainBatch(slot, str(samples.dtype), len(samples), labels))
        self._on_step()

    def synchronize(self) -> None:
        """Waits until every queued step has run."""
        with self._range("synchronize"):
            self.channel.send(Sync())
            self._receive(Synced)

    def finish(self) -> None:
        """Says that training has returned, once every queued step has run and is on record."""
        self.synchronize()
        self.channel.send(Done())

    def _require_batch(self, samples: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
        called = self._form.called
        if not self._form.fit(samples):
            raise ValueError(
                f"the device takes {self._form}; these are {'×'.join(map(str, samples.shape))},"
                f" {samples.dtype}"
            )
        if not 1 <= len(samples) <= self._batch:
            raise ValueError(
                f"the device takes batches of 1 to {self._batch} {called}; this one has"
                f" {len(samples)}"
            )
        if labels.shape != (len(samples),):
            raise ValueError(
                f"{len(samples)} {called} need as many labels, in one dimension; these have shape"
                f" {labels.shape}"
            )

    def _slot(self) -> int:
        while not self._free:
            self._note(self.channel.receive(None))
        return self._free.pop()

    def _write(self, slot: int, samples: np.ndarray[Any, Any]) -> None:
        self._arena.view(samples.dtype, samples.shape, slot * (self._arena.size // SLOTS))[...] = (
            samples
        )

    def _receive(self, wanted: type[MessageT]) -> MessageT:
        while not isinstance(message := self.channel.receive(None), wanted):
            self._note(message)
        return message

    def _note(self, message: Message) -> None:
        if not isinstance(message, SlotFree):
            raise Malformed(f"unexpected {type(message).__name__}")
        self._free.append(message.slot)
