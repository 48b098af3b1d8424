"""Run a server's model on a GPU: an ensemble of networks that all see every picture. Imports torch.

Has never run on a GPU: docs/measured/README.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from bottleneck_lab.measure.kinds.inference_server.learner_api import CLASSES, MAX_BATCH
from bottleneck_lab.measure.kinds.inference_server.pixels import (
    BLOCK,
    IMAGES,
    MEAN,
    STD,
    as_levels,
    from_normalised,
)
from bottleneck_lab.measure.kinds.inference_server.size import SetSize

SIZES = (1, 2, *range(4, MAX_BATCH + 1, 4))
"""Batch sizes that graphs are recorded for; other batches run as the next larger size."""
TUNING_RUNS, TIMED_RUNS = 2, 10
ENOUGH_S, FEWEST_RUNS = 0.4, 3
"""Of long runs fewer are timed: as many as take this long, but not fewer than these."""
POLL_S = 0.0005

Array = np.ndarray[Any, Any]
Member = Callable[[Any], Any]
"""A network on the GPU: from normalised images (N, 3, 224, 224), float32, to scores (N, 10), both
on the GPU; the scores' spread over pictures is about 1.
"""


class Ensemble:
    """Networks, none before `set_size`; a picture's scores are their sum, scaled to the spread of
    one.

    Times come from CUDA events on the stream: copying the batch to the GPU, running it, and copying
    the scores back.
    """

    def __init__(self, member: Callable[[], Member]) -> None:
        # Without TF32, so that a picture's scores do not depend on its batch: they differ by less
        # than 1e-4, with TF32 by 0.2. Torch publishes no types for these newer settings.
        backends: Any = torch.backends
        backends.cudnn.conv.fp32_precision = backends.cuda.matmul.fp32_precision = "ieee"
        torch.manual_seed(random.SystemRandom().getrandbits(63))
        self._member = member
        self._members = list[Member]()
        self._mean, self._std = (torch.from_numpy(values).cuda() for values in (MEAN, STD))
        self._images = torch.zeros(MAX_BATCH, *IMAGES.shape, device="cuda")
        self._staged = {
            str(kind): torch.from_numpy(IMAGES.values(kind, MAX_BATCH)).pin_memory()
            for kind in IMAGES.types
        }
        blocks = (3, IMAGES.shape[1] // BLOCK, IMAGES.shape[2] // BLOCK)
        self._host = (
            torch.zeros(MAX_BATCH, CLASSES).pin_memory(),
            torch.zeros(MAX_BATCH, *blocks).pin_memory(),
        )
        self._graphs: dict[int, tuple[Any, tuple[Any, Any]]] = {}
        self._begin, self._end = _event(), _event()
        self._started_ns = self._count = 0

    def set_size(self, size: SetSize) -> None:
        """Have that many networks, those there are among them, and a graph for each of SIZES."""
        # A batch is one graph and so one launch: with a few thousand launches a batch the host's
        # speed would be measured, not the GPU's.
        self._graphs.clear()
        del self._members[size.members :]
        while len(self._members) < size.members:
            self._members.append(self._member())
        for images in SIZES:
            self._warm_up(images)
        # A pool of their own: that of the graphs before went with them.
        pool = torch.cuda.graph_pool_handle()
        self._graphs = {images: self._record(images, pool) for images in SIZES}

    def start(self, images: Array, labels: Array, arrived_ns: int) -> int:  # noqa: ARG002 - an engine's signature
        """Queue a batch on the GPU, whose stream is empty: a batch starts only when the one before
        has ended.
        """
        self._count = count = len(images)
        staged = self._staged[str(images.dtype)][:count]
        staged.copy_(torch.from_numpy(images))
        graph, results = self._graphs[next(size for size in SIZES if size >= count)]
        self._started_ns = time.monotonic_ns()
        self._begin.record()
        batch = staged.to("cuda", non_blocking=True)
        if batch.dtype == torch.uint8:
            batch = (batch.float() / 255 - self._mean) / self._std
        self._images[:count].copy_(batch)
        graph.replay()
        for host, result in zip(self._host, results, strict=True):
            host[:count].copy_(result[:count], non_blocking=True)
        self._end.record()
        return self._started_ns

    def ended_ns(self) -> int | None:
        """Return when the GPU finished, by its own clock counted from the start: this process may
        notice later.
        """
        if not self._end.query():
            return None
        return self._started_ns + round(self._took_s() * 1e9)

    def patience_s(self) -> float:
        return POLL_S

    def step_s(self, batch: int) -> float:
        """Measure a batch of images in host memory: the median of some runs, without the first."""
        images = IMAGES.values("uint8", batch)
        for _ in range(TUNING_RUNS):
            self._timed_s(images)
        times_s = list[float]()
        while len(times_s) < TIMED_RUNS:
            times_s.append(self._timed_s(images))
            if sum(times_s) > ENOUGH_S and len(times_s) >= FEWEST_RUNS:
                break
        return median(times_s)

    def step_again_s(self, batch: int) -> float:
        return self.step_s(batch)

    def answer(self) -> tuple[Array, Array]:
        """Return scores (N, 10), and the levels (0-255) of 16×16 blocks, (N, 14, 14, 3), computed
        on the GPU from the very images that the networks got.
        """
        scores, means = (host[: self._count].clone().numpy() for host in self._host)
        return scores, as_levels(from_normalised(means.transpose(0, 2, 3, 1)))

    def _timed_s(self, images: Array) -> float:
        """Run a batch to its end; return the seconds that it took."""
        self.start(images, images, 0)
        self._end.synchronize()
        return self._took_s()

    def _took_s(self) -> float:
        return float(self._begin.elapsed_time(self._end)) / 1000

    def _warm_up(self, size: int) -> None:
        """Run `size` images once, on a side stream: cuDNN and cuBLAS set themselves up in their
        first run, which may not happen while a graph is recorded.
        """
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch publishes no types for it
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # One network stands for all: the others have layers of the same shapes.
            self._run(size, self._members[:1])
        torch.cuda.current_stream().wait_stream(side)

    def _record(self, size: int, pool: Any) -> tuple[Any, tuple[Any, Any]]:
        """Record a graph for batches of `size` images; return it with its result tensors."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            results = self._run(size, self._members)
        return graph, results

    def _run(self, size: int, members: list[Member]) -> tuple[Any, Any]:
        images = self._images[:size]
        scores = members[0](images)
        for member in members[1:]:
            scores = scores + member(images)
        return scores / len(members) ** 0.5, torch.nn.functional.avg_pool2d(images, BLOCK)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch publishes no types for it
