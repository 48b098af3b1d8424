"""The memory that summing up a large capture takes, and its two processes."""

from __future__ import annotations

import os
import tracemalloc
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab import load, summarise
from bottleneck_lab.analysis import footprint, summary
from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.comparing.observation import observe
from bottleneck_lab.analysis.footprint import at_once
from bottleneck_lab.analysis.host import nesting, operators
from bottleneck_lab.analysis.what_if import program
from bottleneck_lab.trace import join
from bottleneck_lab.trace.timeline import TABLES, DeviceTable, HostTable, Timeline

from ...processes import another_thread

JOINING = ("correlation", "external")
CAPTURES = Path(__file__).parents[3] / "datasets" / "captures"


def repeated(timeline: Timeline, times: int) -> Timeline:
    """Return the timeline with its rows again and again, each time later and with fresh numbers."""
    begin, end = timeline.extent
    tables = {name: getattr(timeline, name) for name in TABLES}
    step = 1 + max(
        int(getattr(table, column).max(initial=0))
        for table in tables.values()
        for column in JOINING
        if hasattr(table, column)
    )
    turn = np.arange(times)

    def column_of(values: np.ndarray, name: str) -> np.ndarray:
        if name in ("start", "end"):
            return np.tile(values, times) + np.repeat(turn * (end - begin + 1_000_000), len(values))
        if name in JOINING:
            more = np.repeat(turn * step, len(values))
            again = np.tile(values, times)
            return np.where(again > 0, again + more, again).astype(np.int32)
        if values.strides == (0,):
            return np.broadcast_to(values[:1], times * len(values))
        return np.tile(values, times)

    return replace(
        timeline,
        **{
            name: type(table)(
                **{
                    each.name: column_of(getattr(table, each.name), each.name)
                    for each in fields(table)
                }
            )
            for name, table in tables.items()
        },
    )


def test_a_report_takes_few_bytes_of_memory_for_each_event(monkeypatch):
    """Every byte more for each event is 3 MB more for a trace of 1 GB."""
    timeline = repeated(load(CAPTURES / "h200" / "training.json.gz"), 40)
    # What is worked on at once is of a fixed size: small, it does not hide what grows.
    for module in (nesting, join):
        monkeypatch.setattr(module, "BLOCK_ROWS", 1024)
    monkeypatch.setattr(iv, "BLOCK", 1024)
    monkeypatch.setattr(operators, "PART_ROWS", 1024)
    monkeypatch.setattr(program, "MOST_ROWS", 800)
    monkeypatch.setattr(program, "MOST_TASKS", 400)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # all in this process, where it is counted
    summarise(timeline)  # imports and caches

    tracemalloc.start()
    try:
        summarise(replace(timeline))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak / timeline.events < 15  # it was 14.7 on 29 November 2026


def test_a_row_takes_few_bytes():
    timeline = load(CAPTURES / "h200" / "training.json.gz")

    def row_bytes(table: HostTable | DeviceTable) -> int:
        columns = [getattr(table, each.name) for each in fields(table)]
        return sum(column.itemsize for column in columns if column.strides != (0,))

    # Start and end take 16; names, threads, streams and what joins rows take what their numbers
    # need: one to four.
    assert row_bytes(timeline.operators) <= 16 + 1 + 1 + 4
    assert row_bytes(timeline.runtime) <= 16 + 1 + 1 + 4
    assert row_bytes(timeline.device) <= 60


@pytest.mark.alone  # in a process with threads, there is no copy
def test_a_report_is_the_same_when_another_process_sums_up_the_host(monkeypatch):
    timeline = load(CAPTURES / "h200" / "training.json.gz")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    alone = observe(timeline)

    copies: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: (copies.append(1), fork())[1])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(footprint, "SMALL_EVENTS", 0)
    beside = observe(replace(timeline))

    assert copies == [1]
    assert beside.summary == alone.summary
    assert beside.figures.origins == alone.figures.origins
    assert [(key, values.tolist()) for key, values in beside.figures.series.items()] == [
        (key, values.tolist()) for key, values in alone.figures.series.items()
    ]


@pytest.mark.parametrize("threads", [nullcontext, another_thread])
def test_work_that_no_other_process_can_do_is_done_here(monkeypatch, threads):
    timeline = load(CAPTURES / "h200" / "training.json.gz")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(footprint, "SMALL_EVENTS", 0)
    here = os.getpid()

    def only_here(timeline: Timeline) -> int:
        if os.getpid() != here:
            raise ValueError("no")
        return timeline.events

    with threads(), at_once([only_here] * 2, timeline) as events:
        assert events() == [timeline.events] * 2


def test_gains_are_worked_out_before_the_other_process_is_waited_for(monkeypatch):
    order: list[str] = []

    @contextmanager
    def beside(tasks, timeline):
        yield lambda: (order.append("waits"), [task(timeline) for task in tasks])[1]

    gains = summary._part_gains
    monkeypatch.setattr(summary, "at_once", beside)
    monkeypatch.setattr(summary, "_part_gains", lambda *a: (order.append("gains"), gains(*a))[1])
    summarise(load(CAPTURES / "h200" / "training.json.gz"))
    assert order[:2] == ["gains", "waits"]


@pytest.mark.alone  # in a process with threads, there is no copy
def test_what_the_copy_has_not_begun_is_done_here(monkeypatch):
    timeline = load(CAPTURES / "h200" / "training.json.gz")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(footprint, "SMALL_EVENTS", 0)
    reading, writing = os.pipe()

    def waits(_: Timeline) -> int:
        os.read(reading, 1)
        return os.getpid()

    def tells(_: Timeline) -> int:
        os.write(writing, b"!")
        return os.getpid()

    with at_once([waits, tells], timeline) as processes:
        first, second = processes()
    assert first != second, "who came first waited for the other"
    assert os.getpid() in (first, second)
