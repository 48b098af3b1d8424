"""The page's section about a memory snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from bottleneck_lab.analysis.memory.snapshot import DeviceMemory
from bottleneck_lab.report.memory_words import (
    COLUMNS,
    describe_callers,
    describe_levels,
    describe_refusal,
    holder_rows,
)
from bottleneck_lab.report.page.charts import levels_chart
from bottleneck_lab.report.page.markup import Section, table, tag
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
                tag("p", describe_callers(memory.holders), class_="soft"),
                table(
                    ["line", "at the end", *COLUMNS],
                    holder_rows(memory.holders),
                    caption="Lines that hold memory",
                    numeric={1, 2, 3, 4},
                ),
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
