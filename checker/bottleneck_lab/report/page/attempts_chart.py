"""The chart of a learner's attempts: the figure that decides, from check to check."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from bottleneck_lab.catalog import criterion_label
from bottleneck_lab.grading.criteria import format_figure, format_limit, format_range
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Verdict
from bottleneck_lab.report import verdict_words
from bottleneck_lab.report.page.markup import Markup, tag
from bottleneck_lab.report.page.shapes import Point, chart, dot, line, text

LEFT, RIGHT, TOP, BOTTOM = 0.08, 0.94, 20, 130


def attempts_chart(attempts: Sequence[Verdict]) -> Markup | None:
    """Return the criterion that the lab is about over the attempts, with its target if it has one;
    None if no attempt measured it.
    """
    id_ = verdict_words.main_criterion(attempts)
    results = [
        next((each for each in verdict.criteria if each.id == id_), None) for verdict in attempts
    ]
    gauges = [None if each is None else _gauge(each) for each in results]
    end = max((gauge.end for gauge in gauges if gauge), default=0.0)
    main = next((each for each in reversed(results) if each and each.value is not None), None)
    if main is None or not end:
        return None

    def height(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / end

    drawn = [line((LEFT, BOTTOM), (RIGHT, BOTTOM), "axis")]
    if main.target is not None:
        y = height(main.target)
        drawn.append(line((LEFT, y), (RIGHT, y), "target"))
        drawn.append(text(format_limit(main.target, main.unit), (LEFT - 0.01, y + 4), "end"))
    points: list[Point] = []
    marks = []
    for nth, (verdict, result, gauge) in enumerate(zip(attempts, results, gauges, strict=True)):
        x = LEFT + (RIGHT - LEFT) * (nth + 0.5) / len(attempts)
        marks.append(text(str(nth + 1), (x, BOTTOM + 20), "middle", "soft"))
        if result is None or gauge is None:
            continue
        if result.holds is None and result.low is not None:
            # An undecided figure is drawn by its bounds, without a point estimate.
            bounds = format_range(gauge.low, gauge.high, main.unit, main.target)
            span = line((x, height(gauge.low)), (x, height(min(gauge.high, end))), "span")
            marks.append(tag("g", span, tag("title", f"INCONCLUSIVE: {bounds}")))
        else:
            points.append((x, height(gauge.value)))
            figure = format_figure(gauge.value, main.unit, main.target)
            marks.append(_attempt(verdict.outcome, figure, points[-1]))
    path = [line(start, end, "axis") for start, end in pairwise(points)]
    label = criterion_label(attempts[-1].lab, attempts[-1].device, main.id)
    return chart(f"{label} over {len(attempts)} attempts", BOTTOM + 26, drawn, path, marks)


def _gauge(result: CriterionResult) -> verdict_words.Gauge | None:
    """Return the figures to draw; without a target, those that were measured."""
    if result.target is None:
        result = msgspec.structs.replace(result, target=result.value)
    return verdict_words.gauge(result)


def _attempt(outcome: Outcome, figure: str, at: Point) -> Markup:
    """Draw an attempt's figure in the colour of its outcome."""
    return tag(
        "g",
        dot(at, outcome.value),
        text(figure, (at[0], at[1] - 10), "middle"),
        tag("title", f"{outcome}: {figure}"),
    )
