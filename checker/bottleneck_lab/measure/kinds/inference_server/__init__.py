"""The `inference_server` kind: the load that an inference server sustains, with a model on the
verifier's device.
"""

from __future__ import annotations

from typing import ClassVar

from bottleneck_lab.catalog import Device
from bottleneck_lab.measure.kinds.base import Criteria, JudgeFunctions, Kind
from bottleneck_lab.measure.kinds.http_server import LoadedKind
from bottleneck_lab.measure.settings import WorkerSettings


class InferenceServerSettings(
    WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """batch: images in the largest batch that the shipped server makes. clients: connections of the
    closed loop.

    device_share: the device's time for an image of such a batch, as a share of the CPU time that
    the shipped pre-processing takes for one. fixed_share: the part of an emulated device's time for
    such a batch that does not depend on the number of images. in_turns: the shipped server prepares
    a batch with one thread, then waits until the device has run it. most_members: networks in the
    ensemble on a GPU, at most.
    """

    batch: int = 16
    device_share: float = 0.5
    fixed_share: float = 0.2
    in_turns: bool = False
    clients: int = 64
    most_members: int = 128


class InferenceServerKind(LoadedKind[InferenceServerSettings]):
    """An inference server under load."""

    name = "inference_server"
    settings_type = InferenceServerSettings
    criteria: ClassVar[Criteria] = {
        "right-answers": "correctness",
        "right-pixels": "correctness",
        "bad-requests": "correctness",
        "throughput": "target",
        "p99-ms": "target",
        "idle": "mechanism",
    }
    required = tuple(criteria)
    judge_functions: ClassVar[JudgeFunctions] = {"load": 1, "reference_pixels": 1, "compare": 2}
    cuda_judge_function = "member"
    run = Kind.run_by_kind

    def run_note(self, device: Device) -> str:
        matched = "Its speed" if device == "virtual" else "The size of its model"
        return f" {matched} is first matched to how fast this machine decodes pictures."


KIND = InferenceServerKind()
