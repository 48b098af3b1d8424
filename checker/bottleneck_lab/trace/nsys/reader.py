"""Nsight Systems' SQLite exports (schemas 3.0 to 3.25) and .nsys-rep → `Timeline`.

Tables and columns differ from release to release and by what was traced: whatever is missing is
taken as not recorded.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.programs import find_program
from bottleneck_lab.trace.external import run_tool
from bottleneck_lab.trace.fast.allocator import give_back
from bottleneck_lab.trace.fast.second_reader import hand_over
from bottleneck_lab.trace.fast.sqlite_pages import Database, UnusualFileError
from bottleneck_lab.trace.names import is_communication, is_range
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
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceInfo,
    DeviceTable,
    Direction,
    HostMemory,
    HostTable,
    Ints,
    MemoryTable,
    Thread,
    Timeline,
    concatenate,
    devices_of,
    make_table,
)

EXPORT_LIMIT_S = 600
WORTHWHILE_BYTES = 16 << 20
"""Smaller files are read by one process."""

_COPY_NAMES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_DIRECTIONS = {
    1: Direction.H2D,
    2: Direction.D2H,
    8: Direction.D2D,
    9: Direction.H2H,
    10: Direction.P2P,
}
_HOST_MEMORY = {0: HostMemory.PAGEABLE, 1: HostMemory.PINNED}
_SYNC_NAMES = {
    1: "Event synchronize",
    2: "Stream wait event",
    3: "Stream synchronize",
    4: "Context synchronize",
}
_OPERATOR = re.compile(r"^(?:aten|autograd|torch|c10d|prims|torchvision)::[\w:]+|^autograd::engine")
_MARKS = re.compile("|".join(map(re.escape, NUMBER_MARKS)))
_PUSH_POP, _START_END = 59, 60
_DENSE = 4
_LONGEST_NS = 86_400_000_000_000


class _Strings:
    """Text of the capture, numbered: the file's StringIds first, then what the reader adds."""

    def __init__(self, rows: Sequence[tuple[int, str]]) -> None:
        self.values = [value if isinstance(value, str) else "" for _, value in rows]
        self._ids = np.array([number for number, _ in rows], dtype=np.int64)
        self._order = np.argsort(self._ids, kind="stable")
        self._ids = self._ids[self._order]
        self._added: dict[str, int] = {}

    def look_up(self, ids: Ints) -> NDArray[np.int32]:
        """Number of names given by StringIds' ids; an id that the file lacks is the empty name."""
        unknown = self.add("")
        if not len(self._ids) or not len(ids):
            return np.full(len(ids), unknown, dtype=np.int32)
        low, high = int(self._ids[0]), int(self._ids[-1])
        if high - low < _DENSE * len(ids):  # a table is many times as fast as a search
            table = np.full(high - low + 1, unknown, dtype=np.int32)
            table[self._ids - low] = self._order
            known = (ids >= low) & (ids <= high)
            numbers: NDArray[np.int32] = table[np.where(known, ids, self._ids[:1]) - low]
            return np.where(known, numbers, np.int32(unknown))
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._order[at], unknown).astype(np.int32)

    def add(self, value: str) -> int:
        if value not in self._added:
            self._added[value] = len(self.values)
            self.values.append(value)
        return self._added[value]


