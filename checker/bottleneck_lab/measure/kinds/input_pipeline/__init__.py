"""The `input_pipeline` kind: how well a training script keeps the verifier's device fed."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.measure.kinds.base import Criteria, JudgeFunctions, Kind
from bottleneck_lab.measure.kinds.input_pipeline.samples import Samples
from bottleneck_lab.measure.settings import LOADING_CORES, WorkerSettings


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The accelerator that an emulated device stands for: its published time for a training step of
    `batch` samples, in ms by part, and the source.
    """

    name: str
    batch: int
    parts_ms: dict[str, float]
    source: str

    def step_s(self, batch: int) -> float:
        """Return the seconds for a step of `batch` samples, linear in the batch."""
        return sum(self.parts_ms.values()) / 1000 * batch / self.batch


class InputPipelineSettings(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """samples: what is fed. batch: how many at a time. epoch_batches: of each timed epoch.

    device_share: how long the device takes for a batch, as a share of the time that the shipped
    loader takes for it. model: what is trained, for the device's rows in a capture. stands_for: the
    accelerator that the emulated device stands for.
    """

    samples: Samples
    start_s: float = 240.0
    batch: int = 16
    device_share: float = 0.4
    epoch_batches: int = 32
    model: str = ""
    stands_for: StepTimes | None = None


class InputPipelineKind(Kind[InputPipelineSettings]):
    """A training script on the verifier's own device."""

    name = "input_pipeline"
    settings_type = InputPipelineSettings
    criteria: ClassVar[Criteria] = {
        "every-sample-once": "correctness",
        "right-samples": "correctness",
        "useful-utilisation": "target",
        "data-wait": "mechanism",
    }
    required = ("every-sample-once", "right-samples", "useful-utilisation")
    judge_functions: ClassVar[JudgeFunctions] = {
        "count": 1,
        "label": 2,
        "reference_sample": 4,
        "compare": 2,
        "load": 1,
    }
    cuda_judge_function = "training_step"
    run = Kind.run_by_kind

    def cores(self, lab: Lab, device: Device) -> int:  # noqa: ARG002 - alike in every lab and on all
        """Return one more than the learner's code gets: the emulated device has its own."""
        return LOADING_CORES + 1

    def run_note(self, device: Device) -> str:
        if device == "virtual":
            return " Its speed is first set to match what this machine can load."
        return ""


KIND = InputPipelineKind()
