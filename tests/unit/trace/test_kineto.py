"""Reading Kineto traces: the same rows whatever the pieces, exact nanoseconds, and an error for
everything else.
"""

import gzip
import json
import os
import sys
import threading
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.measure.emulated_row import emulated_row
from bottleneck_lab.trace import ActivityKind, load, merge_ranks
from bottleneck_lab.trace.fast import kineto_parallel, second_process
from bottleneck_lab.trace.fast.json_stream import scan
from bottleneck_lab.trace.kineto import columns as kineto_columns
from bottleneck_lab.trace.kineto import reader
from bottleneck_lab.trace.kineto.columns import BLOCK_ROWS, SPAN, RowBlocks
from bottleneck_lab.trace.kineto.reader import read_kineto
from bottleneck_lab.trace.load import CODE, CORES, OTHER_CORES
from bottleneck_lab.trace.timeline import TABLES, Timeline, narrowed

from ...processes import another_thread

KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "pid": 0,
    "tid": 7,
    "ts": 4458676522690.655,
    "dur": 156.777,
    "args": {
        "device": 0,
        "stream": 7,
        "correlation": 5,
        "grid": [4, 2, 1],
        "block": [32, 4, 1],
        "est. achieved occupancy %": 31,
    },
}
OPERATOR = {
    "ph": "X",
    "cat": "cpu_op",
    "name": 'aten::"mm"}, {',
    "pid": 10,
    "tid": 11,
    "ts": 4458676522600.001,
    "dur": 50.5,
    "args": {"External id": 3, "Sequence number": 12, "Fwd thread id": 0},
}
LAUNCH = {
    "ph": "X",
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "pid": 10,
    "tid": "11",
    "ts": 4458676522610,
    "dur": 5,
    "args": {"correlation": 5},
}
NESTED = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::cat",
    "pid": 10,
    "tid": 11,
    "ts": 4458676522700,
    "dur": 1,
    "args": {"x": [{"a": 1}, {"b": "},{"}]},
}
MEMORY = {
    "ph": "i",
    "cat": "cpu_instant_event",
    "name": "[memory]",
    "pid": 10,
    "tid": 11,
    "ts": 4458676522701,
    "args": {"Bytes": 512, "Total Allocated": 2048, "Device Id": 0, "Device Type": 1},
}
EVENTS = [KERNEL, OPERATOR, LAUNCH, NESTED, MEMORY]


def trace(events=EVENTS, **more) -> dict:
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 3, "world_size": 8},
        "traceEvents": events,
        "traceName": "x",
        **more,
    }


def written(tmp_path: Path, content: bytes | dict | list, name: str = "trace.json") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def same(a: Timeline, b: Timeline) -> bool:
    if a.strings != b.strings or a.threads != b.threads:
        return False
    for name in (*TABLES, "work", "autograd"):
        left, right = getattr(a, name), getattr(b, name)
        for column in fields(left):
            if not np.array_equal(
                getattr(left, column.name),
                getattr(right, column.name),
                equal_nan=column.name == "occupancy",
            ):
                return False
    return True


def test_every_column_arrives(tmp_path):
    found = load(written(tmp_path, trace()))
    assert found.ranks == (3,)
    assert found.world_size == 8
    assert found.names(found.device) == ["gemm"]
    assert (found.device.grid[0], found.device.block[0], found.device.occupancy[0]) == (8, 128, 31)
    assert found.device.correlation[0] == found.runtime.correlation[0] == 5
    assert found.runtime.thread[0] == found.operators.thread[0], "7 and '7' are one thread"
    assert (found.memory.bytes[0], found.memory.allocated[0], found.memory.device[0]) == (
        512,
        2048,
        0,
    )


def test_times_are_exact_nanoseconds(tmp_path):
    device = load(written(tmp_path, trace())).device
    assert (device.start[0], device.end[0]) == (4458676522690655, 4458676522690655 + 156777)
    since_1970 = {**KERNEL, "ts": 1623142623460111, "dur": 2}
    device = load(written(tmp_path, trace([since_1970]))).device
    assert (device.start[0], device.end[0]) == (1623142623460111000, 1623142623460113000)


