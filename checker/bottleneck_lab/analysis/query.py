"""A capture in SQL (sqlite3, in memory) or as Parquet."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import OUTSIDE
from bottleneck_lab.analysis.device.graphs import GraphNode, find_graph_nodes
from bottleneck_lab.analysis.device.kernels import find_interrupted
from bottleneck_lab.analysis.device.use import find_device_uses
from bottleneck_lab.analysis.host.lines import calling_lines, lines_at, undone_lines
from bottleneck_lab.analysis.host.nesting import outermost
from bottleneck_lab.analysis.host.operators import build_calls
from bottleneck_lab.analysis.host.syncs import find_causes, find_waits, since_last
from bottleneck_lab.analysis.host.visits import find_visits
from bottleneck_lab.analysis.host.waits import waiting_calls
from bottleneck_lab.analysis.steps.window import begun_inside, find_window, host_window
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.trace.names import DTYPES
from bottleneck_lab.trace.timeline import (
    COLUMN_TYPES,
    NUMBERS,
    TABLES,
    ActivityKind,
    Direction,
    HostMemory,
    SmallInts,
    Timeline,
    take,
)

COUNTED = "counted"
"""The stretch of each rank whose work a report counts."""
GRAPH_NODES = "graph_nodes"
IDLE, RECORDED = "idle", "recorded"
"""When each device did nothing, and the time of each that shares are of. Both are computed, as a
report does, and say nothing of why.
"""
INTERRUPTIONS = "interruptions"
"""The rows of `device` that took longer than the same kernels in other steps."""
THREADS = "threads"
"""The threads that `thread` numbers in other tables."""
VISITS = "visits"
"""Each time that a line of Python ran, with the lines that it called."""
WAITS = "waits"
"""The rows of `runtime` that a report counts as waits of the program."""
ROW_LIMIT = 100_000
TIME_LIMIT_S = 60.0
CLOCK_EVERY = 100_000
"""sqlite looks at the clock once in so many instructions of its virtual machine: every few ms."""

ALLOWED = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)


Columns = dict[str, NDArray[Any]]


class QueryResult(msgspec.Struct, frozen=True):
    """The answer: column names and rows. `cut` says that there were more than the limit."""

    columns: list[str]
    rows: list[list[Any]]
    cut: bool = False


def query(
    timeline: Timeline, sql: str, limit: int = ROW_LIMIT, *, limit_s: float = TIME_LIMIT_S
) -> QueryResult:
    """Return the rows of one SELECT over the tables device, runtime, operators, ranges, python,
    memory, graph_nodes, threads, visits, waits, interruptions, counted, idle and recorded.

    Times are ns from the start of the capture, names are text, `duration` stands beside `end`. Only
    the tables that the text names are filled. Raises UsageError when the statement is wrong,
    writes, or takes longer than `limit_s`.
    """
    connection, held = sqlite3.connect(":memory:"), dict[str, list[str]]()
    try:
        for name, columns in _tables(timeline, sql):
            _fill(connection, name, columns)
            held[name] = [*columns]
        connection.execute("PRAGMA query_only = 1")
        # An end to a query that never ends, and no ATTACH: that would open other files.
        ends = time.monotonic() + limit_s
        connection.set_progress_handler(lambda: time.monotonic() > ends, CLOCK_EVERY)
        connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY
        )
        cursor = connection.execute(sql)
        rows = cursor.fetchmany(limit + 1)
        heads = [column[0] for column in cursor.description or ()]
    except (sqlite3.Error, sqlite3.Warning) as error:
        if str(error) == "interrupted":
            raise UsageError(
                f"The query was stopped after {limit_s:g} s, its time limit.",
                "Narrow it: a condition on `start`, `rank` or `name` before a join, or `LIMIT`; or"
                f" give it longer: `--limit-s {10 * limit_s:g}`. Without an index, a join on a"
                " range compares every row of one table with every row of the other.",
            ) from error
        raise UsageError(f"The query cannot be run: {error}.", _schema(held, sql)) from error
    finally:
        connection.close()
    return QueryResult(heads, [list(row) for row in rows[:limit]], len(rows) > limit)


def _tables(timeline: Timeline, sql: str) -> Iterator[tuple[str, Columns]]:
    """Yield every table with its columns; those that a query does not name have no rows."""
    empty = replace(timeline, **{name: take(getattr(timeline, name), slice(0)) for name in TABLES})

    def source(*names: str) -> Timeline:
        return timeline if any(_names(sql, name) for name in names) else empty

    for name in TABLES:
        yield name, columns_of(source(name), name)
    yield GRAPH_NODES, _graph_columns(find_graph_nodes(source(GRAPH_NODES)))
    yield THREADS, _thread_columns(timeline)
    yield VISITS, _columns(timeline, find_visits(source(VISITS)), with_lines=False)
    yield WAITS, _wait_columns(source(WAITS))
    yield INTERRUPTIONS, _interruption_columns(source(INTERRUPTIONS))
    yield COUNTED, _counted_columns(source(COUNTED))
    yield from _time_columns(source(IDLE, RECORDED)).items()


def _fill(connection: sqlite3.Connection, name: str, columns: Columns) -> None:
    """Create a table and insert its rows."""
    kinds = {"f": "REAL", "i": "INTEGER", "U": "TEXT", "O": "TEXT"}
    typed = ", ".join(
        f'"{column}" {kinds[values.dtype.kind]}' for column, values in columns.items()
    )
    connection.execute(f'CREATE TABLE "{name}" ({typed})')
    if len(next(iter(columns.values()))):
        marks = ", ".join("?" * len(columns))
        connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', _rows(columns))


def _rows(columns: Columns, batch: int = 50_000) -> Iterator[tuple[Any, ...]]:
    """Yield rows as Python values, a batch of columns at a time: a million rows never exist as
    objects at once.
    """
    length = len(next(iter(columns.values())))
    for first in range(0, length, batch):
        yield from zip(
            *(values[first : first + batch].tolist() for values in columns.values()), strict=True
        )


def columns_of(timeline: Timeline, name: str) -> Columns:
    """Return a table as plain columns: names as text, enumerations as words, a duration, and the
    user's own line of each operator and call ("" where none was recorded), for calls of a backward
    also that of the forward. Times count from the start of the capture, as in a report and for
    `lab report --at`.
    """
    table = getattr(timeline, name)
    columns = _columns(timeline, table, with_lines=name == "runtime")
    if name == "runtime":
        columns["undoes"] = _texts(timeline, undone_lines(timeline))
    if name == "operators":
        columns["line"] = _texts(timeline, calling_lines(timeline))
        columns["outermost"] = outermost(table).astype(np.int64)
    return columns


def _texts(timeline: Timeline, names: SmallInts) -> NDArray[Any]:
    """Return names as text, "" for -1."""
    return np.append(np.array(timeline.strings or ("",), dtype=object), "")[names]


def _columns(timeline: Timeline, table: Any, *, with_lines: bool) -> Columns:
    """Return the columns of a table of `timeline`, with the line of each row of a host's table."""
    columns: Columns = {}
    strings = np.array(timeline.strings or ("",), dtype=object)
    for column in fields(table):
        values = getattr(table, column.name)
        if column.name in ("start", "end"):
            values = values - timeline.extent[0]
        if column.name in NUMBERS:  # of one type, whatever their size is in this capture
            values = values.astype(COLUMN_TYPES[column.name])
        columns[column.name] = _worded(column.name, values, strings)
        if column.name == "end":
            columns["duration"] = values - columns["start"]
    if with_lines:
        columns["line"] = _texts(timeline, lines_at(timeline, table))
    return columns


