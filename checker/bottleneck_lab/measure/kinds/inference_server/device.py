"""Run the model's batches one at a time, and record what came and when: the device process of a
server.

Owned by the verifier: `python -I -m bottleneck_lab.measure.kinds.inference_server.device`. The
`emulated` model takes the time that a batch is set to take; the `cuda` model is an ensemble on the
GPU (ensemble.py). Either has secret weights, so nobody can give a picture's scores without having
had it run.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bottleneck_lab.measure.channel.messages import (
    Begin,
    DeviceReady,
    Done,
    Failed,
    Infer,
    Inferred,
    Loading,
    MeasureStep,
    Message,
    Ran,
    Ready,
    Score,
    Scored,
)
from bottleneck_lab.measure.channel.wire import Arena, Channel, Closed, Malformed
from bottleneck_lab.measure.kinds.inference_server.learner_api import CLASSES, MAX_BATCH
from bottleneck_lab.measure.kinds.inference_server.pixels import BLOCK, IMAGES, levels
from bottleneck_lab.measure.kinds.inference_server.size import SetSize
from bottleneck_lab.measure.kinds.input_pipeline.device import Batch, Device, EmulatedEngine, Engine
from bottleneck_lab.measure.worker import load_module

KEPT_SHARE = 0.06
"""Share of the images whose pixels are kept for the verifier."""

Array = np.ndarray[Any, Any]


class Model(Engine, Protocol):
    """Answers batches of images, one at a time: an engine that also knows what it saw. It runs
    batches once it has a size.
    """

    def set_size(self, size: SetSize) -> None:
        """Become as large as the verifier wants it."""

    def answer(self) -> tuple[Array, Array]:
        """Return the scores of the batch that ended last, (N, 10) float32, and the block means that
        the model saw, (N, 14, 14, 3) uint8.
        """


class EmulatedModel(EmulatedEngine):
    """Takes `fixed_s` for any batch and `image_s` for each image in it. Its scores are a linear
    layer with secret weights on the images' block means.
    """

    def __init__(self, fixed_s: float = 0.0, image_s: float = 0.0) -> None:
        super().__init__(image_s, 1)
        self._fixed_ns = round(fixed_s * 1e9)
        shape = ((IMAGES.shape[1] // BLOCK) * (IMAGES.shape[2] // BLOCK) * 3, CLASSES)
        weights = np.random.default_rng(random.SystemRandom().getrandbits(128)).normal(size=shape)
        self._weights = (weights / shape[0] ** 0.5).astype(np.float32)

    def set_size(self, size: SetSize) -> None:
        self._fixed_ns, self._sample_ns = round(size.fixed_s * 1e9), size.image_s * 1e9

    def start(self, images: Array, labels: Array, arrived_ns: int) -> int:
        started_ns = super().start(images, labels, arrived_ns)
        self._end_ns += self._fixed_ns
        self._seen = levels(images)
        return started_ns

    def step_s(self, batch: int) -> float:
        return (self._fixed_ns + self._sample_ns * batch) / 1e9

    def answer(self) -> tuple[Array, Array]:
        seen = self._seen.reshape(len(self._seen), -1).astype(np.float32) / 255 - 0.5
        return (seen @ self._weights).astype(np.float32), self._seen


@dataclass(kw_only=True)
class Request(Batch):
    """A batch to answer. `kept`: the rows whose pixels are kept."""

    kept: Array


@dataclass
class ServingDevice(Device):
    """A device that answers batches with scores. `batch`: images in those whose time it says."""

    engine: Model

    def __post_init__(self) -> None:
        self._rng = random.SystemRandom()

    def _take(self, message: Message) -> None:
        if isinstance(message, Infer):
            self.queue.append(self._request(message))
        elif isinstance(message, Loading | Ready | Done | Failed):
            self.verifier.send(message)
        else:
            raise Malformed(f"unexpected {type(message).__name__}")

    def _request(self, sent: Infer) -> Request:
        arrived_ns = time.monotonic_ns()
        self._require_free(sent)
        if sent.count not in range(1, MAX_BATCH + 1):
            raise Malformed(f"a batch of {sent.count} images")
        # A copy: the scores must be of what arrived, whatever is written to the slot meanwhile.
        images = np.array(self._samples(sent))
        rows = [row for row in range(sent.count) if self._rng.random() < KEPT_SHARE]
        kept = np.array(rows, np.int64)
        return Request(sent.slot, images, kept, images[kept], arrived_ns, kept=kept)

    def _finish(self, batch: Batch, ended_ns: int) -> None:
        assert isinstance(batch, Request)
        scores, seen = self.engine.answer()
        self._to_host(Inferred(batch.slot, scores))
        times = (batch.arrived_ns, batch.started_ns, ended_ns)
        self.verifier.send(Ran(*times, scores, seen, batch.kept, batch.kept_samples))

    def _from_verifier(self) -> None:
        message = self.verifier.receive(10)
        if isinstance(message, SetSize):
            self.engine.set_size(message)
            self.verifier.send(DeviceReady(math.nan))
        elif isinstance(message, MeasureStep):
            self.verifier.send(DeviceReady(self.engine.step_s(self.batch)))
        elif isinstance(message, Begin):
            self._to_host(message)
        elif isinstance(message, Score):
            # What a server has left in the queue runs first.
            while self.running or self.queue:
                self._advance()
            scores = []
            for image in message.images:
                # A batch of one image, beside which nothing runs.
                self.engine.start(image[None], np.zeros(1, np.int64), time.monotonic_ns())
                while self.engine.ended_ns() is None:
                    time.sleep(self.engine.patience_s())
                scores.append(self.engine.answer()[0])
            self.verifier.send(Scored(np.concatenate(scores)))


def model_of(options: argparse.Namespace) -> Model:
    """Return the model that the options ask for, without a size. A GPU is set up for it."""
    if options.engine == "emulated":
        return EmulatedModel()
    from bottleneck_lab.measure.kinds.inference_server.ensemble import Ensemble

    return Ensemble(load_module(options.judge).member)


def main() -> None:
    """Entry point of the device process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=int, required=True)
    parser.add_argument("--verifier", type=int, required=True)
    parser.add_argument("--arena", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--engine", choices=["emulated", "cuda"], required=True)
    parser.add_argument("--judge", type=Path, required=True)
    options = parser.parse_args()
    model = model_of(options)
    verifier = Channel(socket.socket(fileno=options.verifier))
    host = Channel(socket.socket(fileno=options.host))
    device = ServingDevice(
        host, verifier, Arena.attach(options.arena), model, IMAGES, options.batch
    )
    verifier.send(DeviceReady(math.nan))
    with contextlib.suppress(Closed):
        device.run()


if __name__ == "__main__":
    main()
