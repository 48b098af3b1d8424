"""The message that gives a server's device its model; only this kind has it."""

from __future__ import annotations

from dataclasses import dataclass

from bottleneck_lab.measure.channel.messages import Message


@dataclass(frozen=True, eq=False)
class SetSize(Message, number=28):
    """Verifier to device: have a model of this size. The answer, when it has, is DeviceReady; how
    long a step takes, it says when it is asked for (MeasureStep).

    fixed_s, image_s: time of an emulated device for any batch, and for each image in it. members:
    networks of the ensemble on a GPU.
    """

    fixed_s: float
    image_s: float
    members: int
