"""The page's section about a distributed job: its scaling curve against the ideal and the bounds,
and what the curve rests on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bottleneck_lab.analysis.ranks.scaling import Point, Sweep, assumptions
from bottleneck_lab.report import words
from bottleneck_lab.report.page import shapes
from bottleneck_lab.report.page.markup import Markup, Section, table, tag
from bottleneck_lab.report.page.verdict import section

_LEFT, _RIGHT = 0.08, 0.97
_TOP, _BOTTOM = 14.0, 210.0
_NAMES = {
    "ideal": "ideal: one rank's throughput times the number of ranks",
    "hidden": "bound: all communication hidden behind computation",
    "ring-hidden": "bound of the ring: all communication hidden behind computation",
    "exposed": "bound: no communication hidden",
    "ring": "this script, one ring through all ranks",
    "tree": "this script, a tree of nodes",
}


@dataclass(frozen=True)
class _Line:
    """One curve: its colour class, and for each point where it stands in the plot (both 0-1), its
    title, and whether so many ranks really ran.
    """

    colour: str
    points: list[tuple[float, float]]
    titles: list[str]
    ran: list[bool]


def scaling_section(curves: Sequence[Sweep]) -> Section | None:
    """Render both charts, the figures and the assumptions; None without a curve."""
    if not curves:
        return None
    ring = curves[0]
    ran = [point for point in ring.points if point.source == "reducer"]
    few_ranks = max([8, *(point.ranks for point in ran)])
    lead = (
        "Every figure here is modelled, on virtual GPUs; filled points come from the real reducer"
        " in real processes, hollow ones are replayed."
    )
    return section(
        "scaling",
        "How it scales",
        tag("h3", "Speed-up over one rank"),
        _few_chart(ring, [point for point in ring.points if point.ranks <= few_ranks]),
        _legend(["ring", "ideal", "hidden", "exposed"]),
        _lost(ran[-1]) if ran else None,
        tag("h3", "Share of the ideal, to thousands of ranks"),
        _many_chart(curves),
        _legend([*(curve.algorithm for curve in curves), "ring-hidden"]),
        [_figures(curve) for curve in curves],
        [tag("p", broadcast) for curve in curves if (broadcast := curve.points[-1].broadcast_note)],
        tag("h3", "What these figures are based on"),
        tag("ul", [tag("li", line) for line in assumptions(curves)]),
        lead=lead,
    )


def _lost(point: Point) -> Markup:
    """Say what a step loses on so many ranks, and the most that hiding communication can gain."""
    return tag(
        "p",
        f"On {point.ranks} ranks a step takes {point.step_ms:.1f} ms, {point.lost_ms:.1f} ms"
        f" more than on one rank. Without them it would be {point.amdahl:.2f}x as fast"
        " (Amdahl); hiding communication cannot gain more.",
    )


def _figures(curve: Sweep) -> Markup:
    """Return the table of a curve, a row a number of ranks."""
    head = [
        "ranks",
        "nodes",
        "step, ms",
        "lost, ms",
        "link, ms",
        f"{curve.called}/s",
        "of the ideal",
        "all hidden",
        "at most",
        "from",
    ]
    rows = [
        [
            str(point.ranks),
            str(point.nodes),
            f"{point.step_ms:,.2f}",
            f"{point.lost_ms:,.2f}",
            f"{point.link_ms:,.2f}",
            f"{point.samples_per_s:,.0f}",
            words.format_share(point.efficiency),
            words.format_share(point.hidden_efficiency),
            f"{point.amdahl:.2f}x",
            point.source,
        ]
        for point in curve.points
    ]
    caption = (
        f"All-reduce as a {curve.algorithm}; at most: how many times as fast if nothing were"
        " lost (Amdahl)"
    )
    return table(head, rows, caption=caption, numeric=set(range(9)))


def _many_chart(curves: Sequence[Sweep]) -> Markup:
    """Draw the share of the ideal over ranks, the latter by doublings."""
    last = math.log2(max(point.ranks for curve in curves for point in curve.points)) or 1.0
    lines = [_sweep_line("ring-hidden", curves[0], last, lambda point: point.hidden_efficiency)]
    lines += [
        _sweep_line(curve.algorithm, curve, last, lambda point: point.efficiency)
        for curve in reversed(curves)
    ]
    marks = {math.log2(point.ranks) / last: str(point.ranks) for point in curves[0].points}
    levels = {level / 4: f"{level * 25}%" for level in range(5)}
    return _plot("Share of the ideal throughput over the number of ranks", lines, marks, levels, [])


def _few_chart(curve: Sweep, points: list[Point]) -> Markup:
    """Draw speed-up over ranks, both axes linear: the curve against its ideal and between its
    bounds.
    """
    end = points[-1].ranks
    kinds: list[tuple[str, Callable[[Point], float]]] = [
        ("ideal", lambda _: 1.0),
        ("hidden", lambda point: point.hidden_efficiency),
        ("exposed", lambda point: point.exposed_efficiency),
        ("ring", lambda point: point.efficiency),
    ]
    lines = [
        _Line(
            name,
            [(point.ranks / end, point.ranks * share(point) / end) for point in points],
            [
                f"{_NAMES[name]}: {point.ranks * share(point):.2f}x on {point.ranks}"
                for point in points
            ],
            [point.source == "reducer" for point in points],
        )
        for name, share in kinds
    ]
    numbers = []
    for point in points:
        x, y = _at(point.ranks / end, curve.speedup(point) / end)
        numbers.append(shapes.text(f"{curve.speedup(point):.2f}x", (x, y + 18), "middle"))
    marks = {point.ranks / end: str(point.ranks) for point in points}
    levels = {point.ranks / end: f"{point.ranks}x" for point in points}
    return _plot("Speed-up over one rank against the ideal", lines, marks, levels, numbers)


def _sweep_line(colour: str, curve: Sweep, last: float, share: Callable[[Point], float]) -> _Line:
    """Return a curve's line of `share` over doublings of ranks, of which there are `last`."""
    return _Line(
        colour,
        [(math.log2(point.ranks) / last, share(point)) for point in curve.points],
        [
            f"{_NAMES[colour]}: {words.format_share(share(point))} of the ideal on {point.ranks}"
            for point in curve.points
        ],
        [point.source == "reducer" for point in curve.points],
    )


