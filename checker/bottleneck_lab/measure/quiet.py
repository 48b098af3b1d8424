"""Waiting for a machine on which nothing else runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from bottleneck_lab.errors import MachineError
from bottleneck_lab.grading.criteria import BUSY_CORES
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s

LOOK_S = 3.0
QUIET_LOOKS = 3
"""Quiet samples needed in a row, since a build pauses for seconds."""


def wait_until_quiet(
    limit_s: float,
    tell: Callable[[float], None],
    *,
    busy_cores: Callable[[], float] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once other programs have left the machine alone for some seconds. `tell` is called at
    each sample with how many cores they keep busy.

    Raises MachineError after `limit_s` seconds. `busy_cores` is called at the end of each look and
    answers for it.
    """
    meter = LoadMeter(own_cpu_s)
    look = busy_cores or meter.cores
    began, quiet = clock(), 0
    while quiet < QUIET_LOOKS:
        if clock() - began > limit_s:
            raise MachineError(
                f"The machine was still busy after {limit_s / 60:.0f} minutes; nothing was"
                " measured.",
                "Close other programs (`top` shows them), or wait longer: `lab check --when-quiet"
                " 30`.",
            )
        meter.restart()
        sleep(LOOK_S)
        cores = look()
        tell(cores)
        quiet = quiet + 1 if cores <= BUSY_CORES else 0
