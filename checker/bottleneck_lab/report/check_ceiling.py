"""The largest gain that a lab's check can measure, where it sets the device by the shipped code."""

from __future__ import annotations

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.measure.kinds.registry import kind_of


def check_ceiling(lab: Lab, device: Device) -> float | None:
    """Return how many times as fast a check can find any work; None where only the work limits it.

    An input pipeline's device is set so that the shipped loader alone would keep it busy for
    `device_share` of the time: a device that is always busy is that many times as fast.
    """
    if lab.spec.measure != "input_pipeline" or device not in lab.spec.devices:
        return None
    return 1 / float(kind_of(lab).settings(lab, device).device_share)
