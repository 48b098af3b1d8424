"""torch.profiler's Chrome traces (Kineto), plain or gzipped, of any size → `Timeline`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.json_stream import CHUNK_BYTES, EventStream, Read
from bottleneck_lab.trace.names import copy_of, is_communication, is_range
from bottleneck_lab.trace.timeline import (
    DeviceInfo,
    DeviceTable,
    HostTable,
    Kind,
    MemoryTable,
    Thread,
    Timeline,
    make_table,
)

LONGEST_NS = 86_400_000_000_000
"""No profiled activity takes a day: such a duration is an overflow."""

CLOCK_BEGINS_NS = 600_000_000_000
"""A capture whose events lie later than this on its clock did not begin at zero."""

DEVICE_CATEGORIES = {
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
}
RUNTIME, OPERATOR, RANGE, PYTHON, OVERHEAD, IGNORED, OTHER = range(10, 17)
HOST_CATEGORIES = {
    **dict.fromkeys(
        ("cuda_runtime", "cuda_driver", "runtime", "privateuse1_runtime", "privateuse1_driver", "xpu_runtime"), RUNTIME
    ),
    **dict.fromkeys(("cpu_op", "operator"), OPERATOR),
    "user_annotation": RANGE,
    "python_function": PYTHON,
    "overhead": OVERHEAD,
    **dict.fromkeys(("trace", "gpu_user_annotation", "ac2g", "fwdbwd", "async"), IGNORED),
}


class _Args(msgspec.Struct, gc=False):
    external: int = msgspec.field(name="External id", default=-1)
    external_old: int = msgspec.field(name="external id", default=-1)
    correlation: int = -1
    device: int | None = None
    stream: int | str | None = None
    bytes: int = 0
    grid: list[int] | None = None
    block: list[int] | None = None
    occupancy: float | None = msgspec.field(name="est. achieved occupancy %", default=None)
    changed: int | None = msgspec.field(name="Bytes", default=None)
    allocated: int = msgspec.field(name="Total Allocated", default=-1)
    reserved: int = msgspec.field(name="Total Reserved", default=-1)
    memory_device: int = msgspec.field(name="Device Id", default=-1)
    memory_kind: int = msgspec.field(name="Device Type", default=0)
    label: str | None = msgspec.field(name="name", default=None)


class _Event(msgspec.Struct, gc=False):
    ph: str = "X"
    name: str = ""
    cat: str | None = None
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Args | None = None


_NO_ARGS = _Args()
DECODE = msgspec.json.Decoder(list[_Event]).decode


def _wanted(category: NDArray[np.int8]) -> tuple[NDArray[np.bool_], ...]:
    return category == RUNTIME, category == OPERATOR, category == RANGE, category == PYTHON


class _Numbers(dict[Any, int]):
    """Numbers things in the order in which they are first asked for. 7 and "7" are the same thread."""

    def __missing__(self, key: Any) -> int:
        text = key if isinstance(key, str) else str(key)
        number = super().get(text)
        if number is None:
            number = self[text] = len(self.order)
            self.order.append(text)
        self[key] = number
        return number

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []


class _Categories(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        low = key.lower() if isinstance(key, str) else ""
        number = int(DEVICE_CATEGORIES.get(low, HOST_CATEGORIES.get(low, OTHER)))
        self[key] = number
        return number


class Columns:
    """Gathers the columns of a trace piece by piece."""

    def __init__(self) -> None:
        self.names = _Numbers()
        self.processes = _Numbers()
        self.tids = _Numbers()
        self.thread_names: dict[tuple[int, int], str] = {}
        self._categories = _Categories()
        self.runtime: list[NDArray[Any]] = []
        self.operators: list[NDArray[Any]] = []
        self.ranges: list[NDArray[Any]] = []
        self.python: list[NDArray[Any]] = []
        self.device: list[NDArray[Any]] = []
        self.memory: list[NDArray[Any]] = []
        self.malformed = 0
        self.overhead_ns = 0

    @property
    def host(self) -> tuple[list[NDArray[Any]], ...]:
        return self.runtime, self.operators, self.ranges, self.python

    def add(self, events: list[Any]) -> None:
        """Takes one piece: typed events, or dictionaries where a piece held something unexpected."""
        if events and isinstance(events[0], dict):
            events = self._mend(events)
        spans = [event for event in events if event.ph == "X"]
        if spans:
            self._add_spans(spans)
        if len(spans) < len(events):
            self._add_others([event for event in events if event.ph in ("i", "I", "M")])

    def joined(self, table: str) -> NDArray[Any]:
        """All rows of a table; the pieces are given up."""
        pieces: list[NDArray[Any]] = getattr(self, table)
        rows = np.concatenate(pieces) if pieces else np.empty(0, dtype=DTYPES[table])
        pieces.clear()
        return rows

    def _mend(self, events: list[dict[str, Any]]) -> list[_Event]:
        """Dictionaries → events. What cannot be read as an event is counted, and said in the notes."""
        good = []
        for event in events:
            try:
                good.append(_convert(event))
            except (msgspec.ValidationError, ValueError, TypeError, OverflowError):
                self.malformed += 1
        return good

    def _add_spans(self, spans: list[_Event]) -> None:
        args = [event.args or _NO_ARGS for event in spans]
        rows = np.empty(len(spans), dtype=SPAN)
        rows["start"] = _to_ns([event.ts for event in spans])
        rows["duration"] = _to_ns([event.dur for event in spans])
        names, processes, tids, categories = self.names, self.processes, self.tids, self._categories
        rows["name"] = [names[event.name] for event in spans]
        rows["pid"] = [processes[event.pid] for event in spans]
        rows["tid"] = [tids[event.tid] for event in spans]
        rows["category"] = category = np.array([categories[event.cat] for event in spans], dtype=np.int8)
        self.overhead_ns += int(rows["duration"][category == OVERHEAD].clip(0, LONGEST_NS).sum())
        correlation = _integers([arg.correlation for arg in args])
        external = np.maximum(_integers([arg.external for arg in args]), _integers([arg.external_old for arg in args]))
        rows["correlation"] = np.where(category == RUNTIME, correlation, external)
        for table, wanted in zip(self.host, _wanted(category), strict=True):
            if wanted.any():
                table.append(rows[wanted])
        chosen = np.flatnonzero(category < RUNTIME)
        if len(chosen):
            rows["correlation"] = correlation
            events, arguments = [spans[i] for i in chosen.tolist()], [args[i] for i in chosen.tolist()]
            self._add_device(rows[chosen], external[chosen], events, arguments)

    def _add_device(self, rows: NDArray[Any], external: NDArray[Any], events: list[_Event], args: list[_Args]) -> None:
        table = np.empty(len(rows), dtype=DEVICE)
        for name in ("start", "duration", "name", "category", "correlation"):
            table[name] = rows[name]
        table["external"] = external
        table["device"] = _integers(
            [_number(_first(arg.device, event.pid)) for event, arg in zip(events, args, strict=True)]
        )
        table["stream"] = _integers(
            [_number(_first(arg.stream, event.tid)) for event, arg in zip(events, args, strict=True)]
        )
        table["bytes"] = _integers([arg.bytes for arg in args])
        table["grid"] = _integers([_product(arg.grid) for arg in args])
        table["block"] = np.clip(_integers([_product(arg.block) for arg in args]), 0, 1 << 30)
        table["occupancy"] = [np.nan if arg.occupancy is None else arg.occupancy for arg in args]
        self.device.append(table)

    def _add_others(self, events: list[_Event]) -> None:
        memory = [e for e in events if e.name == "[memory]" and e.args is not None and e.args.changed is not None]
        if memory:
            self.memory.append(self._memory_rows(memory))
        for event in events:
            if event.ph == "M" and event.name == "thread_name" and event.args is not None and event.args.label:
                self.thread_names[self.processes[event.pid], self.tids[event.tid]] = event.args.label

    def _memory_rows(self, events: list[_Event]) -> NDArray[Any]:
        rows = np.empty(len(events), dtype=MEMORY)
        args = [event.args or _NO_ARGS for event in events]
        rows["start"] = _to_ns([event.ts for event in events])
        rows["bytes"] = _integers([arg.changed or 0 for arg in args])
        rows["allocated"] = _integers([arg.allocated for arg in args])
        rows["reserved"] = _integers([arg.reserved for arg in args])
        rows["device"] = _integers([arg.memory_device if arg.memory_kind else -1 for arg in args])
        rows["pid"] = [self.processes[event.pid] for event in events]
        rows["tid"] = [self.tids[event.tid] for event in events]
        return rows


SPAN = np.dtype(
    [
        ("start", "i8"),
        ("duration", "i8"),
        ("correlation", "i8"),
        ("name", "i4"),
        ("pid", "i4"),
        ("tid", "i4"),
        ("category", "i1"),
    ]
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
        ("category", "i1"),
    ]
)
MEMORY = np.dtype(
    [
        ("start", "i8"),
        ("bytes", "i8"),
        ("allocated", "i8"),
        ("reserved", "i8"),
        ("device", "i4"),
        ("pid", "i4"),
        ("tid", "i4"),
    ]
)


DTYPES = {**dict.fromkeys(("runtime", "operators", "ranges", "python"), SPAN), "device": DEVICE, "memory": MEMORY}


def read_kineto(read: Read, source: Path, chunk_bytes: int = CHUNK_BYTES) -> Timeline:
    """A timeline from a stream of bytes. Raises CaptureError when they are no trace, or end too early."""
    columns = Columns()
    stream = EventStream(read, source, DECODE, chunk_bytes)
    for events in stream:
        columns.add(events)
    return assemble(columns, stream.metadata, source, stream.notes)


def assemble(columns: Columns, metadata: dict[str, Any], source: Path, notes: Iterable[str] = ()) -> Timeline:
    """The tables of everything that was gathered. Each table's pieces are given up as it is made, so that nothing is held twice for long."""
    said = [*notes]
    if columns.malformed:
        said.append(f"{columns.malformed} malformed events were left out")
    if columns.overhead_ns:
        said.append(f"the profiler's own bookkeeping took {columns.overhead_ns / 1e6:.1f} ms on the host")
    distributed = _mapping(metadata.get("distributedInfo"))
    rank = _small(distributed.get("rank"))
    strings = tuple(columns.names.order)
    ranges = _old_ranges(columns, strings)
    threads = _Threads(columns, rank)
    bad: list[int] = []
    tables = {
        name: threads.table(_plausible(columns.joined(name), bad), rank) for name in ("runtime", "operators", "python")
    }
    tables["ranges"] = threads.table(_plausible(ranges, bad), rank)
    memory = columns.joined("memory")
    device = _device_table(_plausible(columns.joined("device"), bad), strings, rank)
    if not len(device) and not any(len(table) for table in tables.values()):
        raise CaptureError(
            f"{source.name} holds no operators, calls, ranges or device activities.",
            "Keep the profiler on for at least one whole step, and export the trace in on_trace_ready.",
        )
    if sum(bad):
        said.append(f"{sum(bad)} events have impossible times (zero, negative or longer than a day) and were left out")
    return Timeline(
        source=str(source),
        format="kineto",
        strings=strings,
        device=device,
        runtime=tables["runtime"],
        operators=tables["operators"],
        ranges=tables["ranges"],
        python=tables["python"],
        memory=_memory_table(memory, threads.numbers(memory), rank),
        threads=threads.listed(),
        devices=_devices(metadata, device, rank),
        world_size=_small(distributed.get("world_size")),
        emulated=any(strings[name].startswith("emulated: ") for name in np.unique(device.name).tolist()),
        notes=tuple(said),
        facts=_facts(metadata),
    )


