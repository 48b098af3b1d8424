"""The `inference_server` kind: what an inference server sustains, with a model on a device that the
verifier owns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.measure.kinds.base import Calls, Criteria
from bottleneck_lab.measure.kinds.http_server import Loaded
from bottleneck_lab.measure.settings import WorkerSettings

if TYPE_CHECKING:
    from bottleneck_lab.measure.context import Context, Measured
    from bottleneck_lab.measure.sandbox.children import OnLine


class ServerSettings(WorkerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """batch: images in the largest batch that the shipped server makes. clients: connections of the
    closed loop.

    device_share: the device's time for an image of such a batch, as a share of the CPU time that
    the shipped pre-processing takes for one. fixed_share: the part of an emulated device's time for
    such a batch that does not depend on the number of images. most_members: networks in the
    ensemble on a GPU, at most.
    """

    batch: int = 16
    device_share: float = 0.5
    fixed_share: float = 0.2
    clients: int = 64
    most_members: int = 128


class ServerKind(Loaded[ServerSettings]):
    """An inference server under load."""

    name = "inference_server"
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

    def rehearsed(self, settings: ServerSettings) -> ServerSettings:
        return msgspec.structs.replace(super().rehearsed(settings), most_members=4)

    def measure(self, context: Context[ServerSettings]) -> Measured:
        from bottleneck_lab.measure.kinds.inference_server.check import measure

        return measure(context)

    def profile(self, context: Context[ServerSettings], trace: Path, on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.inference_server.run import profile

        return profile(context, trace, on_line)

    def under_load(self, context: Context[ServerSettings], on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.inference_server.run import under_load

        return under_load(context, on_line)

    def run(self, context: Context[ServerSettings], on_line: OnLine) -> int:
        from bottleneck_lab.measure.kinds.inference_server.run import run

        return run(context, on_line)

    def problems(self, lab: Lab) -> Iterator[str]:
        yield from super().problems(lab)
        judge = lab.path / "judge.py"
        if (
            "cuda" in lab.spec.devices
            and judge.is_file()
            and "def member(" not in judge.read_text(encoding="utf-8")
        ):
            yield f"{judge}: `member` is missing; on cuda it is called without arguments."

    def run_note(self, device: Device) -> str:
        what = "Its speed" if device == "virtual" else "The size of its model"
        return f" {what} is first matched to how fast this machine decodes pictures."


KIND = ServerKind()
