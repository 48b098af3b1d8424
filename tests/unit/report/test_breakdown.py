"""The parts of the wall time are all of it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from bottleneck_lab.analysis.device.transfers import CollectiveRow
from bottleneck_lab.analysis.device.use import find_device_uses
from bottleneck_lab.analysis.host.lines import LineRow
from bottleneck_lab.analysis.host.syncs import SyncRow
from bottleneck_lab.analysis.ranks.collectives import CollectiveWaits
from bottleneck_lab.analysis.steps.window import Step
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.report import capture_words, words
from bottleneck_lab.report.breakdown import (
    Part,
    costly_lines,
    describe_collectives,
    describe_earlier_launches,
    describe_finding_gain,
    describe_lead,
    describe_ranges,
    describe_removal,
    describe_short_gaps,
    describe_steps,
    leading_part,
    line_label,
    range_times,
    time_of_other_lines,
    wall_parts,
)
from bottleneck_lab.report.console.summary import render_summary
from bottleneck_lab.report.page.summary import findings_section
from bottleneck_lab.report.page.tables import lines_table
from bottleneck_lab.trace import load
from bottleneck_lab.trace.timeline import DeviceTable, HostTable, make_table

from . import made_up_capture

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"


def test_the_parts_sum_to_the_wall_time():
    uses = [use for use, _ in find_device_uses(made_up_capture.capture())]
    parts = wall_parts(uses)
    assert sum(part.ns for part in parts) == sum(use.wall_ns for use in uses)
    assert [part.ns for part in parts] == sorted((part.ns for part in parts), reverse=True)
    assert all(part.explained for part in parts)


def test_on_a_cpu_nothing_is_launched_and_preparing_input_is_not_idle():
    timeline = replace(
        made_up_capture.capture(), device=make_table(DeviceTable), runtime=make_table(HostTable)
    )
    labels = {part.label for part in wall_parts([use for use, _ in find_device_uses(timeline)])}
    assert "running operators" in labels
    assert "no operator for long" in labels
    assert "preparing input" in labels
    assert not {"idle: python", "idle: input"} & labels


def test_kernels_that_no_step_launched_are_told_beside_the_kernels(draw):
    summary = summarise(load(CAPTURES / "synthetic-healthy.json.gz"))
    (use,) = summary.launches
    assert describe_earlier_launches(summary) == ""
    queued = msgspec.structs.replace(
        summary, launches=[msgspec.structs.replace(use, launched_before=2)]
    )
    sentence = describe_earlier_launches(queued)
    assert sentence.startswith(
        "Of the kernels that ran in these steps, 2 were launched before them"
    )
    for whole in (False, True):
        shown = " ".join(draw(partial(render_summary, whole=whole), queued).split())
        assert shown.count(sentence) == 1
        assert shown.index("What is inside it") < shown.index(sentence)


def test_which_steps_are_counted_is_said_where_the_hosts_ranges_differ():
    change = msgspec.structs.replace
    summary = summarise(made_up_capture.capture())
    alike = change(
        summary.steps[0], name="ProfilerStep#0", duration_ns=40_000_000, cost_ns=40_000_000
    )
    assert describe_steps(change(summary, steps=[])) == ""
    assert describe_steps(change(summary, steps=[alike])) == ""
    warm = change(summary, steps=[change(alike, name="ProfilerStep#2")])
    assert describe_steps(warm).startswith("The 2 steps before ProfilerStep#2 warmed up, and are")
    backlog = describe_steps(change(summary, steps=[alike], batches_per_step=1.3))
    assert backlog.startswith("The device worked on 1.3 batches in 1 step: it began with")
    ahead = change(summary, steps=[alike, change(alike, duration_ns=41_000_000)])
    assert describe_steps(ahead).endswith("On the host a step's range lasts 40.0 ms to 41.0 ms.")
    ranks = change(ahead, steps=[*ahead.steps, change(alike, rank=1, duration_ns=43_000_000)])
    assert describe_steps(ranks).endswith("On the host a step's range lasts 40.0 ms to 43.0 ms.")


@pytest.mark.parametrize(
    ("host_ms", "waits", "words"),
    [
        ((4, 4, 90), True, "lasts 4.00 ms to 90.0 ms: it runs some steps ahead, and waits in one"),
        ((4, 4, 90), False, "lasts 4.00 ms to 90.0 ms."),
        ((4, 4, 4), True, "lasts 4.00 ms: it runs ahead of the device."),
        ((50, 50, 50), True, "lasts 50.0 ms."),
    ],
)
def test_a_host_is_ahead_only_where_it_is(host_ms, waits, words):
    summary = summarise(made_up_capture.capture())
    steps = [
        msgspec.structs.replace(summary.steps[0], duration_ns=ms * 1_000_000, cost_ns=40_000_000)
        for ms in host_ms
    ]
    syncs = [SyncRow("cudaStreamSynchronize", "", 3, 1.0, 3_000_000)] * waits
    text = describe_steps(msgspec.structs.replace(summary, steps=steps, syncs=syncs))
    assert words in text
    assert ("costs nothing by itself" in text) == ("waits in one" in words)


def test_ranges_are_shares_of_the_hosts_step():
    """A host that runs ahead is done with a step of 40 ms in 4 ms."""
    change = msgspec.structs.replace
    summary = summarise(made_up_capture.capture())
    step = change(summary.steps[0], duration_ns=4_000_000, cost_ns=40_000_000)
    ahead = change(
        summary, steps=[step], step_mean_ns=40_000_000, range_shares={"data": 0.25, "tiny": 0.0004}
    )
    assert range_times(ahead) == [("data", 0.25, 1_000_000)]
    assert "4.00 ms on average" in describe_ranges(ahead)
    alike = change(ahead, steps=[change(step, duration_ns=40_000_000)])
    assert range_times(alike) == [("data", 0.25, 10_000_000)]
    assert describe_ranges(alike) == "the host's time, not the device's"


def test_no_device_has_no_parts():
    assert wall_parts([]) == []


def test_what_rounds_to_nothing_is_no_part_of_the_wall_time():
    (use, _), *_ = find_device_uses(load(CAPTURES / "synthetic-pageable.json.gz"))
    tiny = msgspec.structs.replace(use, exposed_communication_ns=3)
    assert all(part.key != "communication" for part in wall_parts([tiny]))
    large = msgspec.structs.replace(use, exposed_communication_ns=use.wall_ns // 10)
    assert any(part.key == "communication" for part in wall_parts([large]))


def test_a_line_names_its_rank_where_there_are_several():
    summary = summarise(made_up_capture.capture())
    row = LineRow("train.py(3): main", 1, 1, 1, exact=True, rank=1)
    assert line_label(summary, row) == "train.py(3): main"
    assert (
        line_label(msgspec.structs.replace(summary, ranks=[0, 1]), row)
        == "rank 1, train.py(3): main"
    )


@pytest.mark.parametrize(
    ("gain", "says"),
    [
        (
            2.0,
            "the same operators, the run would be at most 10.0 ms / 5.00 ms = 2.00x as fast. A fix",
        ),
        (
            2.5,
            "the same operators, the host and the device would also work at once, and only the"
            " slower one count: the run would be at most 10.0 ms / 4.00 ms = 2.50x as fast. A fix",
        ),
        (1.5, "5.00 ms would be left, and 1.67 ms more, as a device still pauses for about"),
        (1.0, "the run would not be faster: something else"),
    ],
)
def test_a_gain_is_derived_and_explained_where_the_share_does_not_give_it(gain, says):
    half = Part("idle-launch", "idle: launch", "gap-launch", "", ns=10_000_000, share=0.5)
    text = describe_removal(half, gain, 20_000_000, "the run", None, devices=2)
    assert says in text.replace(" on each device", "")


@pytest.mark.parametrize("bottleneck", ["input", "launch", "sync", "communication", "pageable"])
def test_every_gain_follows_from_a_division_on_the_same_page(draw, bottleneck):
    summary = summarise(load(CAPTURES / f"synthetic-{bottleneck}.json.gz"))
    text = " ".join(draw(render_summary, summary).split())
    page = str(findings_section(summary))
    removal = re.search(r"would be (at most|about) .*? = ([\d.]+x) as fast", text)
    for bound, gain in re.findall(r"[( ](at most|about) ([\d.]+x)\)", text):
        assert gain != removal[2] or bound == removal[1], "one gain has one word"
    assert re.search(r"(at most|about) [\d.]+ ms / [\d.]+ ms = [\d.]+x as fast", text)
    for finding in summary.findings:
        gain = f"{finding.expected_gain_ratio:.2f}x"
        step = words.format_duration(summary.step_mean_ns / finding.expected_gain_ratio)
        stated = f"{step} a step would remain: "
        assert (stated in text) is (gain != removal[2]), "one derivation for one gain"
        assert stated in page
        assert f"{gain})" in text
    divisions = re.findall(r"([\d.,]+) (\S+) / ([\d.,]+) \2 = ([\d.]+)x", text)
    assert len(divisions) == len({f"{each.expected_gain_ratio:.2f}" for each in summary.findings})
    for whole, _, left, ratio in divisions:
        assert f"{float(whole.replace(',', '')) / float(left.replace(',', '')):.2f}" == ratio


@pytest.mark.parametrize(
    ("gain", "says"),
    [
        (1.03, "Something else would take a part of the time that this frees."),
        (1.20, ""),
        (1.054, ""),
    ],
)
def test_a_finding_has_one_gain_and_says_why_it_is_less_than_its_share_would_give(gain, says):
    summary = summarise(load(CAPTURES / "synthetic-pageable.json.gz"))
    finding = msgspec.structs.replace(
        summary.findings[0], share_of_wall=0.0523, expected_gain_ratio=gain
    )
    text = describe_finding_gain(summary, finding)
    assert says in text
    assert text.count(" = ") == 1, "one gain"
    assert ("Something else" in text) == bool(says)


def test_a_ceiling_of_launches_is_one_figure_with_its_reason():
    part = Part("idle-launch", "idle: launch", "gap-launch", "", ns=206_200_000, share=0.863)
    text = describe_removal(part, 8.4, 238_900_000, "the run", None)
    assert (
        "the host and the device would also work at once, and only the slower one count: the run"
        " would be at most 238.9 ms / 28.44 ms = 8.40x as fast."
    ) in text
    assert text.count("x as fast") == text.count("ms / ") == 1


def test_gaps_that_are_too_short_to_list_are_summed_up():
    """Twenty long ones are listed, while most of the time may be lost in thousands of others."""
    summary = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    (use,) = summary.devices
    assert use.short_gaps <= use.gaps
    gaps = {"idle_ns": 160_000_000, "gaps": 6_136, "short_gaps": 6_080}
    most = msgspec.structs.replace(use, **gaps, short_gaps_ns=72_000_000)
    assert describe_short_gaps([most]) == (
        "Of 6,136 gaps, the 6,080 under 100 µs sum to 72.0 ms, 45% of the idle time."
    )
    assert not describe_short_gaps([msgspec.structs.replace(most, short_gaps_ns=15_000_000)])
    busy = {"idle_ns": 0, "gaps": 0, "short_gaps": 0, "short_gaps_ns": 0}
    assert not describe_short_gaps([msgspec.structs.replace(use, **busy)])


def test_what_the_host_s_model_charges_is_nothing_to_look_at_first():
    def part(key, share):
        return Part(key, key, "", "", ns=int(share * 1e7), share=share)

    charge, launch, work = part("idle-fixed", 0.5), part("idle-launch", 0.2), part("compute", 0.3)
    assert leading_part([charge, work, launch]) is launch
    assert leading_part([charge, work]) is work


def test_a_small_remainder_that_a_share_does_not_explain_is_reported():
    """45.0 ms are left where the other parts sum to 44.1 ms: a reader who subtracts is told why."""
    sent = Part("communication", "communicating only", "comm", "", ns=39_400_000, share=0.472)
    text = describe_removal(sent, 83.5 / 45.0, 83_500_000, "the run", None)
    assert "83.5 ms / 45.0 ms = 1.86x" in text
    assert (
        "44.1 ms would be left, and 900 µs more, as what the host did meanwhile, such as launches,"
        " would still take its time: the run would be at most 83.5 ms / 45.0 ms"
    ) in text
    assert text.count("ms / ") == 1, "one gain"
    waits = CollectiveWaits(8, waiting_ns=600_000, transfer_ns=38_800_000, late=[])
    late = describe_removal(sent, 83.5 / 45.0, 83_500_000, "the run", waits)
    assert "900 µs more, as the ranks would still wait for one another: the run" in late
    exact = describe_removal(sent, 83.5 / 44.1, 83_500_000, "the run", None)
    assert "the other parts" not in exact


def test_messages_of_sizes_that_read_the_same_are_one_row():
    summary = summarise(made_up_capture.capture())
    sizes = {26_560 * 4: 500, 26_561 * 4: 300, 4: 200}
    collectives = [
        CollectiveRow("all-reduce", "float32", size, 6, 3.0, ns, 1.0, exposed_ns=ns // 2)
        for size, ns in sizes.items()
    ]
    steps = summary.steps or [Step("ProfilerStep#0", 0, 0, 1, 1)]
    rows = describe_collectives(
        msgspec.structs.replace(summary, collectives=collectives, steps=steps)
    )
    assert rows == [
        ("all-reduce of 103.8 KiB float32, 6 per step", 800, 400),
        ("all-reduce of 4 B float32, 3 per step", 200, 100),
    ]


def test_a_block_that_is_nearly_everything_has_its_ceiling_too():
    """With 95% idle, as with 30%: what removing it leaves, and how many times as fast that is."""
    summary = summarise(load(CAPTURES / "synthetic-launch.json.gz"))
    (use,) = summary.devices
    part = leading_part(wall_parts(summary.devices))
    assert part.cause == "launch"
    ns = use.wall_ns * 95 // 100
    summary = msgspec.structs.replace(summary, gains={part.key: 16.0}, findings=[])
    (sentence,) = describe_lead(summary, replace(part, ns=ns, share=0.95))
    assert " = 16.00x as fast" in sentence
    assert describe_lead(msgspec.structs.replace(summary, gains={}), part) == []


def test_transfers_that_others_are_waited_for_beside_gain_nothing():
    sent = Part("communication", "communicating only", "comm", "", ns=5, share=0.5)
    waits = CollectiveWaits(collectives=3, waiting_ns=4, transfer_ns=1, late=[])
    assert "ranks would still wait" in describe_removal(sent, 1.0, 10, "the run", waits)


def test_a_line_says_how_much_of_its_device_time_is_its_backward(draw):
    """None is said of what takes 1% or less."""
    summary = summarise(made_up_capture.capture())
    use = msgspec.structs.replace(summary.devices[0], busy_ns=summary.wall_ns)
    whole = summary.wall_ns // 2
    lines = [
        LineRow("a.py(2): f", 1, 5, whole, exact=True, backward_device_ns=whole * 2 // 3),
        LineRow("b.py(3): g", 1, 5, whole, exact=True, backward_device_ns=whole // 1000),
    ]
    summary = msgspec.structs.replace(summary, devices=[use], lines=lines)
    _, listed = draw(render_summary, summary).split("Your lines of Python")
    assert " ".join(listed.split()).startswith(
        ", by device time launched, in % of the wall time, with that of their backward"
    )
    assert "a.py(2): f (66.7% of it in its backward)\n" in listed
    assert "b.py(3): g\n" in listed
    assert "of it by their backward" in str(lines_table(summary))


def test_on_a_cpu_a_line_says_how_much_of_the_host_s_time_is_its_backward(draw):
    summary = msgspec.structs.replace(summarise(made_up_capture.capture()), cpu_only=True)
    half = summary.wall_ns // 2
    lines = [
        LineRow("a.py(2): f", 1, half // 4, 0, exact=True, backward_ns=half - half // 4),
        LineRow("train.py(9): step", 1, half, 0, exact=True),
    ]
    summary = msgspec.structs.replace(summary, lines=lines)
    _, listed = draw(render_summary, summary).split("Your lines of Python")
    assert "their backward (whose caller has that time, too)" in " ".join(listed.split())
    assert "a.py(2): f (75% of it in its backward)\n" in listed
    assert "train.py(9): step\n" in listed


@pytest.mark.parametrize(("busy_share", "first"), [(0.1, "slow.py(1): f"), (0.9, "big.py(2): f")])
def test_lines_are_listed_by_the_time_that_matters(busy_share, first):
    """A line that the host is slow in, and one that launches long work."""
    summary = summarise(made_up_capture.capture())
    use = msgspec.structs.replace(summary.devices[0], busy_ns=int(busy_share * summary.wall_ns))
    lines = [
        LineRow("big.py(2): f", 1, host_ns=5, device_ns=90, exact=True),
        LineRow("slow.py(1): f", 1, host_ns=80, device_ns=3, exact=True, backward_ns=1000),
    ]
    summary = msgspec.structs.replace(summary, devices=[use], lines=lines)
    (ns, row), *_ = costly_lines(summary)[0]
    assert (row.line, ns) == (first, 80 if busy_share < 0.5 else 90)
    assert costly_lines(summary)[1] is (busy_share > 0.5)


def test_device_time_that_no_line_launched_stands_below_the_lines(draw):
    summary = summarise(made_up_capture.capture())
    use = msgspec.structs.replace(summary.devices[0], busy_ns=summary.wall_ns)
    lines = [LineRow("train.py(2): f", 1, 5, device_ns=summary.wall_ns * 3 // 4, exact=True)]
    summary = msgspec.structs.replace(summary, devices=[use], lines=lines)
    assert time_of_other_lines(summary, costly_lines(summary)[0]) == summary.wall_ns / 4
    _, listed = draw(render_summary, summary).split("Your lines of Python")
    assert re.search(r"75\.0% .*f\n +25\.0% .* other lines, or none", listed)
    assert capture_words.OTHER_LINES in str(lines_table(summary))