@pytest.mark.parametrize("indent", [None, 1, 2])
@pytest.mark.parametrize("chunk", [7, 64, 300, 1 << 20])
def test_pieces_of_any_size_give_the_same_rows(tmp_path, indent, chunk):
    path = written(tmp_path, json.dumps(trace(EVENTS * 5), indent=indent).encode())
    with path.open("rb") as file:
        assert same(read_kineto(file.read, path, chunk), load(path))
    assert load(path).events == 25


@pytest.mark.parametrize(
    "mend",
    [
        lambda text: text.replace(b"156.777", b'"156.777"'),
        lambda text: text.replace(
            b'"External id": 3', b'"External id": "3", "memory bandwidth": inf, "x": -nan'
        ),
        lambda text: text.replace(b"aten::cat", b"aten::c\xff\xfe"),
        lambda text: text.replace(
            b'"correlation": 5', b'"correlation": 5, "bytes": 99999999999999999999999'
        ),
        lambda text: b"\xef\xbb\xbf  " + text,
    ],
)
def test_what_profilers_write_wrong_is_mended(tmp_path, mend):
    found = load(written(tmp_path, mend(json.dumps(trace()).encode())))
    assert found.events == 5
    assert found.device.end[0] - found.device.start[0] == 156777


def test_a_bare_array_is_a_trace_even_without_its_end(tmp_path):
    assert load(written(tmp_path, EVENTS)).events == 5
    assert load(written(tmp_path, json.dumps(EVENTS).encode()[:-1])).events == 5


def test_gzip_is_read_and_told_by_content(tmp_path):
    path = written(tmp_path, gzip.compress(json.dumps(trace()).encode()), "trace.bin")
    assert load(path).events == 5


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"   ",
        b"hello",
        b"{}",
        b'{"traceEvents": 3}',
        b'{"traceEvents": []}',
        b"[]",
        b'{"traceEvents": [1, 2, 3]}',
        b'{"deep": {"traceEvents": [{}]}}',
        json.dumps(trace()).encode()[:-40],
        json.dumps(trace()).encode()[:300],
        gzip.compress(json.dumps(trace()).encode(), mtime=0)[:-30],
        b"\x1f\x8b\x08garbage",
        b"[" * 100_000,
        b'{"traceEvents": [' + b'{"a":' * 50_000,
        b"SQLite format 3\x00" + b"\x01" * 500,
        json.dumps(
            {"traceEvents": [{"ph": "X", "cat": "web", "name": "x", "ts": 1, "dur": 2}]}
        ).encode(),
    ],
)
def test_what_is_no_trace_is_an_error_that_helps(tmp_path, content):
    with pytest.raises(CaptureError) as caught:
        load(written(tmp_path, content))
    assert caught.value.remedy


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(CaptureError):
            load(path)


def test_impossible_times_are_left_out_and_said(tmp_path):
    bad = [
        {**KERNEL, "dur": -5},
        {**KERNEL, "dur": 1e13},
        {**KERNEL, "ts": 0},
        {**KERNEL, "ts": 9e30},
    ]
    found = load(written(tmp_path, trace([KERNEL, *bad])))
    assert len(found.device) == 1
    assert any("4 events have impossible times" in note for note in found.notes)


def test_a_clock_may_begin_at_zero(tmp_path):
    found = load(written(tmp_path, trace([{**KERNEL, "ts": ts} for ts in (0, 200, 400)])))
    assert found.device.start.tolist() == [0, 200_000, 400_000]


def test_malformed_events_are_counted(tmp_path):
    found = load(
        written(
            tmp_path,
            trace(
                [
                    *EVENTS,
                    {"ph": "X", "cat": "kernel", "ts": "soon"},
                    {"ph": "X", "cat": "kernel", "ts": [1]},
                ]
            ),
        )
    )
    assert found.events == 5
    assert "2 malformed events were left out" in found.notes


def test_emulated_rows_are_told(tmp_path):
    assert not load(written(tmp_path, trace())).emulated
    assert load(written(tmp_path, trace([{**KERNEL, "name": "emulated: train step"}]))).emulated


