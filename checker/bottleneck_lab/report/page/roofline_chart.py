"""The roofline of a capture's operators: FLOP/s over FLOP/byte, under the machine's ceilings."""

from __future__ import annotations

from math import log10

from bottleneck_lab.analysis.counters.roofline import Roofline
from bottleneck_lab.report import words
from bottleneck_lab.report.page.markup import Markup
from bottleneck_lab.report.page.shapes import Point, chart, dot, line, text
from bottleneck_lab.report.roofline_axes import LETTERS, intensity_ends

LEFT, RIGHT, HEIGHT = 0.02, 0.92, 194
HEAD, LINE = 24, 14
"""Pixels above the drawing, for labels of ceilings near its top, and of a label's line."""


def roofline_chart(roofline: Roofline) -> Markup | None:
    """Draw achieved FLOP/s over intensity, both on logarithmic axes, under one roof for each
    precision that occurs; None if the ceilings are unknown. Operators have the letters of the table
    above.
    """
    machine = roofline.machine
    rows = [row for row in roofline.rows if row.ceiling_share >= 0]
    if machine is None or not rows:
        return None
    precisions = sorted({row.precision for row in rows})
    highest = max(machine.flops[precision] for precision in precisions)
    slopes = [("memory", machine.bytes_per_s)]
    caches = sorted(machine.caches, key=lambda cache: cache.bytes_per_s)
    slopes += [(cache.name, cache.bytes_per_s) for cache in caches]
    ends = [row.intensity for row in rows] + [highest / rate for _, rate in slopes]
    left, right = intensity_ends(ends)
    # The axes' ends, as powers of ten.
    low, high = log10(left), log10(right)
    top = log10(max(highest, *(row.flops_per_s for row in rows))) + 0.2
    bottom = min(log10(row.flops_per_s) for row in rows) - 0.3

    def at(intensity: float, rate: float) -> Point:
        x = LEFT + (RIGHT - LEFT) * (log10(intensity) - low) / (high - low)
        return x, HEAD + (HEIGHT - HEAD) * (top - log10(rate)) / (top - bottom)

    drawn = []
    for precision in precisions:
        x, y = at(max(10**low, machine.balance(precision)), machine.flops[precision])
        drawn.append(line((x, y), (RIGHT, y), "roof"))
        drawn.append(text(precision, (RIGHT + 0.01, y + 4), style="soft"))
    lowest = float(HEIGHT)
    for name, rate in slopes:  # from the left edge or the bottom to the highest level line
        start = max(10**low, 10**bottom / rate)
        if start < highest / rate:
            x, y = at(start, start * rate)
            drawn.append(line((x, y), at(highest / rate, highest), "roof"))
            # Memory's name is below its line and each cache's above its own, clear of the one
            # before, however near their rates are.
            lowest = y + LINE if name == "memory" else min(y - 6, lowest - LINE)
            drawn.append(text(name, (x, max(10.0, lowest)), style="soft"))
    for letter, row in zip(LETTERS, roofline.rows, strict=False):
        if row.ceiling_share < 0:
            continue
        title = (
            f"{row.operator} {row.precision}: {words.format_flops(row.flops_per_s)},"
            f" {row.intensity:.3g} FLOP/byte"
        )
        x, y = at(row.intensity, row.flops_per_s)
        drawn.append(dot((x, y), "fill-value", title))
        drawn.append(text(letter, (x + 0.01, y - 4)))
    axis = "FLOP/byte →   (up: FLOP/s; both logarithmic)"
    drawn += [
        line((LEFT, HEIGHT + 4), (RIGHT, HEIGHT + 4), "axis"),
        text(f"{left:g}", (LEFT, HEIGHT + 22), "start", "soft"),
        text(axis, ((LEFT + RIGHT) / 2, HEIGHT + 22), "middle", "soft"),
        text(f"{right:g}", (RIGHT, HEIGHT + 22), "end", "soft"),
    ]
    spoken = (
        f"Operators under the ceilings of {machine.name}: FLOP/s over FLOP/byte, both logarithmic"
    )
    return chart(spoken, HEIGHT + 28, drawn)
