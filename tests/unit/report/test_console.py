"""The exact text that a learner sees in the terminal."""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from bottleneck_lab.analysis.causes import IDLE_CAUSES
from bottleneck_lab.analysis.comparing.compare import compare
from bottleneck_lab.analysis.comparing.comparison import FigureChange
from bottleneck_lab.analysis.counters.roofline import Roofline, RooflineRow, find_machine
from bottleneck_lab.analysis.device.transfers import CollectiveRow
from bottleneck_lab.analysis.host.lines import LineRow
from bottleneck_lab.analysis.host.syncs import SyncRow
from bottleneck_lab.analysis.host.workers import WorkerLine, WorkerUse
from bottleneck_lab.analysis.query import QueryResult
from bottleneck_lab.analysis.questions import find_question
from bottleneck_lab.analysis.selection import (
    DeviceStretch,
    DeviceWork,
    NamedTime,
    Selection,
    ThreadUse,
)
from bottleneck_lab.analysis.summary import analyse, summarise
from bottleneck_lab.catalog import CriterionSpec, content_root
from bottleneck_lab.grading.criteria import not_measured
from bottleneck_lab.grading.diagnosis import RESTED_ON_WRONG_CAUSE
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.clock import PHASES
from bottleneck_lab.report.breakdown import wall_parts
from bottleneck_lab.report.capture_words import REMEDIES_LATER
from bottleneck_lab.report.comparison_words import (
    describe_ahead,
    describe_headline,
    describe_speedup,
    format_between,
    format_ratio,
    judge_change,
    shown_changes,
)
from bottleneck_lab.report.console.comparison import render_comparison
from bottleneck_lab.report.console.query import render_query
from bottleneck_lab.report.console.seconds import render_seconds
from bottleneck_lab.report.console.selection import render_selection
from bottleneck_lab.report.console.summary import render_summary, render_top
from bottleneck_lab.report.console.verdict import render_last_verdict, render_verdict
from bottleneck_lab.report.evidence_only import evidence_only, without_advice, without_remedies
from bottleneck_lab.report.memory_words import ALLOCATED_ONLY
from bottleneck_lab.report.page.comparison import comparison_section
from bottleneck_lab.report.page.html import render_html
from bottleneck_lab.report.page.summary import findings_section, time_section
from bottleneck_lab.report.page.tables import memory_tables, waits_table, workers_table
from bottleneck_lab.report.page.verdict import verdict_section
from bottleneck_lab.report.words import format_duration
from bottleneck_lab.trace import load

from . import made_up, made_up_capture

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"

PAGE = Path("/home/ada/photos/.lab/attempts/0003.html")


def test_the_lines_of_a_loaders_workers_say_what_their_share_is_of(draw):
    line = WorkerLine("train.py(15): read", 21_900_000, 0.006)
    use = WorkerUse(0, "DataLoader worker 0", 8, 493_000_000, 0.984, [line])
    blank = summarise(load(CAPTURES / "synthetic-healthy.json.gz"))
    text = " ".join(draw(render_summary, replace(blank, workers=[use])).split())
    assert "a line's time includes what it calls" in text
    without = replace(use, lines=[])
    assert "worker's own batches" not in draw(render_summary, replace(blank, workers=[without]))
    page = str(workers_table(replace(blank, workers=[use])))
    assert "what it calls (<code>--ask lines</code>)" in page or "`--ask lines`" in page
    assert "what it calls" not in str(workers_table(replace(blank, workers=[without])))


def test_a_cohorts_verdict_has_its_time_zone(draw):
    text = draw(render_verdict, made_up.slow(), started="2026-11-28 22:48 CET")
    assert "Began 2026-11-28 22:48 CET, took" in text
    assert "UTC" not in text


@pytest.mark.parametrize("outcome", ["passed", "slow", "undecided", "broken"])
def test_verdict(draw, golden, outcome):
    assert draw(render_verdict, getattr(made_up, outcome)(), html=PAGE) == golden(
        f"verdict-{outcome}-80.txt"
    )


def test_what_holds_is_shown_with_the_count_behind_it(draw):
    of_jobs = "13 of 1,152 jobs (1.13%); wanted at most 16"
    alarms = CriterionResult(
        "false-alarms", "correctness", True, "", 0.0113, direction="at_most", unit="share"
    )
    caught = CriterionResult("caught", "correctness", True, "", 1.0, target=1.0, unit="share")
    rows = [replace(alarms, counted=of_jobs), replace(caught, counted="171 of 171 (100%)")]
    gate = replace(made_up.passed(), lab="perf-gate", device="virtual", criteria=rows)
    text = " ".join(draw(render_verdict, gate).split())
    assert f"false alarms: {of_jobs}" in text
    assert "regressions caught: 171 of 171 (100%), wanted 100%" in text
    bare = replace(gate, criteria=[alarms])
    assert "1.13%" not in draw(render_verdict, bare), "without a target or a count it says nothing"


@pytest.mark.parametrize("holds", [True, False])
def test_the_speed_of_a_step_is_shown_with_its_times(draw, holds):
    speed = CriterionResult(
        "step-speedup", "target", holds, "A step: no, 2.58x.", 2.58, target=1.4, unit="x"
    )
    times = {"step_us": 4704.9, "shipped": {"step_us": 12151.0}}
    verdict = replace(made_up.passed(), criteria=[speed], measurement=times)
    expected = "12.2 ms → 4.70 ms a step, on the check"
    assert expected in " ".join(draw(render_verdict, verdict).split())
    assert expected in str(verdict_section(verdict))


def test_a_report_about_memory_promises_neither_causes_of_time_nor_gains(draw):
    summary = summarise(load(CAPTURES / "synthetic-growth.json.gz"))
    blind = evidence_only(replace(summary, of_memory=True))
    promised = (
        "Findings appear once you commit your diagnosis; what helps against them, after your first"
        " check."
    )
    top = partial(render_top, blind, "lab report")
    for text in (draw(render_summary, blind), draw(top)):
        assert "Causes, findings and gains" not in text
        assert promised in " ".join(text.split())


def test_no_causes_are_promised_of_a_program_that_measures_others(draw):
    summary = summarise(load(CAPTURES / "synthetic-input.json.gz"))
    assert "appear once you commit" in " ".join(
        draw(render_summary, evidence_only(summary)).split()
    )
    text = draw(render_summary, evidence_only(without_advice(summary)))
    assert "This program measures others" in text
    assert "once you commit" not in text


def test_below_a_report_the_last_verdict_is_short(draw):
    verdict = made_up.slow()
    text = draw(render_last_verdict, verdict)
    assert text.count("✗") == sum(each.holds is False for each in verdict.criteria)
    assert text.count("✓") == 1, "what holds is one line"
    assert "What to do next" in text
    assert "You predicted" not in text
    assert len(text.splitlines()) < len(draw(render_verdict, verdict).splitlines())
    passed = draw(render_last_verdict, made_up.passed())
    assert "PASS  all criteria are met" in passed
    assert len(passed.splitlines()) < 8


def test_a_check_s_own_figures_stay_in_reports_and_on_the_page(draw):
    figures = "44.0%; measured 45.6% ± 1.1 points"
    share = CriterionResult("share", "diagnosis", True, "Right: yes.", counted=figures)
    verdict = replace(made_up.passed(), lab="resnet-top-ops", device="cpu", criteria=[share])
    assert f"share of the first: {figures}" in " ".join(draw(render_last_verdict, verdict).split())
    assert figures in render_html(title="x", attempts=[verdict])


