"""Which lines hold more memory with every step, by traces that torch.profiler wrote with
profile_memory.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.profiler import ProfilerActivity, profile, schedule
from typer.testing import CliRunner

from bottleneck_lab import load, summarise
from bottleneck_lab.analysis.detectors.work import growing_memory, late_freeing, outgrows
from bottleneck_lab.analysis.evidence import Evidence
from bottleneck_lab.analysis.host.nesting import innermost_at
from bottleneck_lab.analysis.memory.causing import group_by_cause
from bottleneck_lab.analysis.memory.growth import (
    MemoryUse,
    fall_period,
    find_memory,
    growth_a_step,
)
from bottleneck_lab.analysis.memory.holders import NOT_RECORDED, Caller, Holder, StepBlocks
from bottleneck_lab.analysis.statistics import largest_fall
from bottleneck_lab.analysis.steps.window import find_window
from bottleneck_lab.cli import app
from bottleneck_lab.report.memory_words import (
    MIB,
    changes_between_steps,
    describe_growth,
    describe_late_freeing,
    describe_late_lines,
    describe_left_behind,
    describe_peak_without_steps,
    list_blocks,
    list_peak,
)
from bottleneck_lab.trace.merging import merge_ranks
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.trace.timeline import HostTable, make_table, take

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"
STEPS, SIDE = 8, 64
KEPT_BYTES = SIDE * SIDE * 4
KEPT = 1 << 20


def let_go(weights: torch.Tensor) -> torch.Tensor:
    return (torch.ones(SIDE, SIDE) @ weights).relu().sum()


def keep(weights: torch.Tensor, kept: list[torch.Tensor]) -> None:
    kept.append(weights.detach() * 2)


@pytest.fixture(scope="module", params=[True, False], ids=["stacks", "no stacks"])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, bool]:
    """A small program's trace on the CPU, and whether it has stacks."""
    weights, kept = torch.ones(SIDE, SIDE, requires_grad=True), []
    cycle = schedule(wait=1, warmup=1, active=STEPS)
    with profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        with_stack=request.param,
        schedule=cycle,
    ) as profiler:
        for _ in range(STEPS + 2):
            let_go(weights).backward()
            keep(weights, kept)
            profiler.step()
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    profiler.export_chrome_trace(str(path))
    return path, request.param


def on_the_host(path: Path) -> MemoryUse:
    (use,) = summarise(load(path)).memory
    return use


def test_the_place_that_keeps_grows_by_what_it_keeps_each_step(recorded: tuple[Path, bool]) -> None:
    path, stacks = recorded
    use = on_the_host(path)
    assert use.steps == STEPS
    assert use.growth_bytes_per_step == KEPT_BYTES
    rows = {row.line: row for row in use.holders}
    where = (
        f"test_memory_by_line.py({keep.__code__.co_firstlineno}): keep" if stacks else "aten::mul"
    )
    assert [line for line, row in rows.items() if row.grows and row.growth_bytes_per_step > 64] == [
        where
    ]
    assert rows[where].growth_bytes_per_step == KEPT_BYTES
    assert (rows[where].held_bytes, use.holders[0].line) == (STEPS * KEPT_BYTES, where)


def test_what_is_let_go_is_held_by_nobody(recorded: tuple[Path, bool]) -> None:
    path, stacks = recorded
    where = "let_go" if stacks else "aten::relu"
    (row,) = [row for row in on_the_host(path).holders if row.line.endswith(where)]
    assert (row.held_bytes, row.grows, row.freed_share) == (0, False, 1.0)
    assert row.allocated >= STEPS


def test_the_report_shows_who_holds_what(recorded: tuple[Path, bool], tmp_path: Path) -> None:
    path, stacks = recorded
    shown = CliRunner().invoke(app, ["report", str(path)]).output
    heading = "Lines that caused the memory at the peak: host"
    table = shown[shown.index(heading) :].splitlines()
    # Of a name that is too long, its middle is left out.
    where = f"({keep.__code__.co_firstlineno}): keep " if stacks else "aten::mul "
    assert where in table[3]
    assert table[3].split()[-3:] == ["16.00", "KiB", "-"]
    page = tmp_path / "page.html"
    CliRunner().invoke(app, ["report", str(path), "--html", str(page)])
    assert heading in page.read_text(encoding="utf-8")
    assert ">16.00 KiB<" in page.read_text(encoding="utf-8")


def test_a_trace_that_does_not_say_which_block_is_freed_names_nobody(
    recorded: tuple[Path, bool], tmp_path: Path
) -> None:
    content = json.loads(recorded[0].read_text(encoding="utf-8"))
    for event in content["traceEvents"]:
        event.get("args", {}).pop("Addr", None)
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(content), encoding="utf-8")
    use = on_the_host(bare)
    assert (use.growth_bytes_per_step, use.holders) == (KEPT_BYTES, [])


