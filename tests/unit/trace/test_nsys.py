"""Reading nsys' SQLite exports of both generations, made here row by row."""

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace import ActivityKind, HostTable, load, merge_ranks
from bottleneck_lab.trace.fast import sqlite_pages
from bottleneck_lab.trace.fast.second_reader import SecondReader
from bottleneck_lab.trace.fast.sqlite_pages import UnusualFileError
from bottleneck_lab.trace.nsys import export as nsys
from bottleneck_lab.trace.nsys.rows import TableQuery
from bottleneck_lab.trace.timeline import make_table

PID, TID = 77, 78
GLOBAL_PID = PID << 24
GLOBAL_TID = GLOBAL_PID | TID
STRINGS = [
    "void gemm<float>(float*)",
    "gemm",
    "cudaLaunchKernel_v7000",
    "ncclDevKernel_AllReduce_Sum",
    "data",
    "aten::mm, seq = 3",
    "main",
]


def export(
    path: Path, schema: str, *, drop: tuple[str, ...] = (), began_ns: int | None = None
) -> Path:
    """A small export: two kernels, a copy, a memset, a wait, calls, ranges. 3.25 has other tables
    for what it says of itself.
    """
    db = sqlite3.connect(path)
    kernel = (
        "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT,"
        " globalPid INT, demangledName INT, shortName INT"
    )
    kernel += ", gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT" + (
        ", launchType INT, clusterX INT" if schema == "3.25" else ""
    )
    tables = {
        "StringIds": ("id INT, value TEXT", list(enumerate(STRINGS, start=10))),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            kernel,
            [
                (5000, 9000, 0, 1, 7, 2, GLOBAL_PID, 13, 13, 8, 1, 1, 64, 1, 1),
                (1000, 3000, 0, 1, 7, 1, GLOBAL_PID, 10, 11, 4, 2, 1, 32, 4, 1),
            ],
        ),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (
            (
                "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT,"
                " bytes INT, copyKind INT, srcKind INT, dstKind INT"
            ),
            [
                (3000, 3500, 0, 7, 3, GLOBAL_PID, 4096, 1, 0, 2),
                (3600, 3700, 0, 7, 4, GLOBAL_PID, 8, 2, 2, 1),
            ],
        ),
        "CUPTI_ACTIVITY_KIND_MEMSET": (
            (
                "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT,"
                " bytes INT"
            ),
            [(3800, 3900, 0, 7, 5, GLOBAL_PID, 16)],
        ),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
            (
                "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT,"
                " syncType INT"
            ),
            [(9000, 9100, 0, 7, 6, GLOBAL_PID, 3)],
        ),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            "start INT, end INT, globalTid INT, correlationId INT, nameId INT, returnValue INT",
            [(900, 950, GLOBAL_TID, 1, 12, 0), (1200, 1250, GLOBAL_TID, 2, 12, 0)],
        ),
        "NVTX_EVENTS": (
            "start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT, domainId INT",
            [
                (100, 500, 59, None, 14, GLOBAL_TID, 0),
                (600, 8000, 60, "forward", None, GLOBAL_TID, 0),
                (880, 1100, 59, None, 15, GLOBAL_TID, 0),
                (700, None, 34, "a mark", None, GLOBAL_TID, 0),
                (0, None, 75, "a domain", None, GLOBAL_TID, 0),
            ],
        ),
        "TARGET_INFO_GPU": (
            "id INT, name TEXT, smCount INT, totalMemory INT, computeMajor INT, computeMinor INT",
            [(0, "Some GPU", 100, 1 << 30, 9, 0)],
        ),
        "ThreadNames": ("nameId INT, globalTid INT", [(16, GLOBAL_TID)]),
        "META_DATA_EXPORT" if schema == "3.25" else "EXPORT_META_DATA": (
            "name TEXT, value TEXT",
            [("EXPORT_SCHEMA_VERSION", schema), ("EXPORT_HOST", "secret")],
        ),
    }
    if began_ns is not None:
        tables["TARGET_INFO_SESSION_START_TIME"] = (
            "utcEpochNs INTEGER, utcTime TEXT",
            [(began_ns, "2026-05-24T13:40:14")],
        )
    for name, (columns, rows) in tables.items():
        if name in drop:
            continue
        db.execute(f"CREATE TABLE {name} ({columns})")
        for row in rows:
            padded = [*row, *[0] * (columns.count(",") + 1 - len(row))]
            db.execute(f"INSERT INTO {name} VALUES ({','.join('?' * len(padded))})", padded)
    db.commit()
    db.close()
    return path


