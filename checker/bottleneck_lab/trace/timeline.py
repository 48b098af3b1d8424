"""One columnar timeline, the same whatever tool recorded it.

Every time is an integer number of nanoseconds on the clock of its capture. Names are indices into
one table of strings. Rows of every table are sorted by start, and the longer row comes first where
two start together, so that a parent stands before its children.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.counters import KernelCounters
from bottleneck_lab.trace.join import BLOCK_ROWS, Numbers, join_rows

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]
TinyInts = NDArray[np.int8]
Floats = NDArray[np.float32]
Floats64 = NDArray[np.float64]


class ActivityKind(IntEnum):
    """Kind of a device row. A SYNC row is a wait that the tool draws on a stream: the device does
    nothing in it, so it is never busy time.
    """

    KERNEL = 0
    COPY = 1
    MEMSET = 2
    COMMUNICATION = 3
    SYNC = 4


class Direction(IntEnum):
    """Which way a copy goes; UNKNOWN for rows that are not copies."""

    UNKNOWN = 0
    H2D = 1
    D2H = 2
    D2D = 3
    P2P = 4
    H2H = 5


class HostMemory(IntEnum):
    """The memory on the host's side of a copy. Only pinned memory can be copied while the host runs
    on.
    """

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Activities of the accelerators, one a row. `correlation` joins it to the runtime call that
    launched it (-1: none recorded).

    `bytes` are those of a copy, or of a collective's larger side, whose `dtype` is an index into
    names.DTYPES; 0 when it was not recorded. `process_group` tells a collective's group from
    others (-1: not recorded).
    """

    start: Ints
    end: Ints
    name: Numbers
    kind: TinyInts
    rank: SmallInts
    device: Numbers
    stream: Numbers
    correlation: Numbers
    external: Numbers
    bytes: Ints
    direction: TinyInts
    host_memory: TinyInts
    grid: Ints
    block: SmallInts
    occupancy: Floats
    dtype: TinyInts
    process_group: SmallInts

    def __len__(self) -> int:
        return len(self.start)

    @property
    def works(self) -> NDArray[np.bool_]:
        """A mask of the rows in which the device does something: all but SYNC."""
        works: NDArray[np.bool_] = self.kind != ActivityKind.SYNC
        return works


