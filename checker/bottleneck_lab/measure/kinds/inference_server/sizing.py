"""Size the model for this machine, so that the device takes a stated share of the host's time.

Hosts and devices come in every ratio. With a fast device only the host would matter, and with a
slow one nothing that a learner can change.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from bottleneck_lab.measure.channel.messages import DeviceReady
from bottleneck_lab.measure.channel.wire import Arena, Closed, WireError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.inference_server import InferenceServerSettings
from bottleneck_lab.measure.kinds.inference_server.learner_api import MAX_BATCH
from bottleneck_lab.measure.kinds.inference_server.pixels import IMAGES
from bottleneck_lab.measure.kinds.inference_server.size import SetSize
from bottleneck_lab.measure.kinds.input_pipeline.device_process import (
    DeviceProcess,
    start_device,
)
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import SLOTS
from bottleneck_lab.programs import as_options

DEVICE = "bottleneck_lab.measure.kinds.inference_server.device"
PROBED_MEMBERS = 4
"""Members of the ensemble that is timed first, so that the copies and the launch, one of each per
batch, are a small part of the time.
"""
SHARES = (0.65, 1.35)
"""Limits of the GPU's time over the wanted time: an ensemble has a whole number of members, and a
GPU changes its clocks.
"""


@dataclass(frozen=True)
class Sizing:
    """picture_s: CPU time of the shipped pre-processing. batch_s: how long a full batch should take
    on the device. fixed_s, image_s: time of an emulated device for any batch, and for each image in
    it. members: networks of the ensemble on a real GPU.
    """

    picture_s: float
    batch_s: float
    fixed_s: float = 0.0
    image_s: float = 0.0
    members: int = 0

    def message(self) -> SetSize:
        """Return the message that gives a device this size."""
        return SetSize(self.fixed_s, self.image_s, self.members)

    def details(self) -> dict[str, Any]:
        """Return the sizes for a verdict file."""
        sizes = {"preprocess_s_a_picture": self.picture_s, "wanted_device_s_a_batch": self.batch_s}
        if self.members:
            return {**sizes, "members": self.members}
        return {**sizes, "device_s_a_batch": self.fixed_s, "device_s_an_image": self.image_s}


UNSIZED = Sizing(0.0, 0.0)
"""The sizes before the machine's speed is known."""


class ModelDevice(DeviceProcess):
    """The device of a server. It can start beside other processes: it has no model until it is told
    how large, which is known only when nothing else runs.

    start_s: the longest that it may take for anything that it is asked to do.
    """

    start_s: float

    @classmethod
    def open(cls, context: Context[InferenceServerSettings]) -> Self:
        """Start the process, and do not wait for it."""
        options = {
            "--engine": "cuda" if context.device == "cuda" else "emulated",
            "--batch": context.settings.batch,
            "--judge": context.lab.path / "judge.py",
        }
        with context.clock.phase("workers"):
            arena = Arena.create(SLOTS * MAX_BATCH * IMAGES.largest_bytes)
            started = start_device(context, DEVICE, as_options(options), arena)
        device = cls(*started, arena, math.nan, context.janitor)
        device.start_s = context.settings.start_s
        return device

    def wait_until_open(self) -> None:
        """Wait until it has started. Raises VerifierFault if it does not."""
        self._wait("start")

    def begin_size(self, size: SetSize) -> None:
        """Have it make a model of that size; `wait_until_sized` waits for it."""
        # If it is gone, whoever waits for its answer says so.
        with contextlib.suppress(Closed):
            self.channel.send(size)

    def wait_until_sized(self) -> None:
        """Wait until it has its model. Raises VerifierFault if it does not get one."""
        self._wait("make its model")

    def measure_step(self) -> float:
        """Return the seconds that a full batch takes, which `step_s` holds from then on. Raises
        VerifierFault if it cannot be measured.
        """
        self.step_s = self.step_again_s(self.start_s)
        return self.step_s

    def _wait(self, doing: str) -> None:
        """Wait for its word that it has done that."""
        try:
            message = self.channel.receive(self.start_s)
        except WireError as error:
            raise VerifierFault(f"The device process did not {doing}: {error}") from None
        if not isinstance(message, DeviceReady):
            raise VerifierFault(
                f"The device process did not {doing}: {type(message).__name__} arrived."
            )


def size_models(
    context: Context[InferenceServerSettings], picture_s: float, devices: Sequence[ModelDevice]
) -> Sizing:
    """Give all devices the same model, of the size for a machine whose shipped pre-processing needs
    `picture_s` for a picture. Returns that size; the first device has measured its step.

    Raises VerifierFault if a device does not get its model, or if no ensemble fits this GPU and
    CPU.
    """
    with context.clock.phase("workers"):
        sizing = _size_for(context, picture_s, devices[0])
        # At once: making an ensemble is work of the host's, on one core for each.
        for device in devices:
            device.begin_size(sizing.message())
        for device in devices:
            device.wait_until_sized()
        # An emulated device takes exactly what was wanted; only a GPU can be off.
        step_s = devices[0].measure_step()
    if not SHARES[0] <= step_s / sizing.batch_s <= SHARES[1]:
        raise VerifierFault(
            f"The GPU takes {1000 * step_s:.0f} ms for a batch of {context.settings.batch}"
            f" pictures, with {sizing.members} networks in the ensemble; beside this CPU it would"
            f" have to take about {1000 * sizing.batch_s:.0f} ms.",
            "Check that nothing else uses the GPU or the CPU, and try again. `--device virtual`"
            " works on any machine.",
        )
    return sizing


def _size_for(
    context: Context[InferenceServerSettings], picture_s: float, device: ModelDevice
) -> Sizing:
    """Return the model's size. On a GPU, `device` times some networks for it."""
    settings = context.settings
    batch_s = settings.device_share * picture_s * settings.batch
    if context.device == "cuda":
        device.begin_size(Sizing(picture_s, batch_s, members=PROBED_MEMBERS).message())
        device.wait_until_sized()
        member_s = device.measure_step() / PROBED_MEMBERS
        members = min(settings.most_members, max(1, round(batch_s / member_s)))
        return Sizing(picture_s, batch_s, members=members)
    fixed_s = settings.fixed_share * batch_s
    return Sizing(picture_s, batch_s, fixed_s, (batch_s - fixed_s) / settings.batch)
