"""Waiting for a machine on which nothing else runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from bottleneck_lab.errors import BusyMachineError
from bottleneck_lab.grading.criteria import BUSY_CORES
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s

GLANCE_S, LOOK_S = 0.5, 3.0
"""Length of a sample: of a single one, and of those that are waited for."""
QUIET_LOOKS = 3
"""Quiet samples needed in a row, since a build pauses for seconds."""


def busy_cores_allowed(needed: int) -> float:
    """Return how many cores other programs may keep busy beside a check that needs `needed`.

    One core more than that stays free, since programs move from core to core.
    """
    return max(BUSY_CORES, (os.cpu_count() or 1) - needed - 1)


def busy_cores() -> float:
    """Return how many cores other programs keep busy, after half a second's look at them."""
    meter = LoadMeter(own_cpu_s)
    time.sleep(GLANCE_S)
    return meter.cores()


def describe_others(needed: int) -> str:
    """Return how many cores other programs keep busy, as the beginning of a sentence; empty if
    they leave the `needed` cores to a measurement, or it models all its times and needs none.
    """
    busy = busy_cores() if needed else 0.0
    if busy <= busy_cores_allowed(needed):
        return ""
    return f"Other programs keep {busy:.1f} of {os.cpu_count()} cores busy"


def wait_until_quiet(
    limit_s: float,
    tell: Callable[[float], None],
    *,
    allowed: float = BUSY_CORES,
    look: Callable[[], float] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once other programs have left the machine alone for some seconds. `tell` is called at
    each sample with how many cores they keep busy; up to `allowed` count as quiet.

    Raises BusyMachineError after `limit_s` seconds. `look` returns those cores at the end of each
    sample; by default the machine's load says them.
    """
    meter = LoadMeter(own_cpu_s)
    look = look or meter.cores
    began, quiet, cores = clock(), 0, 0.0
    while quiet < QUIET_LOOKS:
        if clock() - began > limit_s:
            raise BusyMachineError(
                f"After {limit_s / 60:.0f} minutes other programs still keep {cores:.1f} cores"
                f" busy, where {allowed:.2g} would do; nothing was measured.",
                "Close other programs (`top` shows them), or wait longer: `lab check --when-quiet"
                " 30`. `lab check` alone measures now, and says if it could not decide.",
            )
        meter.restart()
        sleep(LOOK_S)
        cores = look()
        tell(cores)
        quiet = quiet + 1 if cores <= allowed else 0
