"""The table of the lines that cause what memory holds, shared by all renderings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    listed = add_up("the peak", [cause.total for cause in causes])
    peak = replace(listed, peak_bytes=use.peak_bytes)
    columns = _columns(use.steps, peak)
    rows = _list_causes(causes, top, columns)
    if rest := use.peak_bytes - listed.peak_bytes:
        start = words.format_in(columns[AT_PEAK], use.start_bytes)
        name = f"still held of {start} at the start" if rest <= use.start_bytes else "the rest"
        rows.append(TableRow(name, _figures(Caller(name, 0, rest, 0), columns)))
    return LineTable([*columns], [*rows, TableRow(peak.line, _figures(peak, columns))])


def tabulate_snapshot(memory: DeviceMemory, top: int | None = None) -> LineTable:
    """Return the lines of a snapshot, the first `top` one by one, and what they come to."""
    causes = sorted(group_by_cause(memory.holders), key=lambda cause: -cause.total.held_bytes)
    total = add_up("all of these", [cause.total for cause in causes])
    columns = {HELD: words.unit_of(total.held_bytes), **_columns(memory.steps, total)}
    rows = _list_causes(causes, top, columns)
    if len(causes) > 1:
        rows.append(TableRow(total.line, _figures(total, columns)))
    return LineTable([*columns], rows)


Columns = Mapping[str, tuple[int, str]]
"""The unit of each column, by its head."""


def _columns(steps: int, total: Caller) -> Columns:
    """Return the columns of a table whose rows come to `total`: its figure sets each one's unit."""
    heads = [AT_PEAK, KEPT, LATE] if steps else [AT_PEAK, GROWTH]
    sizes = _sizes(total)
    return {head: words.unit_of(sizes[head]) for head in heads}


def _list_causes(causes: Sequence[Cause], top: int | None, columns: Columns) -> list[TableRow]:
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


def _figures(part: Caller, columns: Columns) -> list[str]:
    """Return figures in the order of `columns`."""
    sizes = _sizes(part)
    return [
        words.format_in(unit, sizes[head]) if sizes[head] else NOTHING
        for head, unit in columns.items()
    ]


def _sizes(part: Caller) -> dict[str, int]:
    return {
        HELD: part.held_bytes,
        AT_PEAK: part.peak_bytes,
        GROWTH: part.growth_bytes,
        KEPT: part.growth_bytes_per_step,
        LATE: part.late_bytes_per_step,
    }