def test_emulated_rows_that_follow_each_other_do_not_overlap(tmp_path):
    """Times of the model have fractions of a nanosecond; a row that began before the one before it
    ended would seem to be called by it.
    """
    times = [(49609.0175, 49618.3275), (49618.3275, 49638.3275), (49638.3275, 49640.0)]
    rows = [emulated_row("cpu_op", "aten::mm", *pair, 1, 1) for pair in times]
    operators = load(written(tmp_path, trace(rows))).operators
    assert operators.end[:-1].tolist() == operators.start[1:].tolist()


def test_collectives_and_copies_are_told_by_name(tmp_path):
    names = [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)",
        "emulated: all_reduce bucket 1",
        "my_nccl_like_gemm",
    ]
    found = load(written(tmp_path, trace([{**KERNEL, "name": name} for name in names])))
    assert sorted(found.device.kind.tolist()) == [
        ActivityKind.KERNEL,
        ActivityKind.COMMUNICATION,
        ActivityKind.COMMUNICATION,
    ]
    copy = {
        **KERNEL,
        "cat": "gpu_memcpy",
        "name": "Memcpy HtoD (Pageable -> Device)",
        "args": {"device": 0, "stream": 7, "bytes": 4},
    }
    device = load(written(tmp_path, trace([copy]))).device
    assert (device.kind[0], device.direction[0], device.host_memory[0], device.bytes[0]) == (
        ActivityKind.COPY,
        1,
        1,
        4,
    )


@pytest.mark.parametrize("odd", [{}, {"tid": 7.5}], ids=["plain", "to be mended"])
def test_steps_that_are_drawn_beside_the_kernels_are_no_steps_and_no_work(tmp_path, odd):
    """Kineto writes what `record_function` marked once for the host and once more for every stream
    whose kernels it launched.
    """
    step = {**OPERATOR, "cat": "user_annotation", "name": "ProfilerStep#1"}
    drawn = {**KERNEL, **odd, "cat": "gpu_user_annotation", "name": "ProfilerStep#1", "dur": 1e6}
    found = load(written(tmp_path, trace([*EVENTS, step, drawn])))
    assert same(found, load(written(tmp_path, trace([*EVENTS, step]), "host.json")))
    assert [found.strings[name] for name in found.ranges.name] == ["ProfilerStep#1"]


def test_ranges_that_old_traces_write_as_operators_are_ranges(tmp_path):
    steps = [{**OPERATOR, "name": f"ProfilerStep#{i}", "ts": 100.0 + i} for i in range(3)]
    timeline = load(written(tmp_path, trace([OPERATOR, *steps, LAUNCH])))
    assert timeline.names(timeline.ranges) == [f"ProfilerStep#{i}" for i in range(3)]
    assert timeline.names(timeline.operators) == [OPERATOR["name"]]


def test_rows_are_taken_by_column_and_given_up():
    blocks = RowBlocks(SPAN)
    rows = np.zeros(3 * BLOCK_ROWS, SPAN)
    rows["start"] = np.arange(len(rows))
    rows["name"] = np.arange(len(rows)) % 7
    for part in np.split(rows, 6):
        blocks.add(part)
    other = RowBlocks(SPAN)
    other.add(rows[:5])
    (block,) = other.blocks()
    blocks.append((block[0], {"name": np.arange(10, 17)}))

    columns = blocks.taken({"name": np.arange(100, 300)})

    assert set(columns) == set(SPAN.names)
    start = np.append(rows["start"], rows["start"][:5])
    assert np.array_equal(columns["start"], start * 1000)  # ns, of µs
    assert np.array_equal(columns["name"], [*(rows["name"] + 100), 110, 111, 112, 113, 114])
    assert not blocks.blocks()


def test_packed_rows_take_few_bytes():
    blocks = RowBlocks(SPAN)
    rows = np.zeros(BLOCK_ROWS, SPAN)
    rows["start"], rows["duration"], rows["correlation"] = 4.4e15, 1e6, 6_000_000
    blocks.add(rows)
    ((packed, _),) = blocks.blocks()
    assert packed.itemsize == 8 + 4 + 4 + 1 + 1


