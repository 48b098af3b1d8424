"""The chart of a capture's steps: one column each, in the colours of what the device did in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, log10

from bottleneck_lab.analysis.steps.window import Step
from bottleneck_lab.report import words
from bottleneck_lab.report.breakdown import Part
from bottleneck_lab.report.page.markup import Markup, tag
from bottleneck_lab.report.page.shapes import box, chart, line, text

MAX_COLUMNS = 200
MAX_LABELS = 16
# A few steps leave room on the right, instead of being as wide as they are high.
FEWEST_SLOTS = 8
LEFT = 0.075
TOP, HEIGHT = 18, 120
BOTTOM = TOP + HEIGHT


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
    scale = HEIGHT / max(top, ticks[-1])
    drawn = []
    for tick in ticks:
        y = BOTTOM - tick * scale
        label = words.format_duration(tick) if tick else "0"
        drawn.append(line((LEFT, y), (1, y), "axis"))
        drawn.append(text(label, (LEFT - 0.008, y + 4), "end", "soft"))
    slot = (1 - LEFT) / max(len(longest), FEWEST_SLOTS)
    # So many numbers stand side by side; of more columns every n-th has one.
    labelled = -(-len(longest) // MAX_LABELS)
    for column, nth in enumerate(longest):
        step, x = steps[nth], LEFT + column * slot
        drawn.append(_column(step, parts[nth] if parts else (), x, slot, scale))
        middle = x + 0.5 * slot
        if column % labelled == 0:
            drawn.append(text(str(nth + 1), (middle, BOTTOM + 16), "middle", "soft"))
        if len(longest) <= MAX_LABELS:
            above = BOTTOM - step.cost_ns * scale - 5
            drawn.append(text(words.format_duration(step.cost_ns), (middle, above), "middle"))
    spoken = f"Durations of {len(steps)} steps, the longest {words.format_duration(top)}"
    return chart(spoken, BOTTOM + 24, drawn)


def _column(step: Step, parts: Sequence[Part], x: float, slot: float, scale: float) -> Markup:
    """Draw a step's parts on top of each other, the first at the bottom, `scale` pixels a ns; one
    title says them all.
    """
    listed = "".join(f"\n{part.label}: {words.format_duration(part.ns)}" for part in parts)
    bottom = float(BOTTOM)
    drawn = []
    for colour, ns in [(part.colour, part.ns) for part in parts] or [("cat-range", step.cost_ns)]:
        bottom -= ns * scale
        drawn.append(box(x + 0.04 * slot, bottom, 0.92 * slot, ns * scale, colour))
    title = f"{step.name}: {words.format_duration(step.cost_ns)}{listed}"
    return tag("g", tag("title", title), drawn)


def _ticks(top: float) -> Iterator[float]:
    """Yield two to five round numbers from 0 to about `top`: multiples of 1, 2 or 5 of a decade."""
    decade = 10 ** floor(log10(max(top, 1)))
    step = next(size * decade for size in (0.2, 0.5, 1, 2) if top / (size * decade) <= 5)
    for nth in range(int(top / step) + 1):
        yield nth * step
