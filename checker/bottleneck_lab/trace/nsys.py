"""Nsight Systems' SQLite exports (schemas 3.0 to 3.25) and .nsys-rep → `Timeline`.

Tables and columns differ from release to release and by what was traced: whatever is missing is taken as not recorded.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.external import find_tool, run_tool
from bottleneck_lab.trace.names import is_communication, is_range
from bottleneck_lab.trace.timeline import (
    DeviceInfo,
    DeviceTable,
    Direction,
    HostMemory,
    HostTable,
    Ints,
    Kind,
    MemoryTable,
    Thread,
    Timeline,
    concatenate,
    devices_of,
    make_table,
)

EXPORT_LIMIT_S = 600

_COPY_NAMES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_DIRECTIONS = {1: Direction.H2D, 2: Direction.D2H, 8: Direction.D2D, 9: Direction.H2H, 10: Direction.P2P}
_HOST_MEMORY = {0: HostMemory.PAGEABLE, 1: HostMemory.PINNED}
_SYNC_NAMES = {1: "Event synchronize", 2: "Stream wait event", 3: "Stream synchronize", 4: "Context synchronize"}
_OPERATOR = re.compile(r"^(?:aten|autograd|torch|c10d|prims|torchvision)::[\w:]+|^autograd::engine")
_NUMBERED = re.compile(r", (?:seq|op_id) = .*$")
"""What tells one call of an operator from the next."""
_PUSH_POP, _START_END = 59, 60
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
        """Numbers of names given by StringIds' ids; an id that the file lacks is the empty name."""
        unknown = self.add("")
        if not len(self._ids):
            return np.full(len(ids), unknown, dtype=np.int32)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._order[at], unknown).astype(np.int32)

    def add(self, value: str) -> int:
        if value not in self._added:
            self._added[value] = len(self.values)
            self.values.append(value)
        return self._added[value]


