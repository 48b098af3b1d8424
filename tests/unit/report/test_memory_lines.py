"""The table of lines that hold memory, as a terminal shows it."""

from __future__ import annotations

import re
from functools import partial
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace

from bottleneck_lab.analysis.memory.causing import group_by_cause
from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.memory.holders import Caller, Holder
from bottleneck_lab.analysis.summary import analyse, summarise
from bottleneck_lab.report.console.memory import print_causes
from bottleneck_lab.report.console.summary import render_summary
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.report.memory_table import FEW, tabulate_use
from bottleneck_lab.report.memory_words import MIB
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.report.page.tables import memory_tables
from bottleneck_lab.trace import load

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"
CALLERS = (
    Caller("train.py(52): train", 18 << 20, 18 << 20, 320 << 10),
    Caller("train.py(46): train", 3 << 20, 3 << 20, 0, late_bytes_per_step=320 << 10),
)
LARGEST = Holder(
    "recipe.py(23): forward", 21 << 20, 660, 21 << 20, 18 << 20, 320 << 10, True, 4560, 0.8, ""
)
LARGEST = replace(LARGEST, callers=CALLERS, late_bytes_per_step=320 << 10)


def holders(count: int) -> list[Holder]:
    lone = replace(LARGEST, callers=())
    return [replace(lone, line=f"net.py({number}): forward") for number in range(count)]


def use_of(rows: list[Holder], **changes: object) -> MemoryUse:
    """A capture's memory in which these lines have made all of the peak but 1 MiB."""
    (use,) = summarise(load(CAPTURES / "synthetic-growth.json.gz")).memory
    peak_bytes = sum(row.peak_bytes for row in rows) + MIB
    return replace(
        use, holders=rows, peak_bytes=peak_bytes, first_bytes=MIB, first_record_bytes=0, **changes
    )


def lines(draw, rows, *, top=5, width=80):
    def render(console):
        print_causes(Sheet(console), "Lines", tabulate_use(use_of(rows), top), {})

    return draw(render, width=width).splitlines()


def test_lines_are_listed_by_what_they_cause_and_add_up_to_the_peak():
    """Four rows had to be added by hand: 320, 340, 32 and 20 KiB of one line."""
    head = Holder("train.py(31): forecast", MIB, 9, 19 * MIB, MIB, 340 << 10, True, 9, 0.0, "")
    head = replace(head, callers=(Caller("train.py(52): train", MIB, 19 * MIB, 340 << 10),))
    own = Holder("train.py(52): train", MIB, 9, MIB, MIB, 20 << 10, True, 9, 0.0, "")
    table = tabulate_use(use_of([LARGEST, head, own]))
    assert table.columns == [
        "at the peak",
        "kept for good\nper step",
        "freed later\nper step",
    ]
    assert [(row.part, row.name, *row.figures) for row in table.rows] == [
        (False, "train.py(52): train", "38.00 MiB", "680.00 KiB", "-"),
        (True, "at train.py(31): forecast", "19.00 MiB", "340.00 KiB", "-"),
        (True, "at recipe.py(23): forward", "18.00 MiB", "320.00 KiB", "-"),
        (True, "itself", "1.00 MiB", "20.00 KiB", "-"),
        (False, "train.py(46): train", "3.00 MiB", "-", "320.00 KiB"),
        (True, "at recipe.py(23): forward", "3.00 MiB", "-", "320.00 KiB"),
        (False, "still held of 1.00 MiB at the start", "1.00 MiB", "-", "-"),
        (False, "the peak", "42.00 MiB", "680.00 KiB", "320.00 KiB"),
    ]


def test_the_part_without_a_caller_is_a_line_of_its_own():
    """Where something is let go of, the stack has none."""
    row = replace(LARGEST, peak_bytes=22 * MIB, growth_bytes_per_step=330 << 10)
    (*_, own) = group_by_cause([row])
    assert (own.line, own.total.peak_bytes, own.total.growth_bytes_per_step) == (
        row.line,
        MIB,
        10 << 10,
    )


