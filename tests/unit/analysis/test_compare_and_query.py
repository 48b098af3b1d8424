"""Two captures side by side, and a capture in SQL."""

import math
import sys

import msgspec
import pytest

from bottleneck_lab import compare, query
from bottleneck_lab.analysis.compare import CONFIDENCE, FEWEST_STEPS
from bottleneck_lab.analysis.query import columns_of, write_parquet
from bottleneck_lab.errors import MachineError, UsageError


def test_a_fix_is_seen_with_what_it_removed(summary_of):
    result = compare(summary_of("input", steps=12), summary_of("healthy", steps=12))
    assert result.outcome == "better"
    assert result.speedup_low > 1.5
    assert result.speedup_low <= result.speedup <= result.speedup_high
    assert result.findings_gone == ["input-starved"]
    changes = {(change.group, change.what): change for change in result.changes}
    assert changes["gap", "input"].outcome == "better"
    assert changes["range", "data"].ratio > 100
    back = compare(summary_of("healthy", steps=12), summary_of("input", steps=12))
    assert back.outcome == "worse"
    assert back.findings_new == ["input-starved"]


def test_the_same_program_twice_is_the_same(summary_of):
    result = compare(summary_of("healthy", seed=3, steps=12), summary_of("healthy", seed=4, steps=12))
    assert result.outcome == "same"
    assert {change.outcome for change in result.changes} == {"same"}


@pytest.mark.parametrize("count", range(1, 40))
def test_the_interval_of_each_capture_covers_its_median_often_enough(summary_of, count):
    """So often that both together do 95% of the time; or it says that there are too few steps."""
    steps = list(range(1000, 1000 + count))
    summary = summary_of("healthy", steps=1)
    seen = msgspec.structs.replace(
        summary, steps=[msgspec.structs.replace(summary.steps[0], cost_ns=step) for step in steps]
    )
    still = msgspec.structs.replace(seen, steps=[msgspec.structs.replace(summary.steps[0], cost_ns=1000)] * 7)
    result = compare(seen, still)
    below = round(result.speedup_low * 1000) - 1000  # steps outside on either side
    assert result.speedup_high == (steps[count - 1 - below]) / 1000
    missed = 2 * sum(math.comb(count, k) for k in range(below + 1)) / 2**count
    assert result.few_steps == (missed > 1 - CONFIDENCE)
    assert result.few_steps == (count < FEWEST_STEPS)


def test_sql_gives_rows(timeline_of):
    timeline = timeline_of("pageable")
    rows = query(
        timeline,
        "SELECT direction, host_memory, count(*), sum(bytes) FROM device WHERE kind = 'copy' GROUP BY 1, 2 ORDER BY 1",
    )
    assert rows.columns == ["direction", "host_memory", "count(*)", "sum(bytes)"]
    assert rows.rows[1] == ["h2d", "pageable", 8, 8 * 19_000_000]
    assert query(timeline, "SELECT max(duration) FROM ranges WHERE name = 'h2d'").rows[0][0] > 3_000_000
    cut = query(timeline, "SELECT * FROM device", limit=3)
    assert cut.cut
    assert len(cut.rows) == 3


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
        assert "SELECT over device" in caught.value.remedy


def test_a_query_without_end_is_stopped(timeline_of, monkeypatch):
    monkeypatch.setattr("bottleneck_lab.analysis.query.STEP_LIMIT", 5)
    with pytest.raises(UsageError, match="interrupted"):
        query(
            timeline_of("healthy", steps=1),
            "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t",
        )


def test_parquet_needs_pyarrow(timeline_of, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError) as caught:
        write_parquet(timeline_of("healthy", steps=1), tmp_path)
    assert "pip install pyarrow" in caught.value.remedy


def test_columns_are_plain(timeline_of):
    columns = columns_of(timeline_of("healthy", steps=1), "device")
    assert set(columns["kind"]) == {"kernel", "copy", "communication"}
    assert (columns["duration"] == columns["end"] - columns["start"]).all()
