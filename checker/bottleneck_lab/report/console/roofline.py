"""A roofline in text: one letter per operator, under dotted ceilings."""

from __future__ import annotations

import string
from collections.abc import Sequence
from math import log10

from bottleneck_lab.analysis.counters.roofline import Machine, RooflineRow
from bottleneck_lab.report import words

# Names of the operators in the drawing, in the order of the list above it.
LETTERS = string.ascii_uppercase
HEIGHT = 14

# Columns of a terminal below which nothing is drawn.
NARROWEST = 60

# Characters of a line left of the drawing, for the scale.
MARGIN = 15


def draw_roofline(machine: Machine, rows: Sequence[RooflineRow], width: int) -> list[str]:
    """Draw lines of text: FLOP/s upwards over FLOP per byte, both logarithmic.

    Slopes are memory and the caches, level lines the precisions that occur. `rows` are those with a
    place (`ceiling_share` not negative); operators in one place show as the first of them.
    """
    levels = {row.precision: machine.flops[row.precision] for row in rows}
    slopes = [machine.bytes_per_s, *(cache.bytes_per_s for cache in machine.caches)]
    columns = width - MARGIN
    ridges = [max(levels.values()) / slope for slope in slopes]
    low, high = _ends([row.intensity for row in rows] + ridges)
    bottom, top = _ends([row.flops_per_s for row in rows] + list(levels.values()))
    grid = [[" "] * columns for _ in range(HEIGHT)]

    def put(intensity: float, rate: float, sign: str) -> None:
        column = round((columns - 1) * (log10(intensity) - low) / (high - low))
        line = round((HEIGHT - 1) * (top - log10(rate)) / (top - bottom))
        if 0 <= column < columns and 0 <= line < HEIGHT:
            grid[line][column] = sign

    for column in range(columns):
        intensity = 10 ** (low + (high - low) * column / (columns - 1))
        for slope in slopes:
            put(intensity, min(slope * intensity, max(levels.values())), ".")
        for level in levels.values():
            if level <= machine.bytes_per_s * intensity:
                put(intensity, level, ".")
    for letter, row in reversed(list(zip(LETTERS, rows, strict=False))):
        put(row.intensity, row.flops_per_s, letter)
    marks = {0: top, HEIGHT - 1: bottom}
    left = f"{10**low:.2g}"
    right = f"{10**high:.2g}"
    middle = "FLOP/byte; lines: memory, caches, arithmetic"
    return [
        *(
            [
                f"{words.format_flops(10 ** marks[line]) if line in marks else '':>{MARGIN - 2}}"
                f" |{''.join(cells)}".rstrip()
                for line, cells in enumerate(grid)
            ]
        ),
        f"{'':{MARGIN}}{left}{middle:^{max(columns - len(left) - len(right), 0)}}{right}",
    ]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return decades from a little below the smallest to a little above the largest."""
    return log10(min(values)) - 0.3, log10(max(values)) + 0.3
