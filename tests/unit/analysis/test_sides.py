"""The two sides of a step, and when a summary has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.analysis.questions import ask
from bottleneck_lab.analysis.steps.sides import find_sides
from bottleneck_lab.report.evidence_only import evidence_only, without_advice
from bottleneck_lab.trace.names import LINES_OF

from .traces import load_trace

CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"


def sides_of(timeline):
    summary = summarise(timeline)
    return find_sides(timeline, summary.devices, summary.syncs, len(summary.steps))


@pytest.mark.parametrize("name", ["healthy", "input", "sync", "launch", "communication"])
def test_both_sides_are_those_of_the_ready_question(name):
    timeline = load(CAPTURES / f"synthetic-{name}.json.gz")
    sides = sides_of(timeline)
    sums = {row[1]: row[-1] for row in ask(timeline, "step").rows}
    assert sides.host_ns / 1e6 == pytest.approx(sums["all but waits"])
    assert sides.device_ns / 1e6 == pytest.approx(sums["all but idle time"])
    assert (sides.line, sides.line_launches) == ("", 0.0), "no lines were recorded"


def test_the_line_that_launches_most_is_that_of_the_ready_question(make, tmp_path):
    run = make.Program(jitter=0)
    for number in range(4):
        begin = run.host
        for line, launches in (("train.py(7): train", 3), ("train.py(9): train", 8)):
            started = run.host
            for _ in range(launches):
                run.launch("gemm", 20.0)
            run.add(
                *("python_function", line, started, run.host - started),
                tid=f"{LINES_OF}{make.MAIN}",
            )
        run.wait()
        run.range(f"ProfilerStep#{number}", begin)
    timeline = load_trace(tmp_path, run.trace())
    sides = sides_of(timeline)
    assert (sides.line, sides.line_launches, sides.launches) == ("train.py(9): train", 8.0, 11.0)
    answer = ask(timeline, "budget")
    rows = {row[0]: dict(zip(answer.columns, row, strict=True)) for row in answer.rows}
    assert rows[sides.line]["launches"] == sides.line_launches
    assert rows["sum"]["launches"] == sides.launches
    assert rows["sum"]["host_ms"] == pytest.approx(sides.host_ns / 1e6)
    assert rows["sum"]["device_ms"] == pytest.approx(sides.device_ns / 1e6)


def test_a_summary_has_both_sides_where_no_finding_is_left():
    healthy = summarise(load(CAPTURES / "synthetic-healthy.json.gz"))
    assert not healthy.findings
    assert healthy.sides.device_ns > healthy.sides.host_ns
    assert summarise(load(CAPTURES / "synthetic-sync.json.gz")).sides is None
    assert evidence_only(healthy).sides is None, "that there is no finding would be told"
    assert without_advice(healthy).sides is None


def test_without_steps_or_an_accelerator_there_are_no_sides():
    timeline = load(CAPTURES / "synthetic-healthy.json.gz")
    summary = summarise(timeline)
    assert find_sides(timeline, summary.devices, summary.syncs, 0) is None
    assert find_sides(timeline, [], summary.syncs, 4) is None
