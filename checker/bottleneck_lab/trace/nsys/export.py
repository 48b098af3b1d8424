"""An open SQLite export of nsys: which tables and columns it has, and their columns as arrays.

Tables and columns differ from release to release and by what was traced: whatever is missing is
taken as not recorded.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.fast.second_reader import hand_over
from bottleneck_lab.trace.fast.sqlite_pages import Database, UnusualFileError
from bottleneck_lab.trace.nsys.claims import PageRange, SharedExport, claim, keep_claims, page_range
from bottleneck_lab.trace.nsys.rows import (
    NUMBER_MARKS,
    PRODUCTS,
    Layout,
    Rows,
    TablePart,
    TableQuery,
    joined,
    numbered,
    read_part,
    read_rows,
    sources_of,
)

# Smaller files are read by one process.
WORTHWHILE_BYTES = 16 << 20

_PUSH_POP, _START_END = 59, 60

_TIMES = {"start": -1, "end": -1}

_COMMON = _TIMES | {"deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0}

# The tables that are read as columns, in the order they are needed.
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": TableQuery(_COMMON | {"kernelName": -1, "grid": 1, "block": 1}),
    "CUPTI_ACTIVITY_KIND_MEMCPY": TableQuery(
        _COMMON | {"bytes": 0, "copyKind": 0, "srcKind": -1, "dstKind": -1}
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": TableQuery(_COMMON | {"bytes": 0}),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": TableQuery(_COMMON | {"syncType": 0}),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": TableQuery(_COMMON | {"graphId": 0}),
    "CUPTI_ACTIVITY_KIND_RUNTIME": TableQuery(
        _TIMES | {"globalTid": 0, "correlationId": -1, "nameId": -1}
    ),
    "NVTX_EVENTS": TableQuery(
        _TIMES | {"globalTid": 0, "textId": -1},
        among={"eventType": (_PUSH_POP, _START_END)},
        there=("end",),
        text="text",
    ),
    "ThreadNames": TableQuery({"globalTid": 0, "nameId": -1}),
}

PIECE_ROWS = 20_000

_BYTE_MARKS = re.compile("|".join(map(re.escape, NUMBER_MARKS)).encode())


class Export:
    """An open export: knows which tables and columns it has, and reads columns as arrays."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        tables = connection.execute(
            "SELECT name, type, rootpage FROM sqlite_master WHERE type IN ('table', 'view')"
        )
        schema = [row for row in tables.fetchall() if isinstance(row[0], str)]
        self._stored = newest_versions(name for name, _, _ in schema)
        self.columns = {
            name: {row[1] for row in connection.execute(f"PRAGMA table_info({quoted(stored)})")}
            for name, stored in self._stored.items()
        }
        roots = {name: root for name, kind, root in schema if kind == "table"}
        self._roots = {
            name: roots[stored]
            for name, stored in self._stored.items()
            if isinstance(roots.get(stored), int)
        }
        self._checked: set[str] = set()
        self._pages: Database | None = None
        with suppress(UnusualFileError):
            self._pages = Database(path)
        self._shared: SharedExport | None = None

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shared is not None:
            self._shared.close()
        if self._pages is not None:
            self._pages.close()

    def share(self, path: Path) -> None:
        """Have another process read as well, from the end of `TABLES`."""
        if (
            self._pages is not None
            and path.stat().st_size >= WORTHWHILE_BYTES
            and (os.cpu_count() or 1) > 1
        ):
            self._shared = SharedExport(read_from_the_end, path)

    def numbers(self, table: str, query: TableQuery) -> Rows:
        """Return the columns asked for, as integers; a column that is missing or a value that is
        NULL is its default, and text is what number it begins with.

        From the file's pages, or by SQL where they are not as plain as they should be.
        """
        query = self._possible(table, query)
        with suppress(UnusualFileError):
            if self._pages is not None and table in self._roots:
                layout = self._layout(table, query)
                parts = self._pages.parts(self._pages.leaves(layout.root))
                shared = self._shared
                return self._completed(
                    table,
                    query,
                    read_rows(
                        (shared and shared.read_by_the_other(page_range(table, leaves)))
                        or read_part(self._pages, leaves, layout, query)
                        for leaves in parts
                    ),
                )
        return self.by_sql(table, query)

    def table(self, table: str) -> Rows:
        """Return one of `TABLES`."""
        return self.numbers(table, TABLES[table])

    def from_the_end(self) -> Iterator[tuple[PageRange, Callable[[], TablePart]]]:
        """Yield the parts of `TABLES`, the last first, and what reads them: as far as they are read
        from the file's pages.
        """
        for table in reversed(TABLES):
            if self._pages is not None and table in self._roots:
                query = self._possible(table, TABLES[table])
                with suppress(UnusualFileError):
                    layout = self._layout(table, query)
                    for leaves in reversed([*self._pages.parts(self._pages.leaves(layout.root))]):
                        yield (
                            page_range(table, leaves),
                            partial(read_part, self._pages, leaves, layout, query),
                        )

    def _possible(self, table: str, query: TableQuery) -> TableQuery:
        if query.text in self.columns.get(table, ()):
            return query
        return replace(query, text=None)

    def _layout(self, table: str, query: TableQuery) -> Layout:
        """Return how the table's records are laid out."""
        columns = self._connection.execute(
            f"PRAGMA table_xinfo({quoted(self._stored[table])})"
        ).fetchall()
        for _, name, kind, _, _, key, hidden in columns:
            if (
                hidden
                or name.lower() == "rowid"
                or (name in query.sources and (key or _is_real(kind)))
            ):
                raise UnusualFileError("columns that are not stored as they are read")
        added = frozenset(column[0] for column in columns if column[4] is not None)
        return Layout(self._roots[table], {column[1]: column[0] for column in columns}, added)

    def _completed(self, table: str, query: TableQuery, read: TablePart) -> Rows:
        """Add the rows that only SQLite can read, limited to those that were asked for."""
        if not len(read.odd):
            return read.rows
        wanted = replace(query, columns=query.columns | {"rowid": 0})
        runs = np.split(read.odd, np.flatnonzero(np.diff(read.odd) != 1) + 1)
        by_sql = joined([self.by_sql(table, wanted, int(run[0]), int(run[-1])) for run in runs])
        order = np.arange(len(read.rows))
        # Odd rows go where the page had them: their places hold the number of the row that SQL
        # found, or -1 where the query leaves them out.
        order[read.odd_at] = -1
        order[read.odd_at[np.isin(read.odd, by_sql["rowid"])]] = len(order) + np.arange(len(by_sql))
        both = joined(
            [read.rows, Rows({name: by_sql[name] for name in read.rows.columns}, by_sql.meanings)]
        )
        return both.at(order[order >= 0])

    def by_sql(
        self, table: str, query: TableQuery, first: int = -(2**63), last: int = 2**63 - 1
    ) -> Rows:
        """Return the rows whose rowid lies between two, read by SQLite.

        It writes them as hexadecimal digits, many at a time: an object for every value would take
        most of the time.
        """
        names = list(query.columns | ({"rowid": 0} if query.text else {}))
        if table not in self.columns:
            return numbered(Rows({name: np.empty(0, dtype=np.int64) for name in names}))
        self._check(table)
        there = self.columns[table] | {"rowid"}
        pieces = list(
            self._pieces(
                table,
                [_value(n, there, query.columns.get(n, 0)) for n in names],
                query.where,
                first,
                last,
            )
        )
        flat = np.concatenate([np.empty((0, len(names)), dtype=np.int64), *pieces])
        rows = Rows({name: np.ascontiguousarray(flat[:, nth]) for nth, name in enumerate(names)})
        return numbered(self._with_text(table, query, rows, first, last) if query.text else rows)

    def _pieces(
        self, table: str, values: list[str], where: str, first: int, last: int
    ) -> Iterator[NDArray[np.int64]]:
        named = ", ".join(f"{value} AS v{i}" for i, value in enumerate(values))
        written = (
            f"printf('{'%016x' * len(values)}', {', '.join(f'v{i}' for i in range(len(values)))})"
        )
        sql = (
            f"SELECT group_concat({written}, ''), max(place) FROM (SELECT {named}, rowid AS place"
            f" FROM {quoted(self._stored[table])} WHERE {where} AND rowid BETWEEN ? AND ?"
            f" ORDER BY rowid LIMIT {PIECE_ROWS})"
        )
        while (
            first <= last
            and (piece := self._connection.execute(sql, (first, last)).fetchone())[0] is not None
        ):
            yield (
                np.frombuffer(bytes.fromhex(piece[0]), ">i8")
                .astype(np.int64)
                .reshape(-1, len(values))
            )
            first = piece[1] + 1

    def _with_text(self, table: str, query: TableQuery, rows: Rows, first: int, last: int) -> Rows:
        """Return the same with the names that are written in the rows themselves."""
        column = quoted(query.text or "")
        sql = (
            f"SELECT rowid, {column} FROM {quoted(self._stored[table])} WHERE {query.where} AND"
            f" {column} IS NOT"
            " NULL AND rowid BETWEEN ? AND ?"
        )
        row_of = dict(zip(rows["rowid"].tolist(), range(len(rows)), strict=True))
        names: dict[bytes, int] = {}
        rows.columns["text"] = np.full(len(rows), -1, dtype=np.int32)
        self._connection.text_factory = bytes  # What is cut off below need not be text.
        try:
            for rowid, text in self._connection.execute(sql + " ORDER BY rowid", (first, last)):
                name = _BYTE_MARKS.split(
                    text if isinstance(text, bytes) else str(text).encode(), 1
                )[0]
                rows["text"][row_of[rowid]] = names.setdefault(name, len(names))
        finally:
            self._connection.text_factory = str
        if "rowid" not in query.columns:
            del rows.columns["rowid"]
        return replace(rows, meanings={"text": list(names)})

    def rows(self, table: str, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows that SQLite returns for a table."""
        self._check(table)
        return self._connection.execute(sql).fetchall()

    def _check(self, table: str) -> None:
        """Check, before SQLite reads a table, that its tree is a tree: in anything else SQLite
        would go round in circles.
        """
        if self._pages is not None and table in self._roots and table not in self._checked:
            with suppress(UnusualFileError):
                self._pages.check(self._roots[table])
            self._checked.add(table)


def open_export(path: Path) -> sqlite3.Connection:
    """Open an export read-only, so that nothing that its schema asks for is run."""
    connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    connection.execute("PRAGMA trusted_schema = 0")
    connection.execute("PRAGMA mmap_size = 1073741824")
    return connection


def read_from_the_end(shared: IO[bytes], path: str) -> None:
    """Read, in the other process, until it comes to what the first one has claimed."""
    with closing(open_export(Path(path))) as connection, Export(connection, Path(path)) as export:
        for pages, read in export.from_the_end():
            if not claim(shared, pages):
                break
            hand_over(shared, (pages, read()))
    keep_claims(shared)


_VERSIONED = re.compile(r"(.+)_V(\d+)$")


def newest_versions(tables: Iterable[str]) -> dict[str, str]:
    """Return by plain name the table that holds it: newer exports call NVTX_EVENTS
    NVTX_EVENTS_V2 or _V3, and CUPTI's tables likewise.
    """
    stored: dict[str, tuple[int, str]] = {}
    for name in tables:
        match = _VERSIONED.match(name)
        plain, version = (match[1], int(match[2])) if match else (name, 0)
        if plain not in TABLES:
            plain, version = name, 0
        if plain not in stored or version > stored[plain][0]:
            stored[plain] = version, name
    return {plain: name for plain, (_, name) in stored.items()}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_real(kind: str) -> bool:
    """Return True if SQLite reads the whole numbers of a column declared like this as fractions."""
    kind = kind.upper()
    return any(part in kind for part in ("REAL", "FLOA", "DOUB")) and not any(
        part in kind for part in ("INT", "CHAR", "CLOB", "TEXT", "BLOB")
    )


def _value(name: str, there: set[str], default: int) -> str:
    """Return SQL for one column of ours, from those of its sources that the table has."""
    sources = [quoted(source) for source in sources_of(name) if source in there]
    if not sources:
        return str(default)
    if name in PRODUCTS:
        return " * ".join(f"ifnull({source}, {default})" for source in sources)
    return f"coalesce({', '.join(sources)}, {default})"
