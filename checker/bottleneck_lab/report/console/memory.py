"""A memory snapshot in the terminal: how much, over time, and which lines hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.console import Console
from rich.text import Text

from bottleneck_lab.analysis.memory.holders import Holder
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.report.memory_words import (
    COLUMNS,
    caller_rows,
    describe_callers,
    describe_levels,
    describe_refusal,
    holder_cells,
    holder_rows,
    total_cells,
)
from bottleneck_lab.wording import counted

ROWS = 12
FEW = 2
"""So few more rows are shown, too: a sentence about them takes as much room."""
ON_THE_PAGE = "on the page that `--html` writes"
_LEAST_NAME = 20


def render_memory(memories: Sequence[DeviceMemory], console: Console) -> None:
    """Print a memory snapshot, device by device."""
    sheet = Sheet(console)
    for memory in memories:
        sheet.rule()
        sheet.line(
            f"Memory of device {memory.device}, as its allocator recorded it",
            style="bold",
            indent=1,
        )
        sheet.rule()
        sheet.heading("1  How much, and how it changed")
        for sentence in describe_levels(memory):
            sheet.line(sentence, indent=1)
        for refusal in memory.refusals:
            sheet.line(describe_refusal(refusal), indent=1, style="red")
        top = max(memory.peak_reserved_bytes, 1)
        if memory.events:
            for name, levels in (
                ("allocated", memory.levels_bytes),
                ("reserved", memory.reserved_levels_bytes),
            ):
                strip = sheet.strip(
                    [level / top for level in levels], max(10, min(len(levels), sheet.width - 14))
                )
                sheet.path(f"{name:10} {strip}", indent=1)
        print_holders(
            sheet, "2  Which lines of the program allocated the memory held", memory.holders, ROWS
        )
    if not memories:
        sheet.line(
            "The snapshot holds no memory and no events: was anything recorded before it was taken?"
        )


def print_holders(
    sheet: Sheet,
    heading: str,
    holders: Sequence[Holder],
    top: int,
    code: Mapping[str, str] = MappingProxyType({}),
    end: str = "at the end",
    rest_at: str = ON_THE_PAGE,
) -> None:
    """Print the first `top` lines that hold memory at that `end`, with their `code` and the lines
    that call them; growing ones are bold. The rest is to be found `rest_at`.
    """
    shown = holders if len(holders) <= top + FEW else holders[:top]
    sheet.heading(heading)
    if callers := describe_callers(shown):
        sheet.line(callers, indent=1, style="dim")
    # "after 57 of 58 steps" would take the room of the names.
    *above, held = end.replace(" of ", "\nof ").splitlines()
    head = [*(["", text, "", "", ""] for text in above), ["", held, "(blocks)", *COLUMNS[1:3]]]
    table = [*head, *holder_rows(shown), total_cells(holders)]
    name_width, *widths = (max(len(cells[at]) for cells in table) for at in range(5))
    # Beside the names: a space at their left, and one before each figure.
    room = sheet.width - 1 - sum(width + 1 for width in widths)
    name_width = min(name_width + 2, max(room, _LEAST_NAME))

    def write(cells: Sequence[str], style: str = "", lead: str = "") -> None:
        name = lead + sheet.fit_name(cells[0], name_width - len(lead))
        figures = "".join(
            f" {cell:>{width}}" for cell, width in zip(cells[1:5], widths, strict=True)
        )
        sheet.write(Text(sheet.safe(f" {name:{name_width}}{figures}".rstrip()), style=style))

    for cells in head:
        write(cells)
    for row in shown:
        cells = holder_cells(row)
        write(cells, "bold" if row.grows else "")
        sheet.source(code.get(row.line, ""), indent=3)
        for caller in caller_rows(row):
            write(caller, "dim", lead="  ")
        sheet.line(cells[-1], indent=3, style="dim")
    if rest := len(holders) - len(shown):
        sheet.line(f"and {counted(rest, 'more line')}, {rest_at}", indent=1, style="dim")
    if len(holders) > 1:
        write(total_cells(holders))
