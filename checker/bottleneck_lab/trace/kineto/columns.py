"""Events of a Chrome trace → columns, piece by piece."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Callable
from math import prod
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.kineto.events import MEMORY_EVENT, mend
from bottleneck_lab.trace.kineto.halves import Halves
from bottleneck_lab.trace.names import DTYPE_BYTES, dtype_of
from bottleneck_lab.trace.shapes import COUNTED, Work, work_of
from bottleneck_lab.trace.timeline import NUMBERS, narrowed, order_of

# No profiled activity takes a day: such a duration is an overflow.
LONGEST_NS = 86_400_000_000_000

SPAN = np.dtype(
    [("start", "i8"), ("duration", "i8"), ("correlation", "i8"), ("name", "i4"), ("thread", "i4")]
)
DEVICE = np.dtype(
    [
        ("start", "i8"),
        ("duration", "i8"),
        ("correlation", "i8"),
        ("external", "i8"),
        ("stream", "i8"),
        ("bytes", "i8"),
        ("grid", "i8"),
        ("name", "i4"),
        ("device", "i4"),
        ("block", "i4"),
        ("occupancy", "f4"),
        ("kind", "i1"),
        ("dtype", "i1"),
        ("process_group", "i4"),
    ]
)
MEMORY = np.dtype(
    [
        ("start", "i8"),
        ("bytes", "i8"),
        ("allocated", "i8"),
        ("reserved", "i8"),
        ("address", "i8"),
        ("device", "i4"),
        ("thread", "i4"),
        ("name", "i4"),
    ]
)
WORK = np.dtype(
    [
        ("external", "i8"),
        ("flop", "f8"),
        ("moved_bytes", "f8"),
        ("name", "i4"),
        ("shapes", "i4"),
        ("precision", "i1"),
    ]
)
AUTOGRAD = np.dtype([("external", "i8"), ("sequence", "i8"), ("thread", "i4"), ("forward", "i4")])

# A block is some megabytes at most. Arrays of one piece's rows each would leave holes all over
# the memory.
BLOCK_ROWS = 1 << 16

Numbering = dict[str, NDArray[Any]]
"""For some columns, the new number of each old one."""
Block = tuple[NDArray[Any], Numbering]
"""Packed rows, and what their numbers are here if another process gave them."""

TIMES = ("start", "duration")
HOST_TABLES = ("runtime", "operators", "ranges", "python")
DTYPES = {
    **dict.fromkeys(HOST_TABLES, SPAN),
    "device": DEVICE,
    "memory": MEMORY,
    "work": WORK,
    "autograd": AUTOGRAD,
}


class Numbers(dict[Any, int]):
    """Numbers things in the order they are first asked for. `plain` gives the form in which two are
    the same: thread 7 is thread "7".
    """

    def __init__(self, plain: Callable[[Any], Any]) -> None:
        super().__init__()
        self.order: list[Any] = []
        self._plain = plain

    def __missing__(self, key: Any) -> int:
        plain = self._plain(key)
        number = super().get(plain)
        if number is None:
            number = self[plain] = len(self.order)
            self.order.append(plain)
        self[key] = number
        return number

    def sort(self) -> NDArray[Any]:
        """Put `order` in order; returns the new number by the old one. Nothing can be numbered
        after this.
        """
        old = sorted(range(len(self.order)), key=self.order.__getitem__)
        new = np.empty(len(old), dtype=np.int32)
        new[old] = np.arange(len(old), dtype=np.int32)
        self.order = [self.order[i] for i in old]
        self.clear()
        return narrowed(new)


class _Parsed(dict[Any, int]):
    """7, "7" and "stream 7" → 7; anything else → -1."""

    def __missing__(self, value: Any) -> int:
        if isinstance(value, int):
            number = value if -1 <= value < 2**31 else -1
        else:
            digits = re.search(r"\d{1,9}", str(value))
            number = int(digits.group()) if digits else -1
        self[value] = number
        return number


def _thread(key: tuple[Any, Any]) -> tuple[str, str]:
    return str(key[0]), str(key[1])


class _Threads(dict[Any, int]):
    """The numbers of one process's threads. To look up a process and then its thread takes a third
    of the time that a pair of both takes.
    """

    def __init__(self, numbers: Numbers, process: Any) -> None:
        super().__init__()
        self._numbers = numbers
        self._process = process

    def __missing__(self, thread: Any) -> int:
        number = self[thread] = self._numbers[self._process, thread]
        return number


class _Processes(dict[Any, _Threads]):
    """The threads of each process, by their numbers."""

    def __init__(self, numbers: Numbers) -> None:
        super().__init__()
        self._numbers = numbers

    def __missing__(self, process: Any) -> _Threads:
        threads = self[process] = _Threads(self._numbers, process)
        return threads


class RowBlocks:
    """The rows of one table, gathered in blocks. Their times are filled in as microseconds; a block
    at a time, they become nanoseconds and the rows are put in order.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._filled_in = np.dtype(
            [(name, "f8" if name in TIMES else dtype[name]) for name in dtype.names or ()]
        )
        self._full: list[Block] = []
        self._rows = np.empty(0, dtype=self._filled_in)
        self._used = 0

    def room(self, length: int) -> NDArray[Any]:
        """Return this many further rows, which the caller fills in, times as microseconds."""
        if self._used + length > len(self._rows):
            self._close()
            if length > len(self._rows):
                self._rows = np.empty(max(length, BLOCK_ROWS), dtype=self._filled_in)
        self._used += length
        return self._rows[self._used - length : self._used]

    def _close(self) -> None:
        """Pack the rows that were filled in: others take their place."""
        rows, self._used = self._rows[: self._used], 0
        if len(rows):
            columns = {name: rows[name] for name in self._dtype.names or ()}
            columns |= {name: _to_ns(rows[name]) for name in TIMES if name in columns}
            self._full.append((_packed(_in_order(columns)), {}))

    def add(self, rows: NDArray[Any]) -> None:
        self.room(len(rows))[:] = rows

    def append(self, block: Block) -> None:
        """Take a block of further rows, times in nanoseconds."""
        self._close()
        self._full.append(block)

    def full(self) -> list[Block]:
        """Give up the blocks that no more rows come into, in order."""
        blocks, self._full = self._full, []
        return blocks

    def blocks(self) -> list[Block]:
        """Give up all rows, in order."""
        self._close()
        return self.full()

    def taken(self, numbers: Numbering) -> dict[str, NDArray[Any]]:
        """Return the columns of all rows, which are given up; for some, `numbers` maps each old
        number to its new one.
        """
        blocks, columns = self.blocks(), {}
        for name in self._dtype.names or ():
            parts = [rows[name] for rows, _ in blocks]
            if name in numbers:
                new = [numbers[name][own.get(name, slice(None))] for _, own in blocks]
                parts = [now[part] for now, part in zip(new, parts, strict=True)]
            # What only tells things apart stays as narrow as it is.
            dtype = None if name in NUMBERS and parts else self._dtype[name]
            columns[name] = np.concatenate(parts or [np.empty(0, dtype)], dtype=dtype)
        return columns


