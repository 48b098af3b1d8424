"""Health of a runner's GPUs, read by NVML; nothing on a machine without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bottleneck_lab.capture.monitor import open_nvml


def gpu_health(indices: list[int]) -> dict[str, str]:
    """Return figures of each GPU: `gpu0.temperature_celsius`, `.memory_used_share` (0–1),
    `.power_watts` and `.ecc_errors`. One that cannot be read is left out.
    """
    nvml, _ = open_nvml() if indices else (None, "")
    if nvml is None:
        return {}

    def memory_used_share(gpu: object) -> float:
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
        return round(float(memory.used / memory.total), 3)

    readings: dict[str, Callable[[Any], Any]] = {
        "temperature_celsius": lambda gpu: nvml.nvmlDeviceGetTemperature(
            gpu, nvml.NVML_TEMPERATURE_GPU
        ),
        "memory_used_share": memory_used_share,
        "power_watts": lambda gpu: round(nvml.nvmlDeviceGetPowerUsage(gpu) / 1000, 1),  # of mW
        "ecc_errors": lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(
            gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    }
    figures = {}
    for index in indices:
        for name, read in readings.items():
            try:
                value = read(nvml.nvmlDeviceGetHandleByIndex(index))
            except nvml.NVMLError:  # consumer cards count no ECC errors, some report no power
                continue
            figures[f"gpu{index}.{name}"] = str(value)
    return figures
