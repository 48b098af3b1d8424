"""The page's section about a server's maximum batch size: throughput and latency against
it, drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from bottleneck_lab.analysis.plateau import Plateau
from bottleneck_lab.report.page.markup import Markup, Section, table, tag
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
            f"The server under load from {plateau.clients} concurrent clients, one maximum batch"
            f" size after another. {plateau.doubt}".rstrip()
        ),
    )


def _chart(columns: Sequence[tuple[int, float, str]], spoken: str) -> Markup:
    """Return a column for each maximum batch size, its figure above it and the size below."""
    top, width = max(value for _, value, _ in columns) or 1.0, 1 / len(columns)
    drawn = []
    for column, (size, value, figure) in enumerate(columns):
        height = _HEIGHT * value / top
        middle = f"{100 * (column + 0.4) * width:.2f}%"
        drawn += [
            tag(
                "rect",
                tag("title", f"{size}: {figure}"),
                x=f"{100 * column * width:.2f}%",
                y=_ABOVE + _HEIGHT - height,
                width=f"{80 * width:.2f}%",  # a fifth of the slot stays free between columns
                height=height,
                class_="fill-value",
            ),
            tag("text", figure, x=middle, y=_ABOVE + _HEIGHT - height - 5, text_anchor="middle"),
            tag(
                "text",
                str(size),
                x=middle,
                y=_ABOVE + _HEIGHT + 15,
                text_anchor="middle",
                class_="soft",
            ),
        ]
    return tag("svg", tag("title", spoken), drawn, role="img", height=_ABOVE + _HEIGHT + _BELOW)


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    return f"{1000 * seconds:.0f}"