@pytest.mark.parametrize("schema", ["3.0.0", "3.25"])
def test_every_table_arrives_in_order(tmp_path, schema):
    found = load(export(tmp_path / "x.sqlite", schema))
    device = found.device
    assert device.start.tolist() == [1000, 3000, 3600, 3800, 5000, 9000]
    assert device.kind.tolist() == [
        ActivityKind.KERNEL,
        ActivityKind.COPY,
        ActivityKind.COPY,
        ActivityKind.MEMSET,
        ActivityKind.COMMUNICATION,
        ActivityKind.SYNC,
    ]
    assert found.names(device)[:3] == [STRINGS[0], "Memcpy HtoD", "Memcpy DtoH"]
    assert device.direction.tolist()[1:3] == [1, 2]
    assert device.host_memory.tolist()[1:3] == [1, 2]
    assert (device.grid[0], device.block[0]) == (8, 128)
    assert found.names(found.runtime) == ["cudaLaunchKernel"] * 2
    assert found.names(found.ranges) == ["data", "forward"]
    assert found.names(found.operators) == ["aten::mm"]
    assert (found.threads[0].pid, found.threads[0].tid, found.threads[0].name) == (
        "77",
        "78",
        "main",
    )
    assert (found.devices[0].name, found.devices[0].compute_capability) == ("Some GPU", "9.0")
    assert found.facts == {"EXPORT_SCHEMA_VERSION": schema}, (
        "nothing that names the machine is kept"
    )


def test_ranks_are_merged_on_one_clock(tmp_path):
    """Every report begins at its own zero."""
    began = 1_779_630_014_975_716_426
    late, early = (
        load(export(tmp_path / f"{rank}.sqlite", "3.25", began_ns=began + 2000 - 2000 * rank))
        for rank in (0, 1)
    )
    both = merge_ranks([late, early])
    first = [int(both.device.start[both.device.rank == rank].min()) for rank in both.ranks]
    assert (both.ranks, first) == ((0, 1), [3000, 1000])
    assert both.notes == ()


def test_ranks_without_a_common_clock_say_so(tmp_path):
    reports = [
        export(tmp_path / "0.sqlite", "3.25", began_ns=10**18),
        export(tmp_path / "1.sqlite", "3.0.0"),
    ]
    both = merge_ranks([load(path) for path in reports])
    assert both.extent == load(reports[0]).extent, "not a lifetime apart"
    (note,) = both.notes
    assert note.startswith("rank 1: the report does not record when it began")


@pytest.mark.parametrize(
    "missing",
    [
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "NVTX_EVENTS",
        "StringIds",
        "TARGET_INFO_GPU",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "ThreadNames",
    ],
)
def test_any_table_may_be_missing(tmp_path, missing):
    assert load(export(tmp_path / "x.sqlite", "3.0.0", drop=(missing,))).events


def test_other_databases_and_empty_exports_are_errors(tmp_path):
    for name, statement in (
        ("other", "CREATE TABLE cats (name TEXT)"),
        ("empty", "CREATE TABLE StringIds (id INT, value TEXT)"),
    ):
        path = tmp_path / f"{name}.sqlite"
        db = sqlite3.connect(path)
        db.execute(statement)
        db.commit()
        db.close()
        with pytest.raises(CaptureError):
            load(path)


def test_values_of_the_wrong_type_do_no_harm(tmp_path):
    path = export(tmp_path / "x.sqlite", "3.0.0")
    db = sqlite3.connect(path)
    db.execute(
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon', end = x'00' WHERE correlationId = 1"
    )
    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (50, 40, 0, 7, 9, 0, 1)")
    db.commit()
    db.close()
    found = load(path)
    assert (found.device.end >= found.device.start).all()
    assert any("impossible times" in note for note in found.notes)


def test_pages_and_sql_read_the_same(tmp_path, monkeypatch):
    path = export(tmp_path / "x.sqlite", "3.0.0")
    by_pages = load(path)
    asked = []
    monkeypatch.setattr(nsys, "read_rows", lambda *a: asked.append(a) or refused())
    monkeypatch.setattr(nsys, "PIECE_ROWS", 1)
    by_sql = load(path)
    assert asked
    assert by_pages.strings == by_sql.strings
    for table in ("device", "runtime", "ranges", "operators"):
        for column in ("start", "end", "name", "rank", "correlation"):
            assert (
                getattr(getattr(by_pages, table), column).tolist()
                == getattr(getattr(by_sql, table), column).tolist()
            )


COLUMNS = ("start", "end", "name", "rank", "thread", "correlation")


