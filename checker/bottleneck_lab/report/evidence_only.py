"""Hide from learners what comes later: judgements until the diagnosis, remedies until the first
check.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from bottleneck_lab.analysis.counters.kernel_counters import KernelFigures, Pair
from bottleneck_lab.analysis.counters.roofline import Roofline
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.report import capture_words


def evidence_only(summary: Summary) -> Summary:
    """Return `summary` without causes of idle time, findings and ceilings; every renderer accepts
    it like any other.
    """
    replace: Any = msgspec.structs.replace
    devices = [
        replace(
            use, gap_causes=[], largest_gaps=[replace(gap, cause=None) for gap in use.largest_gaps]
        )
        for use in summary.devices
    ]
    rows: Sequence[Any] = summary.roofline.rows
    roofline = replace(
        summary.roofline, rows=[replace(row, bound="unknown", ceiling_share=-1.0) for row in rows]
    )
    return msgspec.structs.replace(
        summary,
        devices=devices,
        findings=[],
        withheld=[],
        collective_waits=None,
        gains={},
        sides=None,
        roofline=roofline,
        blind=True,
    )


UNCOUNTED = (
    "Work out each operator's FLOP per byte from its shapes: they are listed here once a check has"
    " judged your answers."
)
NO_SHAPES = (
    "This capture has no shapes, which FLOP per byte are counted from: pass record_shapes=True to"
    " the profiler."
)


def without_intensities(summary: Summary, *, judged: bool) -> Summary:
    """Return the summary of a capture from whose shapes the reader counts FLOP per byte: without
    them until the answers are `judged`, and always with why they are missing.
    """
    roofline = summary.roofline
    if not roofline.rows:
        roofline = Roofline(note=NO_SHAPES)
    elif not judged:
        roofline = Roofline(note=UNCOUNTED)
    return msgspec.structs.replace(summary, roofline=roofline)


def without_remedies(summary: Summary) -> Summary:
    """Return `summary` with findings that state what was seen and what it costs, but not what to
    do about it.
    """
    findings = [msgspec.structs.replace(each, advice="") for each in summary.findings]
    return msgspec.structs.replace(summary, findings=findings, remedies_later=True)


def without_taught(summary: Summary, taught: Collection[str]) -> Summary:
    """Return `summary` with findings of which those that are `taught`, by their ids, say where they
    are taught instead of what to do about them.
    """
    findings = [
        msgspec.structs.replace(each, advice=capture_words.TAUGHT) if each.id in taught else each
        for each in summary.findings
    ]
    return msgspec.structs.replace(summary, findings=findings)


def without_advice(summary: Summary) -> Summary:
    """Return the summary of a program that measures others, without findings and ceilings: advice
    on making it faster would be wrong.
    """
    return msgspec.structs.replace(
        summary, findings=[], withheld=[], gains={}, sides=None, measures=True
    )


def counters_without_remedies(pairs: list[Pair]) -> list[Pair]:
    """Return ncu's counters with what to attack, but not how."""
    return [
        msgspec.structs.replace(
            pair,
            targets=[msgspec.structs.replace(target, advice="") for target in pair.targets],
        )
        for pair in pairs
    ]


def counters_only(pairs: list[Pair]) -> list[Pair]:
    """Return ncu's counters without grades and without what to attack."""

    def plain(kernel: KernelFigures) -> KernelFigures:
        figures = [msgspec.structs.replace(figure, grade="") for figure in kernel.figures]
        return msgspec.structs.replace(kernel, figures=figures)

    return [
        msgspec.structs.replace(
            pair,
            own=plain(pair.own),
            library=plain(pair.library) if pair.library else None,
            targets=[],
        )
        for pair in pairs
    ]
