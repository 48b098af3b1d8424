"""Tables read from their pages against the same tables read by SQLite: one answer, whatever is in the file."""

import sqlite3
from contextlib import closing
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bottleneck_lab.trace import nsys, nsys_rows, sqlite_pages
from bottleneck_lab.trace.nsys_rows import Asked

COLUMNS = ("start", "end", "eventType", "gridX", "gridY", "gridZ", "demangledName", "shortName", "text")
ASKED = Asked({"start": -1, "end": -2, "grid": 1, "kernelName": -5, "eventType": 7, "rowid": 0, "absent": 3})
NAMED = Asked({"start": -1, "end": -2}, among={"eventType": (59, 60)}, there=("end",), text="text")
EDGES = [
    0,
    1,
    -1,
    127,
    -128,
    128,
    32767,
    -32768,
    1 << 23,
    -(1 << 23),
    1 << 31,
    1 << 47,
    -(1 << 47),
    2**63 - 1,
    -(2**63),
]

integers = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 255)
texts = st.sampled_from(
    ["aten::mm, seq = 3", "aten::mm, op_id = 4711", ", op_id", "a, b, seq = 1, op_id = 2", "Grüße", "", "12 things"]
)
values = (
    st.none() | integers | integers | st.sampled_from([59, 60, 60.0, "59"]) | st.floats(allow_nan=False) | texts
    | st.text(max_size=80) | st.binary(max_size=9) | st.integers(100, 6000).map("x".__mul__)
)  # fmt: skip
kinds = st.sampled_from(
    ["INTEGER", "INTEGER", "INT NOT NULL DEFAULT 5", "", "TEXT", "REAL", "BLOB", "NUMERIC", "INTEGER PRIMARY KEY"]
)


@st.composite
def tables(draw):
    """What a table is made with: columns and kinds, rows, columns added later, rows taken out."""
    names = draw(st.permutations(COLUMNS))[: draw(st.integers(4, 9))]
    calm = draw(st.booleans())
    declared = [f"{name} {'INTEGER' if calm else draw(kinds)}" for name in names]
    keys = [at for at, column in enumerate(declared) if "KEY" in column]
    for at in keys[1:]:
        declared[at] = names[at]
    row = st.tuples(
        *(st.none() | integers | (texts if name == "text" else (integers if calm else values)) for name in names)
    )
    added = draw(st.lists(st.sampled_from(["INTEGER", "INTEGER DEFAULT -9", "TEXT DEFAULT 'x'"]), max_size=2))
    spare = [name for name in COLUMNS if name not in names]
    return {
        "page": draw(st.sampled_from([512, 512, 1024, 4096, 65536])),
        "columns": declared,
        "rows": draw(st.lists(row, min_size=1, max_size=12)),
        "times": draw(st.sampled_from([1, 1, 20, 200])),
        "first": draw(st.sampled_from([1, -5, 120, 16380, 2**31, -(2**63), 2**63 - 9999])),
        "added": [f"{name} {kind}" for name, kind in zip(spare, added, strict=False)],
        "delete": draw(st.sampled_from([0, 0, 3, 1])),
        "vacuum": draw(st.booleans()),
    }


def made(path: Path, table: dict) -> Path:
    """The file of such a table, beside another one whose pages lie between its own."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {table['page']}")
        db.execute("PRAGMA journal_mode = OFF")
        db.execute(f"CREATE TABLE t ({', '.join(table['columns'])})")
        db.execute("CREATE TABLE other (x)")
        db.execute("BEGIN")
        named = [column.split()[0] for column in table["columns"] if "KEY" not in column]
        keep = [at for at, column in enumerate(table["columns"]) if "KEY" not in column]
        insert = f"INSERT OR IGNORE INTO t (rowid, {', '.join(named)}) VALUES ({', '.join('?' * (len(named) + 1))})"
        for number in range(table["times"]):
            for nth, row in enumerate(table["rows"]):
                rowid = table["first"] + number * len(table["rows"]) + nth
                db.execute(insert, (rowid, *(row[at] for at in keep)))
            db.execute("INSERT INTO other VALUES (?)", ("y" * 300,))
        db.execute("COMMIT")
        for column in table["added"]:
            db.execute(f"ALTER TABLE t ADD COLUMN {column}")
        if table["delete"]:
            db.execute(f"DELETE FROM t WHERE rowid % {table['delete'] + 1} = 0")
        if table["vacuum"]:
            db.execute("VACUUM")
    return path


def answer(rows: nsys_rows.Rows) -> dict[str, list]:
    """Comparable."""
    found = {name: values.tolist() for name, values in rows.columns.items()}
    if "text" in found:
        found["text"] = [rows.names[number] if number >= 0 else None for number in found["text"]]
    return found


def both(path: Path, asked: Asked) -> tuple[dict, dict]:
    """The table from its pages and by SQL."""
    with closing(nsys._opened(path)) as connection, nsys._Report(connection, path) as report:
        there = report.columns["t"]
        asked = Asked(
            asked.columns,
            {name: among for name, among in asked.among.items() if name in there},
            tuple(there.intersection(asked.there)),
            asked.text if asked.text in there else None,
        )
        return answer(report.numbers("t", asked)), answer(report.by_sql("t", asked))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(table=tables(), chunk=st.sampled_from([512, 2048, 1 << 20]), asked=st.sampled_from([ASKED, NAMED]))
def test_any_table_reads_as_sqlite_reads_it(tmp_path, monkeypatch, table, chunk, asked):
    monkeypatch.setattr(sqlite_pages, "CHUNK_BYTES", chunk)
    ours, theirs = both(made(tmp_path / "t.sqlite", table), asked)
    assert ours == theirs