class _Report:
    """An open export: knows which tables and columns it has, and reads columns as arrays."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        self.columns = {name: self._columns(name) for (name,) in tables if isinstance(name, str)}

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})")}

    def has(self, table: str) -> bool:
        """Whether the table is there with a start and an end."""
        return {"start", "end"} <= self.columns.get(table, set())

    def numbers(
        self, table: str, defaults: dict[str, int], where: str = "TRUE", after: int = -(2**63), until: int = 2**63 - 1
    ) -> NDArray[Any]:
        """The named columns as 64-bit integers, of the rows whose rowid lies in (after, until]; a column that is missing or a value that is NULL is its
        default, and text is what number it begins with.

        SQLite writes the rows as hexadecimal digits, many at a time: an object for every value would take most of the time. Columns of one value are
        not written again and again.
        """
        dtype = np.dtype([(name, "i8") for name in defaults])
        if table not in self.columns:
            return np.empty(0, dtype=dtype)
        values = {name: _value(name, self.columns[table] | {"rowid"}, default) for name, default in defaults.items()}
        limits = f"FROM {_quoted(table)} WHERE {where} AND rowid > ? AND rowid <= {until}"
        same = self._steady(values, limits, after)
        asked = {name: value for name, value in values.items() if name not in same} or values
        pieces = list(self._pieces(list(asked.values()), limits, after))
        flat = np.concatenate(pieces) if pieces else np.empty((0, len(asked)), dtype=np.int64)
        rows = np.empty(len(flat), dtype=dtype)
        for name in defaults:
            rows[name] = flat[:, list(asked).index(name)] if name in asked else same[name]
        return rows

    def _steady(self, values: dict[str, str], limits: str, after: int) -> dict[str, int]:
        """Columns that hold one number only, with it."""
        names = [name for name in values if name in _STEADY]
        if not names:
            return {}
        bounds = ", ".join(f"min({values[name]}), max({values[name]})" for name in names)
        found = self._connection.execute(f"SELECT {bounds} {limits}", (after,)).fetchone()
        pairs = zip(names, found[::2], found[1::2], strict=True)
        return {name: low for name, low, high in pairs if low == high and isinstance(low, int)}

    def _pieces(self, values: list[str], limits: str, after: int) -> Iterator[NDArray[np.int64]]:
        named = ", ".join(f"{value} AS v{i}" for i, value in enumerate(values))
        written = f"printf('{'%016x' * len(values)}', {', '.join(f'v{i}' for i in range(len(values)))})"
        sql = (
            f"SELECT group_concat({written}, ''), max(place) "
            f"FROM (SELECT {named}, rowid AS place {limits} ORDER BY rowid LIMIT {PIECE_ROWS})"
        )
        while (piece := self._connection.execute(sql, (after,)).fetchone())[0] is not None:
            yield np.frombuffer(bytes.fromhex(piece[0]), ">i8").astype(np.int64).reshape(-1, len(values))
            after = piece[1]

    def middle(self, table: str) -> int:
        """The rowid that halves a table."""
        low, high = self._connection.execute(f"SELECT min(rowid), max(rowid) FROM {_quoted(table)}").fetchone()
        return ((low or 0) + (high or 0)) // 2

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


PIECE_ROWS = 20_000
_STEADY = ("deviceId", "streamId", "globalPid", "globalTid")
"""Columns that often hold one value only."""
_PRODUCTS = {"grid": ("gridX", "gridY", "gridZ"), "block": ("blockX", "blockY", "blockZ")}
_FIRSTS = {"kernelName": ("demangledName", "shortName")}


def _value(name: str, there: set[str], default: int) -> str:
    """SQL for one column of ours, from those of its sources that the table has."""
    sources = [_quoted(n) for n in _PRODUCTS.get(name, _FIRSTS.get(name, (name,))) if n in there]
    if not sources:
        return str(default)
    if name in _PRODUCTS:
        return " * ".join(f"ifnull({source}, {default})" for source in sources)
    return f"coalesce({', '.join(sources)}, {default})"


def load_nsys_report(path: Path) -> Timeline:
    """From a .nsys-rep, exported to SQLite by the nsys that is installed."""
    tool = find_tool("nsys")
    if tool is None:
        raise CaptureError(
            f"{path.name} can only be read by nsys, which is not installed.",
            "Run `nsys export --type sqlite FILE` where it is, and load the .sqlite file.",
        )
    with tempfile.TemporaryDirectory(prefix="lab-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        said = run_tool(
            [tool, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", str(target), str(path)],
            path,
            EXPORT_LIMIT_S,
        )
        if not target.exists():
            raise CaptureError(
                f"nsys could not export {path.name}: {said.strip()[-200:]}",
                "The report may be of a newer nsys than the one installed: export it with that one.",
            )
        return load_nsys_sqlite(target, source=path)


def load_nsys_sqlite(path: Path, source: Path | None = None) -> Timeline:
    """From an SQLite export. Raises CaptureError when it is damaged or no export of nsys."""
    source = source or path
    try:
        connection = _opened(path)
        try:
            with _Tables(connection, path) as report:
                return _read(report, source)
        finally:
            connection.close()
    except (sqlite3.Error, ValueError, OverflowError) as error:
        raise CaptureError(
            f"{source.name} is no readable export of nsys: {error}.",
            "Export it again with `nsys export --type sqlite`.",
        ) from error


def _read(report: _Tables, source: Path) -> Timeline:
    known = ("StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API")
    if not any(table in report.columns for table in known):
        raise CaptureError(
            f"{source.name} is an SQLite file, but no export of nsys.",
            "Export a report with `nsys export --type sqlite`.",
        )
    strings = _Strings(
        report.rows("""SELECT id, value FROM "StringIds" WHERE typeof(id) = 'integer'""")
        if "StringIds" in report.columns
        else []
    )
    notes: list[str] = []
    ranks = _Ranks()
    device = _device(report, strings, ranks, notes)
    threads = _Threads(ranks)
    runtime = _runtime(report.large("CUPTI_ACTIVITY_KIND_RUNTIME"), strings, threads)
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
            "Trace cuda and nvtx (-t cuda,nvtx), and see that the program ran inside the capture range.",
        )
    return timeline


class _Ranks:
    """Processes in the order of their numbers: each is a rank."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}

    def of(self, pids: Ints) -> NDArray[np.int32]:
        used = np.unique(pids[:1] if (pids == pids[:1]).all() else pids)
        for pid in used.tolist():
            self.pids.setdefault(pid, len(self.pids))
        if len(used) == 1:
            return np.full(len(pids), self.pids[int(used[0])], dtype=np.int32)
        order = np.array(sorted(self.pids), dtype=np.int64)
        numbers = np.array([self.pids[pid] for pid in order.tolist()], dtype=np.int32)
        return numbers[np.searchsorted(order, pids)] if len(pids) else np.empty(0, dtype=np.int32)


