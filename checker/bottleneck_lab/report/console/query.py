"""The rows of a query in the terminal: a table, or records where it would not fit."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.report.kernel_names import short_names
from bottleneck_lab.report.words import format_bytes

_LEAST_TEXT = 16
"""Columns of text that would be folded to fewer letters make a table that nobody can read."""


def render_query(result: QueryResult, console: Console, *, short: bool) -> None:
    """Print the rows to fit a terminal; with `short`, kernels have their short names, and bytes the
    units of a report.
    """
    labels: dict[str, str] = {}
    if short and "name" in result.columns:
        names = [row[result.columns.index("name")] for row in result.rows]
        labels = short_names(name for name in names if isinstance(name, str))
    cells = [
        [
            format_bytes(value)
            if short and column == "bytes" and isinstance(value, int)
            else labels.get(str(value), _format_cell(value))
            for column, value in zip(result.columns, row, strict=True)
        ]
        for row in result.rows
    ]
    table, least_width = Table(box=box.SIMPLE_HEAD, pad_edge=False), 0
    for column, name in enumerate(result.columns):
        number = all(isinstance(row[column], int | float | None) for row in result.rows)
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold")
        # A number stays on one line; a text may be folded, but not to a few letters a line.
        longest = max(len(row[column]) for row in cells)
        least_width += max(len(name), longest if number else min(longest, _LEAST_TEXT)) + 3
    if least_width > console.width:
        _print_records(result.columns, cells, console)
        return
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_records(columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print the cells of each row one below the other, for more columns than a terminal holds."""
    for number, cells in enumerate(rows, start=1):
        console.print(Text(f"row {number:,}", style="bold"))
        record = Table.grid(padding=(0, 2))
        for name, cell in zip(columns, cells, strict=True):
            record.add_row(Text(f"  {name}"), Text(cell))
        console.print(record)


def _format_cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        text = f"{value:,.5g}"
        return f"{value:,.6f}".rstrip("0").rstrip(".") if "e" in text else text
    return "" if value is None else str(value)
