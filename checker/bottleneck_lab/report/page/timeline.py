"""The page's timeline: the canvas with its tools, and the packed rows that timeline.js draws."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bottleneck_lab.report import words
from bottleneck_lab.report.page.markup import Markup, Section, join, table, tag
from bottleneck_lab.report.page.packing import PackedTimeline
from bottleneck_lab.report.page.verdict import section

_TOOLS = (
    ("in", "Zoom in"),
    ("out", "Zoom out"),
    ("left", "◀ Earlier"),
    ("right", "Later ▶"),
    ("all", "Show all"),
    ("gap", "Next longest gap"),
    ("mark", "Sum up what is shown"),
)
_JSON_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
INVITATION = "Click a bar: its name, time and place are shown here."
"""Stands where a bar's details will; else there is an empty line below the timeline."""
_KEYS = (
    ("+ −", "zoom"),
    ("← →", "move"),
    ("↑ ↓", "scroll"),
    ("0", "all"),
    ("g", "next gap"),
    ("m", "sum up"),
)

_NO_PART = 0.01
"""Time outside the steps is named from this share (0-1) of their time on."""


def timeline_section(
    packed: PackedTimeline,
    *,
    events: int,
    counted_ns: int = 0,
    before_ns: int = 0,
    of_steps: bool = False,
    blind: bool = False,
) -> Section:
    """Return the drawn timeline of `events` rows, with its legend and, for those who cannot see it,
    a table of its lanes. `counted_ns`: how long the stretch is that the report is of (`of_steps`:
    that of the marked steps), and `before_ns` what comes before it.
    """
    span = words.format_duration(packed.head["span_ns"])
    hatched = "hatched in the colour of their cause"
    if blind:
        hatched = "hatched"
    after_ns = packed.head["span_ns"] - before_ns - counted_ns
    parts = [
        f"{words.format_duration(ns)} {where}"
        for where, ns in (("before", before_ns), ("after", after_ns))
        if ns > _NO_PART * counted_ns > 0
    ]
    counted = ""
    if of_steps or parts:
        whose = "the steps take" if of_steps else "this report is of"
        counted = f", of which {whose} {words.format_duration(counted_ns)}"
        counted += f" ({' and '.join(parts)} left out)" if parts else ""
    lead = (
        f"All {events:,} recorded events over {span}{counted}; gaps in a device's work are"
        f" {hatched}."
    )
    legend = [
        tag("li", tag("span", class_=f"key {each['colour']}"), each["label"])
        for each in packed.categories
    ]
    body = tag(
        "div",
        _tools(),
        _drawing(span),
        _usage(),
        tag("ul", legend, class_="legend", aria_label="Legend"),
        id="timeline",
    )
    # Head and columns in scripts that are not run. No `<` is left in the head, so that no name in
    # the capture can end the script.
    head = msgspec.json.encode(packed.head).decode().translate(_JSON_ESCAPES)
    data = [
        tag("script", Markup(head), type="application/json", id="timeline-head"),
        tag("script", Markup(packed.data), type="text/plain", id="timeline-data"),
    ]
    lanes = tag("details", tag("summary", "The timeline's lanes as a table"), _lanes_table(packed))
    return section("steps", "Timeline", body, lanes, join(data), lead=lead)


def _buttons(labels: Sequence[tuple[str, str]]) -> list[Markup]:
    """Return a button for each action of timeline.js, with its label."""
    return [tag("button", label, type="button", data_action=action) for action, label in labels]


def _tools() -> Markup:
    search = tag(
        "input",
        type="search",
        placeholder="Highlight a name",
        aria_label="Highlight events by name",
    )
    return tag("div", _buttons(_TOOLS), search, class_="tools")


def _drawing(span: str) -> Markup:
    """Return the canvases that timeline.js draws on, and what it fills in: the tip at the pointer,
    the event that was clicked, and what every lane did in the stretch that is marked.
    """
    spoken = (
        f"Timeline of {span}. Arrow keys move, plus and minus zoom, g shows the next longest gap. A"
        " table follows."
    )
    lanes = tag("canvas", class_="lanes", tabindex=0, role="application", aria_label=spoken)
    close = _buttons([("marked", "Zoom to it"), ("clear", "Close")])
    marked = tag("p", tag("b"), " marked: ", tag("code"), " ", close, aria_live="polite")
    sums = table(
        ["where", "lane", "time", "share", "most of it"],
        [],
        caption="What happened in it",
        numeric={2, 3},
    )
    return join(
        [
            tag("canvas", class_="overview", aria_hidden="true"),
            tag("div", tag("div", lanes, class_="spacer"), class_="scroller"),
            tag("div", tag("b"), tag("span"), class_="tip", hidden=True),
            tag("p", INVITATION, class_="soft detail", aria_live="polite"),
            tag("div", marked, sums, class_="sums", hidden=True),
        ]
    )


def _usage() -> Markup:
    mouse = (
        "Click, then use the wheel to zoom; drag to move; drag along the ruler, or with Shift, to"
        " mark a stretch and see its sums.  "
    )
    keys = [
        join([tag("span", tag("kbd", key), f" {what}", class_="together"), "   "])
        for key, what in _KEYS
    ]
    return tag("p", mouse, keys, class_="soft hint")


def _lanes_table(packed: PackedTimeline) -> Markup:
    rows = [
        [
            lane["group"],
            lane["label"],
            f"{lane['events']:,}",
            words.format_duration(lane["busy_ns"]),
        ]
        for lane in packed.head["lanes"]
    ]
    return table(
        ["where", "lane", "events", "busy"], rows, caption="Lanes of the timeline", numeric={2, 3}
    )