def keeps_in_line_9() -> list[dict[str, object]]:
    """Five steps in which line 9 keeps what it allocates, and line 7 does not."""
    events: list[dict[str, object]] = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{n}",
            "pid": 1,
            "tid": 1,
            "ts": 100 * n,
            "dur": 90,
        }
        for n in range(1, 6)
    ]
    for begin in range(100, 600, 100):
        for line, at in ((7, begin), (9, begin + 40)):
            frame = {
                "cat": "python_function",
                "name": f"train.py({line}): train",
                "tid": f"{LINES_OF}1",
            }
            events.append({"ph": "X", "pid": 1, "ts": at, "dur": 40, **frame})
        changes = ((40, 512, begin), (80, KEPT, begin + 1), (85, -512, begin))
        for after, changed, address in changes:
            args = {"Bytes": changed, "Addr": address, "Device Id": 0, "Device Type": 1}
            events.append(
                {
                    "ph": "i",
                    "name": "[memory]",
                    "pid": 1,
                    "tid": 1,
                    "ts": begin + after,
                    "args": args,
                }
            )
    return events


def traced(folder: Path, events: list[dict[str, object]]) -> Path:
    """A trace of these events."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


def test_the_very_line_is_named_where_lines_were_recorded(tmp_path: Path) -> None:
    """As `lab profile --stack` records them: the line is that of the moment before, since an
    allocation may be recorded when its operator ends.
    """
    path = traced(tmp_path, keeps_in_line_9())
    rows = {
        row.line: (row.held_bytes, row.growth_bytes_per_step, row.grows)
        for row in on_the_host(path).holders
    }
    assert rows == {
        "train.py(9): train": (5 * KEPT, KEPT, True),
        "train.py(7): train": (0, 0, False),
    }
    (finding,) = [found for found in summarise(load(path)).findings if found.id == "memory-growth"]
    assert finding.evidence.endswith(
        "By line, with what is called there: 1.0 MiB at train.py(9): train."
    )


def test_what_a_program_lets_go_of_at_its_end_has_grown_all_the_same(tmp_path: Path) -> None:
    events = keeps_in_line_9()
    for begin in range(100, 600, 100):
        args = {"Bytes": -KEPT, "Addr": begin + 1, "Device Id": 0, "Device Type": 1}
        row = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 589}
        events.append(row | {"args": args})
    largest = on_the_host(traced(tmp_path, events)).holders[0]
    assert (largest.line, largest.held_bytes) == ("train.py(9): train", 4 * KEPT)
    assert (largest.growth_bytes_per_step, largest.grows) == (KEPT, True)


def test_memory_that_rises_and_falls_is_said_to_be_freed_late() -> None:
    uneven = MemoryUse(
        rank=0,
        device=0,
        peak_bytes=5632 << 10,
        first_bytes=0,
        last_bytes=0,
        growth_bytes_per_step=-3,
        steps=58,
        allocations=9,
        driver_calls=0,
        lowest_after_step_bytes=693 << 10,
        highest_after_step_bytes=4608 << 10,
    )
    assert "Between 693.0 KiB and 4.5 MiB at the ends of steps" in describe_late_freeing(uneven)
    assert "cycles" in describe_late_freeing(uneven)
    assert "cycles" not in describe_late_freeing(uneven, blind=True)
    assert not describe_late_freeing(replace(uneven, growth_bytes_per_step=1))
    assert not describe_late_freeing(replace(uneven, lowest_after_step_bytes=2048 << 10))
    # Growth that a larger fall hides is none to quote; the fall says why.
    hidden = replace(uneven, growth_bytes_per_step=21 << 10, fall_bytes=4500 << 10)
    assert describe_growth(hidden) == "cannot tell"
    assert "and falls by up to 4.4 MiB" in describe_late_freeing(hidden)
    assert describe_growth(replace(hidden, fall_bytes=1 << 20)) == "21.0 KiB"
    assert describe_growth(replace(hidden, growth_bytes_per_step=-3)) == "0 B"
    # Where it falls at equal distances, growth is told beside it.
    assert describe_growth(replace(hidden, period_steps=10)) == "21.0 KiB"


def sawtooth_that_grows() -> MemoryUse:
    """As `forecaster-out-of-memory` is shipped: of 1,084 KiB that a step leaves, 352 are freed in
    every tenth. The first record is of a batch of 20 KiB.
    """
    return MemoryUse(
        rank=0,
        device=0,
        peak_bytes=round(47701.5 * 1024),
        first_bytes=round(1744.5 * 1024),
        first_record_bytes=20 << 10,
        last_bytes=147 << 10,
        growth_bytes_per_step=732 << 10,
        steps=58,
        allocations=9,
        driver_calls=0,
        lowest_after_step_bytes=round(3892.5 * 1024),
        highest_after_step_bytes=round(46616.5 * 1024),
        fall_bytes=2436 << 10,
        rise_bytes=42724 << 10,
        period_steps=10,
        steps_before=2,
    )


def test_a_regular_fall_is_told_in_the_same_words_with_growth_and_without() -> None:
    grows = sawtooth_that_grows()
    assert describe_late_freeing(grows, blind=True) == (
        "A step leaves 1,084.0 KiB behind: 732.0 KiB for good, and 352.0 KiB until memory next"
        " falls (every 10 steps)."
    )
    even = replace(grows, growth_bytes_per_step=0, peak_bytes=6 << 20, fall_bytes=3168 << 10)
    assert describe_late_freeing(even, blind=True) == (
        "A step leaves 352.0 KiB behind until memory next falls (every 10 steps)."
    )
    assert describe_late_freeing(grows).endswith("(every 10 steps), like reference cycles.")
    assert not describe_late_freeing(replace(even, fall_bytes=1 << 20)), "as batches come and go"


def test_what_the_steps_add_is_a_part_of_the_peak() -> None:
    use = sawtooth_that_grows()
    start = (
        "1.68 MiB",
        "at the start, about 1.43 MiB of it kept by the 2 steps before the capture",
    )
    kept = (
        "40.75 MiB",
        "kept for good by the 57 recorded steps before the peak's: 87.5% of the peak",
    )
    nine_steps = 9 * 352 / 1024
    late = (
        f"{nine_steps:.2f} MiB",
        "freed later: left by the steps before the peak's since memory last fell",
    )
    own = ("1.06 MiB", "what the peak's step adds, less what it frees")
    peak = ("46.58 MiB", "at the peak")
    assert list_peak(use) == [start, kept, late, own, peak]
    # At uneven distances it is not known how much was there at the peak.
    uneven = list_peak(replace(use, period_steps=0))
    both = f"what is freed later, and {own[1]}"
    assert uneven == [start, kept, ("4.15 MiB", both), peak]
    saw = replace(use, growth_bytes_per_step=0, peak_bytes=7 << 20)
    saw = replace(saw, highest_after_step_bytes=6 << 20)
    assert [what for _, what in list_peak(saw)] == ["at the start", late[1], own[1], "at the peak"]
    assert "the peak would be 7.00 − 4.32 = 2.68 MiB." in describe_peak_without_steps(saw)
    # Of 1,724.5 KiB at the start, memory later falls to 1,724.5 less 512.
    fallen = replace(saw, lowest_after_step_bytes=saw.start_bytes - (512 << 10))
    stays = (
        "1.18 MiB",
        "of the 1.68 MiB at the start, or made anew in its place; 0.50 MiB do not stay",
    )
    assert list_peak(fallen)[:2] == [stays, ("4.82 MiB", late[1])]
    assert "the peak would be 7.00 − 4.82 = 2.18 MiB." in describe_peak_without_steps(fallen)
    steady = replace(use, growth_bytes_per_step=0, period_steps=0)
    assert [what for _, what in list_peak(steady)] == ["at the start", "at the peak"]


def lists_emptied_at_each_report(peak_step: int) -> MemoryUse:
    """As that lab is solved: of 40 KiB that a step leaves, all are freed in every tenth step but
    the 20 that a variable of the loop holds until the next.
    """
    losses = Holder("train.py(44): train", 0, 0, 9, 0, 0, False, 9, 1.0, "")
    return replace(
        sawtooth_that_grows(),
        peak_bytes=1604 << 10,
        first_bytes=round(360.5 * 1024),
        growth_bytes_per_step=0,
        lowest_after_step_bytes=round(280.5 * 1024),
        highest_after_step_bytes=round(620.5 * 1024),
        fall_bytes=340 << 10,
        peak_step_number=peak_step,
        holders=[replace(losses, late_bytes_per_step=40 << 10)],
    )


@pytest.mark.parametrize(
    ("peak_step", "start", "late_steps"),
    [
        # The 2 steps before the capture have left theirs, too, and 7 recorded ones.
        (10, ("0.33 MiB", "at the start, 0.08 MiB of it freed later"), 7),
        (
            20,
            (
                "0.25 MiB",
                "of the 0.33 MiB at the start, or made anew in its place; 0.08 MiB do not stay",
            ),
            9,
        ),
    ],
)
def test_what_steps_leave_until_later_is_so_much_for_each_of_them(
    peak_step: int, start: tuple[str, str], late_steps: int
) -> None:
    use = lists_emptied_at_each_report(peak_step)
    shown_start, (late, _), *_ = list_peak(use)
    assert (shown_start, late) == (start, f"{late_steps * 40 / 1024:.2f} MiB")
    assert "the peak would be 1.57 − 0.35 = 1.22 MiB." in describe_peak_without_steps(use)
    # What is freed late in other steps is not taken for what outlives a fall.
    other = replace(use.holders[0], late_bytes_per_step=400 << 10)
    assert list_peak(replace(use, holders=[other]))[0][1].endswith(
        ("0.06 MiB of it freed later", "0.06 MiB do not stay")
    )


def test_figures_of_a_peak_are_in_its_unit_and_the_step_that_it_lies_in_is_named() -> None:
    early = replace(sawtooth_that_grows(), peak_step_number=51)
    (_, (_, kept), *_) = list_peak(early)
    assert "by the 57 recorded steps before the last: " in kept
    last = replace(early, peak_step_number=60)
    assert "recorded steps before the peak's: " in list_peak(last)[1][1]
    assert {figure.split()[1] for figure, _ in list_peak(lists_emptied_at_each_report(10))} == {
        "MiB"
    }


def test_what_a_step_leaves_for_good_is_told_where_nothing_is_freed_later() -> None:
    use = replace(sawtooth_that_grows(), period_steps=0, fall_bytes=0)
    assert describe_left_behind(use) == "A step leaves 732.0 KiB behind for good."
    assert describe_left_behind(sawtooth_that_grows()).startswith("A step leaves 1,084.0 KiB")
    steady = replace(use, growth_bytes_per_step=0, lowest_after_step_bytes=46 << 20)
    assert not describe_left_behind(steady)
    assert "for good" not in describe_left_behind(replace(use, fall_bytes=43 << 20)), "not known"


def test_little_that_is_freed_later_is_told_too_and_is_a_sign_of_nothing() -> None:
    use = lists_emptied_at_each_report(10)
    assert not describe_late_freeing(use)
    sentence = "A step leaves 40.0 KiB behind until memory next falls (every 10 steps)."
    assert describe_left_behind(use) == sentence
    assert not changes_between_steps(use)
    assert not describe_left_behind(replace(use, holders=[])), "no line frees anything later"
    assert not describe_left_behind(replace(use, period_steps=0)), "not known until when"


def test_the_start_is_what_was_there_before_the_first_record(tmp_path: Path) -> None:
    events = keeps_in_line_9()
    unknown = on_the_host(traced(tmp_path, events))
    assert (unknown.start_bytes, unknown.first_bytes) == (512, 512), "only changes were recorded"
    level = 4096
    for args in (each["args"] for each in events if each["name"] == "[memory]"):
        level += args["Bytes"]
        args["Total Allocated"] = level
    known = on_the_host(traced(tmp_path, events))
    assert (known.start_bytes, known.first_bytes) == (4096, 4608)


def test_what_is_left_of_the_peak_without_the_steps_is_told_where_it_is_known() -> None:
    """Of 47,701.5 KiB, less 59 times 732 and 3,168 that are freed later."""
    use = sawtooth_that_grows()
    left = (
        "Had the steps before the peak's left nothing behind, the peak would be 46.58 − 1.43 −"
        " 40.75 − 3.09 = 1.31 MiB. A fix may end above that, by what it still keeps between steps,"
        " or below, as it may free the tensors of a step sooner."
    )
    assert describe_peak_without_steps(use) == left
    unknown = {
        "no growth": replace(use, growth_bytes_per_step=0, period_steps=0),
        "growth that a fall hides": replace(use, period_steps=0, fall_bytes=43 << 20),
        "freed late, it is not known how much": replace(use, period_steps=0),
    }
    assert [why for why, each in unknown.items() if describe_peak_without_steps(each)] == []
    even = replace(use, period_steps=0, fall_bytes=0, steps_before=0)
    assert "the peak would be 46.58 − 40.75 = 5.83 MiB." in describe_peak_without_steps(even)


@pytest.mark.parametrize(
    ("steps_before", "words"),
    [
        (0, "at the start"),
        (1, "at the start, about 0.71 MiB of it kept by the step before the capture"),
        (3, "at the start"),  # more than was there: they have not kept as much as later ones
    ],
)
def test_what_was_there_at_the_start_may_be_kept_by_earlier_steps(
    steps_before: int, words: str
) -> None:
    use = replace(sawtooth_that_grows(), steps_before=steps_before)
    assert list_peak(use)[0][1] == words


def test_steps_before_the_capture_are_those_that_torch_profiler_counted(tmp_path: Path) -> None:
    events = keeps_in_line_9()
    assert on_the_host(traced(tmp_path, events)).steps_before == 1
    renamed = [
        each | {"name": str(each["name"]).replace("ProfilerStep", "step")} for each in events
    ]
    use = on_the_host(traced(tmp_path, renamed))
    assert (use.steps, use.steps_before) == (5, 0)


def test_parts_of_a_peak_add_up_as_they_are_printed(tmp_path: Path) -> None:
    """Of 46.64 MiB 1.74 and 40.68 leave 4.22, which is 4.2 beside 46.6, 1.7 and 40.7 as well; of
    46.56, it would be 4.1.
    """
    use = replace(
        on_the_host(traced(tmp_path, keeps_in_line_9())),
        first_bytes=round(1.74 * MIB),
        first_record_bytes=0,
        growth_bytes_per_step=round(40.68 * MIB / 4),
        peak_bytes=round(46.56 * MIB),
    )
    figures = [float(figure.removesuffix(" MiB")) for figure, _ in list_peak(use)]
    assert sum(figures[:-1]) == pytest.approx(figures[-1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"peak_step": "ProfilerStep#59", "peak_step_number": 60},
            ": in step 60 of the run, reached while train.py(31): forecast ran",
        ),
        ({"peak_step": "epoch 3"}, ": in epoch 3, reached while train.py(31): forecast ran"),
        ({"peak_step": "epoch 3", "peak_line": ""}, ": in epoch 3"),
        ({}, ": reached while train.py(31): forecast ran"),
        ({"peak_line": ""}, ""),
    ],
)
def test_the_peak_has_its_step_and_line(changes: dict[str, object], words: str) -> None:
    use = replace(sawtooth_that_grows(), peak_line="train.py(31): forecast")
    assert list_peak(replace(use, **changes))[-1] == ("46.58 MiB", f"at the peak{words}")


def test_the_peak_lies_in_a_step_and_at_a_line(tmp_path: Path) -> None:
    use = on_the_host(traced(tmp_path, keeps_in_line_9()))
    peak = (use.peak_step, use.peak_step_number, use.peak_line)
    assert peak == ("ProfilerStep#5", 6, "train.py(9): train")


def test_steps_that_allocate_nothing_count_among_those_that_hold_it(tmp_path: Path) -> None:
    rows = [
        each
        for each in keeps_in_line_9()
        if not (each.get("name") == "[memory]" and 300 <= float(str(each["ts"])) < 400)
    ]
    use = on_the_host(traced(tmp_path, rows))
    assert (use.held_after_steps, use.steps) == (5, 5)


def calls_in_two_lines() -> list[dict[str, object]]:
    """Line 3 makes 1 MiB for lines 8 and 9, by way of line 5, in each of five steps. What it makes
    for line 9 stays.
    """
    rows = [
        each for each in keeps_in_line_9() if "cat" in each and each["cat"] == "user_annotation"
    ]
    for step in range(1, 6):
        for line, at, nbytes in ((8, 20, KEPT), (9, 30, KEPT), (8, 40, -KEPT)):
            stack = f"net.py(3): make < net.py(5): forward < /home/ada/train.py({line}): train"
            about = {
                "Device Type": 1,
                "Device Id": 0,
                "Bytes": nbytes,
                "Addr": 10 * step + line,
                "line": stack if nbytes > 0 else "net.py(3): make",
            }
            row = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
            rows.append({**row, "ts": 100 * step + at, "args": about})
    return rows


def test_a_line_is_split_by_the_lines_that_call_it(tmp_path: Path) -> None:
    """They are told apart where they differ."""
    (row,) = on_the_host(traced(tmp_path, calls_in_two_lines())).holders
    first, second = group_by_cause([row])
    assert (first.line, first.parts) == (
        "train.py(9): train",
        (Caller(row.line, 5 * KEPT, 5 * KEPT, KEPT, growth_bytes=3 * KEPT),),
    )
    assert (second.line, second.total.peak_bytes) == ("train.py(8): train", KEPT)


def test_a_line_that_only_one_calls_is_not_split(tmp_path: Path) -> None:
    rows = [each for each in calls_in_two_lines() if "train.py(8)" not in json.dumps(each)]
    (row,) = on_the_host(traced(tmp_path, rows)).holders
    assert (row.line, row.callers) == ("net.py(3): make", ())


def test_growth_that_cannot_be_told_is_no_finding() -> None:
    """As `busy-ensemble`, batched, once was: 99 KiB a step, and again and again back at 103."""
    sawtooth = MemoryUse(
        rank=0,
        device=0,
        peak_bytes=2_374_656,
        first_bytes=105_984,
        last_bytes=1_823_744,
        growth_bytes_per_step=101_120,
        steps=10,
        allocations=9,
        driver_calls=0,
        fall_bytes=1_712_640,
    )
    seen = Evidence([], [], [], [], [], [], [sawtooth], [], [], 10, 1)
    assert not growing_memory(seen)
    assert growing_memory(replace(seen, memory=[replace(sawtooth, fall_bytes=0)]))
    steeper = replace(sawtooth, growth_bytes_per_step=180_000)
    assert not outgrows(steeper)
    assert outgrows(replace(steeper, fall_bytes=0))


def test_what_is_freed_only_steps_later_is_a_finding_with_its_size_and_lines() -> None:
    cell = Holder("recipe.py(23): forward", 0, 0, 4 << 20, 0, 0, False, 9, 1.0, "", 3 << 20)
    cycles = MemoryUse(
        rank=0,
        device=0,
        peak_bytes=6 << 20,
        first_bytes=1 << 20,
        last_bytes=3 << 20,
        growth_bytes_per_step=20 << 10,
        steps=58,
        allocations=9,
        driver_calls=0,
        lowest_after_step_bytes=2 << 20,
        highest_after_step_bytes=5 << 20,
        fall_bytes=3 << 20,
        rise_bytes=3 << 20,
        holders=[cell],
    )
    seen = Evidence([], memory=[cycles])
    (detection,) = late_freeing(seen)
    assert detection.evidence == (
        "Memory held on device 0 is between 2.0 MiB and 5.0 MiB at the ends of steps (peak"
        " 6.0 MiB), and falls by up to 3.0 MiB after several steps. Most of that was allocated by"
        " recipe.py(23): forward (3.0 MiB)."
    )
    assert not growing_memory(seen)
    others = {
        "a warm-up that was let go of": replace(cycles, growth_bytes_per_step=-3, rise_bytes=0),
        "a batch fetched ahead": replace(cycles, fall_bytes=1 << 20),
        "the host's loader": replace(cycles, device=-1),
        "growth": replace(cycles, growth_bytes_per_step=1 << 20),
    }
    assert [name for name, use in others.items() if late_freeing(Evidence([], memory=[use]))] == []


def test_what_is_freed_late_is_a_finding_beside_a_leak() -> None:
    """It is compared with the peak that the leak has not made."""
    cell = Holder("recipe.py(23): forward", 0, 0, 21 << 20, 0, 320 << 10, True, 9, 0.9, "")
    cell = replace(cell, fall_bytes=2560 << 10)
    kept = replace(cell, line="train.py(31): forecast", fall_bytes=0)
    leak = replace(sawtooth_that_grows(), holders=[kept, cell])
    (detection,) = late_freeing(Evidence([], memory=[leak]))
    assert detection.evidence == (
        "Every 10 steps, the 3.1 MiB that the 9 steps before have left on device 0 is freed at once"
        " (peak 46.6 MiB). Most of that was allocated by recipe.py(23): forward (2.8 MiB)."
    )
    assert not late_freeing(Evidence([], memory=[replace(leak, fall_bytes=1 << 20)]))


def test_the_rise_between_the_ends_of_steps_is_measured_as_the_fall_is(tmp_path: Path) -> None:
    use = on_the_host(traced(tmp_path, keeps_in_line_9()))
    assert (use.fall_bytes, use.rise_bytes) == (0, 2 * KEPT)


LARGEST = StepBlocks(made=80.0, kept=10.0, freed=60.0, late_freed_at="train.py(54): train")
"""The blocks of the largest line of `forecaster-out-of-memory`, as shipped."""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "of 80 blocks a step, 10 kept for good, 10 freed only steps later (mostly while"
            " train.py(54): train runs), 60 freed in the step; those held are 32.0 KiB each",
        ),
        (
            {"a_step": replace(LARGEST, kept=0.5, late_freed_at="")},
            "of 80 blocks a step, 0.5 kept for good, 19.5 freed only steps later, 60 freed in",
        ),
        (
            {"a_step": replace(LARGEST, late_freed_at=NOT_RECORDED)},
            "of 80 blocks a step, 10 kept for good, 10 freed only steps later, 60 freed in",
        ),
        (
            {"a_step": StepBlocks(made=109.0, freed=103.0, freed_in_next=6.0), "grows": False},
            "of 109 blocks a step, 6 freed in the next step, 103 freed in the step; those held",
        ),
        # One block that grows, or no steps.
        (
            {"a_step": replace(LARGEST, kept=0.0)},
            "of 4,560 blocks, 660 still held; those held are 32.0 KiB each; most of those freed"
            " are freed while recipe.py(23): forward runs",
        ),
        ({"a_step": StepBlocks()}, "of 4,560 blocks, 660 still held; those held are 32.0 KiB"),
        (
            {"allocated": 0, "freed_share": 0.0, "freed_at": "", "a_step": StepBlocks()},
            "allocated before the recording; those held are 32.0 KiB each",
        ),
    ],
)
def test_what_a_line_keeps_goes_before_what_it_frees(
    changes: dict[str, object], words: str
) -> None:
    """Its largest line seemed to free nearly all: "freed again: 85.5% of 4,560 blocks"."""
    row = Holder(
        line="recipe.py(23): forward",
        held_bytes=660 << 15,
        blocks=660,
        peak_bytes=680 << 15,
        growth_bytes=500 << 15,
        growth_bytes_per_step=10 << 15,
        grows=True,
        allocated=4560,
        freed_share=3900 / 4560,
        freed_at="recipe.py(23): forward",
        smallest_bytes=1 << 15,
        largest_bytes=1 << 15,
        a_step=LARGEST,
    )
    ((line, blocks, fate),) = list_blocks([replace(row, **changes)])
    assert (line, blocks) == (row.line, "660")
    assert fate.startswith(words)


def test_the_line_that_frees_later_what_is_most_is_named() -> None:
    row = Holder("recipe.py(23): forward", 0, 0, MIB, 0, 0, False, 9, 1.0, "", a_step=LARGEST)
    row = replace(row, late_bytes_per_step=320 << 10)
    unknown = replace(row, a_step=StepBlocks(late_freed_at=NOT_RECORDED), late_bytes_per_step=MIB)
    assert (
        describe_late_lines([unknown, row], {"train.py(54): train": "log("})
        == "Freed later: mostly while train.py(54): train, `log(`, runs."
    )
    assert describe_late_lines([row], {}) == "Freed later: mostly while train.py(54): train runs."
    assert not describe_late_lines([unknown], {})
    hardly = replace(row, peak_bytes=1 << 30, late_bytes_per_step=512)
    assert not describe_late_lines([hardly], {})


BLOCK = 32 << 10


def leaks_and_collects(steps: int = 36, every: int = 10) -> list[dict[str, object]]:
    """Each step makes 8 blocks in line 9: 1 stays, 2 are freed at the end of every tenth step by
    line 12, 1 in the next step, and 4 at once; and in line 7 one that stays in every tenth step.
    """
    rows = [each for each in keeps_in_line_9() if each.get("cat") == "user_annotation"][:1]
    rows = [
        rows[0] | {"name": f"ProfilerStep#{step}", "ts": 100 * step} for step in range(1, steps + 1)
    ]

    def change(at: int, line: int, nbytes: int, address: int) -> None:
        about = {"Device Type": 1, "Device Id": 0, "Bytes": nbytes, "Addr": address}
        row = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
        rows.append(row | {"ts": at, "args": about | {"line": f"train.py({line}): train"}})

    for step in range(1, steps + 1):
        start, made = 100 * step, 10 * step
        for block in range(8):
            change(start + 1 + block, 9, BLOCK, made + block)
        change(start + 20, 7, BLOCK, made + 8)
        if step % 10 != 5:
            change(start + 21, 7, -BLOCK, made + 8)
        if step > 1:
            change(start + 30, 10, -BLOCK, made - 10 + 3)
        for block in range(4, 8):
            change(start + 36 + block, 9, -BLOCK, made + block)
        for earlier in range(step - every + 1, step + 1) if step % every == 0 else ():
            for block in (1, 2):
                change(start + 60 + step - earlier, 12, -BLOCK, 10 * earlier + block)
    return rows


def test_blocks_of_a_step_times_their_size_are_what_memory_rises_and_falls_by(
    tmp_path: Path,
) -> None:
    """Every tenth step frees its own, too, so that fewer are freed late on average. What is kept in
    some steps only is told on average all the same.
    """
    use = on_the_host(traced(tmp_path, leaks_and_collects()))
    rows = {row.line: row for row in use.holders}
    assert rows["train.py(9): train"].a_step == StepBlocks(8, 1, 4, 1, "train.py(12): train")
    sometimes = rows["train.py(7): train"].a_step
    assert (sometimes.made, sometimes.kept, sometimes.freed) == (1, 0.1, 0.9)
    late = sum(row.a_step.freed_late for row in use.holders)
    assert sum(row.late_bytes_per_step for row in use.holders) == late * BLOCK
    assert use.late_bytes / (use.period_steps - 1) == pytest.approx(late * BLOCK, rel=0.01)
    assert all(
        row.growth_bytes_per_step == pytest.approx(row.a_step.kept * BLOCK, abs=1)
        for row in use.holders
    )


def test_what_most_steps_do_not_share_is_an_average(tmp_path: Path) -> None:
    use = on_the_host(traced(tmp_path, leaks_and_collects(every=2)))
    (row,) = [row for row in use.holders if row.line == "train.py(9): train"]
    assert row.a_step == StepBlocks(8, 1, 5, 2)


def test_the_largest_fall_is_from_any_step_to_any_later_one() -> None:
    assert largest_fall(np.array([5, 9, 7, 8, 3, 6])) == 6
    assert largest_fall(np.array([1, 2, 3])) == largest_fall(np.array([], dtype=int)) == 0


def test_the_line_recorded_with_an_allocation_goes_before_the_one_that_ran_then(
    tmp_path: Path,
) -> None:
    """As the virtual GPU records it: `zeros` allocates when the operator before it ends. Ranks are
    merged by their names' numbers, and an argument of another type costs only itself.
    """
    paths = []
    for rank in range(2):
        row = {"ph": "X", "pid": 1, "ts": 1, "dur": 20}
        code = {"name": "train.py(9): train", "tid": f"{LINES_OF}1"}
        events: list[dict[str, object]] = [
            row | {"cat": "cpu_op", "name": f"aten::add_{rank}", "tid": 1},
            row | {"cat": "python_function"} | code,
        ]
        lines: tuple[object, ...] = ("/home/ada/train.py(3): train", "", 4, ["odd"])
        for address, line in enumerate(lines):
            args = {"Bytes": 100 << address, "Addr": address, "line": line}
            row = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 20}
            events.append(row | {"args": args | {"Device Id": 0, "Device Type": 1}})
        trace = {"traceEvents": events, "distributedInfo": {"rank": rank}}
        paths.append(tmp_path / f"trace{rank}.json")
        paths[-1].write_text(json.dumps(trace), encoding="utf-8")
    for use in summarise(merge_ranks([load(path) for path in paths])).memory:
        held = {row.line: row.held_bytes for row in use.holders}
        assert held == {"train.py(3): train": 100, "train.py(9): train": 1400}


HALF_A_FIX_KIB = [
    *(2140, 1828, 2572, 2260, 3004, 2692, 3436, 3124, 3868, 1444, 2188, 1876, 2620, 2308, 3052),
    *(2740, 3484, 3172, 3916, 3604, 4348, 4036, 4780, 4468, 5212, 4900, 5644, 5332, 6076, 5764),
    *(6508, 5844, 6588, 2052, 2796, 3540, 2524, 3268, 2252, 2996, 3740, 2724, 3468, 2452, 3196),
    *(3940, 2924, 3668, 2652, 3396, 4140, 3124, 3868, 2852, 3596, 4340, 3324, 4069),
]
"""Levels of `forecaster-out-of-memory` without graphs: its losses stay, and cycles hide them."""


@pytest.mark.parametrize(
    ("levels", "growth"),
    [
        ([100 + 7 * step for step in range(40)], 7),
        ([700 * (step % 10) for step in range(61)], 0),  # collected in every tenth step
        ([100 * step + 300 * (step % 10) for step in range(58)], 100),  # both, in 58 steps
        ([50 * (step // 10) for step in range(60)], 5),  # kept in every tenth step
        (HALF_A_FIX_KIB, 10),
        ([0, 90, 90, 90], 0),  # an optimizer's state
        ([100], 0),
    ],
)
def test_growth_is_what_is_kept_and_not_what_is_collected(levels: list[int], growth: int) -> None:
    assert growth_a_step(np.array(levels)) == growth


def test_falls_in_one_step_after_another_have_no_period() -> None:
    levels = [100 * step for step in range(20)]
    assert fall_period(np.array([*levels, 1600, 1300, 1000, 1100, 1200])) == 0
    assert fall_period(np.array([100 * step + 300 * (step % 10) for step in range(58)])) == 10


def test_a_few_bytes_beneath_cycles_are_no_growth() -> None:
    levels = np.array([10_000 * (step % 7) + step // 10 for step in range(40)])
    assert growth_a_step(levels) <= 0


def test_the_row_open_at_a_moment_is_the_innermost_one_of_its_thread() -> None:
    table = make_table(
        HostTable, 4, start=[0, 10, 30, 0], end=[100, 20, 40, 50], thread=[1, 1, 1, 2]
    )
    moments = np.array([15, 25, 35, 99, 100, 60, 5])
    threads = np.array([1, 1, 1, 1, 1, 2, 3], dtype=np.int32)
    names = [
        (int(table.start[row]), int(table.thread[row])) if row >= 0 else None
        for row in innermost_at(table, moments, threads)
    ]
    assert names == [(10, 1), (0, 1), (30, 1), (0, 1), None, None, None]


def test_memory_is_drawn_over_the_time_that_the_report_is_about():
    """Its records may end long before the device does."""
    timeline = load(CAPTURES / "synthetic-growth.json.gz")
    window = find_window(timeline)
    early = timeline.memory.start < window.start + window.length // 4
    memory = take(timeline.memory, early)
    (use, *_) = find_memory(dataclasses.replace(timeline, memory=memory))
    quarter = len(use.levels_bytes) // 4
    assert set(use.levels_bytes[quarter + 1 :]) == {use.last_bytes}
