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
    caller_rows,
    describe_levels,
    describe_refusal,
    holder_cells,
    total_cells,
)
from bottleneck_lab.wording import counted

ROWS = 12
_LINE, _HELD, _BLOCKS, _PEAK, _GROWTH = 27, 11, 9, 12, 20


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
) -> None:
    """Print the first `top` lines that hold memory at that `end`, with their `code` and the lines
    that call them; growing ones are bold.
    """
    sheet.heading(heading)

    def write(cells: Sequence[str], style: str = "", lead: str = "") -> None:
        line, held, blocks, peak, growth, _ = cells
        figures = f"{held:>{_HELD}}{blocks:>{_BLOCKS}}{peak:>{_PEAK}}{growth:>{_GROWTH}}"
        name = lead + sheet.fit_name(line, _LINE - 1 - len(lead))
        sheet.write(Text(sheet.safe(f" {name:{_LINE}}{figures}"), style=style))

    write(["", end, "(blocks)", "at the peak", "growth", ""])
    for row in holders[:top]:
        cells = holder_cells(row)
        write(cells, "bold" if row.grows else "")
        sheet.source(code.get(row.line, ""), indent=3)
        for caller in caller_rows(row):
            write(caller, "dim", lead="  ")
        sheet.line(cells[-1], indent=3, style="dim")
    rest = len(holders) - top
    if rest > 0:
        sheet.line(
            f"and {counted(rest, 'more line')}, on the page that `--html` writes",
            indent=1,
            style="dim",
        )
    if len(holders) > 1:
        write(total_cells(holders))
