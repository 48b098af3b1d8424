"""A memory snapshot in the terminal: how much, over time, and which lines hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.console import Console
from rich.text import Text

from bottleneck_lab.analysis.memory.holders import Holder
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.report.memory_table import LineTable, TableRow, tabulate_snapshot
from bottleneck_lab.report.memory_words import describe_levels, describe_refusal, list_blocks

ROWS = 12
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
                    [level / top for level in levels],
                    max(10, min(len(levels), sheet.width - 14)),
                    of_column=max,
                )
                sheet.path(f"{name:10} {strip}", indent=1)
        if memory.holders:
            heading = "2  Which lines of the program allocated the memory held"
            print_causes(sheet, heading, tabulate_snapshot(memory, ROWS))
    if not memories:
        sheet.line(
            "The snapshot holds no memory and no events: was anything recorded before it was taken?"
        )


def print_causes(
    sheet: Sheet,
    heading: str,
    lines: LineTable,
    code: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print the lines that cause what memory holds, with their `code`; growing ones are bold."""
    sheet.heading(heading)
    # Two lines of a head leave room for the names.
    heads = [head.split("\n") for head in lines.columns]
    above, below = (
        [head[at] if len(head) > 1 else head[0] * at for head in heads] for at in (0, 1)
    )
    head = [TableRow("", cells) for cells in (above, below) if any(cells)]
    table = [*head, *lines.rows]
    widths = [max(map(len, cells)) for cells in zip(*(row.figures for row in table), strict=True)]
    name_width = max(len(row.name) + 3 * row.part for row in table)
    # Beside the names: a space at their left, and two before each figure.
    room = sheet.width - 1 - sum(width + 2 for width in widths)
    name_width = min(name_width, max(room, _LEAST_NAME))
    for row in table:
        indent = "  " * row.part
        name = indent + sheet.fit_name(row.name, name_width - len(indent))
        figures = "".join(
            f"  {cell:>{width}}" for cell, width in zip(row.figures, widths, strict=True)
        )
        style = "dim" if row.part else "bold" * row.grows
        sheet.write(Text(sheet.safe(f" {name:{name_width}}{figures}".rstrip()), style=style))
        sheet.source(code.get(row.line, ""), indent=3)


def print_blocks(sheet: Sheet, holders: Sequence[Holder]) -> None:
    """Print what becomes of the blocks of each line that allocates."""
    sheet.heading("Their blocks, by the line that allocates them")
    for line, _, fate in list_blocks(holders):
        sheet.path(line, indent=1)
        sheet.line(fate, indent=3, style="dim")