@dataclass(frozen=True, slots=True)
class HostTable:
    """Activities of a host thread: runtime calls, operators, ranges or Python frames. `thread` is
    an index into `Timeline.threads`, where every rank has its own.

    `correlation` joins a runtime call to `DeviceTable.correlation`, and an operator or range to
    `DeviceTable.external` (-1: to nothing).
    """

    start: Ints
    end: Ints
    name: Numbers
    rank: SmallInts
    thread: Numbers
    correlation: Numbers

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Allocations (`bytes` > 0) and frees (< 0) as the framework saw them; `allocated` is the total
    after it (-1: not recorded), `device` -1 is the host.

    `address` joins a free to its allocation (-1: not recorded). `name` is the line of the program
    that ran, where the trace says so, as those of a virtual GPU do, with those that called it, as
    `stacks` joins them; else the event's own name.
    """

    start: Ints
    bytes: Ints
    allocated: Ints
    reserved: Ints
    address: Ints
    rank: SmallInts
    device: Numbers
    thread: Numbers
    name: Numbers

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class WorkTable:
    """Calls of operators, matrix ones and others, whose work the recorded shapes tell: FLOP, and
    the bytes that had to be moved at least.

    `external` joins them to `DeviceTable.external` and to `HostTable.correlation` of operators;
    `precision` is an index into shapes.PRECISIONS, and `shapes` into the timeline's strings: those
    of the inputs, in words. In no order.
    """

    external: Numbers
    rank: SmallInts
    name: Numbers
    flop: NDArray[np.float64]
    moved_bytes: NDArray[np.float64]
    precision: TinyInts
    shapes: Numbers

    def __len__(self) -> int:
        return len(self.external)


NO_WORK = WorkTable(
    external=np.empty(0, dtype=np.int64),
    rank=np.empty(0, dtype=np.int32),
    name=np.empty(0, dtype=np.int32),
    flop=np.empty(0),
    moved_bytes=np.empty(0),
    precision=np.empty(0, dtype=np.int8),
    shapes=np.empty(0, dtype=np.int32),
)


@dataclass(frozen=True, slots=True)
class AutogradTable:
    """Operators with the number of the node of autograd that they made, or that they undo.

    `external` joins them to `HostTable.correlation` of operators. `forward` is 0 in the forward,
    where the last of several operators with one `sequence` number made the node; in the backward it
    is the thread of that forward, by a number of PyTorch's own. In no order.
    """

    external: Numbers
    rank: SmallInts
    thread: Numbers
    sequence: Ints
    forward: SmallInts

    def __len__(self) -> int:
        return len(self.external)


NO_AUTOGRAD = AutogradTable(
    external=np.empty(0, dtype=np.int64),
    rank=np.empty(0, dtype=np.int32),
    thread=np.empty(0, dtype=np.int32),
    sequence=np.empty(0, dtype=np.int64),
    forward=np.empty(0, dtype=np.int32),
)


@dataclass(frozen=True, slots=True)
class Thread:
    """A host thread; `tid` is as the tool wrote it."""

    rank: int
    pid: str
    tid: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """An accelerator. Zero means that the capture does not say."""

    rank: int
    index: int
    name: str = ""
    multiprocessors: int = 0
    compute_capability: str = ""
    memory_bytes: int = 0


TABLES = ("device", "runtime", "operators", "ranges", "python", "memory")
"""The tables of recorded rows in a `Timeline`."""


@dataclass(frozen=True)
class Timeline:
    """A whole capture. `notes` are sentences about what the reader had to drop or doubt; `emulated`
    must be shown wherever figures are.
    """

    source: str
    format: str
    strings: tuple[str, ...]
    device: DeviceTable
    runtime: HostTable
    operators: HostTable
    ranges: HostTable
    python: HostTable
    memory: MemoryTable
    threads: tuple[Thread, ...] = ()
    devices: tuple[DeviceInfo, ...] = ()
    world_size: int = 0
    emulated: bool = False
    notes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    counters: tuple[KernelCounters, ...] = ()
    work: WorkTable = NO_WORK
    autograd: AutogradTable = NO_AUTOGRAD

    @property
    def _timed(self) -> tuple[DeviceTable | HostTable, ...]:
        """The tables whose rows have an end."""
        return self.device, self.runtime, self.operators, self.ranges, self.python

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have any row, ascending."""
        ranks: set[int] = set()
        for table in self._timed:
            # Mostly one value for all rows, which takes no memory.
            rank = table.rank[:1] if table.rank.strides == (0,) else table.rank
            ranks.update(np.flatnonzero(np.bincount(rank)).tolist())
        return tuple(sorted(ranks))

    @cached_property
    def extent(self) -> tuple[int, int]:
        """First start and last end of anything that was recorded, ns; (0, 0) when there is
        nothing.
        """
        tables = [table for table in self._timed if len(table)]
        if not tables:
            return 0, 0
        return min(int(t.start[0]) for t in tables), max(int(t.end.max()) for t in tables)

    @cached_property
    def launched_by(self) -> SmallInts:
        """For every device row, the runtime call that launched it; -1 where none was recorded."""
        calls, work = self.runtime, self.device
        return join_rows(calls.correlation, calls.rank, work.correlation, work.rank)

    @cached_property
    def launching(self) -> NDArray[np.bool_]:
        """True for each runtime call that has work on a device."""
        launching = np.zeros(len(self.runtime), dtype=bool)
        launching[self.launched_by[self.launched_by >= 0]] = True
        # Several calls may have one number, of which `launched_by` holds only the first.
        rest = np.flatnonzero(~launching & (self.runtime.correlation > 0))
        keys, ranks = self.runtime.correlation[rest], self.runtime.rank[rest]
        launching[rest] = join_rows(self.device.correlation, self.device.rank, keys, ranks) >= 0
        return launching

    @property
    def events(self) -> int:
        """Rows in all tables."""
        return sum(len(getattr(self, name)) for name in TABLES)

    def thread_number(self, rank: int, pid: str, tid: str) -> int:
        """Return the index of a thread, -1 where the capture lacks it."""
        for number, thread in enumerate(self.threads):
            if (thread.rank, thread.pid, thread.tid) == (rank, pid, tid):
                return number
        return -1

    def names(self, table: DeviceTable | HostTable) -> list[str]:
        """Return the names of a table's rows."""
        return [self.strings[index] for index in table.name.tolist()]


