"""Tables read from their pages against the same tables read by SQLite: one answer, whatever is in
the file.
"""

import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bottleneck_lab.trace.fast import sqlite_pages
from bottleneck_lab.trace.fast.sqlite_pages import DamagedTreeError, Database, UnusualFileError
from bottleneck_lab.trace.nsys import export as nsys
from bottleneck_lab.trace.nsys import rows as nsys_rows
from bottleneck_lab.trace.nsys.rows import TableQuery

COLUMNS = (
    "start",
    "end",
    "eventType",
    "gridX",
    "gridY",
    "gridZ",
    "demangledName",
    "shortName",
    "text",
)
ASKED = TableQuery(
    {"start": -1, "end": -2, "grid": 1, "kernelName": -5, "eventType": 7, "rowid": 0, "absent": 3}
)
NAMED = TableQuery(
    {"start": -1, "end": -2}, among={"eventType": (59, 60)}, there=("end",), text="text"
)
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
    [
        "aten::mm, seq = 3",
        "aten::mm, op_id = 4711",
        ", op_id",
        "a, b, seq = 1, op_id = 2",
        "Grüße",
        "",
        "12 things",
    ]
)
values = st.one_of(
    st.none(),
    integers,
    st.sampled_from([59, 60, 60.0, "59"]),
    st.floats(allow_nan=False),
    texts,
    st.text(max_size=80),
    st.binary(max_size=9),
    st.integers(100, 6000).map("x".__mul__),
)
kinds = st.sampled_from(
    [
        "INTEGER",
        "INTEGER",
        "INT NOT NULL DEFAULT 5",
        "",
        "TEXT",
        "REAL",
        "BLOB",
        "NUMERIC",
        "INTEGER PRIMARY KEY",
    ]
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
        *(
            st.none() | integers | (texts if name == "text" else (integers if calm else values))
            for name in names
        )
    )
    added = draw(
        st.lists(st.sampled_from(["INTEGER", "INTEGER DEFAULT -9", "TEXT DEFAULT 'x'"]), max_size=2)
    )
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
        insert = (
            f"INSERT OR IGNORE INTO t (rowid, {', '.join(named)}) VALUES"
            f" ({', '.join('?' * (len(named) + 1))})"
        )
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
        found["text"] = [
            rows.meanings["text"][number] if number >= 0 else None for number in found["text"]
        ]
    return found


def both(path: Path, asked: TableQuery) -> tuple[dict, dict]:
    """The table from its pages and by SQL."""
    with closing(nsys.open_export(path)) as connection, nsys.Export(connection, path) as report:
        there = report.columns["t"]
        asked = TableQuery(
            asked.columns,
            {name: among for name, among in asked.among.items() if name in there},
            tuple(there.intersection(asked.there)),
            asked.text if asked.text in there else None,
        )
        return answer(report.numbers("t", asked)), answer(report.by_sql("t", asked))


@settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    table=tables(),
    chunk=st.sampled_from([512, 2048, 1 << 20]),
    asked=st.sampled_from([ASKED, NAMED]),
)
def test_any_table_reads_as_sqlite_reads_it(tmp_path, monkeypatch, table, chunk, asked):
    monkeypatch.setattr(sqlite_pages, "CHUNK_BYTES", chunk)
    ours, theirs = both(made(tmp_path / "t.sqlite", table), asked)
    assert ours == theirs


def plain(**more) -> dict:
    """A table of whole numbers and names, several levels deep."""
    rows = [
        (n * 10**9, n * 10**9 + 5, 59, n % 200, None, -n, n, 12, f"aten::op{n % 7}, seq = {n}")
        for n in range(50)
    ]
    return {
        "page": 512,
        "columns": list(COLUMNS),
        "rows": rows,
        "times": 80,
        "first": 1,
        "added": [],
        "delete": 0,
        "vacuum": False,
    } | more


@pytest.fixture
def unread(monkeypatch):
    """What the pages left to SQLite: rows, or None for a whole table."""
    left = []
    real = nsys.read_rows

    def watched(*given):
        try:
            read = real(*given)
        except UnusualFileError:
            left.append(None)
            raise
        left.append(len(read.odd))
        return read

    monkeypatch.setattr(nsys, "read_rows", watched)
    return left


@pytest.mark.parametrize("asked", [ASKED, NAMED])
def test_plain_tables_are_read_without_sqlite(tmp_path, monkeypatch, unread, asked):
    monkeypatch.setattr(sqlite_pages, "CHUNK_BYTES", 100_000)
    path = made(tmp_path / "t.sqlite", plain())
    ours, theirs = both(path, asked)
    assert ours == theirs
    assert len(ours["start"]) == 4000
    assert unread == [0]
    if asked is NAMED:
        assert set(ours["text"]) == {f"aten::op{n}".encode() for n in range(7)}


def test_rows_that_only_sqlite_can_read_stand_in_their_places(tmp_path, unread):
    path = made(tmp_path / "t.sqlite", plain())
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "UPDATE t SET start = 1.5, text = ? WHERE rowid % 1000 = 7",
            ("long " * 300 + ", seq = 5",),
        )
        db.execute("UPDATE t SET text = x'00ff' WHERE rowid = 3")
    ours, theirs = both(path, NAMED)
    assert ours == theirs
    assert unread == [5]


