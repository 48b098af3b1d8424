"""A machine's health, sampled: its GPUs through NVML, its CPUs and memory, and the workload's own
step rate. One sample for every reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bottleneck_lab.errors import MachineError
from bottleneck_lab.needs import install_command

_STEPS_BYTES = 256


class Gpu(msgspec.Struct, frozen=True):
    """One GPU. Shares are 0 to 1; None is what this GPU does not report.

    `busy_share` is NVML's utilisation: the share of time in which any kernel ran, however little of
    the GPU it used.
    """

    index: int
    name: str
    busy_share: float | None
    memory_busy_share: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    sm_mhz: int | None
    memory_mhz: int | None
    temperature_c: int | None


class Host(msgspec.Struct, frozen=True):
    """CPU and memory. `pressure` is the kernel's own: the share of the last 10 s in which some task
    waited for cpu, io or memory.
    """

    cpu_share: float
    cores: int
    memory_used_bytes: int
    memory_total_bytes: int
    load: float
    pressure: dict[str, float]


class Sample(msgspec.Struct, frozen=True):
    """Everything at one moment. `no_gpu` says why there is no GPU in it; `steps_per_s` is since the
    sample before.
    """

    at_s: float
    host: Host
    gpus: list[Gpu]
    no_gpu: str = ""
    steps: float | None = None
    steps_per_s: float | None = None


def open_nvml() -> tuple[Any, str]:
    """Return NVML, ready to be asked; or None, and why not."""
    try:
        import pynvml
    except ImportError:
        return None, f"NVML's Python package is not installed ({install_command('gpu')})"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"there is no NVIDIA driver or no GPU here ({error})"
    return pynvml, ""


def _ask_nvml(nvml: Any, query: Callable[[], Any]) -> Any:
    """Return NVML's answer; None for what this GPU does not support, or does not show to
    this user.
    """
    try:
        return query()
    except nvml.NVMLError:
        return None


def read_gpu(nvml: Any, index: int) -> Gpu:
    """Return one GPU, now."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    use = _ask_nvml(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _ask_nvml(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    power = _ask_nvml(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = _ask_nvml(nvml, lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle))
    name = _ask_nvml(nvml, lambda: nvml.nvmlDeviceGetName(handle))
    return Gpu(
        index=index,
        name=name.decode(errors="replace") if isinstance(name, bytes) else str(name or "unknown"),
        busy_share=use and use.gpu / 100,
        memory_busy_share=use and use.memory / 100,
        memory_used_bytes=memory and int(memory.used),
        memory_total_bytes=memory and int(memory.total),
        power_w=power and power / 1000,  # NVML says milliwatts
        power_limit_w=limit and limit / 1000,
        sm_mhz=_ask_nvml(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        memory_mhz=_ask_nvml(
            nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
        ),
        temperature_c=_ask_nvml(
            nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
    )


def read_host() -> Host:
    """Read CPU and memory, now; the CPU's share is since the last call."""
    memory = psutil.virtual_memory()
    pressure = {}
    for kind in ("cpu", "io", "memory"):
        # Kernels without CONFIG_PSI, and containers that hide it, lack these files.
        with suppress(OSError):
            line = (Path("/proc/pressure") / kind).read_text(encoding="ascii").split("\n", 1)[0]
            for part in line.split():
                if part.startswith("avg10="):
                    pressure[kind] = float(part.removeprefix("avg10=")) / 100
    return Host(
        cpu_share=psutil.cpu_percent(interval=None) / 100,
        cores=psutil.cpu_count() or 1,
        memory_used_bytes=int(memory.total - memory.available),
        memory_total_bytes=int(memory.total),
        load=psutil.getloadavg()[0],
        pressure=pressure,
    )


def read_steps(path: Path) -> float | None:
    """Return how many steps the workload has made: the first number in its file. None while there
    is none, or while it is being written.
    """
    try:
        with path.open("rb") as file:
            return float(file.read(_STEPS_BYTES).split()[0])
    except (OSError, ValueError, IndexError):
        return None


class Sampler:
    """Takes samples. Everything that it asks is passed in, so that it can be tested without a GPU
    and without waiting.
    """

    def __init__(
        self,
        nvml: Any = None,
        no_gpu: str = "",
        steps: Path | None = None,
        *,
        host: Callable[[], Host] = read_host,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nvml, self._no_gpu, self._steps = nvml, no_gpu, steps
        self._host, self._clock = host, clock
        self._before: tuple[float, float] | None = None

    def sample(self) -> Sample:
        """Return the machine as it is now. Raises MachineError when the driver stops answering."""
        at = self._clock()
        steps, rate = self._progress(at)
        return Sample(at, self._host(), self._gpus(), self._no_gpu, steps, rate)

    def _gpus(self) -> list[Gpu]:
        if self._nvml is None:
            return []
        try:
            return [read_gpu(self._nvml, index) for index in range(self._nvml.nvmlDeviceGetCount())]
        except self._nvml.NVMLError as error:
            raise MachineError(
                f"The GPU's driver no longer answers: {error}.",
                "See `nvidia-smi` and the kernel's log (`dmesg`).",
            ) from error

    def _progress(self, at: float) -> tuple[float | None, float | None]:
        """Return steps so far, and their rate. A count that falls is a workload started again: no
        rate for that one sample.
        """
        steps = None
        if self._steps:
            steps = read_steps(self._steps)
        before, rate = self._before, None
        if steps is None:
            return None, None
        if before and at > before[0] and steps >= before[1]:
            rate = (steps - before[1]) / (at - before[0])
        self._before = at, steps
        return steps, rate
