"""What a run on the virtual GPU comes to, from the engine's books: pure functions."""

from __future__ import annotations

from statistics import median

from bottleneck_lab.measure.virtual_gpu.engine import Figures

MIB = 1 << 20
WARM_UP_STEPS = 2
"""The first steps allocate what later ones reuse."""


def step_time_us(figures: Figures) -> float:
    """µs a step after the warm-up, the emptying of the stream at the end included."""
    timed = figures.step_us[WARM_UP_STEPS:]
    return sum(timed) / len(timed)


def waits_per_interval(figures: Figures, interval: int) -> int:
    """The most times that the host waited for the device in `interval` steps, from one report to the next.

    The first interval sets up and the last one may have two reports to make: neither counts.
    """
    waits = figures.step_waits
    return max(sum(waits[at : at + interval]) for at in range(interval, len(waits) - interval, interval))


def launches_per_step(figures: Figures) -> float:
    """Operators that the device was given, a step."""
    return figures.launches / figures.steps


def peak_mib(figures: Figures) -> float:
    """The most memory that was allocated at a time."""
    return figures.peak_bytes / MIB


def growth_mib(figures: Figures) -> float:
    """How much higher memory stands in the last quarter of the steps than in the second, by the median of each.

    Memory that is merely late to be released comes and goes within a quarter.
    """
    levels, quarter = figures.step_bytes, len(figures.step_bytes) // 4
    return (median(levels[-quarter:]) - median(levels[quarter : 2 * quarter])) / MIB