def test_many_unusual_rows_are_left_to_sqlite(tmp_path, monkeypatch, unread):
    monkeypatch.setattr(nsys_rows, "_MANY", 10)
    path = made(tmp_path / "t.sqlite", plain())
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE t SET start = 1.5 WHERE rowid % 20 = 7")
    ours, theirs = both(path, ASKED)
    assert ours == theirs
    assert unread == [None]


@pytest.mark.parametrize("pragma", ["journal_mode = WAL", "encoding = 'UTF-16'"])
def test_files_of_another_kind_are_left_to_sqlite(tmp_path, pragma):
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"PRAGMA {pragma}")
        db.execute("CREATE TABLE t (start INT, end INT, eventType INT, text TEXT)")
        db.execute("INSERT INTO t VALUES (1, 2, 59, 'Grüße, seq = 3')")
    with pytest.raises(UnusualFileError):
        Database(path)
    ours, theirs = both(path, NAMED)
    assert ours == theirs
    assert ours["text"] == ["Grüße".encode()]


@pytest.mark.parametrize(
    "columns",
    [
        "rowid INT, start INT, end INT",
        "start REAL, end INT",
        "start INTEGER PRIMARY KEY, end INT, eventType AS (end + 1)",
    ],
)
def test_columns_that_are_not_stored_as_they_are_read(tmp_path, columns, unread):
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"CREATE TABLE t ({columns})")
        db.executemany("INSERT INTO t (start, end) VALUES (?, ?)", [(n, 2 * n) for n in range(9)])
    ours, theirs = both(path, ASKED)
    assert ours == theirs
    assert not unread


def refused(path: Path) -> str:
    """Why the table is not read."""
    with closing(nsys.open_export(path)) as connection, nsys.Export(connection, path) as report:
        with pytest.raises(DamagedTreeError) as by_pages:
            report.numbers("t", ASKED)
        with pytest.raises(DamagedTreeError):
            report.by_sql("t", ASKED)
        with pytest.raises(DamagedTreeError):
            report.rows("t", "SELECT min(start) FROM t")
    return str(by_pages.value)


def patched(path: Path, page: int, at: int, put: bytes) -> Path:
    """The file with some bytes of a page changed."""
    content = bytearray(path.read_bytes())
    content[(page - 1) * 512 + at : (page - 1) * 512 + at + len(put)] = put
    path.write_bytes(content)
    return path


ROOT = 2


@pytest.mark.parametrize(
    ("child", "why"),
    [
        (ROOT, "twice"),
        (1, "cannot be its own"),
        (0, "cannot be its own"),
        (2**32 - 1, "cannot be its own"),
        (3, "not in order"),
    ],
)
def test_hostile_page_numbers_are_refused_before_sqlite_follows_them(tmp_path, child, why):
    path = made(tmp_path / "t.sqlite", plain())
    assert re.search(why, refused(patched(path, ROOT, 8, child.to_bytes(4, "big"))))


def test_trees_without_end_are_refused(tmp_path):
    """Every page below the root is the same again: SQLite would read rows for years."""
    path = made(tmp_path / "t.sqlite", plain())
    content = path.read_bytes()
    root = content[512:1024]
    first = int.from_bytes(root[12:14], "big")
    last = first.to_bytes(2, "big")
    assert "twice" in refused(patched(path, ROOT, 12, last * int.from_bytes(root[3:5], "big")))


@pytest.mark.parametrize(
    ("at", "put"), [(0, b"\x0a"), (3, b"\xff\xff"), (3, b"\0\0"), (12, b"\0\1"), (12, b"\xff\xff")]
)
def test_impossible_pages_are_refused(tmp_path, at, put):
    path = made(tmp_path / "t.sqlite", plain())
    child = int.from_bytes(path.read_bytes()[512 + 8 : 512 + 12], "big")
    assert refused(patched(path, child, at, put))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    page=st.sampled_from([512, 4096]),
    damage=st.lists(
        st.tuples(
            st.integers(0, 10**9),
            st.integers(0, 60) | st.integers(0, 511),
            st.sampled_from([0, 1, 5, 13, 127, 128, 255]) | st.integers(0, 255),
        ),
        min_size=1,
        max_size=4,
    ),
    cut=st.none() | st.none() | st.integers(1, 10**9),
    asked=st.sampled_from([ASKED, NAMED]),
)
def test_damage_ends_in_what_sqlite_says_or_in_an_error(
    tmp_path, monkeypatch, page, damage, cut, asked
):
    monkeypatch.setattr(sqlite_pages, "CHUNK_BYTES", 4096)
    whole = tmp_path / f"whole-{page}.sqlite"
    if not whole.exists():
        made(whole, plain(page=page, times=12))
    content = bytearray(whole.read_bytes())
    for number, at, put in damage:
        content[512 * (number % (len(content) // 512)) + at] = put
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(content[: cut and cut % len(content)])
    errors = (ValueError, sqlite3.Error, OverflowError)
    with (
        suppress(*errors),
        closing(nsys.open_export(path)) as connection,
        nsys.Export(connection, path) as report,
    ):
        if "t" not in report.columns or not {"end", "eventType", "text"} <= report.columns["t"]:
            return
        ours = answer(report.numbers("t", asked))
        report._pages = None
        try:
            assert ours == answer(report.by_sql("t", asked))
        except errors as error:
            pytest.fail(f"an answer where SQLite gives none: {error}")