def _plausible(rows: NDArray[Any], dropped: list[int]) -> NDArray[Any]:
    """Rows whose times can be true; how many cannot is appended to `dropped`.

    A start of zero is a time that was never filled in, unless the whole capture's clock begins there.
    """
    start = rows["start"]
    bad = (rows["duration"] < 0) | (rows["duration"] > LONGEST_NS) | (start < 0)
    good = start[~bad & (start > 0)][:100_000]
    if len(good):
        middle = np.partition(good, (len(good) - 1) // 2)[(len(good) - 1) // 2]
        bad |= (np.abs(start - middle) > LONGEST_NS) | ((start == 0) & (middle > CLOCK_BEGINS_NS))
    dropped.append(int(bad.sum()))
    return rows[~bad] if dropped[-1] else rows


def _old_ranges(columns: Columns, strings: tuple[str, ...]) -> NDArray[Any]:
    """The ranges; old traces write some of them as operators, where their names tell."""
    named = np.array([is_range(name) for name in strings], dtype=bool)
    if not named.any():
        return columns.joined("ranges")
    for i, rows in enumerate(columns.operators):
        is_one = named[rows["name"]]
        if is_one.any():
            columns.ranges.append(rows[is_one])
            columns.operators[i] = rows[~is_one]
    return columns.joined("ranges")


class _Threads:
    """Numbers for the (process, thread) pairs that occur."""

    def __init__(self, columns: Columns, rank: int) -> None:
        self._columns = columns
        self._rank = rank
        self._width = max(len(columns.tids.order), 1)
        self._known = np.full(max(len(columns.processes.order), 1) * self._width, -1, dtype=np.int32)
        self._pairs: list[int] = []

    def numbers(self, rows: NDArray[Any]) -> NDArray[np.int32]:
        pairs = rows["pid"] * np.int64(self._width) + rows["tid"]
        for pair in np.flatnonzero(np.bincount(pairs, minlength=1)).tolist():
            if self._known[pair] < 0:
                self._known[pair] = len(self._pairs)
                self._pairs.append(pair)
        return np.asarray(self._known[pairs])

    def table(self, rows: NDArray[Any], rank: int) -> HostTable:
        columns = {name: rows[name] for name in ("start", "name", "correlation")}
        end = rows["start"] + rows["duration"]
        return make_table(
            HostTable, len(rows), **columns, end=end, rank=np.full(len(rows), rank, np.int32), thread=self.numbers(rows)
        )

    def listed(self) -> tuple[Thread, ...]:
        found = []
        for pair in self._pairs:
            pid, tid = divmod(pair, self._width)
            name = self._columns.thread_names.get((pid, tid), "")
            found.append(Thread(self._rank, self._columns.processes.order[pid], self._columns.tids.order[tid], name))
        return tuple(found)


def _device_table(rows: NDArray[Any], strings: tuple[str, ...], rank: int) -> DeviceTable:
    kind = rows["category"].copy()
    communicates = np.array([is_communication(name) for name in strings], dtype=bool)
    copies = np.array([copy_of(name) for name in strings], dtype=np.int8).reshape(-1, 2)
    if len(rows):
        kind[(kind == Kind.KERNEL) & communicates[rows["name"]]] = Kind.COMMUNICATION
    is_copy = kind == Kind.COPY
    columns = {
        name: rows[name]
        for name in ("start", "name", "correlation", "external", "device", "stream", "bytes", "grid", "block")
    }
    return make_table(
        DeviceTable,
        len(rows),
        **columns,
        end=rows["start"] + rows["duration"],
        kind=kind,
        rank=np.full(len(rows), rank),
        occupancy=rows["occupancy"],
        direction=np.where(is_copy, copies[rows["name"], 0] if len(strings) else 0, 0),
        host_memory=np.where(is_copy, copies[rows["name"], 1] if len(strings) else 0, 0),
    )


def _memory_table(rows: NDArray[Any], thread: NDArray[Any], rank: int) -> MemoryTable:
    columns = {name: rows[name] for name in ("start", "bytes", "allocated", "reserved", "device")}
    return make_table(MemoryTable, len(rows), **columns, rank=np.full(len(rows), rank), thread=thread)


def _devices(metadata: dict[str, Any], table: DeviceTable, rank: int) -> tuple[DeviceInfo, ...]:
    """The devices that did something, with what the capture says of them."""
    described = metadata.get("deviceProperties")
    by_index = {_small(d.get("id")): d for d in described if isinstance(d, dict)} if isinstance(described, list) else {}
    found = []
    for index in np.unique(table.device).tolist():
        facts = by_index.get(index, {})
        capability = f"{_small(facts.get('computeMajor'))}.{_small(facts.get('computeMinor'))}" if facts else ""
        found.append(
            DeviceInfo(
                rank=rank,
                index=index,
                name=str(facts.get("name", ""))[:120],
                multiprocessors=_small(facts.get("numSms")),
                compute_capability=capability,
                memory_bytes=_small(facts.get("totalGlobalMem")),
            )
        )
    return tuple(found)


def _facts(metadata: dict[str, Any]) -> dict[str, str]:
    wanted = (
        "schemaVersion",
        "baseTimeNanoseconds",
        "with_stack",
        "profile_memory",
        "record_shapes",
        "cuda_driver_version",
    )
    return {key: str(metadata[key])[:80] for key in wanted if key in metadata}


def _convert(event: dict[str, Any]) -> _Event:
    """An event whose values are of unexpected types. What is no number where one is needed makes the event malformed."""
    args = event.get("args")
    cleaned = {
        key: value
        for key, value in event.items()
        if key in ("ph", "name", "cat", "pid", "tid", "ts", "dur") and value is not None
    }
    for key in ("name", "ph"):
        cleaned[key] = str(cleaned.get(key, ""))
    for key in ("pid", "tid"):
        if not isinstance(cleaned.get(key, 0), (int, str)) or isinstance(cleaned.get(key), bool):
            cleaned[key] = str(cleaned[key])
    if cleaned.get("ph") == "X" and "ts" not in cleaned:
        raise ValueError("no time")
    found = msgspec.convert(cleaned, _Event, strict=False)
    if isinstance(args, dict):
        found.args = _convert_args(args)
    return found


def _convert_args(args: dict[str, Any]) -> _Args:
    """Arguments one by one: one bad value does not cost the others."""
    good = {}
    for field in msgspec.structs.fields(_Args):
        if field.encode_name in args:
            try:
                good[field.name] = msgspec.convert(args[field.encode_name], field.type, strict=False)
            except msgspec.ValidationError:
                continue
    return _Args(**good)


def _to_ns(microseconds: list[float]) -> NDArray[np.int64]:
    """Microseconds with a fraction → whole nanoseconds. The whole part is kept apart: times since 1970 × 1000 exceed a double's 53 bits."""
    values = np.clip(np.array(microseconds, dtype=np.float64), -9e15, 9e15)
    whole = np.floor(values)
    result: NDArray[np.int64] = whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)
    return result


def _integers(values: list[int]) -> NDArray[np.int64]:
    """int64, or clipped to it where a value is larger (addresses, overflowed counters)."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([min(max(value, -(2**62)), 2**62) for value in values], dtype=np.int64)


def _first(preferred: Any, other: Any) -> Any:
    if preferred is not None:
        return preferred
    return -1 if other is None else other


def _number(value: Any) -> int:
    """7, "7" and "stream 7" → 7; anything else → -1."""
    if isinstance(value, int):
        return value if -1 <= value < 2**31 else -1
    found = re.search(r"\d{1,9}", str(value))
    return int(found.group()) if found else -1


def _product(sizes: list[int] | None) -> int:
    if not sizes:
        return 0
    result = 1
    for size in sizes[:3]:
        result *= size
    return result


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _small(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**62 else 0
