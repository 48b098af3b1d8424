"""Measure how long a hypervisor kept a process with work to do from running: time in which it
neither ran, nor slept, nor waited for other programs.

The kernel reports how long the process ran and waited (proc(5), schedstat), and how much of the
whole machine a hypervisor took (proc(5), stat: steal). If it reports neither, nothing counts as
stolen. CPU time must not include stolen time: without the kernel's CONFIG_PARAVIRT_TIME_ACCOUNTING
less is found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LEAST_NS = 200_000
"""Shorter delays do not count: any wake-up takes that long."""
SCHEDSTAT, STAT = Path("/proc/thread-self/schedstat"), Path("/proc/stat")

Array = np.ndarray[Any, Any]


class Stolen:
    """The time stolen from the calling thread since this was created."""

    def __init__(
        self,
        clock: Callable[[], int] = time.monotonic_ns,
        used_ns: Callable[[], int] | None = None,
        machine_s: Callable[[], float] | None = None,
    ) -> None:
        """Begin to measure. `used_ns`: how long the thread has run and waited for other programs so
        far; `machine_s`: what was stolen from all cores. By default the kernel says both.
        """
        self._clock, self._used = clock, used_ns or _used_of_this_thread()
        self._machine_s = machine_s or stolen_from_machine_s
        self._machine_began_s = self._machine_s()
        self._used_ns = self._used()
        self._moments, self._totals = [clock()], [0]

    def ran(self) -> None:
        """Note that since the last note the thread had work to do."""
        self._note(self._moments[-1])

    def slept(self, until_ns: int) -> None:
        """Note that since the last note the thread slept, at the latest until `until_ns`."""
        self._note(until_ns)

    def _note(self, from_ns: int) -> None:
        now, used_ns = self._clock(), self._used()
        lost = now - from_ns - (used_ns - self._used_ns)
        self._used_ns, total = used_ns, self._totals[-1]
        self._moments += [min(from_ns, now), now]
        self._totals += [total, total + (lost if lost > LEAST_NS else 0)]

    def between(self, begin_ns: Array, end_ns: Array) -> Array:
        """Return the nanoseconds stolen between two times."""
        # In total never more than the kernel says was stolen from the whole machine.
        most_ns = (self._machine_s() - self._machine_began_s) * 1e9
        share = min(1.0, most_ns / self._totals[-1]) if self._totals[-1] else 0.0
        totals = share * np.array(self._totals)
        until_begin, until_end = (
            np.interp(moments, self._moments, totals) for moments in (begin_ns, end_ns)
        )
        stolen: Array = until_end - until_begin
        return stolen.astype(np.int64)


def stolen_from_machine_s() -> float:
    """Return the seconds that a hypervisor has taken from all cores since boot; 0 if unknown."""
    try:
        return int(STAT.read_text().split()[8]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def _used_of_this_thread() -> Callable[[], int]:
    """Return a function for the ns that this thread has run and waited for other programs; all of
    the time if the kernel does not say how long it waited.
    """
    try:
        file = os.open(SCHEDSTAT, os.O_RDONLY)
    except OSError:
        return time.monotonic_ns
    return lambda: time.thread_time_ns() + int(os.pread(file, 100, 0).split()[1])
