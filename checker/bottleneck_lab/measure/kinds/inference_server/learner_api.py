"""The device as a server sees it: a model that takes a batch of images and returns their scores.

Runs in the learner's process, next to the learner's code; nothing that it sends is believed.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.messages import Infer, Inferred
from bottleneck_lab.measure.channel.wire import Arena, Channel, WireError
from bottleneck_lab.measure.kinds.inference_server.pixels import IMAGES
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import SLOTS, Range

MAX_BATCH = 32
CLASSES = 10

Array = np.ndarray[Any, Any]


class Model:
    """The lab's model on its device. Any thread may call it with a batch; three batches may be in
    flight at once.
    """

    def __init__(self, channel: Channel, arena: Arena, range_: Range | None = None) -> None:
        self._channel = channel
        self._arena = arena
        self._range: Range = range_ or (lambda _: contextlib.nullcontext())
        self._free: queue.Queue[int] = queue.Queue()
        for slot in range(SLOTS):
            self._free.put(slot)
        self._sending = threading.Lock()
        self._answers: dict[int, Future[Array]] = {}
        threading.Thread(target=self._read, name="model", daemon=True).start()

    def __call__(self, images: Any) -> Array:
        """Run a batch: `images` are (N, 3, 224, 224), uint8 RGB or float32 normalised, on the host.

        Returns the scores, (N, 10) float32, when the batch has run. Raises ValueError for anything
        else.
        """
        with self._range("h2d"):
            images = np.asarray(images)
            if not IMAGES.fit(images):
                shape = "×".join(map(str, images.shape))
                raise ValueError(f"the model takes {IMAGES}; these are {shape}, {images.dtype}")
            if not 1 <= len(images) <= MAX_BATCH:
                raise ValueError(
                    f"the model takes batches of 1 to {MAX_BATCH} images; this one has"
                    f" {len(images)}"
                )
            slot, answer = self._free.get(), Future[Array]()
            offset = slot * (self._arena.size // SLOTS)
            self._arena.view(images.dtype, images.shape, offset)[...] = images
        with self._range("infer"):
            # Noted before it is sent: the answer could arrive first. One thread sends at a time.
            with self._sending:
                self._answers[slot] = answer
                self._channel.send(Infer(slot, str(images.dtype), len(images)))
            return answer.result()

    def _read(self) -> None:
        """Hand each answer to the thread that waits for it; if the device is gone, raise in all of
        them.
        """
        try:
            while True:
                message = self._channel.receive(None)
                if isinstance(message, Inferred):
                    answer = self._answers.pop(message.slot)
                    self._free.put(message.slot)
                    answer.set_result(message.scores)
        except WireError as error:
            for answer in self._answers.values():
                answer.set_exception(error)
