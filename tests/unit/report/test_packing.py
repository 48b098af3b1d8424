"""The page holds every recorded event, in rows that do not overlap."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab import load
from bottleneck_lab.analysis.device.time import CPU
from bottleneck_lab.analysis.device.use import find_device_uses, numbered_gaps
from bottleneck_lab.analysis.summary import analyse
from bottleneck_lab.report.page.lanes import Events, find_lanes
from bottleneck_lab.report.page.packing import MAX_NAME, MAX_ROWS, pack_timeline, split_rows
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.trace.timeline import Thread

from . import made_up_capture

TYPES = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "f64": "<f8"}


def unpack(packed):
    """(lane, name, start, end) of every event, as timeline.js reads them."""
    data = gzip.decompress(base64.b64decode(packed.data))
    columns = {
        column["name"]: np.frombuffer(
            data, TYPES[column["type"]], column["count"], column["offset"]
        )
        for column in packed.head["columns"]
    }
    place, found = 0, []
    for row in packed.head["rows"]:
        now = 0
        for index in range(place, place + row["count"]):
            start = now + int(columns["gap"][index])
            now = start + int(columns["dur"][index])
            found.append((row["lane"], packed.head["names"][columns["name"][index]], start, now))
        place += row["count"]
    return found


def events(pairs):
    """Events of the given (start, length), in the order in which tables are kept."""
    start = np.array([start for start, _ in pairs], dtype=np.int64)
    end = start + np.array([length for _, length in pairs], dtype=np.int64)
    order = np.lexsort((-end, start))
    count = np.arange(len(pairs))
    return Events(start, end, count, np.zeros(len(pairs), dtype=np.uint8)).pick(order)


def test_steps_begin_where_the_one_before_was_done():
    analysis = analyse(made_up_capture.capture())
    steps = pack_timeline(analysis).head["steps"]
    assert [end - start for start, end in steps] == [s.cost_ns for s in analysis.summary.steps]
    assert [start for start, _ in steps[1:]] == [end for _, end in steps[:-1]]


def test_every_event_is_on_the_page_at_its_time():
    timeline = made_up_capture.capture()
    packed = pack_timeline(analyse(timeline))
    lanes = {lane["index"]: lane["label"] for lane in packed.head["lanes"]}
    got = sorted(
        (name, start, end)
        for lane, name, start, end in unpack(packed)
        if lanes[lane] != "idle, by cause"
    )
    tables = (
        timeline.device,
        timeline.runtime,
        timeline.operators,
        timeline.ranges,
        timeline.python,
    )
    want = sorted(
        (timeline.strings[name], start, end)
        for table in tables
        for name, start, end in zip(
            table.name.tolist(), table.start.tolist(), table.end.tolist(), strict=True
        )
    )
    assert got == want


def test_idle_time_on_the_page_is_the_idle_time_of_the_analysis():
    timeline = made_up_capture.capture()
    ((use, time),) = find_device_uses(timeline)
    names, lanes = find_lanes(timeline, [time])
    idle = next(lane.events for lane in lanes if lane.gaps)
    found = {}
    for name, start, end in zip(
        idle.name.tolist(), idle.start.tolist(), idle.end.tolist(), strict=True
    ):
        found[names[name]] = found.get(names[name], 0) + end - start
    assert found == {part.cause: part.idle_ns for part in use.gap_causes}


# As many events as there are rows may all overlap, and fill the last one.
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), max_size=MAX_ROWS - 1))
def test_rows_keep_every_event_and_overlap_nowhere(pairs):
    rows = split_rows(events(pairs))
    kept = sorted(
        (start, end)
        for row in rows
        for start, end in zip(row.start.tolist(), row.end.tolist(), strict=True)
    )
    assert len(rows) < MAX_ROWS
    assert kept == sorted((start, start + length) for start, length in pairs)
    for row in rows:
        assert (row.start[1:] >= row.end[:-1]).all()


def test_nesting_without_end_stays_on_the_last_row():
    """A hostile or broken trace: each event overlaps the one before it, ten thousand times."""
    rows = split_rows(events([(step, 10_000) for step in range(10_000)]))
    assert len(rows) == MAX_ROWS
    assert sum(map(len, rows)) == 10_000
    assert (rows[-1].start[1:] >= rows[-1].end[:-1]).all()


def test_times_beyond_32_bits_are_kept():
    """A pause of more than 4.3 s between two events does not fit 32 bits of nanoseconds."""
    far = made_up_capture.capture(wait_ms=5_000)
    assert (
        max(end for _, _, _, end in unpack(pack_timeline(analyse(far))))
        == 3 * 5_005 * made_up_capture.MS
    )


def test_long_names_are_cut():
    assert (
        max(map(len, pack_timeline(analyse(made_up_capture.hostile())).head["names"])) == MAX_NAME
    )


def test_an_empty_capture_packs():
    assert unpack(pack_timeline(analyse(made_up_capture.empty()))) == []


@pytest.mark.parametrize("emulated", [True, False])
def test_emulated_devices_are_marked_in_the_lanes(emulated):
    head = pack_timeline(analyse(made_up_capture.capture(emulated=emulated))).head
    assert any("emulated" in lane["group"] for lane in head["lanes"]) == emulated


@pytest.mark.parametrize(("name", "says"), [("", "thread 101"), ("the main one", "the main one")])
def test_the_lane_of_a_threads_lines_says_whose_they_are(name, says):
    capture = analyse(made_up_capture.capture())
    threads = (Thread(0, "100", f"{LINES_OF}101", ""), Thread(0, "100", "101", name))
    own = replace(capture.timeline, threads=threads)
    groups = {lane["group"] for lane in pack_timeline(capture._replace(timeline=own)).head["lanes"]}
    assert any(group.endswith(f"{says}, line by line") for group in groups)


def test_a_legend_without_an_accelerator_speaks_of_operators_and_not_of_launches():
    """As the report's table of the same time does."""
    capture = analyse(made_up_capture.capture())
    assert "idle: launch" in {each["label"] for each in pack_timeline(capture).head["categories"]}
    on_cpu = capture._replace(times=[time._replace(device=CPU) for time in capture.times])
    labels = {each["label"] for each in pack_timeline(on_cpu).head["categories"]}
    assert "between operators" in labels
    assert "idle: launch" not in labels


@pytest.mark.parametrize(("pause_us", "listed"), [(1.05, 0), (30.0, 1)])
def test_pauses_of_the_device_itself_are_not_listed_as_gaps(tmp_path, pause_us, listed):
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": start, "dur": 100, "pid": 0, "tid": 7}
        for start in (0, 100 + pause_us)
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": kernels}))
    capture = analyse(load(tmp_path / "trace.json"))
    assert len(numbered_gaps(capture.summary.devices)) == listed
