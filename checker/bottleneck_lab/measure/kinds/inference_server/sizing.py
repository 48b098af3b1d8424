"""Size the model for this machine, so that the device takes a stated share of the host's time.

Hosts and devices come in every ratio. With a fast device only the host would matter, and with a
slow one nothing that a learner can change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.inference_server import InferenceServerSettings
from bottleneck_lab.measure.kinds.inference_server.learner_api import MAX_BATCH
from bottleneck_lab.measure.kinds.inference_server.pixels import IMAGES
from bottleneck_lab.measure.kinds.input_pipeline.device_process import DeviceProcess
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

    def details(self) -> dict[str, Any]:
        """Return the sizes for a verdict file."""
        sizes = {"preprocess_s_a_picture": self.picture_s, "wanted_device_s_a_batch": self.batch_s}
        if self.members:
            return {**sizes, "members": self.members}
        return {**sizes, "device_s_a_batch": self.fixed_s, "device_s_an_image": self.image_s}


UNSIZED = Sizing(0.0, 0.0)
"""The sizes before the machine's speed is known."""


def size_model(context: Context[InferenceServerSettings], picture_s: float) -> Sizing:
    """Return the model's size for a machine whose shipped pre-processing needs `picture_s` for a
    picture. Raises VerifierFault if the device does not start.
    """
    settings = context.settings
    batch_s = settings.device_share * picture_s * settings.batch
    if context.device == "cuda":
        with _launch(context, Sizing(0.0, batch_s, members=PROBED_MEMBERS)) as device:
            member_s = device.step_s / PROBED_MEMBERS
        members = min(settings.most_members, max(1, round(batch_s / member_s)))
        return Sizing(picture_s, batch_s, members=members)
    fixed_s = settings.fixed_share * batch_s
    return Sizing(picture_s, batch_s, fixed_s, (batch_s - fixed_s) / settings.batch)


def start_device(context: Context[InferenceServerSettings], sizing: Sizing) -> DeviceProcess:
    """Start a device with the model. Raises VerifierFault if it does not start, or if no ensemble
    fits this GPU and CPU.
    """
    device = _launch(context, sizing)
    # An emulated device takes exactly what was wanted; only a GPU can be off.
    ratio = device.step_s / sizing.batch_s
    if not SHARES[0] <= ratio <= SHARES[1]:
        device.close()
        raise VerifierFault(
            f"The GPU takes {1000 * device.step_s:.0f} ms for a batch of {context.settings.batch}"
            f" pictures, with {sizing.members} networks in the ensemble; beside this CPU it would"
            f" have to take about {1000 * sizing.batch_s:.0f} ms.",
            "Check that nothing else uses the GPU or the CPU, and try again. `--device virtual`"
            " works on any machine.",
        )
    return device


def _launch(context: Context[InferenceServerSettings], sizing: Sizing) -> DeviceProcess:
    options = ["--batch", str(context.settings.batch)]
    if sizing.members:
        judge = context.lab.path / "judge.py"
        options += as_options({"--engine": "cuda", "--members": sizing.members, "--judge": judge})
    else:
        times = {"--fixed-s": sizing.fixed_s, "--image-s": sizing.image_s}
        options += as_options({"--engine": "emulated", **times})
    return DeviceProcess.launch(context, DEVICE, options, SLOTS * MAX_BATCH * IMAGES.largest_bytes)
