"""Small charts as SVG: readable without script, in print, and by a screen reader through their
titles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import floor, log10

from bottleneck_lab.analysis.counters.roofline import Roofline
from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory
from bottleneck_lab.analysis.steps.window import Step
from bottleneck_lab.grading.criteria import format_figure, format_limit, format_range
from bottleneck_lab.grading.verdict import CriterionResult, Outcome, Verdict
from bottleneck_lab.report import words
from bottleneck_lab.report.breakdown import Part
from bottleneck_lab.report.page.markup import Markup, tag

MAX_COLUMNS = 200
COLUMN_HEIGHT = 56

# The chart of steps: its plot in shares of the width and in pixels. A few steps leave room on the
# right, instead of being as wide as they are high.
STEPS_LEFT, STEPS_RIGHT = 0.075, 1.0
STEPS_TOP, STEPS_HEIGHT = 18, 120
FEWEST_SLOTS = 8
MAX_LABELS = 16


def stacked_bar(parts: Sequence[tuple[str, str, float]], *, label: str) -> Markup:
    """Return one bar of 100%. `parts`: name, colour class, share (0–1); a share of at least 8%
    carries its figure.
    """
    pieces: list[Markup] = []
    left = 0.0
    for name, colour, share in parts:
        title = tag("title", f"{name}: {words.format_share(share)}")
        pieces.append(
            tag("rect", x=_percent(left), y=0, width=_percent(share), height=38, class_=colour)
        )
        if share >= 0.08:
            middle = _percent(left + share / 2)
            pieces.append(
                tag(
                    "text",
                    words.format_share(share),
                    x=middle,
                    y=24,
                    class_=f"inside on-{colour}",
                    text_anchor="middle",
                )
            )
        pieces[-1] = tag("g", pieces[-1], title)
        left += share
    return tag("svg", tag("title", label), pieces, role="img", height=38)


def criterion_bar(criterion: CriterionResult) -> Markup | None:
    """Return the value with its interval against the target; None without a number and a target."""
    gauge = words.gauge(criterion)
    if gauge is None:
        return None
    colour = {True: "fill-good", False: "fill-bad", None: "fill-value"}[criterion.holds]
    low, target = (_percent(figure / gauge.end) for figure in (gauge.low, gauge.target))
    unsure = _percent((gauge.high - gauge.low) / gauge.end)
    spoken = f"{words.format_measured(criterion)}, wanted {words.format_target(criterion)}"
    return tag(
        "svg",
        tag("title", spoken),
        tag("rect", x=0, y=4, width="100%", height=14, class_="ground"),
        tag("rect", x=0, y=4, width=low, height=14, class_=colour),
        tag("rect", x=low, y=4, width=unsure, height=14, class_=f"{colour} unsure"),
        tag("line", x1=target, x2=target, y1=0, y2=22, class_="target"),
        role="img",
        height=22,
    )


def gain_bars(predicted: float, measured: float | None) -> Markup:
    """Draw predicted above measured speed-up, on one scale."""
    end = max(predicted, measured or 0.0, 1.0) * 1.15
    rows: list[Markup] = []
    for row, (name, gain) in enumerate((("predicted", predicted), ("measured", measured))):
        y = row * 30
        rows.append(tag("text", name, x=0, y=y + 16, class_="soft"))
        figure = "not measured"
        if gain is not None:
            figure = f"{gain:.2f}x"
        width = 0.6 * (gain or 0.0) / end
        rows.append(
            tag("rect", x="24%", y=y + 3, width=_percent(width), height=18, class_="fill-value")
        )
        rows.append(tag("text", figure, x=_percent(0.25 + width), y=y + 16))
    return tag("svg", tag("title", "Predicted and measured speed-up"), rows, role="img", height=56)


def steps_chart(steps: Sequence[Step], parts: Sequence[Sequence[Part]] = ()) -> Markup | None:
    """Draw one column per step, as high as what the step took on host and device, in the colours of
    what the device did in it (`parts`, a list a step); None for one or two steps, of which the mean
    says as much.
    """
    if len(steps) < 3:
        return None
    # More steps than fit are drawn in groups, each as high as its longest: the slow step is what
    # is looked for.
    group = -(-len(steps) // MAX_COLUMNS)
    longest = [
        max(range(at, min(at + group, len(steps))), key=lambda nth: steps[nth].cost_ns)
        for at in range(0, len(steps), group)
    ]
    top = max(step.cost_ns for step in steps)
    ticks = list(_ticks(top))
    end = max(top, ticks[-1])
    slot = (STEPS_RIGHT - STEPS_LEFT) / max(len(longest), FEWEST_SLOTS)
    drawn: list[Markup] = []
    for tick in ticks:
        y = STEPS_TOP + STEPS_HEIGHT * (1 - tick / end)
        drawn.append(tag("line", x1=_percent(STEPS_LEFT), x2="100%", y1=y, y2=y, class_="axis"))
        label = "0"
        if tick:
            label = words.format_duration(tick)
        drawn.append(
            tag(
                "text",
                label,
                x=_percent(STEPS_LEFT - 0.008),
                y=y + 4,
                class_="soft",
                text_anchor="end",
            )
        )
    # So many numbers stand side by side; of more columns every n-th has one.
    labelled = -(-len(longest) // MAX_LABELS)
    for column, nth in enumerate(longest):
        step, x = steps[nth], STEPS_LEFT + column * slot
        drawn.append(_step_column(step, parts[nth] if parts else (), x, slot, end))
        if column % labelled:
            continue
        middle = _percent(x + 0.5 * slot)
        below = STEPS_TOP + STEPS_HEIGHT + 16
        drawn.append(
            tag("text", str(nth + 1), x=middle, y=below, class_="soft", text_anchor="middle")
        )
        if len(longest) <= MAX_LABELS:
            above = STEPS_TOP + STEPS_HEIGHT * (1 - step.cost_ns / end) - 5
            figure = words.format_duration(step.cost_ns)
            drawn.append(tag("text", figure, x=middle, y=above, text_anchor="middle"))
    spoken = f"Durations of {len(steps)} steps, the longest {words.format_duration(top)}"
    height = STEPS_TOP + STEPS_HEIGHT + 24
    return tag("svg", tag("title", spoken), drawn, role="img", height=height)


def _step_column(step: Step, parts: Sequence[Part], x: float, slot: float, end: float) -> Markup:
    """Draw a step's parts on top of each other, the first at the bottom; one title says
    them all.
    """
    listed = "".join(f"\n{part.label}: {words.format_duration(part.ns)}" for part in parts)
    bottom = float(STEPS_TOP + STEPS_HEIGHT)
    pieces = [(part.colour, part.ns) for part in parts] or [("cat-range", step.cost_ns)]
    drawn = []
    for colour, ns in pieces:
        height = STEPS_HEIGHT * ns / end
        bottom -= height
        drawn.append(
            tag(
                "rect",
                x=_percent(x + 0.04 * slot),
                y=bottom,
                width=_percent(0.92 * slot),
                height=height,
                class_=colour,
            )
        )
    title = f"{step.name}: {words.format_duration(step.cost_ns)}{listed}"
    return tag("g", tag("title", title), drawn)


def _ticks(top: float) -> Iterator[float]:
    """Yield two to five round numbers from 0 to about `top`: multiples of 1, 2 or 5 of a decade."""
    decade = 10 ** floor(log10(max(top, 1)))
    step = next(size * decade for size in (0.2, 0.5, 1, 2) if top / (size * decade) <= 5)
    for nth in range(int(top / step) + 1):
        yield nth * step


def memory_chart(use: MemoryUse) -> Markup | None:
    """Draw memory over the capture, from left to right; None if nothing was held."""
    if use.peak_bytes <= 0:
        return None
    columns = [(words.format_bytes(level), max(level, 0)) for level in use.levels_bytes]
    top = max((height for _, height in columns), default=0) or 1
    return tag(
        "svg",
        tag("title", f"Memory held over time, at most {words.format_bytes(use.peak_bytes)}"),
        _rects(columns, top, "cat-range"),
        role="img",
        height=COLUMN_HEIGHT,
    )


def levels_chart(memory: DeviceMemory) -> Markup | None:
    """Draw allocated in front of reserved memory, from left to right; None if nothing was
    recorded.
    """
    if not memory.events:
        return None
    top = memory.peak_reserved_bytes or 1
    drawn = [
        _rects([(f"{name} {words.format_bytes(level)}", level) for level in levels], top, style)
        for name, levels, style in (
            ("reserved", memory.reserved_levels_bytes, "ground"),
            ("allocated", memory.levels_bytes, "cat-range"),
        )
    ]
    spoken = (
        f"Allocated and reserved memory, at most {words.format_bytes(memory.peak_bytes)} of"
        f" {words.format_bytes(top)}"
    )
    return tag("svg", tag("title", spoken), *drawn, role="img", height=COLUMN_HEIGHT)


def _rects(columns: Sequence[tuple[str, int]], top: int, style: str) -> list[Markup]:
    """Draw columns side by side on one scale from 0 to `top`: the title and the height of each."""
    width = 1 / max(len(columns), 1)
    return [
        tag(
            "rect",
            tag("title", title),
            x=_percent(column * width),
            y=COLUMN_HEIGHT * (1 - height / top),
            width=_percent(1.02 * width),  # a little over the next one: no gap shows between them
            height=COLUMN_HEIGHT * height / top,
            class_=style,
        )
        for column, (title, height) in enumerate(columns)
    ]


def roofline_chart(roofline: Roofline) -> Markup | None:
    """Draw achieved FLOP/s over intensity, both on logarithmic axes, under one roof for each
    precision that occurs; None if the ceilings are unknown.
    """
    rows = [row for row in roofline.rows if row.ceiling_share >= 0]
    if roofline.machine is None or not rows:
        return None
    machine = roofline.machine
    precisions = sorted({row.precision for row in rows})
    slopes = [
        ("memory", machine.bytes_per_s),
        *((cache.name, cache.bytes_per_s) for cache in machine.caches),
    ]
    highest = max(machine.flops[precision] for precision in precisions)
    ends = [row.intensity for row in rows] + [highest / rate for _, rate in slopes]
    low, high = log10(min(ends)) - 0.4, log10(max(ends)) + 0.6
    top = log10(max(highest, *(row.flops_per_s for row in rows))) + 0.2
    bottom = min(log10(row.flops_per_s) for row in rows) - 0.3

    def at(intensity: float, rate: float) -> tuple[float, float]:
        return 0.02 + 0.9 * (log10(intensity) - low) / (high - low), 170 * (top - log10(rate)) / (
            top - bottom
        )

    drawn: list[Markup] = []
    for precision in precisions:
        ridge = at(max(10**low, machine.balance(precision)), machine.flops[precision])
        drawn += [
            _roof(ridge, (0.92, ridge[1])),
            tag("text", precision, x="93%", y=ridge[1] + 4, class_="soft"),
        ]
    for name, rate in slopes:  # from the left edge or the bottom to the highest level line
        start = max(10**low, 10**bottom / rate)
        if start < highest / rate:
            left = at(start, start * rate)
            drawn += [
                _roof(left, at(highest / rate, highest)),
                tag("text", name, x=_percent(left[0]), y=max(10.0, left[1] - 6), class_="soft"),
            ]
    for row in rows:
        x, y = at(row.intensity, row.flops_per_s)
        text = (
            f"{row.operator} {row.precision}: {words.format_flops(row.flops_per_s)},"
            f" {row.intensity:.3g} FLOP/byte"
        )
        drawn.append(
            tag("circle", tag("title", text), cx=_percent(x), cy=y, r=5, class_="fill-value")
        )
    drawn.append(tag("line", x1="2%", x2="92%", y1=174, y2=174, class_="axis"))
    drawn += [
        tag("text", text, x=x, y=192, class_="soft", text_anchor=side)
        for text, x, side in (
            (f"{10**low:.3g}", "2%", "start"),
            ("FLOP/byte →   (up: FLOP/s; both logarithmic)", "47%", "middle"),
            (f"{10**high:.3g}", "92%", "end"),
        )
    ]
    spoken = (
        f"Operators under the ceilings of {machine.name}: FLOP/s over FLOP/byte, both logarithmic"
    )
    return tag("svg", tag("title", spoken), drawn, role="img", height=198)


def _roof(left: tuple[float, float], right: tuple[float, float]) -> Markup:
    return tag(
        "line", x1=_percent(left[0]), y1=left[1], x2=_percent(right[0]), y2=right[1], class_="roof"
    )


def attempts_chart(attempts: Sequence[Verdict]) -> Markup | None:
    """Return the main criterion over the attempts, with its target; None if no attempt measured
    one.

    The main criterion is the first of kind `target` in the newest attempt that has one.
    """
    main = next(
        (
            each
            for verdict in reversed(attempts)
            for each in verdict.criteria
            if (each.kind == "target" and words.gauge(each) is not None)
        ),
        None,
    )
    if main is None:
        return None
    results = [
        next((each for each in verdict.criteria if each.id == main.id), None)
        for verdict in attempts
    ]
    gauges = [None if each is None else words.gauge(each) for each in results]
    end = max(gauge.end for gauge in gauges if gauge)

    def height(value: float) -> float:
        return 130 - 110 * value / end

    drawn = [tag("line", x1="8%", x2="94%", y1=130, y2=130, class_="axis")]
    if main.target is not None:
        y = height(main.target)
        drawn.append(tag("line", x1="8%", x2="94%", y1=y, y2=y, class_="target"))
        drawn.append(
            tag("text", format_limit(main.target, main.unit), x="7%", y=y + 4, text_anchor="end")
        )
    points: list[tuple[float, float]] = []
    dots, spans, numbers = [], [], []
    for nth, (verdict, result, gauge) in enumerate(zip(attempts, results, gauges, strict=True)):
        x = 0.08 + 0.86 * (nth + 0.5) / len(attempts)
        numbers.append(
            tag("text", str(nth + 1), x=_percent(x), y=150, class_="soft", text_anchor="middle")
        )
        if result is None or gauge is None:
            continue
        if result.holds is None and result.low is not None:
            # An undecided figure is drawn by its bounds, without a point estimate.
            bounds = format_range(gauge.low, gauge.high, main.unit, main.target)
            low_y, high_y = height(gauge.low), height(min(gauge.high, end))
            line = tag("line", x1=_percent(x), x2=_percent(x), y1=low_y, y2=high_y, class_="span")
            spans.append(tag("g", line, tag("title", f"INCONCLUSIVE: {bounds}")))
        else:
            points.append((x, height(gauge.value)))
            figure = format_figure(gauge.value, main.unit, main.target)
            dots.append(_attempt_dot(verdict.outcome, figure, *points[-1]))
    return tag(
        "svg",
        tag("title", f"{main.id} over {len(attempts)} attempts"),
        drawn,
        [
            tag(
                "line",
                x1=_percent(left[0]),
                y1=left[1],
                x2=_percent(right[0]),
                y2=right[1],
                class_="axis",
            )
            for left, right in pairwise(points)
        ],
        dots,
        spans,
        numbers,
        role="img",
        height=156,
    )


def _attempt_dot(outcome: Outcome, figure: str, x: float, y: float) -> Markup:
    """Draw an attempt's figure at `x` (0–1) and `y` in the colour of its outcome."""
    return tag(
        "g",
        tag("circle", cx=_percent(x), cy=y, r=5, class_=outcome.value),
        tag("text", figure, x=_percent(x), y=y - 10, text_anchor="middle"),
        tag("title", f"{outcome}: {figure}"),
    )


def _percent(share: float) -> str:
    return f"{max(0.0, min(1.0, share)) * 100:.3f}%"
