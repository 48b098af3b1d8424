"""Small charts as SVG: readable without script, in print, and by a screen reader through their
titles.
"""

from __future__ import annotations

from collections.abc import Sequence

from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.report import verdict_words, words
from bottleneck_lab.report.page.markup import Markup, tag
from bottleneck_lab.report.page.shapes import box, chart, line, text

COLUMN_HEIGHT = 56


def stacked_bar(parts: Sequence[tuple[str, str, float]], *, label: str) -> Markup:
    """Return one bar of 100%. `parts`: name, colour class, share (0–1); a share of at least 8%
    carries its figure.
    """
    pieces = []
    left = 0.0
    for name, colour, share in parts:
        figure = words.format_share(share)
        inside = None
        if share >= 0.08:
            inside = text(figure, (left + share / 2, 24), "middle", f"inside on-{colour}")
        title = tag("title", f"{name}: {figure}")
        pieces.append(tag("g", box(left, 0, share, 38, colour), inside, title))
        left += share
    return chart(label, 38, pieces)


def criterion_bar(criterion: CriterionResult) -> Markup | None:
    """Return the value with its interval against the target; None without a number and a target."""
    gauge = verdict_words.gauge(criterion)
    if gauge is None:
        return None
    colour = {True: "fill-good", False: "fill-bad", None: "fill-value"}[criterion.holds]
    low, target = gauge.low / gauge.end, gauge.target / gauge.end
    measured = verdict_words.format_measured(criterion)
    return chart(
        f"{measured}, wanted {verdict_words.format_target(criterion)}",
        22,
        box(0, 4, 1, 14, "ground"),
        box(0, 4, low, 14, colour),
        box(low, 4, (gauge.high - gauge.low) / gauge.end, 14, f"{colour} unsure"),
        line((target, 0), (target, 22), "target"),
    )


def gain_bars(predicted: float, measured: float | None, without: str) -> Markup:
    """Draw the predicted gain, in speed or in memory, above the measured one, on one scale.
    `without` stands in place of a figure.
    """
    end = max(predicted, measured or 0.0, 1.0) * 1.15
    rows = []
    for row, (name, gain) in enumerate((("predicted", predicted), ("measured", measured))):
        y, width = row * 30, 0.6 * (gain or 0.0) / end
        figure = without if gain is None else f"{gain:.2f}x"
        rows += [
            text(name, (0, y + 16), style="soft"),
            box(0.24, y + 3, width, 18, "fill-value"),
            text(figure, (0.25 + width, y + 16)),
        ]
    return chart("Predicted and measured gain", 56, rows)


def memory_chart(use: MemoryUse) -> Markup | None:
    """Draw memory over the capture, from left to right; None if nothing was held."""
    if use.peak_bytes <= 0:
        return None
    columns = [(words.format_bytes(level), max(level, 0)) for level in use.levels_bytes]
    top = max((height for _, height in columns), default=0) or 1
    return chart(
        f"Memory held over time, at most {words.format_bytes(use.peak_bytes)}",
        COLUMN_HEIGHT,
        _columns(columns, top, "cat-range"),
    )


def levels_chart(memory: DeviceMemory) -> Markup | None:
    """Draw allocated in front of reserved memory, from left to right; None if nothing was
    recorded.
    """
    if not memory.events:
        return None
    top = memory.peak_reserved_bytes or 1
    drawn = [
        _columns([(f"{name} {words.format_bytes(level)}", level) for level in levels], top, style)
        for name, levels, style in (
            ("reserved", memory.reserved_levels_bytes, "ground"),
            ("allocated", memory.levels_bytes, "cat-range"),
        )
    ]
    spoken = (
        f"Allocated and reserved memory, at most {words.format_bytes(memory.peak_bytes)} of"
        f" {words.format_bytes(top)}"
    )
    return chart(spoken, COLUMN_HEIGHT, *drawn)


def _columns(columns: Sequence[tuple[str, int]], top: int, style: str) -> list[Markup]:
    """Draw columns side by side on one scale from 0 to `top`: the title and the height of each."""
    width = 1 / max(len(columns), 1)
    drawn = []
    for column, (title, level) in enumerate(columns):
        height = COLUMN_HEIGHT * level / top
        # A little over the next one: no gap shows between them.
        at = column * width, COLUMN_HEIGHT - height
        drawn.append(box(*at, 1.02 * width, height, style, title))
    return drawn