@pytest.fixture
def shared_reading(monkeypatch):
    """Files are read by two processes, and many parts are made of them. How many the other one read
    each time.
    """
    read = []
    real = SecondReader.handed_over

    def counted(second):
        parts = list(real(second) or ())
        read.append(len(parts))
        return iter(parts)

    monkeypatch.setattr(SecondReader, "handed_over", counted)
    monkeypatch.setattr(nsys, "WORTHWHILE_BYTES", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(sqlite_pages, "CHUNK_BYTES", 4096)
    return read


def large_export(path):
    export(path, "3.25")
    with closing(sqlite3.connect(path)) as db, db:
        names = [row[1] for row in db.execute("PRAGMA table_info(NVTX_EVENTS)")]
        row = dict.fromkeys(names) | {"eventType": 59, "globalTid": GLOBAL_TID}
        rows = [
            row
            | {
                "start": n * 100 // 7,
                "end": n * 100 // 7 + 50 + n % 3,
                "text": f"aten::op{n % 5}, seq = {n}",
            }
            for n in range(3000)
        ]
        marks = ", ".join("?" * len(names))
        db.executemany(
            f"INSERT INTO NVTX_EVENTS VALUES ({marks})", [[*row.values()] for row in rows]
        )
    return path


def host_rows(timeline):
    return {
        table: {column: getattr(getattr(timeline, table), column).tolist() for column in COLUMNS}
        for table in ("runtime", "ranges", "operators")
    }


@pytest.mark.alone
def test_two_processes_read_what_one_reads(tmp_path, monkeypatch, shared_reading):
    path = large_export(tmp_path / "x.sqlite")
    real = nsys.read_part

    def slow(*part):
        time.sleep(0.005)
        return real(*part)

    monkeypatch.setattr(nsys, "read_part", slow)
    both = load(path)
    monkeypatch.setattr(nsys, "WORTHWHILE_BYTES", 1 << 30)
    alone = load(path)
    assert len(alone.operators) >= 3000
    assert host_rows(both) == host_rows(alone)
    assert both.strings == alone.strings
    assert len(shared_reading) == 1
    assert shared_reading[0] > 5


@pytest.mark.alone
@pytest.mark.parametrize(
    "failing", [lambda: os._exit(1), lambda: os.kill(os.getpid(), signal.SIGKILL)]
)
def test_what_another_process_that_died_had_taken_is_read(
    tmp_path, monkeypatch, shared_reading, failing
):
    path = large_export(tmp_path / "x.sqlite")
    this = os.getpid()
    monkeypatch.setattr(
        nsys, "hand_over", lambda *_: time.sleep(0.1) if os.getpid() == this else failing()
    )
    assert len(load(path).operators) >= 3000
    assert not any(shared_reading)


def test_rows_that_are_nearly_in_order_are_put_in_order():
    generator = np.random.default_rng(1)
    for _ in range(200):
        start = np.sort(generator.integers(0, 2000, 300))
        at = generator.integers(0, 300, 6)
        start[at] += generator.integers(-40, 40, 6)
        end = start + generator.integers(0, 9, 300)
        found = make_table(HostTable, 300, start=start, end=end, name=np.arange(300))
        order = np.lexsort((np.arange(300), -end, start))
        assert found.name.tolist() == order.tolist()
        assert (found.start.tolist(), found.end.tolist()) == (
            start[order].tolist(),
            end[order].tolist(),
        )


def refused():
    raise UnusualFileError("as if it were unusual")


def test_numbers_of_any_size_and_rows_anywhere(tmp_path):
    path = export(tmp_path / "x.sqlite", "3.0.0")
    db = sqlite3.connect(path)
    db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET rowid = -7 WHERE rowid = 1")
    db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET rowid = 9223372036854775807 WHERE rowid = 2")
    db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = -2 WHERE rowid = -7")
    db.commit()
    asked = TableQuery({"rowid": 0, "correlationId": -1, "absent": -5})
    with nsys.Export(db, path) as report:
        for rows in (
            report.numbers("CUPTI_ACTIVITY_KIND_RUNTIME", asked),
            report.by_sql("CUPTI_ACTIVITY_KIND_RUNTIME", asked),
        ):
            assert rows["rowid"].tolist() == [-7, 9223372036854775807]
            assert rows["correlationId"][0] == -2
            assert set(rows["absent"].tolist()) == {-5}
    db.close()


def test_a_report_without_the_tool_says_what_to_do(tmp_path, monkeypatch):
    path = tmp_path / "x.nsys-rep"
    path.write_bytes(b"anything")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CaptureError) as caught:
        load(path)
    assert "nsys export" in caught.value.remedy


def test_a_report_is_exported_by_the_tool(tmp_path, monkeypatch):
    export(tmp_path / "made.sqlite", "3.25")
    tool = tmp_path / "nsys"
    tool.write_text(
        f'#!/bin/sh\nwhile [ "$1" != "-o" ]; do shift; done\n/bin/cp {tmp_path}/made.sqlite'
        ' "$2"\nexit 1\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "x.nsys-rep"
    report.write_bytes(b"anything")
    found = load(report)
    assert found.source == str(report), "judged by the file and not by the exit status"
    assert len(found.device) == 6


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(16, 40_000),
    put=st.binary(min_size=1, max_size=200),
    cut=st.none() | st.integers(16, 40_000),
)
def test_damaged_exports_end_in_rows_or_in_an_error(tmp_path, at, put, cut):
    whole = tmp_path / "whole.sqlite"
    if not whole.exists():
        export(whole, "3.0.0")
    content = bytearray(whole.read_bytes())
    at %= len(content)
    content[at : at + len(put)] = put
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(bytes(content[:cut]))
    try:
        found = load(path)
    except CaptureError:
        return
    assert (found.device.end >= found.device.start).all()
