"""The device as a training script sees it: an asynchronous queue of training steps, as a GPU is to
its host.

Runs in the learner's process, next to the learner's code; nothing that it sends is believed.
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
    """The samples to train next: those of `order`, each exactly once and in this order, augmented
    by the random numbers of `seed` and `number`.
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
        """Yield epochs until the device has seen enough.

        Nobody knows an epoch's order and seed before it is asked for: nothing can be loaded ahead.
        """
        while True:
            self.channel.send(AskEpoch())
            epoch = self._receive(NextEpoch)
            if not len(epoch.order):
                return
            yield Epoch(epoch.epoch, epoch.seed, epoch.order.tolist())

    def step(self, samples: Any, labels: Any) -> None:
        """Queue one training step on a batch and return, like a kernel launch; wait only while the
        queue is full.

        `samples`: N of them in one tensor or array, of the lab's shape and types, on the host;
        `labels`: N integers. Raises ValueError for anything else.
        """
        samples, labels = np.asarray(samples), np.asarray(labels, dtype=np.int64)
        # Here, with a sentence; the device itself would only call the message malformed.
        self._require_batch(samples, labels)
        if not self._free:
            # Not in the copy's range: a host that is ahead would seem to copy slowly.
            with self._range("wait for device"):
                while not self._free:
                    self._note(self.channel.receive(None))
        with self._range("h2d"):
            slot = self._free.pop()
            offset = slot * (self._arena.size // SLOTS)
            self._arena.view(samples.dtype, samples.shape, offset)[...] = samples
        with self._range("step"):
            self.channel.send(TrainBatch(slot, str(samples.dtype), len(samples), labels))
        self._on_step()

    def synchronize(self) -> None:
        """Wait until every queued step has run."""
        with self._range("synchronize"):
            self.channel.send(Sync())
            self._receive(Synced)

    def finish(self) -> None:
        """Report that training has returned, once every queued step has run and is on record."""
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

    def _receive(self, due: type[MessageT]) -> MessageT:
        """Wait for a message of the type `due`; slots that get free meanwhile are noted."""
        while not isinstance(message := self.channel.receive(None), due):
            self._note(message)
        return message

    def _note(self, message: Message) -> None:
        if not isinstance(message, SlotFree):
            raise Malformed(f"unexpected {type(message).__name__}")
        self._free.append(message.slot)
