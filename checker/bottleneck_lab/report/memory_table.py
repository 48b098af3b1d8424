"""The table of the lines that cause what memory holds, shared by all renderings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from bottleneck_lab.analysis.memory.causing import Cause, add_up, group_by_cause
from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.memory.holders import Caller
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory
from bottleneck_lab.report import words
from bottleneck_lab.wording import counted

FEW = 2
"""So few more lines are shown, too: their sum takes as much room."""
NOTHING = "-"
HELD, AT_PEAK, GROWTH = "at the end", "at the peak", "growth"
KEPT, LATE = "kept for good\nper step", "freed later\nper step"
"""Heads of columns."""


class TableRow(NamedTuple):
    """A row: its name, its figures, the `line` whose code stands below it (empty: none), and if it
    is a `part` of the row above and if it `grows`.
    """

    name: str
    figures: list[str]
    line: str = ""
    part: bool = False
    grows: bool = False


class LineTable(NamedTuple):
    """Lines by what they cause; `columns` are the heads of the figures, with a line break where
    they may be parted.
    """

    columns: list[str]
    rows: list[TableRow]


def tabulate_use(use: MemoryUse, top: int | None = None) -> LineTable:
    """Return the lines of a capture, the first `top` one by one; the rows add up to the peak."""
    causes = group_by_cause(use.holders)
    columns = _columns(use.steps)
    rows = _list_causes(causes, top, columns)
    listed = add_up("the peak", [cause.total for cause in causes])
    if rest := use.peak_bytes - listed.peak_bytes:
        start = f"of the {words.format_bytes(use.first_bytes)} at the start"
        name = start if rest <= use.first_bytes else "the rest"
        rows.append(TableRow(name, _figures(Caller(name, 0, rest, 0), columns)))
    peak = replace(listed, peak_bytes=use.peak_bytes)
    return LineTable(columns, [*rows, TableRow(peak.line, _figures(peak, columns))])


def tabulate_snapshot(memory: DeviceMemory, top: int | None = None) -> LineTable:
    """Return the lines of a snapshot, the first `top` one by one, and what they come to."""
    causes = sorted(group_by_cause(memory.holders), key=lambda cause: -cause.total.held_bytes)
    columns = [HELD, *_columns(memory.steps)]
    rows = _list_causes(causes, top, columns)
    if len(causes) > 1:
        total = add_up("all of these", [cause.total for cause in causes])
        rows.append(TableRow(total.line, _figures(total, columns)))
    return LineTable(columns, rows)


def _columns(steps: int) -> list[str]:
    return [AT_PEAK, KEPT, LATE] if steps else [AT_PEAK, GROWTH]


def _list_causes(causes: Sequence[Cause], top: int | None, columns: list[str]) -> list[TableRow]:
    """Return the `top` lines with a figure and the parts of each, then the sum of the others."""
    causes = [each for each in causes if {*_figures(each.total, columns)} != {NOTHING}]
    shown = causes if top is None or len(causes) <= top + FEW else causes[:top]
    rows = []
    for cause in shown:
        total = cause.total
        grows = total.growth_bytes > 0
        rows.append(TableRow(cause.line, _figures(total, columns), cause.line, grows=grows))
        if [part.line for part in cause.parts] != [cause.line]:
            rows += [
                TableRow(
                    "itself" if part.line == cause.line else f"at {part.line}",
                    _figures(part, columns),
                    part=True,
                )
                for part in cause.parts
            ]
    if others := causes[len(shown) :]:
        total = add_up(counted(len(others), "more line"), [cause.total for cause in others])
        rows.append(TableRow(total.line, _figures(total, columns)))
    return rows


def _figures(part: Caller, columns: Sequence[str]) -> list[str]:
    """Return figures in the order of `columns`."""
    sizes = {
        HELD: part.held_bytes,
        AT_PEAK: part.peak_bytes,
        GROWTH: part.growth_bytes,
        KEPT: part.growth_bytes_per_step,
        LATE: part.late_bytes_per_step,
    }
    return [words.format_bytes(sizes[each]) if sizes[each] else NOTHING for each in columns]