class _Report:
    """An open export: knows which tables and columns it has, and reads columns as arrays."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        tables = connection.execute(
            "SELECT name, type, rootpage FROM sqlite_master WHERE type IN ('table', 'view')"
        )
        found = [row for row in tables.fetchall() if isinstance(row[0], str)]
        self.columns = {
            name: {
                row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(name)})")
            }
            for name, _, _ in found
        }
        self._roots = {
            name: root for name, kind, root in found if kind == "table" and isinstance(root, int)
        }
        self._checked: set[str] = set()
        self._pages: Database | None = None
        with suppress(UnusualFileError):
            self._pages = Database(path)
        self._shared: SharedExport | None = None

    def __enter__(self) -> _Report:
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
                return self._completed(
                    table, query, read_rows(self._parts(table, query, self._pages))
                )
        return self.by_sql(table, query)

    def table(self, table: str) -> Rows:
        """Return one of `TABLES`."""
        return self.numbers(table, TABLES[table])

    def _parts(self, table: str, query: TableQuery, pages: Database) -> Iterator[TablePart]:
        layout = self._layout(table, query)
        parts = pages.parts(pages.leaves(layout.root))
        shared = self._shared
        return (
            (shared and shared.read_by_the_other(page_range(table, leaves)))
            or read_part(pages, leaves, layout, query)
            for leaves in parts
        )

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
        columns = self._connection.execute(f"PRAGMA table_xinfo({_quoted(table)})").fetchall()
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
            f" FROM {_quoted(table)} WHERE {where} AND rowid BETWEEN ? AND ? ORDER BY rowid LIMIT"
            f" {PIECE_ROWS})"
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
        column = _quoted(query.text or "")
        sql = (
            f"SELECT rowid, {column} FROM {_quoted(table)} WHERE {query.where} AND {column} IS NOT"
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


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_real(kind: str) -> bool:
    """Return True if SQLite reads the whole numbers of a column declared like this as fractions."""
    kind = kind.upper()
    return any(part in kind for part in ("REAL", "FLOA", "DOUB")) and not any(
        part in kind for part in ("INT", "CHAR", "CLOB", "TEXT", "BLOB")
    )


PIECE_ROWS = 20_000
_BYTE_MARKS = re.compile(_MARKS.pattern.encode())


def _value(name: str, there: set[str], default: int) -> str:
    """Return SQL for one column of ours, from those of its sources that the table has."""
    sources = [_quoted(source) for source in sources_of(name) if source in there]
    if not sources:
        return str(default)
    if name in PRODUCTS:
        return " * ".join(f"ifnull({source}, {default})" for source in sources)
    return f"coalesce({', '.join(sources)}, {default})"


def load_nsys_report(path: Path) -> Timeline:
    """Read a .nsys-rep, exported to SQLite by the nsys that is installed."""
    tool = find_program("nsys")
    if tool is None:
        raise CaptureError(
            f"{path.name} can only be read by nsys, which is not installed.",
            "Run `nsys export --type sqlite FILE` on a machine that has it, and load the .sqlite"
            " file.",
        )
    with tempfile.TemporaryDirectory(prefix="lab-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        output = run_tool(
            [
                str(tool),
                "export",
                "--type",
                "sqlite",
                "--force-overwrite",
                "true",
                "-o",
                str(target),
                str(path),
            ],
            path,
            EXPORT_LIMIT_S,
        )
        if not target.exists():
            raise CaptureError(
                f"nsys could not export {path.name}: {output.strip()[-200:]}",
                "The report may be of a newer nsys than the one installed: export it with that"
                " one.",
            )
        return load_nsys_sqlite(target, source=path)


def load_nsys_sqlite(path: Path, source: Path | None = None) -> Timeline:
    """Read an SQLite export. Raises CaptureError when it is damaged or not an export of nsys."""
    source = source or path
    try:
        connection = _opened(path)
        try:
            with _Report(connection, path) as report:
                report.share(path)
                timeline = _read(report, source)
            give_back()
            return timeline
        finally:
            connection.close()
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise CaptureError(
            f"{source.name} is not a readable nsys export: {error}.",
            "Export it again with `nsys export --type sqlite`.",
        ) from error


def read_from_the_end(shared: IO[bytes], path: str) -> None:
    """Read, in the other process, until it comes to what the first one has claimed."""
    with closing(_opened(Path(path))) as connection, _Report(connection, Path(path)) as report:
        for pages, read in report.from_the_end():
            if not claim(shared, pages):
                break
            hand_over(shared, (pages, read()))
    keep_claims(shared)


def _read(report: _Report, source: Path) -> Timeline:
    known = (
        "StringIds",
        "NVTX_EVENTS",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "OSRT_API",
    )
    if not any(table in report.columns for table in known):
        raise CaptureError(
            f"{source.name} is an SQLite file, but not an nsys export.",
            "Export a report with `nsys export --type sqlite`.",
        )
    strings = _Strings(
        report.rows(
            "StringIds", """SELECT id, value FROM "StringIds" WHERE typeof(id) = 'integer'"""
        )
        if "StringIds" in report.columns
        else []
    )
    notes: list[str] = []
    ranks = _Ranks()
    device = concatenate(
        [
            _kernels(report.table("CUPTI_ACTIVITY_KIND_KERNEL"), strings, ranks, notes),
            _copies(report.table("CUPTI_ACTIVITY_KIND_MEMCPY"), strings, ranks, notes),
            *_others(report, strings, ranks, notes),
        ]
    )
    threads = _Threads(ranks)
    runtime = _runtime(report.table("CUPTI_ACTIVITY_KIND_RUNTIME"), strings, threads)
    ranges, operators = _nvtx(report, strings, threads)
    empty = make_table(HostTable)
    timeline = Timeline(
        source=str(source),
        format="nsys",
        strings=tuple(strings.values),
        device=device,
        runtime=runtime,
        operators=operators,
        ranges=ranges,
        python=empty,
        memory=make_table(MemoryTable),
        threads=_thread_list(report, strings, threads),
        devices=_devices(report, device),
        world_size=len(ranks.pids),
        notes=tuple(notes),
        facts=_facts(report),
    )
    if not timeline.events:
        raise CaptureError(
            f"{source.name} holds no kernels, calls or ranges.",
            "Trace cuda and nvtx (-t cuda,nvtx), and check that the program ran inside the capture"
            " range.",
        )
    return timeline


class _Ranks:
    """Processes in the order of their numbers: each is a rank."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}

    def of(self, rows: Rows, column: str) -> NDArray[np.int32]:
        """Return ranks (and threads) of every row, by its globalPid or globalTid."""
        pids = {number: pid_of(rows.meanings[column][number]) for number in _used(rows[column])}
        for pid in sorted(pids.values()):
            self.pids.setdefault(pid, len(self.pids))
        return _renumbered(rows[column], {number: self.pids[pid] for number, pid in pids.items()})


