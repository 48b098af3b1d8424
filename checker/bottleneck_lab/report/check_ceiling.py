"""The largest gain that a lab's check can measure, where it sets the device by the shipped code."""

from __future__ import annotations

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.measure.kinds.registry import kind_of


def check_ceiling(lab: Lab, device: Device) -> float | None:
    """Return how many times as fast a check can find any work; None where only the work limits it.

    An input pipeline's device is set so that the shipped loader alone would keep it busy for
    `device_share` of the time: a device that is always busy is that many times as fast. A server's
    that works in turns with the host is busy for `device_share` of the host's part of a turn.
    """
    if device not in lab.spec.devices:
        return None
    settings = kind_of(lab).settings(lab, device)
    if lab.spec.measure == "input_pipeline":
        return 1 / float(settings.device_share)
    if lab.spec.measure == "inference_server" and settings.in_turns:
        return 1 + 1 / float(settings.device_share)
    return None