def _plot(
    spoken: str,
    lines: Sequence[_Line],
    marks: Mapping[float, str],
    levels: Mapping[float, str],
    numbers: Sequence[Markup],
) -> Markup:
    """Draw lines over ranks. `marks` of the ranks and `levels` of the lines: their names by where
    they stand (0–1).
    """
    drawn = [shapes.line(_at(0, level), _at(1, level), "axis") for level in (0, *levels)]
    for level, name in levels.items():
        drawn.append(shapes.text(name, (_LEFT - 0.01, _at(0, level)[1] + 4), "end", "soft"))
    for share, name in marks.items():
        drawn.append(shapes.text(name, (_at(share, 0)[0], _BOTTOM + 18), "middle", "soft"))
    drawn.append(shapes.text("ranks", (_RIGHT, _BOTTOM + 34), "end", "soft"))
    return shapes.chart(spoken, _BOTTOM + 40, drawn, *map(_draw, lines), numbers)


def _draw(line: _Line) -> list[Markup]:
    """Return the line; dots with titles only on the script's own."""
    points = [_at(*point) for point in line.points]
    style = f"curve {line.colour.removeprefix('ring-')}"
    pieces = [shapes.line(left, right, style) for left, right in pairwise(points)]
    if line.colour in ("ring", "tree"):
        for point, title, ran in zip(points, line.titles, line.ran, strict=True):
            look = "dot {}" if ran else "dot {} replayed"
            pieces.append(shapes.dot(point, look.format(line.colour), title))
    return pieces


def _at(x: float, y: float) -> shapes.Point:
    """Return where a point of the plot (both 0–1) stands in the chart."""
    return _LEFT + (_RIGHT - _LEFT) * x, _BOTTOM - (_BOTTOM - _TOP) * y


def _legend(names: Sequence[str]) -> Markup:
    return tag(
        "ul",
        [
            tag("li", tag("span", class_=f"key curve-{name.removeprefix('ring-')}"), _NAMES[name])
            for name in names
        ],
        class_="legend",
    )