def test_memory_of_other_lines_is_not_from_before():
    use = replace(use_of([LARGEST]), first_bytes=0)
    assert [row.name for row in tabulate_use(use).rows][-2:] == ["the rest", "the peak"]


def test_a_table_without_steps_has_the_growth_since_the_start():
    row = replace(LARGEST, callers=(), growth_bytes_per_step=0)
    table = tabulate_use(use_of([row], steps=0))
    assert table.columns == ["at the peak", "growth"]
    assert table.rows[0].figures == ["21.00 MiB", "18.00 MiB"]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("late", [2867 << 10, 288 << 10, 1023 << 10])
def test_figures_never_touch_and_their_columns_end_alike(draw, width, late):
    caller = replace(CALLERS[1], late_bytes_per_step=late)
    row = replace(LARGEST, callers=(CALLERS[0], caller), late_bytes_per_step=late)
    shown = lines(draw, [row, row], width=width)
    table = [line for line in shown if line.endswith(("later", "per step", "iB", "-"))]
    assert len({len(line) for line in table}) == 1
    assert max(map(len, shown)) <= width
    assert re.search(r" at the peak +per step +per step$", "\n".join(shown), re.MULTILINE)


def test_a_long_name_takes_the_room_that_a_wide_terminal_has(draw):
    row = replace(LARGEST, line="blocks.py(1234): forward_with_key_value_cache", callers=())
    assert row.line in "\n".join(lines(draw, [row], width=100))
    narrow = lines(draw, [row], width=80)
    assert row.line not in "\n".join(narrow)
    assert max(map(len, narrow)) <= 80


@pytest.mark.parametrize("of_memory", [True, False])
def test_a_page_of_a_lab_about_memory_begins_with_memory(of_memory):
    capture = analyse(load(CAPTURES / "synthetic-growth.json.gz"))
    summary = replace(capture.summary, of_memory=of_memory)
    page = render_html(title="x", capture=capture._replace(summary=summary))
    assert (page.index('id="operators"') < page.index('id="time"')) is of_memory


def test_one_or_two_more_lines_are_shown_instead_of_added_up(draw):
    shown = "\n".join(lines(draw, holders(5 + FEW)))
    assert "net.py(6)" in shown
    assert "more line" not in shown
    shown = "\n".join(lines(draw, holders(6 + FEW)))
    assert "net.py(5)" not in shown
    assert re.search(r"^ 3 more lines +63\.00 MiB +0\.94 MiB +0\.94 MiB$", shown, re.MULTILINE)


def test_the_whole_report_shows_all_lines(draw):
    capture = summarise(load(CAPTURES / "synthetic-growth.json.gz"))
    capture = replace(capture, memory=[replace(use, holders=holders(9)) for use in capture.memory])
    for of_memory in (True, False):
        summary = replace(capture, of_memory=of_memory)
        shown = draw(render_summary, summary)
        assert "net.py(5)" not in shown
        assert "4 more lines  " in shown
        assert "Their blocks" not in shown
        shown = draw(partial(render_summary, whole=True), summary)
        assert "net.py(8)" in shown
        assert "more lines  " not in shown
        assert "Their blocks, by the line that allocates them" in shown


def test_what_no_step_has_left_stands_below_the_parts_of_the_peak(draw):
    capture = summarise(load(CAPTURES / "synthetic-growth.json.gz"))
    left = (
        "Had the steps before the peak's left nothing behind, the peak would be 272.00 − 12.00 ="
        " 260.00 MiB. A fix may end above that, by what it still keeps between steps, or below, as"
        " it may free the tensors of a step sooner."
    )
    shown = draw(render_summary, capture).splitlines()
    peak = next(at for at, line in enumerate(shown) if "MiB  at the peak: in " in line)
    below = next(at for at, line in enumerate(shown) if line.startswith("  Had the steps"))
    assert below - peak <= 2
    assert left in " ".join(" ".join(shown[below : below + 4]).split())
    assert left in unescape(str(memory_tables(capture)))
    steady = [replace(use, growth_bytes_per_step=0) for use in capture.memory]
    assert "left nothing" not in draw(
        partial(render_summary, whole=True), replace(capture, memory=steady)
    )
