"""The table of lines that hold memory, as a terminal shows it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from bottleneck_lab.analysis.memory.holders import Caller, Holder
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.report.console.memory import FEW, print_holders
from bottleneck_lab.report.console.summary import render_summary
from bottleneck_lab.report.console.terminal import Sheet
from bottleneck_lab.report.page.tables import memory_tables
from bottleneck_lab.trace import load

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"
CALLERS = (
    Caller("train.py(52): train", 18 << 20, 18 << 20, 320 << 10),
    Caller("train.py(46): train", 3 << 20, 3 << 20, 0, fall_bytes=3 << 20),
)
LARGEST = Holder(
    "recipe.py(23): forward", 21 << 20, 660, 21 << 20, 18 << 20, 320 << 10, True, 4560, 0.8, ""
)
LARGEST = replace(LARGEST, callers=CALLERS)


def holders(count: int) -> list[Holder]:
    return [replace(LARGEST, line=f"net.py({number}): forward") for number in range(count)]


def lines(draw, rows, *, top=5, end="after 57 of 58 steps", width=80):
    def render(console):
        print_holders(Sheet(console), "Lines", rows, top, end=end, rest_at="elsewhere")

    return draw(render, width=width).splitlines()


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("fall", [2867 << 10, 288 << 10, 1023 << 10])
def test_figures_never_touch_and_their_columns_end_alike(draw, width, fall):
    caller = replace(CALLERS[1], fall_bytes=fall, peak_bytes=fall)
    row = replace(LARGEST, callers=(CALLERS[0], caller), growth_bytes_per_step=1023 << 10)
    shown = lines(draw, [row, row], width=width)
    table = [line for line in shown if line.endswith(("growth", "per step", "iB"))]
    assert len({len(line) for line in table}) == 1
    assert max(map(len, shown)) <= width
    (swinging, _) = (line for line in shown if "swings" in line)
    assert re.search(r" [KM]iB +swings by [\d,.]+ [KM]iB$", swinging)


def test_the_head_says_after_how_many_of_the_steps(draw):
    shown = lines(draw, [LARGEST])
    head = next(at for at, line in enumerate(shown) if line.endswith("growth"))
    above, below = shown[head - 1], shown[head]
    assert above.split() == ["after", "57"]
    assert below.split() == ["of", "58", "steps", "(blocks)", "at", "the", "peak", "growth"]
    assert len(above) == below.index("steps") + len("steps")
    assert " at the end (blocks) at the peak" in "\n".join(lines(draw, [LARGEST], end="at the end"))


def test_a_long_name_takes_the_room_that_a_wide_terminal_has(draw):
    row = replace(LARGEST, line="blocks.py(1234): forward_with_cache", callers=())
    assert row.line in "\n".join(lines(draw, [row], width=100))
    narrow = lines(draw, [row], width=80)
    assert row.line not in "\n".join(narrow)
    assert max(map(len, narrow)) <= 80


def test_how_lines_and_their_callers_count_is_said_where_there_are_any(draw):
    rule = " What a line causes is its own row and all rows `from` it."
    assert lines(draw, [LARGEST])[2] == rule
    assert rule not in lines(draw, [replace(LARGEST, callers=())])


def test_one_or_two_more_lines_are_shown_instead_of_counted(draw):
    shown = "\n".join(lines(draw, holders(5 + FEW)))
    assert "net.py(6)" in shown
    assert "more line" not in shown
    shown = "\n".join(lines(draw, holders(6 + FEW)))
    assert "net.py(5)" not in shown
    assert " and 3 more lines, elsewhere" in shown


def test_the_whole_report_shows_all_lines(draw):
    capture = summarise(load(CAPTURES / "synthetic-growth.json.gz"))
    capture = replace(capture, memory=[replace(use, holders=holders(9)) for use in capture.memory])
    for of_memory in (True, False):
        summary = replace(capture, of_memory=of_memory)
        shown = draw(render_summary, summary)
        assert "net.py(5)" not in shown
        assert "and 4 more lines, with `--all` or on the page that `--html` writes" in shown
        shown = draw(partial(render_summary, whole=True), summary)
        assert "net.py(8)" in shown
        assert "more lines, with" not in shown


def test_what_no_step_has_left_stands_below_the_parts_of_the_peak(draw):
    capture = summarise(load(CAPTURES / "synthetic-growth.json.gz"))
    left = (
        "Had the steps before the last left nothing behind, the peak would be 260.00 MiB, with what"
        " the last one itself leaves."
    )
    shown = draw(render_summary, capture).splitlines()
    below = next(at for at, line in enumerate(shown) if line.endswith("MiB  at the peak")) + 1
    assert " ".join(shown[below].split() + shown[below + 1].split()) == left
    assert left in str(memory_tables(capture))
    steady = [replace(use, growth_bytes_per_step=0) for use in capture.memory]
    assert "left nothing" not in draw(
        partial(render_summary, whole=True), replace(capture, memory=steady)
    )
