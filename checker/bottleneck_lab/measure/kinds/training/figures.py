"""Figures of a training, from the virtual GPU's books or a worker's memory: pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from bottleneck_lab.measure.virtual_gpu.books import Figures

KIB, MIB = 1 << 10, 1 << 20
WARM_UP_STEPS = 2
"""The first steps allocate what later ones reuse."""
_UNEVEN, _MOST_UNEVEN = 0.5, 2.0
"""So many steps' arithmetic a report may be late beyond its interval, and where the script's own
steps say that it is in time: steps are not alike, less so without padding.
"""


def step_time_us(figures: Figures) -> float:
    """Return µs a step after the warm-up, the emptying of the stream at the end included."""
    timed = figures.step_us[WARM_UP_STEPS:]
    return sum(timed) / len(timed)


def waits_per_interval(figures: Figures) -> int:
    """Return the most times that the host waited for the device from one report to the next, or
    before the first or after the last.

    The first steps warm up, and before its first product a program sets up: those waits are free.
    """
    warm_up = sum(figures.step_waits[:WARM_UP_STEPS])
    before = figures.waits - sum(figures.step_waits)
    counted = [max(before + warm_up, figures.setup_waits), *figures.report_waits, figures.waits]
    return max(max(0, later - earlier) for earlier, later in pairwise(counted))


def timed_flops(figures: Figures) -> float:
    """Return the arithmetic of the steps whose time counts, FLOP."""
    return figures.useful_flops - figures.step_flops[WARM_UP_STEPS]


def late_report(yours: Figures, shipped: Figures, interval: int) -> tuple[int, float] | None:
    """Return the step of the first report that came more than an interval late, and the steps whose
    arithmetic was done by then; None if none did.

    How much of a training is done after a step, the shipped script's arithmetic tells: a script may
    take its batches whenever it likes.
    """
    after, yours_after = ([*each.step_flops[1:], each.useful_flops] for each in (shipped, yours))
    for number, flops in enumerate(yours.report_flops, 1):
        latest = min((number + 1) * interval, shipped.steps)
        done = flops / yours.useful_flops * shipped.steps
        due = after[latest - 1] / shipped.useful_flops * shipped.steps
        in_time = latest > len(yours_after) or flops <= yours_after[latest - 1]
        if done > due + (_MOST_UNEVEN if in_time else _UNEVEN):
            return number * interval, done
    return None


def launches_per_step(figures: Figures) -> float:
    """Return operators that the device was given, a step after the warm-up."""
    timed = figures.step_launches[WARM_UP_STEPS:]
    return sum(timed) / len(timed)


def returned_kib_per_step(figures: Figures) -> float:
    """Return what was copied to the host, KiB a step."""
    return figures.returned_bytes / figures.steps / KIB


def peak_mib(figures: Figures) -> float:
    """Return the most memory that was allocated at a time, MiB."""
    return figures.peak_bytes / MIB


def growth_kib_per_step(step_bytes: Sequence[float], interval: int) -> float:
    """Return by how much memory grows, KiB a step, by its lowest level in each interval but the
    first. `step_bytes`: the level when each step began. NaN for fewer than three intervals.

    The largest rise and the largest fall are left out: a buffer that is made once is no growth, and
    one that is dropped once hides none.
    """
    # The lowest: autograd's thread may let go of a step's graph when the next has begun.
    starts = range(interval, len(step_bytes), interval)
    levels = [min(step_bytes[start : start + interval]) for start in starts]
    rises = sorted(later - earlier for earlier, later in pairwise(levels))
    lasting = rises[1:-1] or rises
    return sum(lasting) / len(lasting) / interval / KIB if lasting else math.nan


def kept_tensors(figures: Figures, interval: int) -> Counter[tuple[str, str]]:
    """Return how many tensors made between two reports are still there two intervals later, on the
    device or copied from it, by the lines that made them and their form.

    The interval that keeps the second most counts: what is made once is no leak. In the first a
    training makes what it keeps.
    """
    births = range(interval, figures.steps - 2 * interval, interval)
    intervals = [Counter[tuple[str, str]](), Counter[tuple[str, str]]()]
    for begin in births:
        intervals.append(kept := Counter[tuple[str, str]]())
        for birth, last, count, stack, form in figures.lives:
            if begin < birth <= begin + interval and last - birth >= 2 * interval:
                kept[stack, form] += count
    return sorted(intervals, key=Counter.total)[-2]