class _Threads:
    """Threads by their serialised id: bits 24–47 are the process, the low 24 bits the thread."""

    def __init__(self, ranks: _Ranks) -> None:
        self.ranks = ranks
        self.ids: dict[int, int] = {}

    def of(self, ids: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(rank, thread) of every row."""
        steady = bool(len(ids)) and bool((ids == ids[0]).all())
        used, inverse = (ids[:1], np.zeros(len(ids), np.int8)) if steady else np.unique(ids, return_inverse=True)
        numbers = np.array([self.ids.setdefault(i, len(self.ids)) for i in used.tolist()], dtype=np.int32)
        return self.ranks.of(pid_of(ids)), numbers[inverse.reshape(-1)] if len(ids) else np.empty(0, dtype=np.int32)


def pid_of(serialised: Ints) -> Ints:
    """The process in a globalTid or globalPid."""
    result: Ints = (serialised >> 24) & 0xFFFFFF
    return result


_COMMON = {"start": -1, "end": -1, "deviceId": 0, "streamId": 0, "correlationId": -1, "globalPid": 0}


def _device(report: _Tables, strings: _Strings, ranks: _Ranks, notes: list[str]) -> DeviceTable:
    return concatenate(
        [
            _kernels(report.large("CUPTI_ACTIVITY_KIND_KERNEL"), strings, ranks, notes),
            _copies(report.numbers("CUPTI_ACTIVITY_KIND_MEMCPY", _COPY_COLUMNS), strings, ranks, notes),
            *_others(report, strings, ranks, notes),
        ]
    )


def _kernels(rows: NDArray[Any], strings: _Strings, ranks: _Ranks, notes: list[str]) -> DeviceTable:
    rows = _plausible(rows, notes)
    name = strings.look_up(rows["kernelName"])
    communicates = np.array([is_communication(value) for value in strings.values], dtype=bool)
    kind = np.where(communicates[name], np.int8(Kind.COMMUNICATION), np.int8(Kind.KERNEL))
    return _rows(rows, ranks, name, kind, grid=rows["grid"], block=rows["block"])


_COPY_COLUMNS = _COMMON | {"bytes": 0, "copyKind": 0, "srcKind": -1, "dstKind": -1}


def _copies(rows: NDArray[Any], strings: _Strings, ranks: _Ranks, notes: list[str]) -> DeviceTable:
    rows = _plausible(rows, notes)
    host_side = np.where(rows["copyKind"] == 2, rows["dstKind"], rows["srcKind"])
    return _rows(
        rows,
        ranks,
        _named(strings, rows["copyKind"], _COPY_NAMES, "Memcpy "),
        Kind.COPY,
        bytes=rows["bytes"],
        direction=_mapped(rows["copyKind"], _DIRECTIONS),
        host_memory=np.where(np.isin(rows["copyKind"], (1, 2)), _mapped(host_side, _HOST_MEMORY), 0),
    )


def _others(report: _Tables, strings: _Strings, ranks: _Ranks, notes: list[str]) -> Iterator[DeviceTable]:
    """Memsets, waits, and CUDA graphs that were recorded as wholes."""
    memsets = _plausible(report.numbers("CUPTI_ACTIVITY_KIND_MEMSET", _COMMON | {"bytes": 0}), notes)
    yield _rows(memsets, ranks, np.full(len(memsets), strings.add("Memset")), Kind.MEMSET, bytes=memsets["bytes"])
    syncs = _plausible(report.numbers("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", _COMMON | {"syncType": 0}), notes)
    yield _rows(syncs, ranks, _named(strings, syncs["syncType"], _SYNC_NAMES, ""), Kind.SYNC)
    graphs = _plausible(report.numbers("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _COMMON | {"graphId": 0}), notes)
    if len(graphs):
        notes.append(
            f"{len(graphs)} CUDA graph launches were recorded as wholes: their kernels are not listed (use --cuda-graph-trace=node)"
        )
    yield _rows(graphs, ranks, np.full(len(graphs), strings.add("CUDA graph")), Kind.KERNEL)


def _plausible(rows: NDArray[Any], notes: list[str]) -> NDArray[Any]:
    bad = (rows["start"] < 0) | (rows["end"] < rows["start"]) | (rows["end"] - rows["start"] > _LONGEST_NS)
    if bad.any():
        notes.append(
            f"{int(bad.sum())} events have impossible times (zero, negative or longer than a day) and were left out"
        )
    return np.asarray(rows[~bad])


def _rows(rows: NDArray[Any], ranks: _Ranks, name: NDArray[Any], kind: Any, **more: NDArray[Any]) -> DeviceTable:
    return make_table(
        DeviceTable,
        len(rows),
        start=rows["start"],
        end=rows["end"],
        name=name,
        kind=np.broadcast_to(np.asarray(kind, dtype=np.int8), len(rows)),
        rank=ranks.of(pid_of(rows["globalPid"])),
        device=rows["deviceId"],
        stream=rows["streamId"],
        correlation=rows["correlationId"],
        **{column: np.clip(values, 0, 2**31 - 1) if column == "block" else values for column, values in more.items()},
    )


def _named(strings: _Strings, values: Ints, names: dict[int, str], prefix: str) -> NDArray[np.int32]:
    used, inverse = np.unique(values, return_inverse=True)
    numbers = np.array([strings.add(prefix + names.get(v, f"kind {v}")) for v in used.tolist()], dtype=np.int32)
    return numbers[inverse.reshape(-1)] if len(values) else np.empty(0, dtype=np.int32)


def _mapped(values: Ints, meaning: dict[int, Any]) -> NDArray[np.int8]:
    result = np.zeros(len(values), dtype=np.int8)
    for value, meant in meaning.items():
        result[values == value] = int(meant)
    return result


_VERSION = re.compile(r"_v\d+(?:_ptsz)?$|_ptsz$")


_NVTX_WHERE = f'eventType IN ({_PUSH_POP}, {_START_END}) AND "end" IS NOT NULL'
_LARGE: dict[str, tuple[dict[str, int], str]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (_COMMON | {"kernelName": -1, "grid": 1, "block": 1}, "TRUE"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        {"start": -1, "end": -1, "globalTid": 0, "correlationId": -1, "nameId": -1},
        "TRUE",
    ),
    "NVTX_EVENTS": ({"start": -1, "end": -1, "globalTid": 0, "textId": -1, "rowid": 0}, _NVTX_WHERE),
}
"""The tables that are the bulk of every export: columns with defaults, and which rows."""
WORTHWHILE_BYTES = 48 << 20
"""Below this, a second thread takes longer than it saves."""


class _Tables(_Report):
    """An export of which another thread reads the second halves of the large tables meanwhile: SQLite works without Python's lock."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        super().__init__(connection)
        self._other = ThreadPoolExecutor(1) if path.stat().st_size >= WORTHWHILE_BYTES else None
        self._halves: dict[str, Future[NDArray[Any]]] = {}
        if self._other is not None:
            for table in filter(self.columns.__contains__, _LARGE):
                self._halves[table] = self._other.submit(_second_half, path, table, self.middle(table))

    def large(self, table: str) -> NDArray[Any]:
        """All rows of one of the large tables."""
        columns, where = _LARGE[table]
        if table not in self._halves:
            return self.numbers(table, columns, where)
        first = self.numbers(table, columns, where, until=self.middle(table))
        return np.concatenate((first, self._halves.pop(table).result()))

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, *_: object) -> None:
        if self._other is not None:
            self._other.shutdown(cancel_futures=True)


