"""Figures of a training, from the virtual GPU's books or a worker's memory: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bottleneck_lab.measure.virtual_gpu.books import Figures

KIB, MIB = 1 << 10, 1 << 20
WARM_UP_STEPS = 2
"""The first steps allocate what later ones reuse."""
_LATE_INTERVALS = 1.5
"""A report may come an interval late. Steps differ in how much arithmetic they take, hence the
half.
"""


def step_time_us(figures: Figures) -> float:
    """Return µs a step after the warm-up, the emptying of the stream at the end included."""
    timed = figures.step_us[WARM_UP_STEPS:]
    return sum(timed) / len(timed)


def waits_per_interval(figures: Figures, interval: int) -> int:
    """Return the most times that the host waited for the device in `interval` steps, from one
    report to the next.

    The first interval sets up, and the last one may have two reports to make: neither counts by
    itself. Whoever takes all batches at once has the waits of all steps in the last one: so the
    mean of all but the first counts as well.
    """
    waits = figures.step_waits
    starts = range(interval, len(waits), interval)
    by_interval = [sum(waits[at : at + interval]) for at in starts]
    return max(*by_interval[:-1], sum(by_interval) // len(by_interval))


def timed_flops(figures: Figures) -> float:
    """Return the arithmetic of the steps whose time counts, FLOP."""
    return figures.flops - figures.step_flops[WARM_UP_STEPS]


def late_report(figures: Figures, interval: int) -> tuple[int, float] | None:
    """Return the step of the first report that came more than an interval late, and the share (0–1)
    of all arithmetic that was done by then; None if none did.
    """
    for number, flops in enumerate(figures.report_flops, 1):
        share = flops / figures.flops
        if share > (number + _LATE_INTERVALS) * interval / figures.steps:
            return number * interval, share
    return None


def launches_per_step(figures: Figures) -> float:
    """Return operators that the device was given, a step."""
    return figures.launches / figures.steps


def peak_mib(figures: Figures) -> float:
    """Return the most memory that was allocated at a time, MiB."""
    return figures.peak_bytes / MIB


def growth_kib_per_step(step_bytes: Sequence[float]) -> float:
    """Return the slope of memory, KiB a step, from the second quarter of the steps to the last, by
    the lowest level of each. `step_bytes`: the level when each step began. NaN for fewer than four
    steps.

    A slope finds the smallest leak: one kept number is 512 bytes of the allocator's a step. Memory
    that is merely late to be released comes and goes within a quarter, which the lowest level does
    not see.
    """
    quarter = len(step_bytes) // 4
    if not quarter:
        return math.nan
    rise = min(step_bytes[-quarter:]) - min(step_bytes[quarter : 2 * quarter])
    return rise / (len(step_bytes) - 2 * quarter) / KIB
