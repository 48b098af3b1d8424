"""Waiting until nothing disturbs a check on a runner's machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from bottleneck_lab.capture.monitor import open_nvml, read_gpu, read_host

MOST_PRESSURE = 0.2
"""Share of the last ten seconds in which something waited for a core."""
MOST_CELSIUS = 75


def is_disturbed() -> bool:
    """Return True while programs wait for cores, or a GPU is hot."""
    if read_host().pressure.get("cpu", 0.0) > MOST_PRESSURE:
        return True
    nvml, _ = open_nvml()
    if nvml is None:
        return False
    try:
        gpus = [read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return False
    return any((gpu.temperature_c or 0) > MOST_CELSIUS for gpu in gpus)


def wait_until_undisturbed(
    limit_s: float,
    disturbed: Callable[[], bool] = is_disturbed,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait at most `limit_s` seconds. The check goes on all the same: its own statistics notice a
    noisy machine.
    """
    end = clock() + limit_s
    while clock() < end and disturbed():
        sleep(min(1.0, limit_s))
