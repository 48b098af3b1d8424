"""Files of other tools are read, or refused by name with the way to a file that is read."""

from __future__ import annotations

import gzip
import json
import marshal
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace import ActivityKind, Direction, load
from bottleneck_lab.trace.fast.json_stream import EventStream
from bottleneck_lab.trace.kineto.events import decode
from bottleneck_lab.trace.nsys.export import newest_versions

FOLDER = Path(__file__).with_name("foreign")


@pytest.mark.parametrize(
    ("name", "called", "remedy"),
    [
        ("host.xplane.pb", "JAX or TensorFlow", "torch_xla"),
        ("jax_tpu.trace.json.gz", "JAX or TensorFlow", "nsys"),
        ("rocprof.pftrace", "Perfetto trace", "--output-format json"),
        ("rocprof_kernel_trace.csv", "rocprofv3 (CSV)", "--output-format json"),
        ("ranks.tar.gz", "tar archive", "pass the folder"),
        ("torch_memory_snapshot.db", "memory snapshot of PyTorch in SQLite", "_dump_snapshot"),
    ],
)
def test_a_file_of_another_tool_is_refused_by_name(name, called, remedy):
    with pytest.raises(CaptureError) as refusal:
        load(FOLDER / name)
    assert called in refusal.value.message
    assert remedy in refusal.value.remedy
    assert "truncated" not in refusal.value.remedy