def test_rows_of_a_block_are_in_order_the_longer_first():
    blocks = RowBlocks(SPAN)
    rows = np.zeros(4, SPAN)
    rows["start"], rows["duration"], rows["name"] = [2, 1, 1, 2], [1, 1, 2, 1], [0, 1, 2, 3]
    blocks.add(rows)
    ((block, _),) = blocks.blocks()
    assert block["name"].tolist() == [2, 1, 0, 3]


def test_numbers_too_large_for_64_bits_are_clipped():
    assert kineto_columns._integers([1, 2**70, -(2**70)]).tolist() == [1, 2**62, -(2**62)]


def test_threads_of_several_processes_in_one_piece_are_told_apart(tmp_path):
    pids = [OPERATOR["pid"], "7", 7, 8]
    events = [{**OPERATOR, "pid": pid, "ts": 100.0 + i} for i, pid in enumerate(pids)]
    timeline = load(written(tmp_path, trace([*events, LAUNCH])))
    threads = [timeline.threads[number].pid for number in timeline.operators.thread.tolist()]
    assert threads == list(map(str, pids))


def test_two_threads_make_the_tables_and_none_is_left(tmp_path, monkeypatch):
    """With one left, the summary could have no copy."""
    makers: list[int] = []
    fill_table = reader.fill_table

    def filled(*args: object, **columns: object) -> object:
        makers.append(threading.get_ident())
        return fill_table(*args, **columns)

    monkeypatch.setattr(reader, "fill_table", filled)
    before = threading.active_count()
    kineto_parallel.load_in_parallel(written(tmp_path, laid_out(EVENTS * 30)))
    assert len(set(makers)) == 2
    assert threading.active_count() == before


def test_numbers_stay_apart_whatever_their_size():
    small, large = np.array([-1, 127]), np.array([-1, 2**40])
    assert (narrowed(small).dtype, narrowed(large).dtype) == (np.int8, np.int64)
    assert narrowed(np.array([-1, 128])).dtype == np.int16
    assert narrowed(np.array([32768])).dtype == np.int32


def test_ranks_are_merged_on_one_clock(tmp_path):
    first = load(written(tmp_path, trace(baseTimeNanoseconds=1000), "a.json"))
    second = load(
        written(
            tmp_path, {**trace(baseTimeNanoseconds=3000), "distributedInfo": {"rank": 1}}, "b.json"
        )
    )
    both = merge_ranks([first, second])
    assert both.ranks == (1, 3)
    assert len(both.device) == 2
    assert both.device.start[1] - both.device.start[0] == 2000
    assert {thread.rank for thread in both.threads} == {1, 3}
    assert both.autograd.rank.tolist() == [3, 1]
    assert [both.threads[number].rank for number in both.autograd.thread.tolist()] == [3, 1]


LAID_OUT = "{\n" + '  "schemaVersion": 1,\n  "traceEvents": [\n%s\n  ],\n  "traceName": "x"\n}\n'


def laid_out(events) -> bytes:
    """As Kineto writes it: two spaces before each event's braces."""
    return (
        LAID_OUT % ",\n".join("  {\n    " + json.dumps(event)[1:-1] + "\n  }" for event in events)
    ).encode()


@pytest.mark.parametrize(
    "threads",
    [nullcontext, another_thread, partial(another_thread, known=False)],
    ids=["none", "one", "one Python does not know"],
)
def test_two_processes_read_the_same(tmp_path, monkeypatch, threads):
    """Also where a process with threads was forked after all, and had written something when that
    was seen.
    """
    events = [
        {**event, "name": f"{event['name']} {i // 3}", "ts": event["ts"] + i}
        for i, event in enumerate(EVENTS * 30)
    ]
    inputs = {"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"]}
    product = {**OPERATOR, "name": "aten::mm", "args": {**inputs, "Sequence number": 12}}
    path = written(tmp_path, laid_out([product, *events, product]))
    handed_over = []
    add_second_half = kineto_parallel.add_second_half
    monkeypatch.setattr(
        kineto_parallel,
        "add_second_half",
        lambda *given: (handed_over.append(1), add_second_half(*given))[1],
    )
    monkeypatch.setattr(second_process._Forked, "kill", second_process._Forked.wait)
    with threads():
        timeline = kineto_parallel.load_in_parallel(path)
        assert same(timeline, alone(path))
    assert [timeline.strings[at] for at in timeline.work.shapes.tolist()] == ["8×4 by 4×2"] * 2
    assert timeline.autograd.sequence.tolist()[-1:] == [12]
    assert handed_over


