"""The page's section about single kernels: ncu's counters beside the library's, and what to attack
first.
"""

from __future__ import annotations

from bottleneck_lab.analysis.counters.kernel_counters import (
    Figure,
    Pair,
    compare_kernels,
    furthest_behind,
)
from bottleneck_lab.report import words
from bottleneck_lab.report.evidence_only import counters_only, counters_without_remedies
from bottleneck_lab.report.page.markup import Section, table, tag
from bottleneck_lab.report.page.verdict import section
from bottleneck_lab.trace.timeline import Timeline

_STYLES = {"good": "PASS", "fair": "INCONCLUSIVE", "poor": "FAIL", "": "soft"}


def counters_section(
    timeline: Timeline, *, blind: bool = False, remedies_later: bool = False
) -> Section:
    """Return every launch, the counters of the one that is furthest behind, its stalls, and unless
    `blind` what to attack; with `remedies_later` not how.
    """
    pairs = compare_kernels(timeline.counters)
    if blind:
        pairs = counters_only(pairs)
    elif remedies_later:
        pairs = counters_without_remedies(pairs)
    worst = furthest_behind(pairs)
    notes = [tag("p", note, class_="warning") for note in timeline.notes if "synthetic" in note]
    stalls = [[name, words.format_share(share)] for name, share in worst.own.stalls.items()]
    waits = None
    if stalls:
        waits = table(
            ["waiting for", "share"], stalls, caption="What its warps wait for", numeric={1}
        )
    targets = [
        tag("li", tag("b", target.title), tag("p", target.evidence), tag("p", target.advice))
        for target in worst.targets
    ]
    beside = worst.library.figure if worst.library else lambda _id: None
    lead = "Nothing stands out."
    if targets:
        lead = "What to attack first is at the top of the list below the tables."
    if blind:
        lead = ""
    return section(
        "counters",
        "Kernel counters",
        notes,
        table(
            ["launch", "time", "library's", "speed"],
            [_launch(pair) for pair in pairs],
            caption="Every launch",
            numeric={1, 2, 3},
        ),
        table(
            ["", "yours", "library's", "good is"],
            [
                [figure.label, _cell(figure), _cell(beside(figure.id)), figure.wanted]
                for figure in worst.own.figures
            ],
            caption="The launch that is furthest behind",
            numeric={1, 2, 3},
        ),
        waits,
        tag("ol", targets) if targets else None,
        lead=lead,
    )


def _launch(pair: Pair) -> list[str]:
    """Return a launch's row: its name, its time, the library's time, and its speed over that."""
    library = ""
    if pair.library:
        library = words.format_duration(pair.library.duration_ns)
    speed = ""
    if pair.ratio:
        speed = f"{pair.ratio:.2f}x"
    return [pair.own.name, words.format_duration(pair.own.duration_ns), library, speed]


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    mark = " poor" if figure.grade == "poor" else ""  # colour is only a second sign
    return tag("b", f"{figure.value:.3g}{figure.unit}{mark}", class_=_STYLES[figure.grade])