def _second_half(path: Path, table: str, middle: int) -> NDArray[Any]:
    columns, where = _LARGE[table]
    with closing(_opened(path)) as connection:
        return _Report(connection).numbers(table, columns, where, after=middle)


def _opened(path: Path) -> sqlite3.Connection:
    """Read-only, and nothing that the file's schema asks for is run."""
    connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    connection.execute("PRAGMA trusted_schema = 0")
    connection.execute("PRAGMA mmap_size = 1073741824")
    return connection


def _runtime(rows: NDArray[Any], strings: _Strings, threads: _Threads) -> HostTable:
    rows = rows[(rows["start"] >= 0) & (rows["end"] >= rows["start"])]
    rank, thread = threads.of(rows["globalTid"])
    names = strings.look_up(rows["nameId"])
    plain = {n: strings.add(_VERSION.sub("", strings.values[n])) for n in np.unique(names).tolist()}
    renamed = np.arange(len(strings.values), dtype=np.int32)
    renamed[list(plain)] = list(plain.values())
    return make_table(
        HostTable,
        len(rows),
        start=rows["start"],
        end=rows["end"],
        name=renamed[names],
        rank=rank,
        thread=thread,
        correlation=rows["correlationId"],
    )


def _nvtx(report: _Tables, strings: _Strings, threads: _Threads) -> tuple[HostTable, HostTable]:
    """(ranges, operators): `emit_nvtx` and nsys' own PyTorch tracing write operators as ranges with their full names."""
    if not {"start", "end", "eventType"} <= report.columns.get("NVTX_EVENTS", set()):
        return make_table(HostTable), make_table(HostTable)
    rows = report.large("NVTX_EVENTS")
    names = strings.look_up(rows["textId"])
    if "text" in report.columns["NVTX_EVENTS"]:
        texts = report.rows(f'SELECT rowid, text FROM "NVTX_EVENTS" WHERE {_NVTX_WHERE} AND text IS NOT NULL')
        places = dict(zip(rows["rowid"].tolist(), range(len(rows)), strict=True)) if texts else {}
        for rowid, text in texts:
            names[places[rowid]] = strings.add(str(text))
    keep = (rows["start"] >= 0) & (rows["end"] >= rows["start"])
    rows, names = rows[keep], names[keep]
    rank, thread = threads.of(rows["globalTid"])
    used = np.unique(names).tolist()
    renamed, operator = (
        np.arange(len(strings.values) + len(used) + 1, dtype=np.int32),
        np.zeros(len(strings.values) + len(used) + 1, dtype=bool),
    )
    for number in used:
        value = strings.values[number]
        renamed[number] = strings.add(_NUMBERED.sub("", value)) if _NUMBERED.search(value) else number
        operator[number] = bool(_OPERATOR.match(value)) and not is_range(value)
    table = {"start": rows["start"], "end": rows["end"], "rank": rank, "thread": thread}
    made = [
        make_table(
            HostTable,
            int(mask.sum()),
            name=renamed[names[mask]],
            **{column: values[mask] for column, values in table.items()},
        )
        for mask in (~operator[names], operator[names])
    ]
    return made[0], made[1]


