"""Serve the lab's model as a Python model of a Triton Inference Server: in a repository this file
replaces `resnet50/1/model.py`.

It runs on the device whose descriptors the server was started with. Only one process at a time can
use it.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # Triton brings it

from bottleneck_lab.measure.channel.wire import Arena, Channel
from bottleneck_lab.measure.kinds.inference_server.learner_api import Model
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import Range


class TritonPythonModel:
    """The class that Triton looks for. In a capture, `range_` marks its work."""

    range_: Range | None = None

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002 - Triton's
        """Set the model up; Triton calls this once, before the first batch."""
        channel = Channel(socket.socket(fileno=os.dup(int(os.environ["LAB_SOCKET"]))))
        self._model = Model(channel, Arena.attach(int(os.environ["LAB_ARENA"])), self.range_)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests that Triton has put into a batch, each on its own."""
        images = [
            pb_utils.get_input_tensor_by_name(request, "images").as_numpy() for request in requests
        ]
        # One batch for the device, cut again into an answer for each request.
        scores = np.split(
            self._model(np.concatenate(images)), np.cumsum([len(each) for each in images])[:-1]
        )
        return [pb_utils.InferenceResponse([pb_utils.Tensor("scores", each)]) for each in scores]
