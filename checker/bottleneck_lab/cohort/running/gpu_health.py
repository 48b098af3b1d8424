"""How the GPUs of a runner are, read by NVML; nothing on a machine without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bottleneck_lab.capture.monitor import open_nvml


def gpu_health(indices: list[int]) -> dict[str, str]:
    """`gpu0.temperature_celsius`, `.memory_used_share`, `.power_watts`, `.ecc_errors` of each; a
    figure that cannot be read is left out.
    """
    nvml, _ = open_nvml() if indices else (None, "")
    if nvml is None:
        return {}
    return {
        f"gpu{index}.{name}": value for index in indices for name, value in _of(nvml, index).items()
    }


def _of(nvml: Any, index: int) -> dict[str, str]:
    readings: dict[str, Callable[[Any], Any]] = {
        "temperature_celsius": lambda gpu: nvml.nvmlDeviceGetTemperature(
            gpu, nvml.NVML_TEMPERATURE_GPU
        ),
        "memory_used_share": lambda gpu: round(
            (info := nvml.nvmlDeviceGetMemoryInfo(gpu)).used / info.total, 3
        ),
        "power_watts": lambda gpu: round(nvml.nvmlDeviceGetPowerUsage(gpu) / 1000, 1),
        "ecc_errors": lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(
            gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    }
    found = {}
    for name, read in readings.items():
        try:
            found[name] = str(read(nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError:
            continue
    return found
