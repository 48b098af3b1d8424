"""The page's section about a memory snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bottleneck_lab.analysis.memory.holders import Holder
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory
from bottleneck_lab.report.memory_table import LineTable, TableRow, tabulate_snapshot
from bottleneck_lab.report.memory_words import describe_levels, describe_refusal, list_blocks
from bottleneck_lab.report.page.charts import levels_chart
from bottleneck_lab.report.page.markup import Markup, Section, join, table, tag
from bottleneck_lab.report.page.verdict import section


def memory_section(memories: Sequence[DeviceMemory]) -> Section | None:
    """Render for every device how much is allocated and reserved, over time, and the lines that
    hold it; None without a device.
    """
    if not memories:
        return None
    drawn = []
    for memory in memories:
        refused = [
            tag("p", describe_refusal(refusal), class_="warning") for refusal in memory.refusals
        ]
        sentences = [tag("p", sentence) for sentence in describe_levels(memory)]
        drawn.append(
            tag(
                "div",
                tag("h3", f"Device {memory.device}"),
                refused,
                sentences,
                tag(
                    "p",
                    "Memory allocated over the recording, event by event; in the background, memory"
                    " reserved",
                    class_="soft",
                ),
                levels_chart(memory),
                cause_tables(tabulate_snapshot(memory), memory.holders, "Lines that hold memory"),
            )
        )
    return section(
        "memory",
        "Who holds the memory",
        drawn,
        lead=(
            "Each line counts everything allocated in the calls below it. That memory lives as long"
            " as anything in the program refers to it."
        ),
    )


def cause_tables(
    lines: LineTable,
    holders: Sequence[Holder],
    caption: str,
    name: Callable[[TableRow], Markup | str] = lambda row: row.name,
) -> Markup:
    """Render the lines that cause what memory holds, and the blocks of each that allocates."""
    numeric = {*range(1, len(lines.columns) + 1)}
    head = ["line", *(column.replace("\n", " ") for column in lines.columns)]
    rows = [[join(["\u2003" * row.part, name(row)]), *row.figures] for row in lines.rows]
    blocks = [list(row) for row in list_blocks(holders)]
    return join(
        [
            table(head, rows, caption=caption, numeric=numeric),
            table(
                ["line", "blocks in the end", "kept or freed"],
                blocks,
                caption="Their blocks, by the line that allocates them",
                numeric={1},
            ),
        ]
    )
