"""The shapes that charts are drawn with, as SVG. Across, they are placed in shares (0–1) of the
chart's width; down, in pixels from its top.
"""

from __future__ import annotations

from collections.abc import Iterable

from bottleneck_lab.report.page.markup import Markup, tag

Point = tuple[float, float]
"""(share of the width, pixels from the top)."""


def chart(spoken: str, height: float, *shapes: str | Iterable[str]) -> Markup:
    """Return a chart of these shapes. `spoken`: its title for those who cannot see it."""
    return tag("svg", tag("title", spoken), *shapes, role="img", height=height)


def percent(share: float) -> str:
    """Return a share, cut to 0–1, as the attributes of shapes take it."""
    return f"{max(0.0, min(1.0, share)) * 100:.3f}%"


def line(start: Point, end: Point, style: str) -> Markup:
    """Draw a line between two points."""
    (x1, y1), (x2, y2) = start, end
    return tag("line", x1=percent(x1), x2=percent(x2), y1=y1, y2=y2, class_=style)


def box(x: float, y: float, width: float, height: float, style: str, title: str = "") -> Markup:
    """Draw a box from its upper left corner."""
    spoken = tag("title", title) if title else None
    across = {"x": percent(x), "width": percent(width)}
    return tag("rect", spoken, y=y, height=height, class_=style, **across)


def dot(at: Point, style: str, title: str = "") -> Markup:
    """Draw a point of a curve."""
    spoken = tag("title", title) if title else None
    return tag("circle", spoken, cx=percent(at[0]), cy=at[1], r=5, class_=style)


def text(words: str, at: Point, anchor: str | None = None, style: str | None = None) -> Markup:
    """Write words that begin at a point, or have their `middle` or `end` there."""
    return tag("text", words, x=percent(at[0]), y=at[1], class_=style, text_anchor=anchor)