Table = TypeVar("Table", DeviceTable, HostTable, MemoryTable)

COLUMN_TYPES: dict[str, Any] = {
    **dict.fromkeys(
        (
            "start",
            "end",
            "stream",
            "correlation",
            "external",
            "bytes",
            "allocated",
            "reserved",
            "address",
            "grid",
        ),
        np.int64,
    ),
    **dict.fromkeys(("name", "rank", "device", "thread", "block", "process_group"), np.int32),
    **dict.fromkeys(("kind", "direction", "host_memory", "dtype"), np.int8),
    "occupancy": np.float32,
}
DEFAULTS: dict[str, float] = {
    "correlation": -1,
    "external": -1,
    "allocated": -1,
    "reserved": -1,
    "address": -1,
    "process_group": -1,
    "occupancy": np.nan,
}


def make_table(kind: type[Table], length: int = 0, /, **columns: Any) -> Table:
    """Return a table from the columns given, with its rows in order; what is not given is filled
    with its default.
    """
    return sort_table(fill_table(kind, length, **columns))


NUMBERS = ("name", "shapes", "thread", "device", "stream", "correlation", "external")
"""Columns whose numbers only tell things apart: of as few bytes each as all of a table's fit."""


def narrowed(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in as few bytes each as all of them fit; with a sign, as -1 is none."""
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    for dtype in (np.int8, np.int16, np.int32):
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return numbers.astype(dtype, copy=False)
    return numbers


def fill_table(kind: type[Table], length: int = 0, /, **columns: Any) -> Table:
    """Return a table as `make_table` does, with its rows as they were given."""
    values = {}
    for column in fields(kind):
        dtype = COLUMN_TYPES[column.name]
        given = columns.pop(column.name, None)
        if given is None:
            # Takes no memory.
            given = np.broadcast_to(np.asarray(DEFAULTS.get(column.name, 0), dtype=dtype), length)
        given = np.asarray(given)
        # A single value for all rows takes no memory, which a copy of them would.
        if column.name in NUMBERS and given.strides != (0,):
            given = narrowed(given)
            dtype = given.dtype
        values[column.name] = np.asarray(given, dtype=dtype)
    if columns:
        raise TypeError(f"{kind.__name__} has no column {', '.join(columns)}")
    return kind(**values)


# Where no more than one row in so many is out of place, only those are sorted: tools write their
# rows nearly in order.
FEW_SHARE = 4


def sort_table(table: Table, *, in_place: bool = False) -> Table:
    """Return the rows by start, then longer first: a parent stands before the children that start
    with it. With `in_place` they are moved in the table's own arrays, so that none is held twice.
    """
    start = table.start
    end = getattr(table, "end", None)
    if len(start) < 2:
        return table
    if _in_order(start, end):  # a column of a larger record must not keep all of it alive
        return type(table)(
            **{column.name: _alone(getattr(table, column.name)) for column in fields(table)}
        )
    stay = _in_place(start)
    if FEW_SHARE * (len(start) - np.count_nonzero(stay)) > len(start):
        del stay
        order = np.argsort(start, kind="stable") if end is None else order_of(start, end)
        if not in_place:
            return take(table, order)
        for column in fields(table):
            values = getattr(table, column.name)
            if values.strides != (0,):
                values[:] = values[order]
        return table
    rows = np.flatnonzero(~stay)
    moved = rows[
        np.argsort(start[rows], kind="stable") if end is None else order_of(start[rows], end[rows])
    ]
    return type(table)(
        **{
            column.name: _exchanged(getattr(table, column.name), rows, moved, in_place=in_place)
            for column in fields(table)
        }
    )


def _in_place(start: Ints) -> NDArray[np.bool_]:
    """Return a mask of the rows that start later than all before them and earlier than all behind
    them: any sort leaves them where they stand.
    """
    stay = np.empty(len(start), dtype=bool)
    # In blocks: what all rows have reached would take as much memory as a column.
    blocks = [slice(at, at + BLOCK_ROWS) for at in range(0, len(start), BLOCK_ROWS)]
    reached = int(start[0]) - 1
    for rows in blocks:
        latest = np.maximum.accumulate(np.append(reached, start[rows]))
        stay[rows] = start[rows] > latest[:-1]
        reached = int(latest[-1])
    reached = int(start[-1]) + 1
    for rows in reversed(blocks):
        earliest = np.minimum.accumulate(np.append(reached, start[rows][::-1]))[::-1]
        stay[rows] &= start[rows] < earliest[1:]
        reached = int(earliest[0])
    return stay


def _alone(values: NDArray[Any]) -> NDArray[Any]:
    if values.strides == (0,):
        return values
    return np.ascontiguousarray(values)


def _exchanged(
    values: NDArray[Any], rows: NDArray[np.intp], moved: NDArray[np.intp], *, in_place: bool
) -> NDArray[Any]:
    """Return `values` with those of the rows `moved` at `rows`.

    Most columns are the same there, and need no copy.
    """
    new = values[moved]
    if values.strides == (0,) or (values[rows] == new).all():
        return _alone(values)
    if not in_place:
        values = values.copy()
    values[rows] = new
    return values


def _in_order(start: Ints, end: Ints | None) -> bool:
    """Return True if rows stand as `order_of` would put them."""
    if (start[1:] < start[:-1]).any():
        return False
    tied = np.flatnonzero(start[1:] == start[:-1])
    return end is None or bool((end[tied] >= end[tied + 1]).all())


def order_of(start: Ints, end: Ints) -> NDArray[np.intp]:
    """Return the indices that put rows in order: by start, then longer first.

    Captures are sorted runs nearly everywhere, which a stable sort only merges; only rows that
    start together are compared by their end.
    """
    order = np.argsort(start, kind="stable")
    if len(order) < 2:
        return order
    ordered = start[order]
    # Only rows that start together need their end compared, and they are few.
    together = ordered[1:] == ordered[:-1]
    del ordered
    tied = np.concatenate((together, [False])) | np.concatenate(([False], together))
    rows = order[tied]
    order[tied] = rows[np.lexsort((-end[rows], start[rows]))]
    return order


def take(table: Table, rows: Any) -> Table:
    """Return the table of the given rows: indices, a slice or a mask. Where the mask leaves nothing
    out, it is the table itself.
    """
    if getattr(rows, "dtype", None) == np.bool_ and rows.all():
        return table
    length = len(table.start[rows])
    return type(table)(
        **{
            column.name: (
                np.broadcast_to(values[:1], length) if values.strides == (0,) else values[rows]
            )
            for column in fields(table)
            for values in [getattr(table, column.name)]
        }
    )


def devices_of(table: DeviceTable, rows: Any = slice(None)) -> list[tuple[int, int]]:
    """Return the (rank, device) pairs that the rows have (all rows, when not given), ascending."""
    # Rank and device in one number, so that one pass finds the pairs. A device may be -1, the
    # CPU.
    low, high = int(table.device.min(initial=0)), int(table.device.max(initial=0))
    pairs = different(
        table.rank[rows].astype(np.int64) * (high - low + 1) + table.device[rows] - low
    )
    return [(pair // (high - low + 1), pair % (high - low + 1) + low) for pair in pairs.tolist()]


def different(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values among whole numbers, ascending: np.unique, but many times as fast
    for millions of numbers that lie close together.
    """
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    if high - low > max(len(values), 1 << 16):
        return np.unique(values)
    # A mark for every possible value: one pass, where np.unique sorts.
    seen = np.zeros(high - low + 1, dtype=bool)
    seen[np.subtract(values, low, dtype=np.int64)] = True
    return np.flatnonzero(seen) + low


def concatenate(tables: list[Table]) -> Table:
    """Return one table, in order, of all rows of several."""
    kind = type(tables[0])
    filled = [table for table in tables if len(table)] or tables[:1]
    if len(filled) == 1:
        return filled[0]
    return sort_table(
        kind(**{c.name: _end_to_end([getattr(t, c.name) for t in filled]) for c in fields(kind)})
    )


def _end_to_end(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return one column of several. Where all hold a single value, as columns that were not
    recorded do, the result does too and takes no memory.
    """
    if (
        all(part.strides == (0,) for part in parts)
        and len({part[:1].tobytes() for part in parts}) == 1
    ):
        return np.broadcast_to(parts[0][:1], sum(map(len, parts)))
    return np.concatenate(parts)