def _in_order(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the columns of rows with an end in the order that tables have: a sort of the whole
    table, which one process does alone, then has little left to move.
    """
    if "duration" not in columns:
        return columns
    order = order_of(columns["start"], columns["start"] + columns["duration"])
    return {name: values[order] for name, values in columns.items()}


def _packed(columns: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Return columns as the rows of a block, whole numbers in as few bytes as all of a column's
    fit: a third less than in a table, since what a block holds lies close together.
    """
    narrow = {
        name: narrowed(values) if np.issubdtype(values.dtype, np.integer) else values
        for name, values in columns.items()
    }
    length = len(next(iter(narrow.values())))
    rows = np.empty(length, dtype=[(name, values.dtype) for name, values in narrow.items()])
    for name, values in narrow.items():
        rows[name] = values
    return rows


class Columns:
    """Gathers the columns of a trace piece by piece. Threads are numbered by (process, thread),
    both as text. Those of autograd's nodes are left out unless `with_nodes`.
    """

    def __init__(self, *, with_nodes: bool = True) -> None:
        self._with_nodes = with_nodes
        self.names = Numbers(str)
        self.threads = Numbers(_thread)
        self._processes = _Processes(self.threads)
        self.thread_names: dict[tuple[str, str], str] = {}
        self.process_names: set[str] = set()
        self.tables = {table: RowBlocks(dtype) for table, dtype in DTYPES.items()}
        self.malformed = 0
        self.halves = Halves()
        self.overhead_ns = 0
        self._settled: Numbering = {}
        self._parsed = _Parsed()
        # Models repeat the same shapes: each is worked out once.
        self._works: dict[tuple[str, bytes, bytes, bytes], Work | None] = {}

    def add(self, events: list[Any]) -> None:
        """Take one piece: events, or dictionaries where a piece held something unexpected."""
        if events and isinstance(events[0], dict):
            events = self._mend(events)
        groups: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            groups[event.table].append(event)
        for event in self.halves.join(groups["halves"]):
            groups[event.table].append(event)
        for table in HOST_TABLES:
            if groups[table]:
                self._spans(groups[table], self.tables[table].room(len(groups[table])), table)
        counted = [e for e in groups["operators"] if e.name in COUNTED and e.args.dims]
        if counted:
            self.tables["work"].add(self._work(counted))
        if groups["device"]:
            self._activities(groups["device"], self.tables["device"].room(len(groups["device"])))
        if groups["overhead"]:
            self.overhead_ns += int(
                _to_ns(np.array([e.dur for e in groups["overhead"]])).clip(0, LONGEST_NS).sum()
            )
        memory = [
            e for e in groups["instants"] if e.name == MEMORY_EVENT and e.args.changed is not None
        ]
        if memory:
            rows = self.tables["memory"].room(len(memory))
            args = [event.args for event in memory]
            rows["start"] = _array("d", [event.ts for event in memory])
            rows["bytes"] = _integers([arg.changed for arg in args])
            rows["allocated"] = _integers([arg.allocated for arg in args])
            rows["reserved"] = _integers([arg.reserved for arg in args])
            rows["address"] = _integers([arg.address for arg in args])
            rows["device"] = _integers(
                [arg.memory_device if arg.memory_kind else -1 for arg in args]
            )
            rows["thread"] = self._thread_numbers(memory)
            rows["name"] = [self.names[arg.line] for arg in args]
        for event in groups["metadata"]:
            if event.name == "thread_name" and event.args.label:
                self.thread_names[_thread((event.pid, event.tid))] = event.args.label
            elif event.name == "process_name" and event.args.label:
                self.process_names.add(event.args.label)

    def settle(self) -> None:
        """Number names and threads alphabetically, so that the rows are the same however the file
        was cut into pieces. Nothing is added after this.
        """
        names = self.names.sort()
        self._settled = {"name": names, "shapes": names, "thread": self.threads.sort()}

    def take(self, table: str) -> dict[str, NDArray[Any]]:
        """Return the columns of a table, once all is settled; its rows are given up."""
        return self.tables[table].taken(self._settled)

    def _mend(self, events: list[dict[str, Any]]) -> list[Any]:
        """Turn dictionaries into events. Those that cannot be read as one are counted, for the
        notes.
        """
        good = []
        for event in events:
            try:
                good.append(mend(event))
            except (msgspec.ValidationError, ValueError, TypeError, OverflowError):
                self.malformed += 1
        return good

    def _spans(self, events: list[Any], rows: NDArray[Any], table: str) -> None:
        rows["start"] = _array("d", [event.ts for event in events])
        rows["duration"] = _array("d", [event.dur for event in events])
        rows["name"] = self._name_numbers(events)
        rows["thread"] = self._thread_numbers(events)
        args = [event.args for event in events]
        if table == "runtime":
            rows["correlation"] = _integers([arg.correlation for arg in args])
        else:
            rows["correlation"] = _external(args)
        if table == "operators" and self._with_nodes:
            self._nodes(args, rows)

    def _nodes(self, args: list[Any], spans: NDArray[Any]) -> None:
        """Take the numbers of autograd's nodes from operators, whose rows these are."""
        numbered = [i for i, arg in enumerate(args) if arg.sequence >= 0]
        if numbered:
            rows, spans = self.tables["autograd"].room(len(numbered)), spans[numbered]
            rows["external"] = spans["correlation"]
            rows["thread"] = spans["thread"]
            rows["sequence"] = _integers([args[i].sequence for i in numbered])
            rows["forward"] = _integers([args[i].forward for i in numbered])

    def _name_numbers(self, events: list[Any]) -> NDArray[Any]:
        return _array("i", [*map(self.names.__getitem__, [event.name for event in events])])

    def _thread_numbers(self, events: list[Any]) -> NDArray[Any]:
        processes = [event.pid for event in events]
        threads = [event.tid for event in events]
        if processes.count(processes[0]) == len(processes):  # as mostly in one piece
            numbers = [*map(self._processes[processes[0]].__getitem__, threads)]
        else:
            both = zip(processes, threads, strict=True)
            numbers = [self._processes[process][thread] for process, thread in both]
        return _array("i", numbers)

    def _activities(self, events: list[Any], rows: NDArray[Any]) -> None:
        parsed = self._parsed
        args = [event.args for event in events]
        rows["start"] = _array("d", [event.ts for event in events])
        rows["duration"] = _array("d", [event.dur for event in events])
        rows["correlation"] = _integers([arg.correlation for arg in args])
        rows["external"] = _external(args)
        rows["name"] = self._name_numbers(events)
        rows["kind"] = [event.kind for event in events]
        rows["device"] = [
            parsed[event.pid if event.args.device is None else event.args.device]
            for event in events
        ]
        rows["stream"] = [
            parsed[event.tid if event.args.stream is None else event.args.stream]
            for event in events
        ]
        rows["bytes"] = _integers([arg.bytes for arg in args])
        rows["dtype"] = 0
        rows["process_group"] = -1
        collectives = [
            (i, arg) for i, arg in enumerate(args) if arg.dtype is not None or arg.group is not None
        ]
        for i, arg in collectives:
            if arg.dtype is not None:
                rows["dtype"][i] = dtype_of(arg.dtype)
                rows["bytes"][i] = DTYPE_BYTES[rows["dtype"][i]] * min(
                    max(arg.sent, arg.received, 0), 1 << 50
                )
            if arg.group is not None:
                # Names are small numbers, but need not be: all that counts is that they differ.
                rows["process_group"][i] = crc32(str(arg.group).encode()) >> 1
        rows["grid"] = _integers([prod(arg.grid) if arg.grid else 0 for arg in args])
        block = _integers([prod(arg.block) if arg.block else 0 for arg in args])
        rows["block"] = np.minimum(np.maximum(block, 0), 1 << 30)
        rows["occupancy"] = [np.nan if arg.occupancy is None else arg.occupancy for arg in args]

    def _work(self, events: list[Any]) -> NDArray[Any]:
        rows = []
        externals = _external([event.args for event in events]).tolist()
        for event, external in zip(events, externals, strict=True):
            args = event.args
            key = (event.name, *(bytes(part) for part in (args.dims, args.types, args.values)))
            if key not in self._works:
                self._works[key] = work_of(*key)
            work = self._works[key]
            if work is not None:
                name, shapes = self.names[event.name], self.names[work.shapes]
                rows.append((external, work.flop, work.moved_bytes, name, shapes, work.precision))
        return np.array(rows, dtype=WORK)


def _external(args: list[Any]) -> NDArray[np.int64]:
    """Return the number that joins an operator to the work of the device; old traces write its key
    without a capital.
    """
    external = _integers([arg.external for arg in args])
    if external.min() < 0:
        external = np.maximum(external, _integers([arg.external_old for arg in args]))
    return external


def _to_ns(microseconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert microseconds with a fraction to whole nanoseconds."""
    # Times since 1970 in µs, times 1000, exceed the 53 bits of a double, so the whole part is
    # kept apart from the fraction.
    values = np.clip(microseconds, -9e15, 9e15)
    whole = np.floor(values)
    result: NDArray[np.int64] = whole.astype(np.int64) * 1000 + np.rint(
        (values - whole) * 1000
    ).astype(np.int64)
    return result


def _integers(values: list[int]) -> NDArray[np.int64]:
    """Return int64, or clipped to it where a value is larger (addresses, overflowed counters)."""
    try:
        return _array("q", values)
    except struct.error:
        return np.array([min(max(value, -(2**62)), 2**62) for value in values], dtype=np.int64)


def _array(code: str, values: list[Any]) -> NDArray[Any]:
    """Return numbers as an array of a type that `struct` and NumPy call alike: in half the time of
    np.array, which first looks at the type of each.
    """
    return np.frombuffer(struct.pack(f"{len(values)}{code}", *values), dtype=code)
