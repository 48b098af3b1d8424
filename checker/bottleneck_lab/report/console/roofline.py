"""A roofline in text: one letter per operator, under dotted ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

from bottleneck_lab.analysis.counters.roofline import Machine, RooflineRow
from bottleneck_lab.report import words
from bottleneck_lab.report.roofline_axes import LETTERS, intensity_ends

HEIGHT = 14

# Columns of a terminal below which nothing is drawn.
NARROWEST = 60

# Characters of a line left of the drawing, for the scale.
MARGIN = 15


def draw_roofline(machine: Machine, rows: Sequence[RooflineRow], width: int) -> list[str]:
    """Draw lines of text: FLOP/s upwards over FLOP per byte, both logarithmic.

    Slopes are memory and the caches, level lines the precisions that occur. `rows` are those with a
    place (`ceiling_share` not negative); operators in one place stand side by side.
    """
    levels = {row.precision: machine.flops[row.precision] for row in rows}
    slopes = [machine.bytes_per_s, *(cache.bytes_per_s for cache in machine.caches)]
    columns = width - MARGIN
    ridges = [max(levels.values()) / slope for slope in slopes]
    ends = intensity_ends([row.intensity for row in rows] + ridges)
    low, high = map(log10, ends)
    rates = [row.flops_per_s for row in rows] + list(levels.values())
    # A little beyond the lowest and the highest.
    bottom, top = log10(min(rates)) - 0.3, log10(max(rates)) + 0.3
    grid = [[" "] * columns for _ in range(HEIGHT)]

    def line_of(rate: float) -> int:
        return round((HEIGHT - 1) * (top - log10(rate)) / (top - bottom))

    def put(intensity: float, rate: float, sign: str) -> None:
        column = round((columns - 1) * (log10(intensity) - low) / (high - low))
        line = line_of(rate)
        if 0 <= column < columns and 0 <= line < HEIGHT:
            free = [at for at in range(columns) if grid[line][at] not in LETTERS]
            grid[line][min(free, key=lambda at: abs(at - column))] = sign

    for column in range(columns):
        intensity = 10 ** (low + (high - low) * column / (columns - 1))
        for slope in slopes:
            put(intensity, min(slope * intensity, max(levels.values())), ".")
        for level in levels.values():
            if level <= machine.bytes_per_s * intensity:
                put(intensity, level, ".")
    for letter, row in zip(LETTERS, rows, strict=False):
        put(row.intensity, row.flops_per_s, letter)
    marks = {HEIGHT - 1: 10**bottom} | {line_of(rate): rate for rate in sorted(levels.values())}
    left, right = (f"{end:g}" for end in ends)
    middle = "FLOP/byte; lines: memory, caches, arithmetic"
    return [
        *(
            [
                f"{words.format_flops(marks[line]) if line in marks else '':>{MARGIN - 2}}"
                f" |{''.join(cells)}".rstrip()
                for line, cells in enumerate(grid)
            ]
        ),
        f"{'':{MARGIN}}{left}{middle:^{max(columns - len(left) - len(right), 0)}}{right}",
    ]