def test_verdict_in_a_narrow_ascii_terminal(draw, golden):
    text = draw(render_verdict, made_up.slow(), width=60, encoding="ascii", html=PAGE)
    assert text == golden("verdict-slow-60-ascii.txt")


def test_the_card_says_which_answers_were_corrected(draw):
    answer = CriterionResult("cause", "diagnosis", True, "cause: right", corrected=True)
    text = draw(render_verdict, replace(made_up.passed(), criteria=[answer]))
    assert "right now, and wrong in your first diagnosis" in " ".join(text.split())
    assert "points" not in text, "outside a cohort nobody grades"
    rested = replace(answer, sentence=f"evidence: 60%. {RESTED_ON_WRONG_CAUSE}")
    text = draw(render_verdict, replace(made_up.passed(), criteria=[rested]))
    flat = " ".join(text.split())
    assert "right now, and not judged at first, because the cause was wrong" in flat


def test_what_was_not_measured_is_named_once_a_reason_and_is_no_doubt(draw):
    spec = CriterionSpec("speed", "target", "A step is fast", label="speed of a step")
    ended = not_measured(spec, "because the check ended first")
    answer = CriterionSpec("cause", "diagnosis", "cause")
    ungraded = not_measured(answer, "since answers are graded only with work that runs")
    rows = [ended, replace(ended, id="memory"), ungraded]
    text = draw(render_verdict, replace(made_up.slow(), reason="crashed", criteria=rows))
    assert "Not measured, because the check ended first: speed, memory." in text
    assert "Not judged this time, since answers are graded only with work that runs: cause." in (
        " ".join(text.split())
    )
    assert "could not decide" not in text


def test_where_the_seconds_of_a_check_went(draw):
    seconds = dict.fromkeys(PHASES, 0.0) | {"reference": 9.0, "learner": 3.0}
    verdict = replace(made_up.slow(), duration_s=12.0, seconds=seconds)
    text = draw(lambda console: render_seconds(verdict, console))
    assert "Where the 12.0 s went" in text
    lines = {line.split()[0]: line for line in text.splitlines() if " s " in line}
    assert "your code at work" in lines["3.0"]
    assert lines["9.0"].count("█") == 3 * lines["3.0"].count("█") == 15


def test_summary(draw, golden):
    summary = summarise(made_up_capture.capture(emulated=True))
    assert draw(render_summary, made_up_capture.with_one_finding(summary)) == golden(
        "summary-80.txt"
    )


def test_evidence_alone(draw, golden):
    """Blind: not a word of causes, findings, ceilings and remedies, and the figures as they are
    otherwise.
    """
    summary = evidence_only(
        made_up_capture.with_one_finding(summarise(made_up_capture.capture(emulated=True)))
    )
    text = draw(render_summary, summary)
    assert text == golden("evidence-80.txt")
    told = made_up_capture.with_one_finding(
        summarise(made_up_capture.capture(emulated=True))
    ).findings[0]
    assert not [
        word for word in (told.title, told.advice, told.cause, "Amdahl", "idle: ") if word in text
    ]