def test_operators_keep_the_number_of_the_node_they_made_or_undo(tmp_path):
    backward = {"External id": 4, "Sequence number": 12, "Fwd thread id": 1}
    undone = {**OPERATOR, "tid": 12, "ts": OPERATOR["ts"] + 90, "args": backward}
    odd = {**OPERATOR, "args": {"External id": 5, "Sequence number": -1, "Fwd thread id": 0}}
    timeline = load(written(tmp_path, trace([OPERATOR, undone, odd])))
    rows = timeline.autograd
    assert rows.external.tolist() == [3, 4]
    assert rows.sequence.tolist() == [12, 12]
    assert rows.forward.tolist() == [0, 1]
    assert [timeline.threads[number].tid for number in rows.thread.tolist()] == ["11", "12"]
    assert rows.rank.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("head", "description", "numbers"),
    [
        ("", None, []),
        ('"with_stack": 1,', None, [12, 12]),
        ("", {"files": ["trace.json"], "frames": ["frames.json"]}, [12, 12]),
        ("", {"files": ["trace.json"]}, []),
        ("", "nothing of ours", []),
    ],
)
def test_a_large_trace_without_frames_has_no_numbers_of_nodes(
    tmp_path, monkeypatch, head, description, numbers
):
    """They take time, and nothing but lines of Python needs them."""
    monkeypatch.setattr(sys.modules["bottleneck_lab.trace.load"], "WORTHWHILE_BYTES", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    path = written(tmp_path, laid_out([OPERATOR, OPERATOR]).replace(b"{", b"{" + head.encode(), 1))
    if description is not None:
        (tmp_path / "capture.json").write_text(json.dumps(description))
    assert load(path).autograd.sequence.tolist() == numbers


def test_two_processes_join_the_halves_of_events(tmp_path):
    """A range begins in the first half of the file and ends in the second, around others."""
    whole = [
        {**event, "name": f"{event['name']} {i // 3}", "ts": event["ts"] + i}
        for i, event in enumerate(EVENTS * 30)
    ]
    around = {"cat": "user_annotation", "name": "all", "pid": 1, "tid": 1}
    begin = [{**around, "ph": "B", "ts": 1.0}, {**around, "ph": "B", "ts": 2.0, "name": "inner"}]
    end = [{"ph": "E", "pid": 1, "tid": "1", "ts": 90_000.0 + i} for i in range(3)]
    path = written(tmp_path, laid_out([*begin, *whole, *end]))
    timeline = kineto_parallel.load_in_parallel(path)
    assert same(timeline, alone(path))
    assert [timeline.strings[i] for i in timeline.ranges.name.tolist()].count("inner") == 1
    assert any("0 events without an end (B without E) and 1 end" in n for n in timeline.notes)


@pytest.mark.parametrize(
    "hide",
    [
        lambda events: laid_out([{**OPERATOR, "args": {"x": "PLACE"}}]).replace(
            b'"PLACE"', b'[\n  {\n  },\n  {"a": 1}]'
        ),
        lambda events: laid_out(events)[:-20].replace(b"],", b"], "),
        lambda events: b'[\n  {"ph": "M"\n  }]' + b" " * 3000 + b"\n  },\n  " + laid_out(events),
    ],
)
def test_a_wrong_guess_of_the_middle_is_never_used(tmp_path, hide):
    path = written(tmp_path, hide(EVENTS * 4))
    results = []
    for read in (kineto_parallel.load_in_parallel, alone):
        try:
            results.append(read(path))
        except CaptureError as error:
            results.append(error.message)
    if isinstance(results[0], str):
        assert results[0] == results[1]
    else:
        assert same(*results)


def test_an_event_larger_than_memory_should_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bottleneck_lab.trace.fast.json_stream.EVENT_LIMIT_BYTES", 100_000)
    huge = {**OPERATOR, "args": {"x": "a" * 300_000}}
    path = written(tmp_path, trace([huge]))
    with pytest.raises(CaptureError, match="an event of more than"), path.open("rb") as file:
        read_kineto(file.read, path, 1000)


def alone(path: Path) -> Timeline:
    with path.open("rb") as file:
        return read_kineto(file.read, path)


def test_scan_finds_the_end_of_the_array():
    assert scan(b'{"a": "]"}, {"b": [1]}], "tail": 1}') == (22, 22)
    assert scan(b'{"a": 1}, {"b": "unfinished') == (8, None)


VALID = json.dumps(trace(EVENTS * 2), indent=2).encode()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, len(VALID) - 1),
    length=st.integers(0, 40),
    put=st.binary(max_size=20)
    | st.sampled_from([b"},{", b'"', b"]", b"[", b"1e999", b"null", b"-1", b"\\"]),
    cut=st.none() | st.integers(0, len(VALID)),
    chunk=st.sampled_from([16, 500, 1 << 20]),
)
def test_damaged_traces_end_in_rows_or_in_an_error(at, length, put, cut, chunk):
    damaged = VALID[:at] + put + VALID[at + length :]
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        piece = damaged[position : min(position + size, cut if cut is not None else len(damaged))]
        position += len(piece)
        return piece

    try:
        found = read_kineto(read, Path("damaged.json"), chunk)
    except CaptureError:
        return
    assert found.events
    assert (found.device.end >= found.device.start).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "aten::mm"}]}',
            "execution trace (a graph of operators) without times",
        ),
        (
            (
                '{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}, "buffer_records":'
                ' {"kernel_dispatch": []}}]}'
            ),
            "JSON of rocprofv3 without any kernel",
        ),
        (
            (
                '{"traceEvents": [{"args": {"name": "GPU0"}, "ph": "M", "pid": 6, "name":'
                ' "process_name"},{"ts": "10", "dur": "5", "ph": "X", "name": "gemm", "pid": "6",'
                ' "tid": "1", "args": {"BeginNs": "10000", "EndNs": "15000"}}]}'
            ),
            "JSON from rocprof",
        ),
    ],
)
def test_files_of_other_tools_are_refused_by_name(tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(CaptureError) as caught:
        load(path)
    assert said in f"{caught.value.message} {caught.value.remedy}"


def test_a_folder_is_read_as_the_command_line_reads_it(tmp_path):
    """One trace a rank, in the order of the numbers in their names; or what capture.json names."""
    for rank in (10, 2):
        event = {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"aten::op{rank}",
            "pid": 1,
            "tid": 1,
            "ts": 5.0,
            "dur": 1.0,
        }
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [event]}))
    both = load(tmp_path)
    assert [both.strings[i] for i in both.operators.name[both.operators.rank.argsort()]] == [
        "aten::op2",
        "aten::op10",
    ]
    (tmp_path / "capture.json").write_text(json.dumps({"files": ["rank10.json"]}))
    assert load(tmp_path).strings == ("aten::op10",)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CaptureError, match="holds no trace"):
        load(tmp_path / "empty")


@pytest.mark.parametrize(
    ("processes", "note"),
    [
        (None, None),
        ("0", None),
        ("1", "another process was using the GPU"),
        ("3", "3 other processes were"),
    ],
)
def test_a_capture_says_which_other_processes_used_the_gpu(tmp_path, processes, note):
    trace = tmp_path / "trace.json"
    trace.write_text(
        json.dumps(
            {
                "traceEvents": [
                    {"ph": "X", "name": "k", "cat": "kernel", "ts": 1, "dur": 2, "pid": 0, "tid": 7}
                ]
            }
        )
    )
    (tmp_path / "capture.json").write_text(
        json.dumps(
            {
                "files": [trace.name],
                "environment": {"cores": "2"} | ({"gpu_processes": processes} if processes else {}),
                "other_cores": 1.4,
                "code": "1a2b",
            }
        )
    )
    timeline = load(trace)
    facts = timeline.facts
    assert (facts[OTHER_CORES], facts[CORES], facts[CODE]) == ("1.40", "2", "1a2b")
    notes = timeline.notes
    assert any(note in line for line in notes) if note else not notes
    assert load(tmp_path).notes == notes