def _thread_list(report: _Report, strings: _Strings, threads: _Threads) -> tuple[Thread, ...]:
    named = report.numbers("ThreadNames", {"globalTid": 0, "nameId": -1})
    names = dict(zip(named["globalTid"].tolist(), strings.look_up(named["nameId"]).tolist(), strict=True))
    found = []
    for serialised in threads.ids:
        pid = (serialised >> 24) & 0xFFFFFF
        name = strings.values[names[serialised]] if serialised in names else ""
        found.append(Thread(threads.ranks.pids.get(pid, 0), str(pid), str(serialised & 0xFFFFFF), name))
    return tuple(found)


def _devices(report: _Report, device: DeviceTable) -> tuple[DeviceInfo, ...]:
    described = {}
    wanted = ("id", "name", "smCount", "totalMemory", "computeMajor", "computeMinor")
    there = report.columns.get("TARGET_INFO_GPU", set())
    if {"id", "name"} <= there:
        picked = ", ".join(_quoted(c) if c in there else "0" for c in wanted)
        described = {row[0]: row for row in report.rows(f'SELECT {picked} FROM "TARGET_INFO_GPU"')}
    found = []
    for rank, index in devices_of(device):
        _, name, sms, memory, major, minor = described.get(index, (0, "", 0, 0, 0, 0))
        capability = f"{major}.{minor}" if major else ""
        found.append(DeviceInfo(rank, index, str(name or "")[:120], int(sms or 0), capability, int(memory or 0)))
    return tuple(found)


def _facts(report: _Report) -> dict[str, str]:
    """Version of the tool and of the schema, from wherever this generation keeps them. Nothing that names the machine or its user."""
    facts: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if {"name", "value"} <= report.columns.get(table, set()):
            wanted = ("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION")
            facts |= {str(n): str(v)[:40] for n, v in report.rows(f'SELECT name, value FROM "{table}"') if n in wanted}
    return facts
