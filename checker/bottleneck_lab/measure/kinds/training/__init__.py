"""The `training` kind: what a training loop costs on its device (time, synchronisations, launches,
memory), and whether it still trains the same model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.measure.kinds.base import Criteria, Kind
from bottleneck_lab.measure.settings import WorkerSettings

if TYPE_CHECKING:
    from bottleneck_lab.measure.context import Context
    from bottleneck_lab.measure.sandbox.children import OnLine


TRAIN, COUNT_WAITS, COUNT_WORK, START_LOADER, TRAIN_ON_HOST = range(5)
"""Tasks of a call: a training, one under a profiler that counts its waits, one whose arithmetic is
counted, no more than a start; of the shipped script, one on the host in place of the virtual GPU.
"""


class TrainingSettings(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """interval: steps between two reports. tolerance: relative difference of parameters and reports
    that counts as rounding.

    captured_steps: steps that `lab profile` captures on the virtual GPU, after two that warm up; 0
    for the whole training. run_capacity_mib: memory of the virtual GPU in `lab run`; a capture and
    a check have more, so that they can tell how much was needed. gain: what a prediction is about,
    how many times less time a step takes or memory a run. runs: trainings of each side, each on
    data of its own: the submission's on the virtual GPU, all but the first of the shipped script's
    on the host. smaller: all but the first are of the size that the recipe has where LAB_SIZE is
    "small"; they look for errors that are rare, which takes many steps. least_work: share of the
    shipped script's arithmetic from which a script's parameters must follow on the virtual GPU,
    since what the host computes is not measured there; lower where some of the shipped arithmetic
    is needless. most_returned_kib: what that GPU may send back a step, KiB on average; enough for
    reports, not for work on the host. most_host_work: share of the shipped script's arithmetic, and
    of the bytes that it goes through, that the host may do on a real GPU. max_s: longest time for
    the timed pairs on a real GPU, warm_up_rounds: pairs before them that are not timed. scale: by
    how much the virtual GPU is slower than the one it stands for, so that a model small enough for
    a CPU takes the time of a larger one.
    """

    call_s: float = 120.0
    interval: int = 10
    tolerance: float = 1e-3
    captured_steps: int = 0
    run_capacity_mib: int = 1024
    runs: int = 1
    smaller: bool = False
    least_work: float = 0.9
    most_returned_kib: float = 0.5
    most_host_work: float = 0.1
    gain: Literal["time", "memory"] = "time"
    max_s: float = 60.0
    warm_up_rounds: int = 2
    scale: float = 1.0


class TrainingKind(Kind[TrainingSettings]):
    """A training script with `train(device, data, report)`, on `Data(seed)` of its recipe."""

    name = "training"
    modelled_on: ClassVar[tuple[Device, ...]] = ("virtual",)
    settings_type = TrainingSettings
    criteria: ClassVar[Criteria] = {
        "right-reports": "correctness",
        "right-parameters": "correctness",
        "step-speedup": "target",
        "waits-per-interval": "mechanism",
        "launches-per-step": "mechanism",
        "peak-mib": "mechanism",
        "growth-kib-per-step": "mechanism",
        "kept-tensors": "mechanism",
    }
    required = ("right-reports", "right-parameters")

    def run(self, context: Context[TrainingSettings], on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.training.run import run

        if context.device == "virtual":
            return run(context, on_line)
        return super().run(context, on_line)

    def trusted_files(self, lab: Lab) -> list[str]:  # noqa: ARG002 - the reference's own training says what is right
        return []

    def run_note(self, device: Device) -> str:
        return " Its times are modelled." if device == "virtual" else ""


KIND = TrainingKind()
