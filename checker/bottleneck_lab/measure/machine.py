"""Describe this machine, and measure how much others use it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from bottleneck_lab.measure.gpu import gpu_states
from bottleneck_lab.measure.settings import LOADING_CORES
from bottleneck_lab.needs import dali_build


def _busy_s() -> float:
    """Return CPU seconds used by the whole machine since boot, time stolen by its host included."""
    user, nice, system, _, _, irq, softirq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class LoadMeter:
    """How many cores programs other than ours keep busy. `own_s` gives the CPU seconds our own
    processes have used so far.
    """

    def __init__(self, own_s: Callable[[], float]) -> None:
        self._own_s = own_s
        self.restart()

    def restart(self) -> None:
        """Begin a new window."""
        self._start = (time.monotonic(), _busy_s(), self._own_s())

    def cores(self) -> float:
        """Return cores kept busy by others since the window began."""
        elapsed = time.monotonic() - self._start[0]
        return max(0.0, (_busy_s() - self._start[1]) - (self._own_s() - self._start[2])) / max(
            elapsed, 1e-3
        )


def own_cpu_s() -> float:
    """Return CPU seconds of this process and of the children it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def loading_cores() -> set[int]:
    """Return the cores that loading is pinned to."""
    return set(sorted(os.sched_getaffinity(0))[-LOADING_CORES:])


def installed_version(package: str) -> str:
    """Return the version of an installed distribution, or `not installed`; the package is not
    imported.
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _lines(path: str) -> list[str]:
    """Return the lines of a file of the kernel; none where it cannot be read."""
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def cpu_model() -> str:
    """Return the processor's name as the kernel gives it; `unknown` where it does not."""
    fields = (line.partition(":") for line in _lines("/proc/cpuinfo"))
    return next(
        (value.strip() for name, _, value in fields if name.startswith("model name")), "unknown"
    )


def fingerprint() -> dict[str, str]:
    """Return the environment of a measurement, as text a verdict keeps: CPU, cores, governor, load,
    versions, GPU and driver. No host name.
    """
    governor = _lines("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    facts = {
        "cpu": cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "governor": governor[0] if governor else "unknown",
        "load": f"{os.getloadavg()[0]:.2f}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{
            package: installed_version(package)
            for package in ("bottleneck-lab", "torch", "torchvision", "numpy", dali_build())
        },
    }
    state = gpu_states()
    return facts | (state[0].fingerprint() if state else {"gpu": "none"})
