"""The page's section about a server's maximum batch size: throughput and latency against
it, drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from bottleneck_lab.analysis.plateau import Plateau, Point
from bottleneck_lab.report.page.markup import Markup, Section, table, tag
from bottleneck_lab.report.page.shapes import box, chart, text
from bottleneck_lab.report.page.verdict import section

_HEIGHT, _ABOVE, _BELOW = 90.0, 20, 20


def plateau_section(plateau: Plateau | None) -> Section | None:
    """Render two charts, one above the other, and their figures; None without a point."""
    if plateau is None or not plateau.points:
        return None
    points = plateau.points
    rows = [
        [str(each.size), f"{each.images:.1f}", f"{each.rate:.0f}", _ms(each.p50_s), _ms(each.p99_s)]
        for each in points
    ]
    head = ["maximum batch", "images in a batch", "requests/s", "p50, ms", "p99, ms"]
    return section(
        "plateau",
        "Maximum batch size",
        tag("h3", "Requests answered per second"),
        _chart(
            [(each.size, each.rate, f"{each.rate:.0f}") for each in points],
            "Requests/s by maximum batch size",
        ),
        tag("h3", "p99, ms"),
        _chart(
            [(each.size, each.p99_s or 0.0, _ms(each.p99_s)) for each in points],
            "p99 by maximum batch size",
        ),
        (
            table(
                head,
                rows,
                caption="Throughput and latency by maximum batch size",
                numeric={*range(len(head))},
            )
        ),
        lead=(
            "Your server without the recording, which slows it, under load from"
            f" {plateau.clients} concurrent clients, one maximum batch size after another."
            f" {' '.join(filter(None, (_unmeasured(points), plateau.dip, plateau.doubt)))}".rstrip()
        ),
    )


def _chart(columns: Sequence[tuple[int, float, str]], spoken: str) -> Markup:
    """Return a column for each maximum batch size, its figure above it and the size below."""
    top, slot = max(value for _, value, _ in columns) or 1.0, 1 / len(columns)
    bottom, drawn = _ABOVE + _HEIGHT, []
    for column, (size, value, figure) in enumerate(columns):
        height = _HEIGHT * value / top
        middle = (column + 0.4) * slot
        # A fifth of the slot stays free between columns.
        at = column * slot, bottom - height
        drawn += [
            box(*at, 0.8 * slot, height, "fill-value", f"{size}: {figure}"),
            text(figure, (middle, bottom - height - 5), "middle"),
            text(str(size), (middle, bottom + 15), "middle", "soft"),
        ]
    return chart(spoken, bottom + _BELOW, drawn)


def _unmeasured(points: Sequence[Point]) -> str:
    """Explain a latency that is missing, where there is one."""
    if all(each.p99_s is not None for each in points):
        return ""
    return "A latency is missing (–) where most clients had no second answer before the load ended."


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{1000 * seconds:.0f}"