class _Threads:
    """Threads by their serialised id: bits 24–47 are the process, the low 24 bits the thread."""

    def __init__(self, ranks: _Ranks) -> None:
        self.ranks = ranks
        self.ids: dict[int, int] = {}

    def of(self, rows: Rows) -> dict[str, NDArray[np.int32]]:
        """Return ranks (and threads) of every row, by its globalPid or globalTid."""
        ids = {number: rows.meanings["globalTid"][number] for number in _used(rows["globalTid"])}
        for serialised in sorted(ids.values()):
            self.ids.setdefault(serialised, len(self.ids))
        threads = {number: self.ids[serialised] for number, serialised in ids.items()}
        return {
            "rank": self.ranks.of(rows, "globalTid"),
            "thread": _renumbered(rows["globalTid"], threads),
        }


def _used(numbers: NDArray[np.int32]) -> list[int]:
    """Return the numbers that occur, rising."""
    used: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return used


def _renumbered(numbers: NDArray[np.int32], new: dict[int, int]) -> NDArray[np.int32]:
    """Return every number's new one."""
    table = np.zeros(max(new, default=0) + 1, dtype=np.int32)
    table[list(new)] = list(new.values())
    return table[numbers]


def pid_of(serialised: int) -> int:
    """Return the process in a globalTid or globalPid."""
    return (serialised >> 24) & 0xFFFFFF