@pytest.mark.parametrize(
    ("start", "called"),
    [
        (b"PK\x03\x04" + bytes(40), "ZIP archive"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "zstd"),
        (b"\xfd7zXZ\x00" + bytes(40), "xz"),
        (b"BZh91AY&SY" + bytes(40), "bzip2"),
        (b"PERFILE2" + bytes(100), "Linux perf"),
        (b"QDSTRM" + bytes(100), "raw data of Nsight Systems"),
        (b"PAR1" + bytes(100) + b"PAR1", "Parquet"),
        (b"\xfb" + marshal.dumps({("a.py", 1, "f"): (1, 1, 0.1, 0.2, {})})[1:], "cProfile"),
        (b"{" + marshal.dumps({("a.py", 1, "f"): (1, 1, 0.1, 0.2, {})})[1:], "cProfile"),
        (b'{"$schema": "https://www.speedscope.app/file-format-schema.json"}', "speedscope"),
        (b'{"traceEvents": [{"ph": "X", "cat": "FEE", "name": "f"}]}', "VizTracer"),
        (
            b'[{"cat" : "Session","name" :"model_loading_uri","args" : {}}]',
            "profile of ONNX Runtime",
        ),
        (b"7z\xbc\xaf\x27\x1c" + bytes(40), "7-Zip"),
        (b"Rar!\x1a\x07\x01\x00" + bytes(40), "RAR"),
        (b"\x0a\xe8\x07\xc2\x03\x1b" + bytes(300), "Perfetto"),
        (b'"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n', "summary by rocprof"),
        (b"Index,KernelName,gpu-id,queue-id\n0,k,1,0\n", "rocprof (CSV)"),
        (b'"Agent_Id","Kernel_Id","Counter_Name"\n1,2,SQ_WAVES\n', "rocprofv3 (CSV)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "Git LFS"),
        (b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>", "web page"),
        ('{"traceEvents": []}'.encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04" + bytes(26) + b"archive/data.pkl" + bytes(40), "torch.save"),
        (bytes(12) + b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2", "TensorBoard"),
        (b'Time (%),Total Time (ns),Instances,Avg (ns),Name\n50.0,10,1,10,"k"\n', "nsys stats"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_a_file_is_counts_not_how_it_is_called(tmp_path, start, called, packed):
    path = tmp_path / "capture"
    path.write_bytes(gzip.compress(start) if packed else start)
    with pytest.raises(CaptureError, match=called.replace("(", r"\(").replace(")", r"\)")):
        load(path)


def test_a_plain_tar_archive_is_one_too(tmp_path):
    (tmp_path / "trace.json").write_text("{}")
    with tarfile.open(tmp_path / "ranks.tar", "w") as archive:
        archive.add(tmp_path / "trace.json", "trace.json")
    with pytest.raises(CaptureError, match="tar archive"):
        load(tmp_path / "ranks.tar")


@pytest.mark.parametrize(
    ("name", "start", "remedy"),
    [
        ("ranks.tar.bz2", b"BZh91AY&SY" + bytes(40), "tar -xjf"),
        ("ranks.tbz", b"BZh91AY&SY" + bytes(40), "tar -xjf"),
        ("ranks.tar.xz", b"\xfd7zXZ\x00" + bytes(40), "tar -xJf"),
        ("ranks.tar.zst", b"\x28\xb5\x2f\xfd" + bytes(40), "tar --zstd -xf"),
        ("frame.gputrace", bytes(100), "Xcode"),
        ("run.vtune", b'<?xml version="1.0"?><vtune/>', "VTune"),
    ],
)
def test_what_only_a_name_tells(tmp_path, name, start, remedy):
    (tmp_path / name).write_bytes(start)
    with pytest.raises(CaptureError) as refusal:
        load(tmp_path / name)
    assert remedy in refusal.value.remedy
    assert "truncated" not in refusal.value.remedy


def test_a_profile_of_nvprof_is_no_export_of_nsys(tmp_path):
    with closing(sqlite3.connect(tmp_path / "x.nvprof")) as connection:
        for kind in ("KERNEL", "RUNTIME", "DRIVER"):
            connection.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{kind} (_id_ INTEGER)")
        connection.commit()
    with pytest.raises(CaptureError, match="nvprof"):
        load(tmp_path / "x.nvprof")


def test_a_folder_of_tensorboard_with_nothing_but_xplanes_is_jax_s(tmp_path):
    folder = tmp_path / "plugins" / "profile" / "2026"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes((FOLDER / "host.xplane.pb").read_bytes())
    with pytest.raises(CaptureError, match="JAX or TensorFlow"):
        load(tmp_path)


def test_a_trace_of_ascend_s_profiler_is_no_program_for_the_cpu(tmp_path):
    """The host's operators are rows that are read; those of the NPU are not."""
    name = {"ph": "M", "name": "process_name", "tid": 0, "args": {"name": "Ascend Hardware"}}
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 15.0}
    kernel = {"ph": "X", "name": "MatMulV2", "pid": 3, "tid": 2, "dur": 4.0}
    events = [name | {"pid": 3}]
    for number in range(30):
        events += [operator | {"ts": 20.0 * number}, kernel | {"ts": 20.0 * number + 14}]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    with pytest.raises(CaptureError, match="torch_npu"):
        load(path)


def test_text_is_no_protobuf(tmp_path):
    (tmp_path / "notes").write_text("\nnothing of interest\n")
    with pytest.raises(CaptureError, match="not a JSON trace"):
        load(tmp_path / "notes")


def test_a_rocpd_database_is_called_so(tmp_path):
    with closing(sqlite3.connect(tmp_path / "results.db")) as db:
        db.execute("CREATE TABLE rocpd_kernel_dispatch_00ab (id INTEGER PRIMARY KEY)")
        db.commit()
    with pytest.raises(CaptureError, match="rocpd database") as refusal:
        load(tmp_path / "results.db")
    assert "--output-format json" in refusal.value.remedy


# quotes that PyTorch does not escape


def test_an_event_with_unescaped_quotes_is_left_out_and_counted():
    timeline = load(FOLDER / "unescaped_quote_in_frame_name.json.gz")
    assert len(timeline.device) == 60
    assert len(timeline.ranges) == 3
    (note,) = [note for note in timeline.notes if "quotes" in note]
    assert note.startswith("1 event that is not valid JSON left out")
    assert "with_stack" in note
    assert '{"device": "cpu"' in note


def test_a_comma_too_many_behind_the_last_event_is_no_damage(tmp_path):
    (tmp_path / "trace.json").write_text(f'{{"traceEvents": [{KERNEL % (1, 5)},\n]}}')
    assert len(load(tmp_path / "trace.json").device) == 1


KERNEL = '{"ph": "X", "cat": "kernel", "name": "k%d", "pid": 0, "tid": 7, "ts": %d, "dur": 5}'
FRAME = '{"ph": "X", "cat": "python_function", "name": "%s", "pid": 1, "tid": 1, "ts": 9, "dur": 5}'


def trace_with(frames: list[str], *, indented: bool, after: str = "") -> bytes:
    """Thirty kernels, and before every tenth one of these frames; the last frame comes last."""
    events = []
    for number in range(30):
        if number % 10 == 5 and number // 10 < len(frames) - 1:
            events.append(FRAME % frames[number // 10])
        events.append(KERNEL % (number, 100 + 10 * number))
    events.append(FRAME % frames[-1])
    joint = ",\n  " if indented else ", "
    return f'{{"traceEvents": [{joint.join(events)}]{after}}}'.encode()


@pytest.mark.parametrize("indented", [False, True])
@pytest.mark.parametrize("after", ["", ', "traceName": "x", "more": [1, 2]'])
@pytest.mark.parametrize("chunk_bytes", [200, 1 << 20])
@pytest.mark.parametrize(
    "frames",
    [
        ['<string>(1): say "hello"', "train.py(3): run"],
        ['one " quote', "train.py(3): run"],
        ['a "b", "c"]} d', 'x"y', "train.py(3): run"],
        ["train.py(3): run", 'at the end "}'],
        ["C:\\Users\\x\\train.py(3): run", "train.py(3): run"],
    ],
)
def test_events_around_a_broken_one_are_read(frames, indented, after, chunk_bytes):
    text = trace_with(frames, indented=indented, after=after)
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        at += size
        return text[at - size : at]

    stream = EventStream(read, Path("trace.json"), decode, chunk_bytes)
    events = [event for piece in stream for event in piece]
    names = [event.name for event in events if event.name.startswith("k")]
    assert names == [f"k{number}" for number in range(30)]
    assert stream.skipped == sum('"' in frame or "\\" in frame for frame in frames)
    assert isinstance(stream.metadata, dict)


def test_events_may_begin_with_another_key(tmp_path):
    path = tmp_path / "trace.json"
    good = '{"name": "k", "ph": "X", "cat": "kernel", "ts": 5, "dur": 5, "pid": 0, "tid": 7}'
    bad = '{"name": "say "hi", ph": "X", "cat": "python_function", "ts": 5, "dur": 5}'
    path.write_text(f'{{"traceEvents": [{good}, {good}, {bad}, {good}]}}')
    timeline = load(path)
    assert len(timeline.device) == 3
    assert timeline.notes[0].startswith("1 event that is not valid JSON left out")


def test_a_file_in_which_hardly_an_event_is_whole_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    broken = ", ".join(FRAME % 'a"b' for _ in range(20))
    path.write_text(f'{{"traceEvents": [{broken}]}}')
    with pytest.raises(CaptureError, match="not valid JSON"):
        load(path)


# rocprofv3

AGENTS = [
    {"id": {"handle": 11}, "type": 1, "logical_node_type_id": 0, "name": "EPYC"},
    {
        "id": {"handle": 22},
        "type": 2,
        "logical_node_type_id": 0,
        "name": "gfx942",
        "product_name": "AMD Instinct MI300X",
        "cu_count": 304,
    },
]


def rocprof_record(start: int, end: int, correlation: int, **more) -> dict:
    return {
        "size": 64,
        "start_timestamp": start,
        "end_timestamp": end,
        "thread_id": 77,
        "correlation_id": {"internal": correlation, "external": 0},
        **more,
    }


def rocprof_json(**buffers: list[dict]) -> dict:
    operations = ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]
    process = {
        "metadata": {"pid": 42},
        "agents": AGENTS,
        "strings": {
            "buffer_records": [
                {"kind": "HIP_RUNTIME_API", "operations": ["none", "hipLaunchKernel"]},
                {"kind": "MEMORY_COPY", "operations": operations},
            ],
            "marker_api": [{"key": 5, "value": "step 1"}],
        },
        "kernel_symbols": [{"kernel_id": 9, "formatted_kernel_name": "Cijk_Ailk_Bljk_HHS_BH"}],
        "buffer_records": buffers,
    }
    return {"rocprofiler-sdk-tool": [process]}


def test_json_of_rocprofv3_is_read(tmp_path):
    dispatch = {
        "agent_id": {"handle": 22},
        "queue_id": {"handle": 3},
        "kernel_id": 9,
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 2, "z": 1},
    }
    document = rocprof_json(
        kernel_dispatch=[rocprof_record(5_000, 9_000, 1, dispatch_info=dispatch)],
        hip_api=[rocprof_record(1_000, 2_000, 1, kind=0, operation=1)],
        memory_copy=[
            rocprof_record(
                2_500, 4_500, 2, kind=1, operation=1, dst_agent_id={"handle": 22}, bytes=4096
            )
        ],
        marker_api=[rocprof_record(500, 9_500, 5, kind=0, operation=0)],
    )
    path = tmp_path / "results.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    timeline = load(path)
    assert timeline.format == "rocprofv3"
    copy, kernel = 0, 1
    assert timeline.names(timeline.device) == ["Memcpy HtoD", "Cijk_Ailk_Bljk_HHS_BH"]
    assert timeline.device.kind.tolist() == [ActivityKind.COPY, ActivityKind.KERNEL]
    assert timeline.device.direction[copy] == Direction.H2D
    assert timeline.device.bytes[copy] == 4096
    assert timeline.device.start.tolist() == [2_500, 5_000]
    assert timeline.device.end.tolist() == [4_500, 9_000]
    assert timeline.device.grid[kernel] == 4 * 2  # 1000 threads in groups of 256
    assert timeline.device.block[kernel] == 256
    assert timeline.launched_by.tolist() == [-1, 0]
    assert timeline.names(timeline.runtime) == ["hipLaunchKernel"]
    assert timeline.names(timeline.ranges) == ["step 1"]
    (device,) = timeline.devices
    assert (device.name, device.multiprocessors) == ("AMD Instinct MI300X", 304)
    assert device.compute_capability == ""


def test_json_of_rocprofv3_without_activity_says_what_to_record(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(rocprof_json()))
    with pytest.raises(CaptureError, match="rocprofv3 without") as refusal:
        load(path)
    assert "--kernel-trace" in refusal.value.remedy
    path.write_text(json.dumps(rocprof_json())[:-40])
    with pytest.raises(CaptureError, match="damaged JSON of rocprofv3"):
        load(path)


# execution traces


def execution_trace(*, linked: bool) -> dict:
    times = [{"ts": 100, "inclusive_dur": 40}, {"ts": 120, "inclusive_dur": 30}]
    nodes = [
        {"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 0}
        | (times[0] if linked else {}),
        {
            "id": 2,
            "name": "aten::mm",
            "ctrl_deps": 1,
            "inputs": {
                "values": [],
                "shapes": [[8, 4], [4, 2]],
                "types": ["Tensor(float)", "Tensor(float)"],
            },
            "attrs": [{"name": "tid", "type": "uint64", "value": 3}],
        }
        | (times[0] if linked else {}),
    ]
    if linked:
        kernel = {"id": 3, "name": "sgemm", "ctrl_deps": 2, "cat": "kernel", "stream": 7}
        nodes.append(kernel | times[1])
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 9, "start_ts": 1, "nodes": nodes}


def test_an_execution_trace_with_times_is_read(tmp_path):
    path = tmp_path / "et.json"
    path.write_text(json.dumps(execution_trace(linked=True)))
    timeline = load(path)
    assert timeline.format == "execution trace"
    assert timeline.names(timeline.operators) == ["aten::mm"]
    assert timeline.names(timeline.device) == ["sgemm"]
    assert timeline.device.external.tolist() == timeline.operators.correlation.tolist() == [2]
    assert timeline.work.flop.tolist() == [2 * 8 * 4 * 2]
    assert timeline.device.stream.tolist() == [7]


def test_an_execution_trace_without_times_says_how_to_get_them(tmp_path):
    path = tmp_path / "et.json"
    path.write_text(json.dumps(execution_trace(linked=False)))
    with pytest.raises(CaptureError, match=r"execution trace .* without times") as refusal:
        load(path)
    assert "chakra_trace_link" in refusal.value.remedy


def protobuf(*fields: tuple[int, int | bytes]) -> bytes:
    """A message of protobuf, from (number, value)."""

    def varint(value: int) -> bytes:
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    message = b""
    for number, value in fields:
        if isinstance(value, int):
            message += varint(number << 3) + varint(value)
        else:
            message += varint(number << 3 | 2) + varint(len(value)) + value
    return message


def test_chakras_protobuf_is_read(tmp_path):
    host = protobuf((1, b"is_cpu_op"), (27, 1))
    device = protobuf((1, b"is_cpu_op"), (27, 0))
    messages = [
        protobuf((1, b"0.0.4")),
        protobuf((1, 1), (2, b"aten::mm"), (3, 4), (6, 1000), (7, 20), (10, host)),
        protobuf((1, 2), (2, b"sgemm"), (3, 4), (6, 1010), (7, 300), (10, device)),
        protobuf((1, 3), (2, b"all_reduce"), (3, 7), (6, 1310), (7, 50), (10, device)),
    ]
    path = tmp_path / "rank0.et"
    path.write_bytes(b"".join(protobuf((0, message))[1:] for message in messages))
    timeline = load(path)
    assert timeline.names(timeline.operators) == ["aten::mm"]
    assert timeline.names(timeline.device) == ["sgemm", "nccl:all_reduce"]
    assert timeline.device.kind.tolist() == [ActivityKind.KERNEL, ActivityKind.COMMUNICATION]
    assert (timeline.device.end - timeline.device.start).tolist() == [300_000, 50_000]


# newer exports of nsys


def test_the_newest_version_of_a_table_is_read():
    tables = ["NVTX_EVENTS_V2", "NVTX_EVENTS_V3", "NVTX_EVENTS", "StringIds", "MINE_V2"]
    assert newest_versions(tables) == {
        "NVTX_EVENTS": "NVTX_EVENTS_V3",
        "StringIds": "StringIds",
        "MINE_V2": "MINE_V2",
    }


@pytest.mark.parametrize("version", ["_V2", "_V3"])
def test_versioned_tables_give_what_plain_ones_give(tmp_path, version):
    path = tmp_path / "export.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "step"), (2, "gemm")])
        db.execute(
            f"CREATE TABLE NVTX_EVENTS{version} (start INTEGER, end INTEGER, eventType INTEGER,"
            " text TEXT, globalTid INTEGER, textId INTEGER)"
        )
        db.execute(f"INSERT INTO NVTX_EVENTS{version} VALUES (5, 50, 59, 'loss', 1, NULL)")
        db.execute(
            f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL{version} (start INTEGER, end INTEGER,"
            " deviceId INTEGER, streamId INTEGER, correlationId INTEGER, demangledName INTEGER)"
        )
        db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL{version} VALUES (10, 20, 0, 7, 3, 2)")
        db.commit()
    timeline = load(path)
    assert timeline.names(timeline.ranges) == ["loss"]
    assert timeline.names(timeline.device) == ["gemm"]
    assert np.array_equal(timeline.device.start, [10])