def _thread_columns(timeline: Timeline) -> Columns:
    """Return the columns of the table `threads`: the number that other tables have, rank, process,
    the thread's own number, and its name.
    """
    threads = timeline.threads
    columns: Columns = {
        "thread": np.arange(len(threads)),
        "rank": np.array([each.rank for each in threads], dtype=np.int64),
    }
    for name in ("pid", "tid", "name"):
        columns[name] = np.array([getattr(each, name) for each in threads], dtype=object)
    return columns


def _wait_columns(timeline: Timeline) -> Columns:
    """Return the columns of the table `waits`: those of `runtime`, the outermost `operator` that
    waits, "" for none, and for how long the rank's devices were `idle_after` it because of it, ns.
    """
    inside = begun_inside(timeline)
    rows, operators = find_waits(
        inside, find_causes(inside, build_calls(inside, python=False), waiting_calls(inside))
    )
    waits = take(inside.runtime, rows)
    idle_after = np.zeros(len(rows), dtype=np.int64)
    for _, each in find_device_uses(timeline):
        mine = np.flatnonzero(waits.rank == each.rank)
        idle_after[mine] += since_last(waits.start[mine], each.causes["synchronisation"])
    columns = _columns(timeline, waits, with_lines=True)
    return {**columns, "operator": np.array(operators, dtype=object), "idle_after": idle_after}


