"""The rows of a query in the terminal: a table, or records where it would not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from bottleneck_lab.analysis.host.lines import LINE, without_folders
from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.analysis.questions import Question
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.report.kernel_names import short_names
from bottleneck_lab.report.words import format_bytes, format_count, format_rounded

_LEAST_TEXT = 16
"""Columns of text that would be folded to fewer letters make a table that nobody can read."""
_LEAST_LINE = 24
"""The name of a line of Python is cut and not folded, and to no fewer letters."""
_SAME_ROWS = 3
"""A number that so many rows have, and no row another, is told once."""
_COUNTS = ("launches", "calls_a_step", "times")
_GAP, _NARROW_GAP = 3, 2
"""What Rich puts between two columns, and with collapsed padding."""


class _Column(NamedTuple):
    """A column of a table, with its head as printed; `lines` if it holds names of lines, and then
    the `code` of each, where it is known; the number that all its rows have is the `same`.
    """

    name: str
    head: str
    cells: list[str]
    numbers: bool
    lines: bool
    code: list[str]
    same: str

    @property
    def longest(self) -> int:
        return max(map(len, [*self.head.split("\n"), *self.cells]))

    @property
    def least(self) -> int:
        """To how few letters its cells may be cut or folded; a number stays on one line."""
        if self.numbers:
            return self.longest
        least = _LEAST_LINE if self.lines else _LEAST_TEXT
        return min(self.longest, max(least, *map(len, self.head.split("\n"))))


def render_query(
    result: QueryResult,
    console: Console,
    question: Question | None = None,
    code: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print the rows to fit a terminal. Those of a ready question have short names of kernels and
    lines, the `code` of each line below its name, bytes in the units of a report, and no empty
    column; a number that all rows have is told below them, and where a terminal is narrow, they
    come without the question's spare columns.
    """
    every = _columns(result, code, short=question is not None)
    same = {each.name: each.same for each in every if question and each.same}
    columns = [each for each in every if each.name not in same]
    shown, gap = columns, _GAP
    if question and _least_width(columns, _GAP) > console.width:
        shown, gap = _narrowed(columns, question.spare, console.width), _NARROW_GAP
    if _least_width(shown, gap) > console.width:
        _print_records(every, console)
        return
    _print_table(shown, gap, console)
    for name, value in same.items():
        console.print(f"{name}: {value} in all rows that have one")
    kept = [each.name for each in shown]
    if left_out := [each.name for each in columns if each.name not in kept]:
        console.print(f"Left out for want of room: {', '.join(left_out)}. `--json` has all.")


def _same_number(values: Sequence[Any], cells: Sequence[str]) -> str:
    """Return the number that all rows have that have any; empty if they differ, or are few."""
    numbers = [each for each in values if each is not None]
    # Small numbers look alike once they are rounded.
    if len(numbers) < _SAME_ROWS or len({_format_cell(each, digits=4) for each in numbers}) > 1:
        return ""
    return next(filter(None, cells))


def _narrowed(columns: Sequence[_Column], spare: Sequence[str], width: int) -> list[_Column]:
    """Return the columns with heads on two lines, without as many of the spare ones as it takes."""
    shown = [
        each._replace(head="\n".join(each.head.rsplit("_", 1)).replace("_", " "))
        for each in columns
    ]
    for name in spare:
        if _least_width(shown, _NARROW_GAP) > width:
            shown = [each for each in shown if each.name != name]
    return shown


def _columns(result: QueryResult, code: Mapping[str, str], *, short: bool) -> list[_Column]:
    columns = []
    for head, values in zip(result.columns, zip(*result.rows, strict=True), strict=True):
        lines = short and any(isinstance(each, str) and LINE.match(each) for each in values)
        if not short or any(each is not None for each in values):
            cells = _short_cells(head, values) if short else [*map(_format_cell, values)]
            numbers = all(isinstance(each, int | float | None) for each in values)
            sources = [code.get(str(each), "") for each in values]
            same = _same_number(values, cells) if numbers else ""
            columns.append(_Column(head, head, cells, numbers, lines, sources, same))
    return columns


def _short_cells(head: str, values: Sequence[Any]) -> list[str]:
    """Return the cells of a column as a report has them."""
    if head == "bytes":
        return [format_bytes(each) if isinstance(each, int) else "" for each in values]
    labels = short_names(each for each in values if isinstance(each, str) and head == "name")
    return [
        without_folders(each)
        if isinstance(each, str) and LINE.match(each)
        else labels.get(str(each), _format_figure(head, each))
        for each in values
    ]


def _format_figure(head: str, value: object) -> str:
    """Return a cell of an answer: ms with two decimals, µs and percent with one."""
    if not isinstance(value, float):
        return _format_cell(value)
    if "ms" in head.split("_"):
        return format_rounded(value)
    if head in _COUNTS:
        return format_count(value)
    if head.endswith("us") or "percent" in head:
        return format_rounded(value, decimals=1)
    return _format_cell(value, digits=4)


def _least_width(columns: Sequence[_Column], gap: int) -> int:
    return sum(each.least + gap for each in columns)


def _print_table(columns: Sequence[_Column], gap: int, console: Console) -> None:
    sheet = Sheet(console)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=gap == _NARROW_GAP)
    room = console.width - sum(gap + (not each.lines) * each.longest for each in columns)
    cells = []
    for each in columns:
        justify: JustifyMethod = "right" if each.numbers else "left"
        table.add_column(Text(each.head), justify=justify, overflow="fold", no_wrap=each.lines)
        most = max(each.least, room)
        cells.append(
            [_cut(*pair, most, sheet) for pair in zip(each.cells, each.code, strict=True)]
            if each.lines
            else [*map(Text, each.cells)]
        )
    for row in zip(*cells, strict=True):
        table.add_row(*row)
    console.print(table)


def _cut(name: str, source: str, room: int, sheet: Sheet) -> Text:
    """Return the name of a line in `room` letters, of which its number is never cut, and its source
    below in as many.
    """
    text = Text(sheet.fit_line(name, room))
    return text.append(f"\n  {sheet.fit(source, room - 2)}", style="dim") if source else text


def _print_records(columns: Sequence[_Column], console: Console) -> None:
    """Print the cells of each row one below the other, for more columns than a terminal holds."""
    for number, cells in enumerate(zip(*(each.cells for each in columns), strict=True), start=1):
        console.print(Text(f"row {number:,}", style="bold"))
        record = Table.grid(padding=(0, 2))
        for column, cell in zip(columns, cells, strict=True):
            record.add_row(Text(f"  {column.head}"), Text(cell))
        console.print(record)


def _format_cell(value: object, *, digits: int = 5) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        text = f"{value:,.{digits}g}"
        if "e" not in text:
            return text
        # Neither 1.614e+04 nor 1.5e-05.
        return f"{value:,.0f}" if abs(value) >= 1 else f"{value:,.6f}".rstrip("0").rstrip(".")
    return "" if value is None else str(value)