@pytest.mark.parametrize(
    ("count", "note", "marks"),
    [
        (4, " (height: share busy; blank: idle)", 4),
        (30, " (height: share busy; blank: idle; marked: every 5th step)", 6),
    ],
)
def test_marks_of_steps_stand_evenly_where_the_host_runs_ahead(draw, count, note, marks):
    """The host began all steps at once; the device took equally long for each."""
    summary = summarise(made_up_capture.capture())
    ahead = [
        replace(summary.steps[0], start_ns=summary.start_ns + n, cost_ns=summary.wall_ns // count)
        for n in range(count)
    ]
    text = draw(render_summary, replace(summary, steps=ahead))
    assert f"\nHow busy over time{note}\n" in text
    (line,) = re.findall(r"^  steps +(╵.*)$", text, re.MULTILINE)
    at = [mark.start() for mark in re.finditer("╵", line)]
    assert len(at) == marks
    assert {after - before for before, after in pairwise(at)} <= {66 // marks, 66 // marks + 1}


def test_what_is_the_same_on_all_ranks_is_printed_once(draw):
    """Eight ranks, of which the fourth differs: two lines in each list, and gaps that ranks have in
    common are one.
    """
    summary = summarise(made_up_capture.capture())
    (use,), (launches,) = summary.devices, summary.launches
    ranks = range(8)
    devices = [replace(use, rank=rank, device=rank) for rank in ranks]
    late = replace(devices[3], compute_ns=0, busy_ns=0, busy_strip=[0.0] * len(use.busy_strip))
    devices[3] = replace(late, largest_gaps=[])
    launched = [replace(launches, rank=rank) for rank in ranks]
    launched[3] = replace(launches, rank=3, kernels_per_step=7)
    text = draw(
        render_summary,
        evidence_only(replace(summary, ranks=[*ranks], devices=devices, launches=launched)),
    )
    assert text.count("ranks 0-2, 4-7, each: ") == text.count("rank 3: ") == 1
    assert len(re.findall(r"^  ranks 0-2, 4-7 +[▁-█]", text, re.MULTILINE)) == 2
    assert len(re.findall(r"^  rank 3 +", text, re.MULTILINE)) == 2
    assert re.search(r"^ +22 .* 1  ranks 0-2, 4-7$", text, re.MULTILINE)
    assert "\n ranks 0-7" in text


@pytest.mark.parametrize("ranks", [1, 2])
def test_launches_are_one_count_with_copies_and_kernels_as_parts(draw, ranks):
    summary = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    (use,), steps = summary.launches, summary.steps[:1]
    uses = [replace(use, rank=rank, kernels_per_step=264.4 + rank) for rank in range(ranks)]
    copies = [replace(summary.copies[0], calls=46)]
    summary = replace(summary, ranks=[*range(ranks)], launches=uses, copies=copies, steps=steps)
    text = " ".join(draw(render_summary, evidence_only(summary)).split())
    if ranks == 1:
        assert "310 launches a step: 46 copies and 264 kernels, half of the kernels under " in text
    else:
        assert "rank 0: 264 kernels a step, half" in text
        assert "rank 1: 265 kernels a step, half" in text
        assert "Copies: 46 a step." in text


def test_gaps_of_one_length_before_the_same_work_are_one_line(draw):
    summary = summarise(made_up_capture.capture())
    (use,) = summary.devices
    first = use.largest_gaps[0]
    length = first.end_ns - first.start_ns
    alike = [
        replace(first, start_ns=first.start_ns + n, end_ns=first.start_ns + n + length)
        for n in range(3)
    ]
    other = replace(first, end_ns=first.start_ns + length // 2)
    uses = [replace(use, largest_gaps=[*alike, other])]
    text = draw(render_summary, evidence_only(replace(summary, devices=uses)))
    listed = text.partition("longest gaps")[2].partition("\n\n")[0]
    assert "gap first at lasts alike before" in " ".join(listed.split())
    rows = re.findall(r"^ +(\d+) .* (\d+)  \S", listed, re.MULTILINE)
    assert rows == [("1", "3"), ("4", "1")]


def test_memory_that_stays_the_same_is_a_number_unless_all_is_wanted(draw):
    summary = summarise(load(CAPTURES / "synthetic-growth.json.gz"))
    (use,) = summary.memory
    steady = replace(
        summary,
        memory=[replace(use, growth_bytes_per_step=0, fall_bytes=0, highest_after_step_bytes=0)],
    )
    short = draw(render_summary, steady)
    whole = draw(lambda *given: render_summary(*given, whole=True), steady)
    assert "Lines that caused the memory" in draw(render_summary, summary)
    assert "Lines that caused the memory" not in short
    assert "the lines that hold memory. With `--all`" in " ".join(short.split())
    assert "Lines that caused the memory" in whole


def test_a_stretch_says_once_what_ranks_did_alike(draw):
    """Two threads of one rank that did the same are still two."""
    device = DeviceStretch(0, 0, 80, 0, 0, 20, 20)
    devices = [replace(device, rank=rank, device=rank) for rank in range(3)]
    devices.append(replace(device, rank=3, device=3, compute_ns=100, idle_ns=0, longest_idle_ns=0))
    work = ThreadUse(0, 0, 100, [NamedTime("range", "infer", 100, 1)])
    threads = [replace(work, rank=rank, thread=rank) for rank in range(4)]
    threads.append(replace(work, rank=0, thread=4))
    named = [SimpleNamespace(name="server", pid=1, tid=1)] * 5
    timeline = SimpleNamespace(ranks=tuple(range(4)), threads=named)
    text = draw(render_selection, Selection(0, 100, devices, threads), timeline)
    assert "ranks 0-2, devices 0-2: computing 80%, 80 ns; idle 20%, 20 ns (longest 20 ns)" in text
    assert "rank 3, device 3: computing 100%" in text
    assert "\n ranks 0-3, server\n" in text
    assert "\n rank 0, server\n" in text


def test_a_thread_has_a_share_of_a_stretch_where_it_is_not_all_of_it(draw):
    timeline = SimpleNamespace(ranks=(0,), threads=[SimpleNamespace(name="main", pid=1, tid=1)])
    for busy_ns, line in ((99_960, " main"), (82_300, " main: 82.3% of the stretch")):
        use = ThreadUse(0, 0, busy_ns, [])
        text = draw(render_selection, Selection(0, 100_000, [], [use]), timeline)
        assert text.splitlines()[-1] == line


def test_no_cause_of_idle_time_is_cut_in_a_terminal_of_80_columns():
    for cause in IDLE_CAUSES:
        assert len(f"idle: {cause.label}") <= 80 // 3 - 3, cause.label


def test_a_stretch_says_when_what_is_in_it_began_and_ended(draw):
    """To trim it takes more than a sum."""
    names = [
        NamedTime("range", "preprocess", 72_000_000, 1, 230_122_000, 302_122_000),
        NamedTime("range", "decode", 60_000_000, 5, 302_122_000, 342_122_000),
        NamedTime("operator", "aten::_to_copy", 26_000_000, 17, 302_122_000, 303_122_000),
    ]
    timeline = SimpleNamespace(ranks=(0,), threads=[SimpleNamespace(name="server", pid=1, tid=1)])
    stretch = Selection(230_000_000, 370_000_000, [], [ThreadUse(0, 0, 140_000_000, names)])
    text = draw(render_selection, stretch, timeline)
    assert "preprocess, range (230.122–302.122 ms)" in text
    assert "decode, range (5 times, longest 302.122–342.122 ms)" in text
    assert "aten::_to_copy, operator (17 times)" in text


def test_operators_and_gaps_of_a_cpu_are_listed_only_where_they_say_more(draw, tmp_path):
    """One operator after another, 10 ms from each begin to the next."""

    def drawn(pause_us, *, blind):
        call = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
        events = [call | {"ts": 1e4 * number, "dur": 1e4 - pause_us} for number in range(9)]
        file = tmp_path / f"{pause_us}.json"
        file.write_text(json.dumps({"traceEvents": events}))
        return draw(render_summary, replace(summarise(load(file)), blind=blind))

    text = drawn(100, blind=False)
    assert "Top operators" in text
    assert "What is inside it" not in text, "its shares were of another whole"
    assert "longest gap" not in drawn(100, blind=True)
    assert "longest gap" in drawn(3000, blind=True)


@pytest.mark.parametrize(
    ("ceiling_share", "shown"), [(0.184, True), (-1.0, False)], ids=["known", "unknown"]
)
def test_the_roofline_is_told_where_the_ceilings_are_known(draw, ceiling_share, shown):
    row = RooflineRow(
        "aten::addmm",
        "fp16",
        96,
        735_000,
        1.3e11,
        4e8,
        325.0,
        1.8e14,
        "compute-bound",
        ceiling_share,
    )
    summary = summarise(made_up_capture.capture())
    placed = replace(summary, roofline=Roofline(find_machine("NVIDIA H100 80GB HBM3"), [row]))
    waiting = draw(render_summary, placed)
    assert "under the roofline" not in waiting, "the device is idle half of the time"
    assert "the roofline. With `--all`" in " ".join(waiting.split())
    text = draw(render_summary, placed, whole=True)
    line = next((line for line in text.splitlines() if "aten::addmm fp16" in line), "")
    assert ("under the roofline of H100" in text) is shown
    parts = ("18.4% of its ceiling", "compute-bound")
    assert all(part in line for part in parts) is shown


def test_memory_is_told_from_first_to_highest(draw):
    """A learner is asked for it: what is only on the page is not there over a network."""
    capture = summarise(load(CAPTURES / "synthetic-growth.json.gz"))
    told = " ".join(draw(render_summary, evidence_only(capture)).split())
    assert (
        "256.00 MiB at the start 12.00 MiB kept for good by the 3 recorded steps before the"
        " peak's: 4.4% of the peak 4.00 MiB what the peak's step adds, less what it frees"
        " 272.00 MiB at the peak" in told
    )


def test_free_blocks_are_said_not_to_count_where_memory_is_listed(draw):
    growing = summarise(load(CAPTURES / "synthetic-growth.json.gz"))
    assert ALLOCATED_ONLY in draw(render_summary, growing)
    assert ALLOCATED_ONLY in str(memory_tables(growing))
    steady = replace(
        growing, memory=[replace(use, growth_bytes_per_step=0) for use in growing.memory]
    )
    assert ALLOCATED_ONLY not in draw(render_summary, steady), "it is a line"
    assert ALLOCATED_ONLY in draw(partial(render_summary, whole=True), steady)


def test_a_program_that_measures_others_gets_no_advice(draw):
    capture = summarise(load(CAPTURES / "synthetic-sync.json.gz"))
    advice = "Keep values on the device"
    assert advice in draw(render_summary, capture)
    shown = draw(render_summary, without_advice(capture))
    assert advice not in shown
    assert "This program measures others" in shown


def test_a_comparison_shows_memory_before_and_after(draw):
    growing, even = (load(CAPTURES / f"synthetic-{name}.json.gz") for name in ("growth", "sync"))
    shown = " ".join(draw(render_comparison, compare(growing, growing)).split())
    assert "272.0 MiB → 272.0 MiB at the peak, device 0" in shown
    assert "4.0 MiB → 4.0 MiB more each step in the long run, device 0" in shown
    assert "at the peak" not in draw(render_comparison, compare(growing, even))


def test_a_comparison_in_a_lab_about_memory_begins_with_memory(draw):
    growing = load(CAPTURES / "synthetic-growth.json.gz")
    comparison = compare(growing, growing)
    (use,) = comparison.memory
    halved = replace(use, peak_bytes=(272 << 20, 136 << 20))
    near = replace(use, peak_bytes=(1590 << 10, 1680 << 10))
    leak = replace(use, peak_bytes=(47702 << 10, 1604 << 10))
    for of_memory, memory, first in (
        (True, [halved], "Less memory at the peak: 272.0 MiB → 136.0 MiB (2.00x)"),
        (True, [use], "Memory hardly different at the peak: 272.0 MiB → 272.0 MiB (1.00x)"),
        (True, [leak], "Less memory at the peak: 46.6 MiB → 1.57 MiB (29.7x)"),
        (True, [near], "More memory at the peak: 1.55 MiB → 1.64 MiB (0.95x)"),
        (True, [], describe_speedup(comparison)),
        (False, [halved], describe_speedup(comparison)),
    ):
        (lines, outcome) = describe_headline(
            replace(comparison, of_memory=of_memory, memory=memory)
        )
        assert lines[0] == first
        assert (outcome == "better") is (lines[0].startswith("Less"))
    shown = draw(render_comparison, replace(comparison, of_memory=True))
    assert "\n Hardly different: 1.00x for a step (" in shown


def test_an_emulated_kernel_beside_its_operator_is_not_listed_twice():
    capture = made_up_capture.capture()
    comparison = compare(capture, made_up_capture.capture(wait_ms=1))
    row = replace(comparison.changes[0], outcome="better")
    changes = [
        replace(row, group="operator", what="aten::mm"),
        replace(row, group="kernel", what="emulated: mm"),
        replace(row, group="kernel", what="emulated: all_reduce"),
        replace(row, group="kernel", what="gemm"),
    ]
    comparison = replace(comparison, changes=changes)
    assert [change.what for change in shown_changes(comparison, "kernel")] == [
        "emulated: all_reduce",
        "gemm",
    ]
    assert shown_changes(comparison, "operator") == changes[:1]


def test_of_many_changes_one_that_is_new_is_among_those_listed():
    comparison = compare(made_up_capture.capture(), made_up_capture.capture(wait_ms=1))
    row = replace(comparison.changes[0], group="operator", outcome="better")
    gone = [replace(row, what=f"aten::old{number}", after=0.0) for number in range(9)]
    new = replace(row, what="aten::bmm", before=0.0, outcome="worse")
    listed = shown_changes(replace(comparison, changes=[*gone, new]), "operator")
    assert [change.what for change in listed][-2:] == ["aten::old6", "aten::bmm"]


def test_in_a_lab_about_memory_the_report_begins_with_it_and_time_is_in_second_place(draw):
    summary = replace(summarise(load(CAPTURES / "synthetic-growth.json.gz")), of_memory=True)
    slow = made_up_capture.with_one_finding(summary).findings[0]
    growing = [each for each in summary.findings if each.id == "memory-growth"]
    summary = replace(summary, findings=[*growing, slow])
    text = draw(render_summary, summary)
    assert "Where did the wall time go?" not in text
    assert "`--all` and `--html` show where that went" in text
    whole = draw(partial(render_summary, whole=True), summary)
    assert whole.index("Memory held over time") < whole.index("Where did the wall time go?")
    assert text.count("Memory held over time") == whole.count("Memory held over time") == 1
    assert "Where most time is lost" not in text
    assert "First finding: Memory grows from step to step (memory, not time)." in text
    beside = f"this lab doesn't ask for: {slow.title}."
    assert beside not in " ".join(text.split())
    assert beside in " ".join(whole.split())
    assert slow.advice not in text + whole
    assert "Findings, costliest first" not in text


def test_in_a_lab_about_memory_no_finding_of_time_is_the_headline(draw):
    summary = made_up_capture.with_one_finding(
        summarise(load(CAPTURES / "synthetic-growth.json.gz"))
    )
    summary = replace(summary, of_memory=True, remedies_later=True)
    (slow,) = summary.findings
    short = " ".join(draw(render_summary, summary).split())
    assert "Findings No finding is about memory. This lab isn't about time" in short
    text = " ".join(draw(partial(render_summary, whole=True), summary).split())
    assert "Costliest finding" not in text
    assert "Shares and gains are of the time" not in text
    assert REMEDIES_LATER not in text
    beside = f"Of time, which this lab doesn't ask for: {slow.title}."
    assert f"Findings No finding is about memory. {beside}" in text
    section = re.sub("<[^>]*>", " ", findings_section(summary)).replace("&#x27;", "'")
    assert section.split() == f"Findings No finding is about memory. {beside}".split()


def test_a_gain_above_what_a_check_can_measure_is_never_the_headline(draw):
    summary = made_up_capture.with_one_finding(
        summarise(load(CAPTURES / "synthetic-input.json.gz"))
    )
    (finding,) = summary.findings
    high = replace(summary, findings=[replace(finding, expected_gain_ratio=11.76)])
    measured = replace(high, check_ceiling=2.5)
    text = " ".join(draw(render_summary, measured).split())
    assert f"{finding.title} (at most 11.76x; a check measures 2.50x at most)." in text
    figures = str(time_section(measured, []))
    assert "<b>at most 2.50x</b>" in figures
    assert "as fast in a check; at most 11.76x here without" in figures
    for other in (high, replace(high, check_ceiling=20.0)):
        assert "a check measures" not in " ".join(draw(render_summary, other).split())
        assert "<b>at most 11.76x</b>" in str(time_section(other, []))


def test_growth_that_a_fall_hides_is_not_compared(draw):
    growing = load(CAPTURES / "synthetic-growth.json.gz")
    comparison = compare(growing, growing)
    hidden = replace(comparison.memory[0], fall_bytes=(5 << 20, 0), hides_growth=(True, False))
    shown = " ".join(draw(render_comparison, replace(comparison, memory=[hidden])).split())
    assert "cannot tell → 4.0 MiB more each step in the long run, device 0" in shown
    assert "5.0 MiB → 0 B freed at once where memory falls most, device 0" in shown
    rose = replace(hidden, hides_growth=(False, False), fall_bytes=(3 << 20, 6 << 20))
    rose = replace(
        rose, growth_bytes_per_step=(732 << 10, 40 << 10), peak_bytes=(46 << 20, 9 << 20)
    )
    shown = " ".join(draw(render_comparison, replace(comparison, memory=[rose])).split())
    assert "freed at once where memory falls most; what is more was kept for good before" in shown
    fell = replace(hidden, hides_growth=(False, False), peak_bytes=(100 << 20, 6 << 20))
    shown = " ".join(draw(render_comparison, replace(comparison, memory=[fell])).split())
    assert "5.0 MiB → 0 B freed at once where memory falls most" in shown, (
        "as large as the peak that is left"
    )


@pytest.mark.parametrize(
    ("fall_bytes", "shown"),
    [
        ((0, 340 << 10), True),  # lists that grow until the next report
        ((340 << 10, 0), True),
        ((0, 200 << 10), False),
        ((340 << 10, 380 << 10), False),  # batches of several sizes
    ],
)
def test_a_fall_that_one_side_has_not_is_compared_from_less_on(draw, fall_bytes, shown):
    growing = load(CAPTURES / "synthetic-growth.json.gz")
    comparison = compare(growing, growing)
    (use,) = comparison.memory
    small = replace(use, peak_bytes=(1600 << 10, 1640 << 10), fall_bytes=fall_bytes)
    text = draw(render_comparison, replace(comparison, memory=[small]))
    assert ("freed at once where memory falls most" in text) is shown


def test_a_comparison_counts_waits_as_a_check_does(draw):
    sync, other = (load(CAPTURES / f"synthetic-{name}.json.gz") for name in ("sync", "input"))
    comparison = compare(sync, other)
    before, after = comparison.waits_per_step
    assert before > 1 > after
    text = draw(render_comparison, comparison)
    assert f"Waits of the host for the device: {before:.3g} → {after:.3g} a step" in text
    rare = draw(render_comparison, replace(comparison, waits_per_step=(12.1, 1 / 28)))
    assert "Waits of the host for the device: 12.1 a step → 1 in 28 steps" in rare
    several = replace(comparison, ranks=8)
    assert "a rank and step" in draw(render_comparison, several)
    assert "No longer a finding: gone, or too little now" in text


def test_a_name_too_long_for_a_line_stands_below_it_whole_and_times_are_told_apart(draw):
    before, after = made_up_capture.capture(), made_up_capture.capture(wait_ms=1)
    comparison = compare(before, after)
    name = "train.py(31): train: " + "total = total + " * 9 + "loss"
    step = next(change for change in comparison.changes if change.group == "step")
    changes = [
        replace(step, group=group, what=what, outcome="better")
        for group, what in (("step", step.what), ("line", name), ("operator", "aten::mm"))
    ]
    text = draw(render_comparison, replace(comparison, changes=changes))
    assert "…" not in text
    assert name in " ".join(text.split())
    assert "Operators, by the CPU's time in them alone" in text
    changes.append(replace(step, group="kernel", what="gemm"))
    on_device = draw(render_comparison, replace(comparison, changes=changes))
    assert "Operators, by the device's time in what they launch" in on_device


def test_lists_that_a_diagnosed_report_leaves_out_are_named_and_can_be_had(draw):
    summary = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    short = draw(render_summary, summary)
    whole = draw(lambda *given: render_summary(*given, whole=True), summary)
    assert "kernels, the longest gaps. With `--all` they are listed" in " ".join(short.split())
    assert "Left out" not in whole
    for title in ("Top kernels, by share", "longest gaps ("):
        assert title not in short
        assert whole.count(title) == 1
    assert whole.count("Where the host waited") == 1


def test_waits_and_copies_that_take_next_to_no_time_are_a_line_each(draw):
    diagnosed = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    blind = evidence_only(diagnosed)
    waited = "\nThe host hardly waited for the device: 0.1% of the wall time.\n"
    copied = "\nCopies took 0.2% of the wall time.\n"
    for summary in (blind, diagnosed):
        text = draw(render_summary, summary)
        assert waited in text
        assert (copied in text) is summary.blind, "a diagnosed report leaves copies out"
        assert "Where the host waited" not in text
        assert "Copies, by" not in text
        whole = draw(partial(render_summary, whole=True), summary)
        assert "Where the host waited" in whole
        assert "Copies, by" in whole
        assert waited not in whole
        assert copied not in whole
    longer = [replace(row, total_ns=4 * row.total_ns) for row in blind.syncs]
    assert "Where the host waited" in draw(render_summary, replace(blind, syncs=longer))


def test_comparison(draw, golden):
    before, after = made_up_capture.capture(), made_up_capture.capture(wait_ms=1)
    assert draw(render_comparison, compare(before, after)) == golden("comparison-80.txt")


@pytest.mark.parametrize("device_ms", [None, 51.234])
def test_lines_are_a_table_in_80_columns(draw, device_ms):
    """Without its least needed columns, and with one row each: a longer name is cut."""
    columns = ["name", "kind", "times", "processes", "host_ms", "host_percent", "shortest_ms"]
    columns += ["longest_ms", "launches_a_step", "device_ms", "device_percent", "backward_ms"]
    names = ["train.py(31): step", "torch/nn/modules/very_long_module.py(1787): _call_the_module"]
    figures = ["function", 42, 1, 121.4818, 38.556, 1.1100, 7.4789, 117.0]
    figures += [device_ms, device_ms and 16.263, device_ms]
    result = QueryResult(columns, [[name, *figures] for name in names])
    text = draw(render_query, result, question=find_question("lines"))
    assert "row 1" not in text
    rows = [line for line in text.splitlines() if " 121.48 " in line]
    assert "train.py(31): step " in rows[0]
    assert "(1787): _ca" in rows[1], "its number is never cut"
    assert "torch/" not in text
    assert "Left out for want of room: " in text
    assert ("51.23" in text) is bool(device_ms)
    assert max(map(len, text.splitlines())) <= 80


def test_a_number_that_every_row_has_is_told_once(draw):
    rows = [[f"train.py({line}): train", line, 20.0] for line in (9, 12, 13)]
    rows.append(["sum", 34, None])

    def lines(rows):
        answer = QueryResult(["part", "launches", "each_us"], rows)
        return draw(render_query, answer, question=find_question("budget")).splitlines()

    once = "each_us: 20.0 in all rows that have one"
    head, *_, last = [line.strip() for line in lines(rows) if line.strip()]
    assert (head.split(), last) == (["part", "launches"], once)
    assert "each_us" in lines(rows[1:])[1], "two rows may be alike by chance"


def test_figures_of_an_answer_have_as_many_digits_as_one_reads(draw):
    """Numbers that differ are not told as the same once they are rounded."""
    columns = ["part", "launches", "host_ms", "mean_us", "percent", "gb_per_s"]
    rows = [
        ["a", 310.0, 7.556, 23.546, 38.02, 25.316],
        ["b", 0.3, 0.0005808, 0.02, 0.01, 25.316],
        ["c", 1104.6, 0.0, None, 100.0, 25.316],
        ["d", 0.01, -0.001, 9.0, 0.0, None],
    ]
    text = draw(render_query, QueryResult(columns, rows), question=find_question("budget"))
    cells = [line.split() for line in text.splitlines() if line[1:3] in {"a ", "b ", "c ", "d "}]
    assert cells == [
        ["a", "310", "7.56", "23.5", "38.0"],
        ["b", "0.3", "<0.01", "<0.1", "<0.1"],
        ["c", "1,104.6", "0.00", "100.0"],
        ["d", "<0.1", ">-0.01", "9.0", "0.0"],
    ]
    assert "gb_per_s: 25.32 in all rows that have one" in text


def test_small_numbers_are_not_taken_for_one_that_all_rows_have(draw):
    rows = [[f"train.py({line}): train", line / 1e5] for line in (9, 12, 13)]
    answer = QueryResult(["part", "host_ms"], rows)
    text = draw(render_query, answer, question=find_question("budget"))
    assert text.count("<0.01") == 3


def test_lines_have_their_source_below(draw):
    name = "train.py(31): step"
    result = QueryResult(["name", "host_ms"], [[name, 1.5], ["train.py(32): step", 0.5]])
    code = {name: "total += loss.item() # a long remark that has no room beside the figures"}
    text = draw(render_query, result, question=find_question("lines"), code=code)
    assert text[text.index(name) :].splitlines()[1].strip().startswith("total += loss.item() # a")
    assert max(map(len, text.splitlines())) <= 80


def test_parts_of_which_nothing_can_be_told_are_left_out_where_the_step_cannot_be_told(draw):
    before, after = made_up_capture.capture(), made_up_capture.capture(wait_ms=1)
    undecided = compare(before, after)
    assert undecided.outcome == "cannot tell"
    assert "\nRanges\n" not in draw(render_comparison, undecided)
    decided = replace(undecided, outcome="better")
    assert "\nRanges\n" in draw(render_comparison, decided)
    changes = [replace(e, outcome="better") if e.group == "range" else e for e in undecided.changes]
    assert "\nRanges\n" in draw(render_comparison, replace(undecided, changes=changes))


@pytest.mark.parametrize("name", ["launch", "input"])
def test_the_top_of_a_summary_is_its_beginning_and_names_the_rest(draw, name):
    """As after a capture: short, and as blind as the report itself."""
    summary = summarise(load(CAPTURES / f"synthetic-{name}.json.gz"))
    blind = evidence_only(summary)
    for each in (summary, blind):
        top, whole = draw(render_top, each, "lab report 3"), draw(render_summary, each)
        *shown, closing = top.replace("Where did", "1  Where did").split("\n\n")
        if each is blind:
            shown = top.split("\n\n")[:-1]
        assert whole.startswith("\n\n".join(shown))
        assert "`lab report 3` shows" in closing
        assert len(top.splitlines()) < 25 < len(whole.splitlines())
    assert f"Costliest finding: {summary.findings[0].title}" in draw(render_top, summary, "x")
    assert summary.findings[0].title not in draw(render_top, blind, "x")
    assert "once you commit" in draw(render_top, blind, "x")


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_nothing_reaches_beyond_the_width(draw, width, encoding):
    """A path is the exception: it is to be copied."""
    text = draw(render_verdict, made_up.slow(), width=width, encoding=encoding)
    text += draw(
        render_summary, summarise(made_up_capture.capture()), width=width, encoding=encoding
    )
    assert max(map(len, text.splitlines())) <= width


def test_hostile_text_does_not_drive_the_terminal(draw):
    text = draw(render_verdict, made_up.hostile()) + draw(
        render_summary, summarise(made_up_capture.hostile())
    )
    assert "[bold]" in text, "text in brackets is text, not a style"
    assert not set(text) & {chr(code) for code in [*range(9), *range(11, 32), 0x7F, 0x202E]}


def test_a_name_of_any_length_leaves_the_summary_readable(draw):
    text = draw(render_summary, summarise(made_up_capture.hostile()))
    assert len(text.splitlines()) < 95


def test_a_capture_without_any_event_is_drawn(draw):
    assert "Where the time went" in draw(render_summary, summarise(made_up_capture.empty()))


@pytest.mark.parametrize(
    ("outcome", "ratio", "shown"),
    [
        ("better", 1.5, "1.50x"),
        ("better", 126_836.0, ">100x"),
        ("cannot tell", 126_836.0, ""),
        ("worse", 0.0001, ""),
        ("worse", 0.02, "0.02x"),
    ],
)
def test_a_ratio_to_next_to_nothing_is_a_bound_of_what_is_better(outcome, ratio, shown):
    before, after = made_up_capture.capture(), made_up_capture.capture(wait_ms=1)
    change = compare(before, after).changes[0]
    change = replace(change, ratio=ratio, low=ratio, high=ratio, before=ratio, after=1.0)
    change = replace(change, outcome=outcome)
    assert format_ratio(change) == shown
    assert bool(format_between(change)) == (shown not in ("", ">100x"))


@pytest.mark.parametrize(
    ("group", "before", "after", "outcome", "waits", "word", "ratio"),
    [
        ("line", 0.0, 5.0, "differs", True, "new", "hidden"),  # beside a busy device
        ("line", 4.0, 5.0, "differs", True, "hidden", ""),
        ("sync", 0.0, 5.0, "differs", True, "hidden", "new"),
        ("line", 4.0, 5.0, "cannot tell", True, "cannot tell", "0.80x"),  # of unreliable captures
        ("operator", 5.0, 0.0, "cannot tell", False, "gone", ""),
        ("operator", 0.0, 5.0, "cannot tell", False, "new", ""),
        ("operator", 5.0, 0.0, "better", False, "better", "gone"),
        ("gap", 0.0, 5.0, "worse", False, "worse", "new"),
    ],
)
def test_what_one_side_alone_has_is_gone_or_new(group, before, after, outcome, waits, word, ratio):
    change = FigureChange("x", group, before, after, 0.0, outcome, waits=waits)
    assert (judge_change(change), format_ratio(change)) == (word, ratio)
    assert bool(describe_ahead([change])) is ("hidden" in (word, ratio))


@pytest.mark.parametrize(("outcome", "explained"), [("same", True), ("better", False)])
def test_the_word_small_is_explained_where_it_stands(draw, outcome, explained):
    comparison = compare(made_up_capture.capture(), made_up_capture.capture(wait_ms=1))
    change = FigureChange("aten::neg", "operator", 4e5, 2e5, 2.0, outcome, calls=(2.0, 1.0))
    changes = [replace(comparison.changes[0], outcome="better"), change]
    comparison = replace(comparison, changes=changes, outcome="better")
    shown = draw(render_comparison, comparison)
    assert "aten::neg" in shown
    assert ("0.5% of the step is small: the same." in " ".join(shown.split())) is explained


@pytest.mark.parametrize(("what", "explained"), [("fixed", True), ("launch", False)])
def test_the_word_charge_is_explained_where_it_stands(draw, what, explained):
    comparison = compare(made_up_capture.capture(), made_up_capture.capture(wait_ms=1))
    change = FigureChange(what, "gap", 5e6, 4e6, 1.25, "better")
    later = FigureChange("aten::neg", "operator", 4e5, 2e5, 2.0, "better")
    comparison = replace(comparison, changes=[*comparison.changes, change, later], outcome="better")
    page = re.sub("<[^>]*>", " ", str(comparison_section(comparison)))
    for text in (draw(render_comparison, comparison), page):
        shown = " ".join(text.split())
        assert ("fixed price of a step" in shown) == explained
        assert shown.count("charge: ") == explained
        assert not explained or shown.index("charge: ") < shown.index("aten::neg")


def test_a_ratio_is_that_of_the_times_beside_it():
    """A pause that is long in every other step: the means are ten times as far apart as pairs of
    steps are.
    """
    before, after = made_up_capture.capture(), made_up_capture.capture(wait_ms=1)
    change = replace(compare(before, after).changes[0], ratio=1.1, low=1.05, high=1.2)
    ragged = replace(change, before=1e5, after=1e6, outcome="better")
    assert (format_ratio(ragged), format_between(ragged)) == ("0.10x", "")
    assert judge_change(ragged) == "cannot tell", "typical steps say the opposite of the means"
    even = replace(change, before=1.1e6, after=1e6)
    assert (format_ratio(even), format_between(even)) == ("1.10x", "1.05–1.20x")


def test_what_helps_is_not_told_before_the_first_check(draw):
    """Findings say what was seen and what it costs; neither terminal nor page names the remedy."""
    capture = analyse(load(CAPTURES / "synthetic-input.json.gz"))
    later = without_remedies(capture.summary)
    for text in (
        draw(render_summary, later),
        render_html(title="a capture", capture=capture._replace(summary=later)),
    ):
        words_ = " ".join(text.split())
        assert "The device waits for data" in words_
        assert "after your first check" in words_
        assert "num_workers" not in words_
        assert "What to try" not in words_
    assert "num_workers" in draw(render_summary, capture.summary)
    assert b"num_workers" not in msgspec.json.encode(later.findings)


def test_a_stretch_says_what_each_device_ran_and_tells_messages_by_their_size(draw):
    work = [
        DeviceWork("ncclDevKernel_AllReduce", 4, 60, 15),
        DeviceWork("ncclDevKernel_AllReduce", 27 << 20, 20, 1),
    ]
    device = DeviceStretch(0, 0, 20, 80, 0, 0, 0, work)
    timeline = SimpleNamespace(ranks=(0,), threads=[])
    text = draw(render_selection, Selection(0, 100, [device], []), timeline)
    assert re.search(r"60.0% +60 ns ncclDevKernel_AllReduce of 4 B \(15 times\)", text)
    assert re.search(r"20.0% +20 ns ncclDevKernel_AllReduce of 27.0 MiB\n", text)
    long = [replace(each, name="nccl_with_a_long_name" * 5) for each in work]
    cut = draw(render_selection, Selection(0, 100, [replace(device, work=long)], []), timeline)
    assert re.search(r"nccl\w+…\w+ of 4 B \(15 times\)\n", cut)
    assert re.search(r"nccl\w+…\w+ of 27.0 MiB\n", cut)
    assert max(map(len, cut.splitlines())) <= 80


def test_names_that_differ_only_at_their_end_stay_apart_in_every_list(draw):
    """In lists of kernels, operators and gaps, at the width of a small terminal."""
    summary = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    long = "autograd::engine::evaluate_function_of_the_third_layer_of_the_encoder_"
    (use,) = summary.devices
    kernels = [replace(summary.kernels[0], name=f"{long}{end}") for end in ("nn", "tn")]
    operators = [replace(summary.operators[0], name=f"aten::{long}{end}") for end in ("in", "out")]
    gaps = [replace(use.largest_gaps[0], after=f"{long}{end}") for end in ("fwd", "bwd")]
    devices = [replace(use, largest_gaps=gaps)]
    summary = replace(summary, kernels=kernels, operators=operators, devices=devices)
    text = draw(render_summary, evidence_only(summary))
    for end in ("nn", "tn", "in", "out", "fwd", "bwd"):
        assert re.search(rf"…\w+_{end}$", text, re.MULTILINE), end
    assert max(map(len, text.splitlines())) <= 80


def test_what_a_wait_is_for_is_shown_whole(draw):
    summary = summarise(load(CAPTURES / "synthetic-sync.json.gz"))
    awaited = "Memcpy HtoD (Pageable -> Device)"
    rows = [replace(summary.syncs[0], line="train.py(31): train", awaited=awaited, awaited_ns=1)]
    rows = [replace(row, awaited_line="train.py(30): train") for row in rows]
    code = {"train.py(31): train": "history.append(loss.item())"}
    text = " ".join(draw(render_summary, replace(summary, syncs=rows, code=code)).split())
    assert "train.py(31): train, for work of train.py(30) history.append(loss.item())" in text
    rows = [replace(row, awaited_line=row.line) for row in rows]
    text = " ".join(draw(render_summary, replace(summary, syncs=rows, code=code)).split())
    assert f"train.py(31): train, for {awaited} history.append(loss.item())" in text


def test_a_part_without_which_nothing_would_be_faster_says_so(draw):
    summary = summarise(made_up_capture.capture())
    text = draw(render_summary, replace(summary, gains=dict.fromkeys(summary.gains, 1.0)))
    assert "1.00x" not in text.split("Findings")[0]
    assert "a step would not be faster" in " ".join(text.split())


def test_inside_other_idle_time_is_where_the_host_was_meanwhile_and_it_sums_up(draw):
    summary = summarise(load(CAPTURES / "synthetic-input.json.gz"))
    text = draw(render_summary, summary).split("3  What is inside it")[1].split("\n\n")[0]
    shares = [float(share) for share in re.findall(r"^ +([\d.]+)%", text, re.MULTILINE)]
    (part,) = [part for part in wall_parts(summary.devices) if part.cause == "input"]
    assert "data" in text.split("%")[1]
    assert sum(shares) == pytest.approx(100 * part.share, abs=0.2)


def test_inside_idle_time_of_launching_is_where_the_host_was_and_it_sums_up(draw):
    """The lines' own time is longer than the block: only what the device was idle for is in it.
    The price that the modelled host charges each step is named, and explained once.
    """
    summary = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    (use,) = summary.devices
    price = "fixed charge of a step (modelled)"
    inside = [("train.py(9): train", use.wall_ns // 4), (price, use.wall_ns // 10)]
    part = replace(use.gap_causes[0], idle_ns=use.wall_ns // 2, nowhere_ns=use.wall_ns * 3 // 25)
    causes = [replace(part, inside=inside, places=9)]
    assert causes[0].cause == "launch"
    lines = [LineRow("train.py(9): train", 5, use.wall_ns, 0)]
    devices, shares = [replace(use, gap_causes=causes)], {price: 0.1, "data": 0.05}
    summary = replace(summary, devices=devices, lines=lines, range_shares=shares)
    whole = draw(partial(render_summary, whole=True), summary)
    explained = "The fixed charge is a step's Python besides its operators: every step has it."
    assert " ".join(whole.split()).count(explained) == 1
    blind = draw(render_summary, replace(summary, blind=True, modelled_host=True))
    assert " ".join(blind.split()).count(explained) == 1
    bars = draw(render_top, summary, "lab report")
    assert explained not in " ".join(bars.split()), "no bar is of it"
    assert re.search(r"^ +85.0% .+ outside of these: launches and waits$", blind, re.MULTILINE)
    text = draw(render_summary, summary).split("3  What is inside it")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^ +([\d.]+%) +[\d.]+ \S+ \S+ (.+)$", text, re.MULTILINE))
    assert rows == {
        "25.0%": "train.py(9): train",
        "12.0%": "between operators, in none",
        "10.0%": price,
        "3.0%": "7 other places",
    }
    assert re.search(r"This block is the sum of [\d,]+ gaps, ", text)
    assert "--gap" not in text


def test_inside_communication_sums_to_the_block_and_time_over_shows_it(draw):
    """Seven sizes: five rows, and the rest as one; and the strip tells it from computing."""
    summary = summarise(load(CAPTURES / "synthetic-communication.json.gz"))
    (use,) = summary.devices
    part = use.wall_ns // 10
    half = len(use.busy_strip) // 2
    exposed = replace(
        use,
        compute_ns=3 * part,
        exposed_communication_ns=7 * part,
        busy_strip=[1.0] * 2 * half,
        exposed_strip=[0.0] * half + [1.0] * half,
    )
    collectives = [
        CollectiveRow("all-reduce", "float32", size << 20, 1, 1.0, part, 1.0, exposed_ns=part)
        for size in range(1, 8)
    ]
    summary = replace(summary, devices=[exposed], collectives=collectives)
    text = draw(render_summary, summary)
    inside = text.split("3  What is inside it")[1].split("\n\n")[0]
    assert inside.count("all-reduce of") == 5
    assert re.search(r"20\.0% .* other collectives$", inside, re.MULTILINE)
    assert re.search(r"How busy over time \(░: communicating only\)\n.* █+░+$", text, re.MULTILINE)


def test_waits_are_shown_where_they_are_not_the_largest_block(draw):
    """All waits of a line are one row, with their sum; those first that cost most."""
    summary = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    wait = SyncRow("cudaStreamSynchronize", "aten::item", 3, 1.0, 2_000_000, "train.py(7): main")
    other = replace(wait, caused_by="aten::copy_", total_ns=1_000_000)
    short = replace(wait, line="train.py(9): main", total_ns=1_000)
    (use,) = summary.devices
    costs = {"train.py(9): main": use.wall_ns // 10, "train.py(7): main": use.wall_ns // 100}
    shown = replace(summary, syncs=[wait, other, short], idle_after_waits=costs)
    text = draw(render_summary, shown)
    rows = [line for line in text.splitlines() if re.search(r"train.py\([79]\): main", line)]
    steps = len(summary.steps)
    assert [" ".join(row.split()) for row in rows] == [
        " ".join([*(format_duration(ns / steps) for ns in (waited_ns, costs[line])), line])
        for line, waited_ns in (("train.py(9): main", 1_000), ("train.py(7): main", 3_000_000))
    ]
    assert "\nWhere the host waited for the device, in a step\n  waiting  idle after\n" in text
    assert "\n A wait costs the idle time after it" in text
    assert "Waiting itself costs little" not in text
    beside = [replace(wait, busy_ns=1_900_000), other]
    text = " ".join(draw(render_summary, replace(summary, syncs=beside)).split())
    assert "Waiting itself costs little: the device works meanwhile." in text


def test_waits_stand_beside_what_a_step_saves_without_their_lines(draw):
    """Where a replay has told that, what waits longest comes first, and lines that hardly wait are
    summed up: without them a step would lack more than a wait.
    """
    summary = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    (use,) = summary.devices
    names = [f"train.py({number}): main" for number in (31, 27, 29)]
    syncs = [
        SyncRow("cudaStreamSynchronize", "", 3, 1.0, use.wall_ns * share // 1000, line)
        for line, share in zip(names, (100, 200, 1), strict=True)
    ]
    gains = dict(zip(names, (1.25, 1.01, 1.5), strict=True))
    costs = dict.fromkeys(names, use.wall_ns // 10)
    shown = replace(summary, syncs=syncs, gains_without_waits=gains, idle_after_waits=costs)
    table = draw(render_summary, shown).split("Where the host waited for the device")[1]
    rows = re.findall(r"^ +[\d.]+ [mµn]s +(\S+%)?  (\S.*)$", table.split("saves:")[0], re.MULTILINE)
    assert rows == [("1.0%", names[1]), ("20.0%", names[0]), ("", "1 other place")]
    assert "idle after" not in table
    page = str(waits_table(shown))
    assert "saves" in page
    assert "20.0%" in page
    # Before a diagnosis that is the reader's to find.
    blind = replace(shown, blind=True)
    for text in (draw(render_summary, blind), str(waits_table(blind))):
        assert "20.0%" not in text
        assert "idle after" not in text
        assert "What a step saves without a line is another figure" in " ".join(text.split())


def test_the_place_that_waits_longest_is_named_wherever_it_stands(draw):
    """Five more lines have idle time after them; two others are summed up."""
    summary = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    steps, (use,) = len(summary.steps), summary.devices
    names = [f"train.py({number}): main" for number in range(1, 9)]
    waited_ms = [1, 1, 1, 1, 1, 1, 9, 1]
    syncs = [
        SyncRow("cudaStreamSynchronize", "", steps, 1.0, waiting * steps * 1_000_000, line)
        for line, waiting in zip(names, waited_ms, strict=True)
    ]
    costs = {line: use.wall_ns // 20 - number for number, line in enumerate(names)}
    text = draw(render_summary, replace(summary, syncs=syncs, idle_after_waits=costs))
    table = text.split("Where the host waited for the device")[1].split("\n\n")[0]
    rows = re.findall(r"^ +([\d.]+ ms) +[\d.]+ \S+  (.+)$", table, re.MULTILINE)
    assert rows == [
        *(("1.00 ms", line) for line in names[:5]),
        ("9.00 ms", names[6]),
        ("2.00 ms", "2 other places"),
    ]


def test_what_waits_cost_is_one_table_where_they_are_the_largest_block(draw):
    summary = summarise(load(CAPTURES / "synthetic-sync.json.gz"))
    text = draw(render_summary, summary)
    table = text.split("3  Where the host waited for the device")[1].split("\n\n")[0]
    rows = re.findall(r"^ +[\d.]+ \S+ +([\d.]+) (\S+)  ", table, re.MULTILINE)
    idle_ns = sum(float(time) * {"ns": 1, "µs": 1e3, "ms": 1e6}[unit] for time, unit in rows)
    (part,) = [part for part in wall_parts(summary.devices) if part.cause == "synchronisation"]
    assert idle_ns * len(summary.steps) == pytest.approx(part.ns, rel=0.02)
    assert text.count("Where the host waited") == 1
    assert "A wait costs" not in text, "the block says what they cost"
    assert f"The device was idle for {part.share:.1%} of the time" in text, "as the block says"


def test_kernels_whose_names_say_more_than_operators_are_listed_on_the_emulated_device(draw):
    trace = content_root() / "datasets" / "cases" / "roof-tiles" / "trace.json.gz"
    summary = summarise(load(trace))
    assert "nchwToNhwcKernel" in draw(render_summary, evidence_only(summary))
    named = [
        replace(row, name=f"emulated: {row.name.removeprefix('aten::')}", total_ns=row.total_ns)
        for row in summary.kernels[:1]
    ]
    operators = [replace(summary.operators[0], name=f"aten::{named[0].name[10:]}")]
    plain = replace(summary, kernels=named, operators=operators)
    assert "each kernel is one of the operators below" in draw(render_summary, evidence_only(plain))


def test_copies_beside_layout_conversions_are_named():
    trace = content_root() / "datasets" / "cases" / "roof-tiles" / "trace.json.gz"
    finding = next(f for f in summarise(load(trace)).findings if f.id == "layout-conversions")
    assert "Copies by contiguous() or clone() take another 8.8%" in finding.evidence
    # In channels_last throughout, the program ran 1.404x as fast: without either.
    assert finding.expected_gain_ratio == pytest.approx(1.404, rel=0.02)


def test_each_undecided_criterion_has_its_reason_and_the_same_one_is_not_repeated(draw):
    def left_open(id_, why):
        criterion = made_up.utilisation(0.8, 0.7, 0.9, holds=None)
        return replace(criterion, id=id_, sentence=f"{id_} is high: undecided, because {why}.")

    criteria = [left_open("rate", "it is noisy"), left_open("idle", "it is noisy")]
    criteria.append(left_open("p99", "it is late"))
    text = draw(render_verdict, replace(made_up.undecided(), criteria=criteria))
    lines = [line.strip() for line in text.splitlines() if "is high" in line or "Undec" in line]
    assert lines == [
        "? rate is high.",
        "Undecided, because it is noisy.",
        "? idle is high.",
        "Undecided, for the same reason.",
        "? p99 is high.",
        "Undecided, because it is late.",
    ]
