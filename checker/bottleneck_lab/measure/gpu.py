"""Read what the driver reports of the GPUs that this process may use, without torch."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

_PROHIBITED, _EXCLUSIVE = 2, 3
"""NVML's compute modes in which a check cannot hold its two contexts, the learner's and the
reference's, on one GPU.
"""


@dataclass(frozen=True)
class GpuState:
    """One GPU as NVML sees it.

    `mode` is its compute mode by NVML's number, `others` how many other processes compute on it,
    `busy` the share of the last moments (0-1) in which a kernel ran; None if the driver does not
    say, as on a slice. A clock of 0 is one that it does not say.
    """

    name: str
    driver: str
    sm_clock_mhz: int
    mode: int
    sliced: bool
    others: int
    busy: float | None

    def fingerprint(self) -> dict[str, str]:
        """Return the facts of this GPU that a verdict keeps."""
        return {
            "gpu": self.name,
            "driver": self.driver,
            "sm_clock_mhz": str(self.sm_clock_mhz),
            "gpu_processes": str(self.others),
        }

    def refusal(self) -> str:
        """Return why no check can run on it, as a sentence; empty if one can."""
        if self.mode == _EXCLUSIVE:
            return (
                "The GPU allows one process at a time (compute mode EXCLUSIVE_PROCESS), but a check"
                " runs your code and the reference side by side."
            )
        if self.mode == _PROHIBITED:
            return "The GPU allows no computation (compute mode PROHIBITED)."
        return ""


def cuda_devices() -> list[tuple[str, str]]:
    """Return name and PCI address of the CUDA devices that this process may use, in their order.

    The driver itself is asked: torch would take seconds to import, and NVML counts all GPUs of the
    machine, whichever CUDA_VISIBLE_DEVICES leaves.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, devices = ctypes.c_int(0), []
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    for ordinal in range(count.value):
        name, address = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
        cuda.cuDeviceGetName(name, 256, ordinal)
        cuda.cuDeviceGetPCIBusId(address, 32, ordinal)
        devices.append((name.value.decode(errors="replace"), address.value.decode()))
    return devices


def gpu_states() -> list[GpuState]:
    """Return the same devices as NVML describes them; none without NVML, a driver or a GPU. NVML
    itself counts all of the machine's.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        return [_state(pynvml, name, address) for name, address in cuda_devices()]
    except Exception:  # no NVML, no driver or no GPU: all the same to whoever asks
        return []


def _state(nvml: Any, name: str, address: str) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByPciBusId(address.encode())
    running = [
        process.pid
        for process in _answer(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle, [])
    ]
    rates = _answer(nvml, nvml.nvmlDeviceGetUtilizationRates, handle, None)
    return GpuState(
        name=str(nvml.nvmlDeviceGetName(handle)),
        driver=str(nvml.nvmlSystemGetDriverVersion()),
        sm_clock_mhz=int(_answer(nvml, nvml.nvmlDeviceGetClockInfo, handle, 0, nvml.NVML_CLOCK_SM)),
        mode=int(_answer(nvml, nvml.nvmlDeviceGetComputeMode, handle, 0)),
        sliced=" MIG " in f"{name} "
        or _answer(nvml, nvml.nvmlDeviceGetMigMode, handle, [0])[0] == 1,
        others=sum(pid != os.getpid() for pid in running),
        busy=None if rates is None else rates.gpu / 100,
    )


def _answer(nvml: Any, ask: Any, handle: Any, otherwise: Any, *more: Any) -> Any:
    """Return what the driver answers, or `otherwise` where this GPU has no answer."""
    try:
        return ask(handle, *more)
    except nvml.NVMLError:
        return otherwise
