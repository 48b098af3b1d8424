"""The `input_pipeline` kind: how well a training script keeps a device fed. The verifier owns the
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.measure.kinds.base import Calls, Criteria, Kind
from bottleneck_lab.measure.kinds.input_pipeline.samples import Samples
from bottleneck_lab.measure.settings import WorkerSettings

if TYPE_CHECKING:
    from bottleneck_lab.measure.context import Context, Measured
    from bottleneck_lab.measure.sandbox.children import OnLine


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The accelerator that an emulated device stands for: its time for a training step of `batch`
    samples, by part, in ms, and who says so.
    """

    name: str
    batch: int
    parts_ms: dict[str, float]
    source: str

    def step_s(self, batch: int) -> float:
        """Seconds for a step of `batch` samples, linear in the batch."""
        return sum(self.parts_ms.values()) / 1000 * batch / self.batch


class FeedSettings(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class FeedKind(Kind[FeedSettings]):
    """A training script on the verifier's own device."""

    name = "input_pipeline"
    settings_type = FeedSettings
    criteria: ClassVar[Criteria] = {
        "every-sample-once": "correctness",
        "right-samples": "correctness",
        "useful-utilisation": "target",
        "data-wait": "mechanism",
    }
    required = tuple(criteria)
    judge_calls: ClassVar[Calls] = {
        "count": 1,
        "label": 2,
        "reference_sample": 4,
        "compare": 2,
        "load": 1,
    }

    def rehearsed(self, settings: FeedSettings) -> FeedSettings:
        return msgspec.structs.replace(super().rehearsed(settings), epoch_batches=6)

    def measure(self, context: Context[FeedSettings]) -> Measured:
        from bottleneck_lab.measure.kinds.input_pipeline.check import measure

        return measure(context)

    def profile(self, context: Context[FeedSettings], trace: Path, on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.input_pipeline.run import profile

        return profile(context, trace, on_line)

    def run(self, context: Context[FeedSettings], on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.input_pipeline.run import run

        return run(context, on_line)

    def problems(self, lab: Lab) -> Iterator[str]:
        yield from super().problems(lab)
        judge = lab.path / "judge.py"
        if (
            "cuda" in lab.spec.devices
            and judge.is_file()
            and "training_step" not in judge.read_text(encoding="utf-8")
        ):
            yield f"{judge}: `training_step` is missing; on cuda it is called without arguments."

    def run_note(self, device: Device) -> str:
        return (
            " Its speed is first set to match what this machine can load."
            if device == "virtual"
            else ""
        )


KIND = FeedKind()