def _interruption_columns(timeline: Timeline) -> Columns:
    """Return the columns of the table `interruptions`: those of `device`, and the `excess`, ns."""
    rows, excess_ns = find_interrupted(timeline)
    return {
        **_columns(timeline, take(timeline.device, rows), with_lines=False),
        "excess": excess_ns,
    }


def _counted_columns(timeline: Timeline) -> Columns:
    """Return the columns of the table `counted`: by rank, when the first step begins, when the last
    one has ended on the host, and when the work that they launched has, ns from the capture's
    start. Without steps it is all that was recorded.
    """
    rows = [
        (rank, window.start, host_window(timeline, rank).end, window.end)
        for rank in timeline.ranks
        for window in [find_window(timeline, rank)]
    ]
    origin = [0, *[timeline.extent[0]] * 3]
    columns = (np.array(rows, dtype=np.int64).reshape(-1, 4) - origin).T
    return dict(zip(("rank", "start", "host_end", "end"), columns, strict=True))


def _graph_columns(nodes: list[GraphNode]) -> Columns:
    kinds = {int: np.int64, float: np.float64, str: object}
    return {
        column.name: np.array(
            [getattr(node, column.name) for node in nodes], dtype=kinds[column.type]
        )
        for column in msgspec.structs.fields(GraphNode)
    }


def _time_columns(timeline: Timeline) -> dict[str, Columns]:
    """Return the columns of the tables `idle` and `recorded`, in ns from the capture's start.

    Where no steps are marked, neither counts what lies before the first and after the last work of
    a device: shares in reports and diagnoses do not, either.
    """
    idle: list[NDArray[np.int64]] = []
    recorded: list[NDArray[np.int64]] = []
    for _, each in find_device_uses(timeline):
        outside = iv.join(*(each.causes[cause] for cause in OUTSIDE))
        for rows, stretches in (
            (idle, iv.subtract(each.idle, outside)),
            (recorded, iv.subtract(iv.stretch(*each.window), outside)),
        ):
            begin, end = (ends - timeline.extent[0] for ends in stretches)
            own = np.broadcast_to([[each.rank], [each.device]], (2, len(begin)))
            rows.append(np.vstack([own, begin, end, end - begin]))
    columns = ("rank", "device", "start", "end", "duration")
    none = np.zeros((len(columns), 0), np.int64)
    return {
        name: dict(zip(columns, np.hstack([none, *rows]), strict=True))
        for name, rows in ((IDLE, idle), (RECORDED, recorded))
    }


_WORDS: dict[str, Any] = {"kind": ActivityKind, "direction": Direction, "host_memory": HostMemory}


def _worded(column: str, values: NDArray[Any], strings: NDArray[Any]) -> NDArray[Any]:
    if column == "name":
        return np.asarray(strings[values])
    if column == "dtype":
        return np.asarray(np.array(DTYPES, dtype=object)[values])
    if column in _WORDS:
        words = np.array([member.name.lower() for member in _WORDS[column]], dtype=object)
        return np.asarray(words[values])
    return values


def write_parquet(timeline: Timeline, folder: Path) -> list[Path]:
    """Write one Parquet file a table that has rows. MachineError when pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MachineError(
            "Parquet files need pyarrow, which is not installed.",
            "Run `pip install pyarrow`, or use --query.",
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    tables = {name: columns_of(timeline, name) for name in TABLES}
    tables[GRAPH_NODES] = _graph_columns(find_graph_nodes(timeline))
    for name, columns in tables.items():
        if len(next(iter(columns.values()))):
            path = folder / f"{name}.parquet"
            pyarrow.parquet.write_table(pyarrow.table(columns), path)
            written.append(path)
    return written


def _schema(held: Mapping[str, Sequence[str]], sql: str) -> str:
    """Return what can be queried, a table a line with its columns: of those that the text names, if
    any, and then the others' names.
    """
    used = [name for name in held if _names(sql, name)] or [*held]
    lines = [f"  {name}: {', '.join(held[name])}" for name in used]
    others = [name for name in held if name not in used]
    if others:
        lines.append(f"Other tables: {', '.join(others)}.")
    intro = "Write one SELECT; `--ask` answers ready questions without SQL. Tables and columns:"
    return "\n".join([intro, *lines])


def _names(sql: str, table: str) -> bool:
    return re.search(rf"\b{table}\b", sql, re.IGNORECASE) is not None
