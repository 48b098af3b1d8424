"""A capture in SQL."""

import sys

import pytest

from bottleneck_lab import query
from bottleneck_lab.analysis.query import columns_of, write_parquet
from bottleneck_lab.errors import MachineError, UsageError


def test_sql_gives_rows(timeline_of):
    timeline = timeline_of("pageable")
    rows = query(
        timeline,
        "SELECT direction, host_memory, count(*), sum(bytes) FROM device WHERE kind = 'copy' GROUP"
        " BY 1, 2 ORDER BY 1",
    )
    assert rows.columns == ["direction", "host_memory", "count(*)", "sum(bytes)"]
    assert rows.rows[1] == ["h2d", "pageable", 8, 8 * 19_000_000]
    assert (
        query(timeline, "SELECT max(duration) FROM ranges WHERE name = 'h2d'").rows[0][0]
        > 3_000_000
    )
    cut = query(timeline, "SELECT * FROM device", limit=3)
    assert cut.cut
    assert len(cut.rows) == 3


def test_times_count_from_the_start_of_the_capture(timeline_of):
    """As everywhere else: `--at` takes what a query gives."""
    timeline = timeline_of("healthy")
    first = query(timeline, "SELECT min(start), max(end) FROM device").rows[0]
    device, origin = timeline.device, timeline.extent[0]
    assert first == [int(device.start.min()) - origin, int(device.end.max()) - origin]


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE device",
        "SELECT nothing FROM device",
        "ATTACH 'x.db' AS y",
        "hello",
        "SELECT 1; SELECT 2",
        "PRAGMA query_only = 0",
        "SELECT load_extension('x')",
        "",
    ],
)
def test_other_statements_are_refused(timeline_of, statement):
    if statement:
        with pytest.raises(UsageError) as caught:
            query(timeline_of("healthy", steps=1), statement)
        assert "Write one SELECT" in caught.value.remedy


def test_a_wrong_query_is_answered_with_the_tables_that_it_names(timeline_of):
    timeline = timeline_of("healthy", steps=1)
    with pytest.raises(UsageError) as caught:
        query(timeline, "SELECT start, nam FROM Ranges")
    assert caught.value.message == "The query cannot be run: no such column: nam."
    _, table, others = caught.value.remedy.split("\n")
    assert table == "  ranges: start, end, duration, name, rank, thread, correlation"
    assert others.startswith("Other tables: device, runtime, ")
    with pytest.raises(UsageError) as caught:
        query(timeline, "SELECT * FROM kernels")
    _, *tables = caught.value.remedy.split("\n")
    assert len(tables) == 14
    assert max(map(len, tables)) < 200


def test_a_query_without_end_is_stopped_and_says_what_stopped_it(timeline_of):
    with pytest.raises(UsageError, match=r"stopped after 0\.01 s, its time limit") as caught:
        query(
            timeline_of("healthy", steps=1),
            "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT count(*)"
            " FROM t",
            limit_s=0.01,
        )
    assert "--limit-s 0.1" in caught.value.remedy


def test_parquet_needs_pyarrow(timeline_of, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError) as caught:
        write_parquet(timeline_of("healthy", steps=1), tmp_path)
    assert "pip install pyarrow" in caught.value.remedy


def test_columns_have_one_type_whatever_their_size_in_the_capture(timeline_of):
    timeline = timeline_of("healthy", steps=1)
    assert timeline.device.stream.dtype.itemsize < 8
    columns = columns_of(timeline, "device")
    assert {columns[name].dtype.name for name in ("stream", "correlation", "external")} == {"int64"}
    assert columns_of(timeline, "runtime")["thread"].dtype.name == "int32"


def test_columns_are_plain(timeline_of):
    columns = columns_of(timeline_of("healthy", steps=1), "device")
    assert set(columns["kind"]) == {"kernel", "copy", "communication"}
    assert (columns["duration"] == columns["end"] - columns["start"]).all()
