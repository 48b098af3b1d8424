"""Run a Python model of a Triton Inference Server under torch.profiler: this file takes the place
of its `model.py`, which has another name meanwhile.

Marks the parts of a model's process: `queue` while it waits for its next batch, `preprocess` while
it works on one, `postprocess` once another model has answered it. The lab's own model marks its
work itself.
"""

from __future__ import annotations

import importlib
import inspect
import os
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # Triton brings it

from bottleneck_lab.measure.kinds.http_server import nvtx
from bottleneck_lab.measure.kinds.inference_server.triton.capture import (
    LEARNERS,
    Batches,
    Ranges,
    capture_on_order,
)

if nvtx.wanted():
    nvtx.mark()
_Model: Any = importlib.import_module(f"{__package__}.{LEARNERS}").TritonPythonModel
_ranges = Ranges()
_batches = Batches(_ranges)
_MARKS_ITSELF = hasattr(_Model, "range_")
if _MARKS_ITSELF:
    _Model.range_ = torch.profiler.record_function


def _mark_requests() -> None:
    """Mark the time in which a model waits for another's answer."""
    # Called from `initialize`: Triton's class is there only once models are loaded.
    send, send_later = pb_utils.InferenceRequest.exec, pb_utils.InferenceRequest.async_exec

    def marked(request: Any, *options: Any, **named: Any) -> Any:
        _batches.request_sent()
        with _ranges.instead("request to another model", "postprocess"):
            return send(request, *options, **named)

    def marked_later(request: Any, *options: Any, **named: Any) -> Any:
        _batches.request_sent()
        return send_later(request, *options, **named)

    pb_utils.InferenceRequest.exec, pb_utils.InferenceRequest.async_exec = marked, marked_later


class TritonPythonModel(_Model):  # type: ignore[misc]  # whatever the learner wrote
    """The class that Triton looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Set the model up under the profiler, before the first batch."""
        _mark_requests()
        if hasattr(_Model, "initialize"):
            super().initialize(args)
        capture_on_order(Path(os.environ["LAB_TRACES"]), args["model_name"])

    def execute(self, requests: list[Any]) -> Any:
        """Have the learner's model answer a batch, with its work marked."""
        if inspect.iscoroutinefunction(super().execute):
            return _batches.mark(super().execute(requests))
        _ranges.begin(None if _MARKS_ITSELF else "preprocess")
        try:
            return super().execute(requests)
        finally:
            _ranges.begin("queue")
