"""The `server` kind: what an inference server sustains, on a model whose device the verifier owns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bottleneck_lab.catalog import Device
from bottleneck_lab.measure.kinds.base import Calls, Criteria
from bottleneck_lab.measure.kinds.requests import Loaded
from bottleneck_lab.measure.settings import WorkerSettings

if TYPE_CHECKING:
    from bottleneck_lab.measure.context import Context, Measured
    from bottleneck_lab.measure.sandbox.children import OnLine


class ServerSettings(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """batch: images of the batch that the shipped server makes at most.

    device_share: the device's time for an image of such a batch, as a share of the CPU time that the shipped pre-processing takes for one.
    fixed_share: how much of the time of such a batch passes however few images are in it. clients: connections of the closed loop.
    """

    batch: int = 16
    device_share: float = 0.5
    fixed_share: float = 0.2
    clients: int = 64


class ServerKind(Loaded[ServerSettings]):
    """An inference server under load."""

    name = "server"
    settings_type = ServerSettings
    criteria: ClassVar[Criteria] = {
        "right-answers": "correctness",
        "right-pixels": "correctness",
        "bad-requests": "correctness",
        "throughput": "target",
        "p99-ms": "target",
        "idle": "mechanism",
    }
    required = tuple(criteria)
    judge_calls: ClassVar[Calls] = {"load": 1, "reference_pixels": 1, "compare": 2}

    def measure(self, context: Context[ServerSettings]) -> Measured:
        from bottleneck_lab.measure.kinds.server.check import measure

        return measure(context)

    def profile(self, context: Context[ServerSettings], trace: Path, on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.server.run import profile

        return profile(context, trace, on_line)

    def under_load(self, context: Context[ServerSettings], on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.server.run import under_load

        return under_load(context, on_line)

    def run(self, context: Context[ServerSettings], on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.server.run import run

        return run(context, on_line)

    def run_note(self, device: Device) -> str:
        return " Its speed is first set by what this machine can decode." if device == "virtual" else ""


KIND = ServerKind()
