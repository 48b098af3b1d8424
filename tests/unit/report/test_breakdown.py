"""The parts of the wall time are all of it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from bottleneck_lab.analysis.device.use import find_device_uses
from bottleneck_lab.analysis.host.lines import LineRow
from bottleneck_lab.analysis.ranks.collectives import CollectiveWaits
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.report.breakdown import (
    Part,
    describe_removal,
    describe_steps,
    line_label,
    wall_parts,
)
from bottleneck_lab.trace.timeline import DeviceTable, HostTable, make_table

from . import made_up_capture


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


def test_which_steps_are_counted_is_said_where_the_hosts_ranges_differ():
    change = msgspec.structs.replace
    summary = summarise(made_up_capture.capture())
    alike = change(
        summary.steps[0], name="ProfilerStep#0", duration_ns=40_000_000, cost_ns=40_000_000
    )
    assert describe_steps(change(summary, steps=[])) == ""
    assert describe_steps(change(summary, steps=[alike])) == ""
    warm = change(summary, steps=[change(alike, name="ProfilerStep#2")])
    assert describe_steps(warm).startswith("Recorded from ProfilerStep#2 on")
    ahead = change(summary, steps=[alike, change(alike, duration_ns=41_000_000)])
    assert describe_steps(ahead).endswith("the host's own range of it lasts 40.0 ms to 41.0 ms.")


def test_no_device_has_no_parts():
    assert wall_parts([]) == []


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
        (2.0, "at most 2.00x as fast. A fix that also"),
        (2.5, "more than 1 / (1 − share) = 2.00x, as other pauses"),
        (1.5, "less than 1 / (1 − share) = 2.00x, as something else"),
        (1.0, "would not make the run faster: something else"),
    ],
)
def test_a_gain_that_the_share_does_not_give_is_explained(gain, says):
    half = Part("idle-launch", "idle: launch", "gap-launch", "", ns=5, share=0.5)
    assert says in describe_removal(half, gain, "the run", None)


def test_transfers_that_others_are_waited_for_beside_gain_nothing():
    sent = Part("communication", "communicating only", "comm", "", ns=5, share=0.5)
    waits = CollectiveWaits(collectives=3, waiting_ns=4, transfer_ns=1, late=[])
    assert "ranks would still wait" in describe_removal(sent, 1.0, "the run", waits)
