"""The device process of a server: runs the model's batches one at a time, as a GPU would, and keeps what came and when.

Owned by the verifier: `python -I -m bottleneck_lab.measure.kinds.server.device`. The engine is emulated: it takes the time that a batch is set to take. The
scores are real: a secret linear layer on what the batch shows, so that nobody can answer who has not had this picture run.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.messages import (
    DeviceReady,
    Done,
    Failed,
    Infer,
    Inferred,
    Message,
    Ran,
    Ready,
)
from bottleneck_lab.measure.channel.wire import Arena, Channel, Closed, Malformed
from bottleneck_lab.measure.kinds.feed.device import Batch, Device, EmulatedEngine
from bottleneck_lab.measure.kinds.server.learner_api import CLASSES, MAX_BATCH
from bottleneck_lab.measure.kinds.server.pixels import IMAGES, MEAN, STD

BLOCK = 16
KEPT_SHARE = 0.06
"""Share of the images whose pixels are kept for the verifier."""

Array = np.ndarray[Any, Any]


def block_means(images: Array) -> Array:
    """Means of 16×16 blocks: N×3×H×W to N × H/16 × W/16 × 3, float32, in the images' own unit."""
    _, _, height, width = images.shape
    rows = np.add.reduceat(images, range(0, width, BLOCK), axis=3, dtype=np.float32)
    blocks = np.add.reduceat(rows, range(0, height, BLOCK), axis=2)
    means: Array = blocks.transpose(0, 2, 3, 1) / np.float32(BLOCK * BLOCK)
    return means


def levels(images: Array) -> Array:
    """What the model sees of images, uint8 or float32 normalised: means of blocks as levels of 0–255, uint8."""
    means = block_means(images)
    if images.dtype != np.uint8:
        means = (means * STD.reshape(3) + MEAN.reshape(3)) * 255
    seen: Array = np.nan_to_num(np.clip(means, 0, 255)).round().astype(np.uint8)
    return seen


class BatchEngine(EmulatedEngine):
    """Takes `fixed_s` for any batch and `image_s` for each image in it."""

    def __init__(self, fixed_s: float, image_s: float) -> None:
        super().__init__(image_s, 1)
        self._fixed_ns = round(fixed_s * 1e9)

    def start(self, images: Array, labels: Array, arrived_ns: int) -> int:
        started_ns = super().start(images, labels, arrived_ns)
        self._end_ns += self._fixed_ns
        return started_ns


@dataclass(kw_only=True)
class Request(Batch):
    """A batch to answer. `means` is what the model sees of it, `kept` the rows whose pixels are kept."""

    means: Array
    kept: Array


@dataclass
class ServingDevice(Device):
    """A device that answers batches with scores."""

    def __post_init__(self) -> None:
        shape = ((IMAGES.shape[1] // BLOCK) * (IMAGES.shape[2] // BLOCK) * 3, CLASSES)
        weights = np.random.default_rng(random.SystemRandom().getrandbits(128)).normal(size=shape)
        self._weights = (weights / shape[0] ** 0.5).astype(np.float32)
        self._rng = random.SystemRandom()

    def _take(self, message: Message) -> None:
        if isinstance(message, Infer):
            self.queue.append(self._request(message))
        elif isinstance(message, Ready | Done | Failed):
            self.verifier.send(message)
        else:
            raise Malformed(f"unexpected {type(message).__name__}")

    def _request(self, asked: Infer) -> Request:
        arrived_ns = time.monotonic_ns()
        self._require_free(asked)
        if asked.count not in range(1, MAX_BATCH + 1):
            raise Malformed(f"a batch of {asked.count} images")
        images = np.array(self._samples(asked))
        kept = np.array([row for row in range(asked.count) if self._rng.random() < KEPT_SHARE], np.int64)
        means = levels(images)
        return Request(asked.slot, images, kept, images[kept], arrived_ns, means=means, kept=kept)

    def _finish(self, batch: Batch, ended_ns: int) -> None:
        assert isinstance(batch, Request)
        self.running = None
        seen = batch.means.reshape(len(batch.means), -1).astype(np.float32) / 255 - 0.5
        scores = (seen @ self._weights).astype(np.float32)
        self._to_host(Inferred(batch.slot, scores))
        times = (batch.arrived_ns, batch.started_ns, ended_ns)
        self.verifier.send(Ran(*times, scores, batch.means, batch.kept, batch.kept_samples))


def main() -> None:
    """Entry point of the device process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=int, required=True)
    parser.add_argument("--verifier", type=int, required=True)
    parser.add_argument("--arena", type=int, required=True)
    parser.add_argument("--fixed-s", type=float, required=True)
    parser.add_argument("--image-s", type=float, required=True)
    options = parser.parse_args()
    engine = BatchEngine(options.fixed_s, options.image_s)
    verifier = Channel(socket.socket(fileno=options.verifier))
    host = Channel(socket.socket(fileno=options.host))
    device = ServingDevice(host, verifier, Arena.attach(options.arena), engine, IMAGES, MAX_BATCH)
    verifier.send(DeviceReady(engine.step_s(1)))
    with contextlib.suppress(Closed):
        device.run()


if __name__ == "__main__":
    main()