_TIMES = {"start": -1, "end": -1}
_COMMON = _TIMES | {"deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0}
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
"""The tables that are read as columns, in the order they are needed."""


def _kernels(rows: Rows, strings: _Strings, ranks: _Ranks, notes: list[str]) -> DeviceTable:
    rows = _plausible(rows, notes)
    name = strings.look_up(rows["kernelName"])
    communicates = np.array([is_communication(value) for value in strings.values], dtype=bool)
    kind = np.where(
        communicates[name], np.int8(ActivityKind.COMMUNICATION), np.int8(ActivityKind.KERNEL)
    )
    return _rows(rows, ranks, name, kind, grid=rows["grid"], block=rows["block"])


def _copies(rows: Rows, strings: _Strings, ranks: _Ranks, notes: list[str]) -> DeviceTable:
    rows = _plausible(rows, notes)
    host_side = np.where(rows["copyKind"] == 2, rows["dstKind"], rows["srcKind"])
    return _rows(
        rows,
        ranks,
        _named(strings, rows["copyKind"], _COPY_NAMES, "Memcpy "),
        ActivityKind.COPY,
        bytes=rows["bytes"],
        direction=_mapped(rows["copyKind"], _DIRECTIONS),
        host_memory=np.where(
            np.isin(rows["copyKind"], (1, 2)), _mapped(host_side, _HOST_MEMORY), 0
        ),
    )


def _others(
    report: _Report, strings: _Strings, ranks: _Ranks, notes: list[str]
) -> Iterator[DeviceTable]:
    """Yield memsets, waits, and CUDA graphs that were recorded as wholes."""
    memsets = _plausible(report.table("CUPTI_ACTIVITY_KIND_MEMSET"), notes)
    yield _rows(
        memsets,
        ranks,
        np.full(len(memsets), strings.add("Memset")),
        ActivityKind.MEMSET,
        bytes=memsets["bytes"],
    )
    syncs = _plausible(report.table("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"), notes)
    yield _rows(
        syncs, ranks, _named(strings, syncs["syncType"], _SYNC_NAMES, ""), ActivityKind.SYNC
    )
    graphs = _plausible(report.table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"), notes)
    if len(graphs):
        notes.append(
            f"{len(graphs)} CUDA graph launches were recorded without their kernels (use"
            " --cuda-graph-trace=node)"
        )
    yield _rows(graphs, ranks, np.full(len(graphs), strings.add("CUDA graph")), ActivityKind.KERNEL)


def _plausible(rows: Rows, notes: list[str]) -> Rows:
    bad = (
        (rows["start"] < 0)
        | (rows["end"] < rows["start"])
        | (rows["end"] - rows["start"] > _LONGEST_NS)
    )
    if bad.any():
        notes.append(
            f"{int(bad.sum())} events have impossible times (zero, negative or longer than a day)"
            " and were left out"
        )
    return rows.only(~bad)


def _rows(
    rows: Rows, ranks: _Ranks, name: NDArray[Any], kind: Any, **more: NDArray[Any]
) -> DeviceTable:
    return make_table(
        DeviceTable,
        len(rows),
        start=rows["start"],
        end=rows["end"],
        name=name,
        kind=np.broadcast_to(np.asarray(kind, dtype=np.int8), len(rows)),
        rank=ranks.of(rows, "globalPid"),
        device=rows["deviceId"],
        stream=rows["streamId"],
        correlation=rows["correlationId"],
        **{
            column: np.clip(values, 0, 2**31 - 1) if column == "block" else values
            for column, values in more.items()
        },
    )


def _named(
    strings: _Strings, values: Ints, names: dict[int, str], prefix: str
) -> NDArray[np.int32]:
    used, inverse = np.unique(values, return_inverse=True)
    numbers = np.array(
        [strings.add(prefix + names.get(v, f"kind {v}")) for v in used.tolist()], dtype=np.int32
    )
    if len(values):
        return numbers[inverse.reshape(-1)]
    return np.empty(0, dtype=np.int32)


def _mapped(values: Ints, meaning: dict[int, Any]) -> NDArray[np.int8]:
    result = np.zeros(len(values), dtype=np.int8)
    for value, meant in meaning.items():
        result[values == value] = int(meant)
    return result


_VERSION = re.compile(r"_v\d+(?:_ptsz)?$|_ptsz$")


def _opened(path: Path) -> sqlite3.Connection:
    """Read-only, and nothing that the file's schema asks for is run."""
    connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    connection.execute("PRAGMA trusted_schema = 0")
    connection.execute("PRAGMA mmap_size = 1073741824")
    return connection


def _runtime(rows: Rows, strings: _Strings, threads: _Threads) -> HostTable:
    rows = rows.only((rows["start"] >= 0) & (rows["end"] >= rows["start"]))
    names = strings.look_up(rows["nameId"])
    plain = {n: strings.add(_VERSION.sub("", strings.values[n])) for n in _used(names)}
    renamed = np.arange(len(strings.values), dtype=np.int32)
    renamed[list(plain)] = list(plain.values())
    return make_table(
        HostTable,
        len(rows),
        start=rows["start"],
        end=rows["end"],
        name=renamed[names],
        **threads.of(rows),
        correlation=rows["correlationId"],
    )


def _nvtx(report: _Report, strings: _Strings, threads: _Threads) -> tuple[HostTable, HostTable]:
    """Return (ranges, operators): `emit_nvtx` and nsys' own PyTorch tracing write operators as
    ranges with their full names.
    """
    if not {"start", "end", "eventType"} <= report.columns.get("NVTX_EVENTS", set()):
        return make_table(HostTable), make_table(HostTable)
    rows = report.table("NVTX_EVENTS")
    rows = rows.only((rows["start"] >= 0) & (rows["end"] >= rows["start"]))
    names = strings.look_up(rows["textId"])
    if "text" in rows.columns:
        added = np.array(
            [strings.add(name.decode()) for name in rows.meanings["text"]] + [0], dtype=np.int32
        )
        names = np.where(rows["text"] >= 0, added[rows["text"]], names)
    used = _used(names)
    renamed, operator = (
        np.arange(len(strings.values) + len(used) + 1, dtype=np.int32),
        np.zeros(len(strings.values) + len(used) + 1, dtype=bool),
    )
    for number in used:
        value = strings.values[number]
        renamed[number] = strings.add(_MARKS.split(value, 1)[0]) if _MARKS.search(value) else number
        operator[number] = bool(_OPERATOR.match(value)) and not is_range(value)
    are = operator[names]
    columns = {
        "start": rows["start"],
        "end": rows["end"],
        "name": renamed[names],
        **threads.of(rows),
    }
    del rows, names
    if not are.any():
        return make_table(HostTable, len(are), **columns), make_table(HostTable)
    ranges = make_table(
        HostTable, int((~are).sum()), **{column: values[~are] for column, values in columns.items()}
    )
    if not len(ranges):
        return ranges, make_table(HostTable, len(are), **columns)
    return ranges, make_table(
        HostTable, int(are.sum()), **{column: values[are] for column, values in columns.items()}
    )


def _thread_list(report: _Report, strings: _Strings, threads: _Threads) -> tuple[Thread, ...]:
    named = report.table("ThreadNames")
    ids = [named.meanings["globalTid"][number] for number in named["globalTid"].tolist()]
    names = dict(zip(ids, strings.look_up(named["nameId"]).tolist(), strict=True))
    listed = []
    for serialised in threads.ids:
        pid = pid_of(serialised)
        name = ""
        if serialised in names:
            name = strings.values[names[serialised]]
        listed.append(
            Thread(threads.ranks.pids.get(pid, 0), str(pid), str(serialised & 0xFFFFFF), name)
        )
    return tuple(listed)


def _devices(report: _Report, device: DeviceTable) -> tuple[DeviceInfo, ...]:
    described = {}
    wanted = ("id", "name", "smCount", "totalMemory", "computeMajor", "computeMinor")
    there = report.columns.get("TARGET_INFO_GPU", set())
    if {"id", "name"} <= there:
        picked = ", ".join(_quoted(c) if c in there else "0" for c in wanted)
        described = {
            row[0]: row
            for row in report.rows("TARGET_INFO_GPU", f'SELECT {picked} FROM "TARGET_INFO_GPU"')
        }
    devices = []
    for rank, index in devices_of(device):
        _, name, sms, memory, major, minor = described.get(index, (0, "", 0, 0, 0, 0))
        capability = ""
        if major:
            capability = f"{major}.{minor}"
        devices.append(
            DeviceInfo(
                rank, index, str(name or "")[:120], int(sms or 0), capability, int(memory or 0)
            )
        )
    return tuple(devices)


def _facts(report: _Report) -> dict[str, str]:
    """Return the version of the tool and of the schema, from wherever this generation keeps them,
    and when the report's clock began (Unix time), under Kineto's key.

    Nothing that names the machine or its user.
    """
    facts: dict[str, str] = {}
    if "utcEpochNs" in report.columns.get("TARGET_INFO_SESSION_START_TIME", set()):
        began = (
            "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME WHERE typeof(utcEpochNs) ="
            " 'integer' LIMIT 1"
        )
        for (ns,) in report.rows("TARGET_INFO_SESSION_START_TIME", began):
            facts["baseTimeNanoseconds"] = str(ns)
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if {"name", "value"} <= report.columns.get(table, set()):
            wanted = ("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION")
            facts |= {
                str(n): str(v)[:40]
                for n, v in report.rows(table, f'SELECT name, value FROM "{table}"')
                if n in wanted
            }
    return facts
