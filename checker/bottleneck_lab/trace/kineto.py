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
    external: int | None = msgspec.field(name="External id", default=None)
    external_old: int | None = msgspec.field(name="external id", default=None)
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
_DECODE = msgspec.json.Decoder(list[_Event]).decode


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
        self.spans: list[NDArray[Any]] = []
        self.device: list[NDArray[Any]] = []
        self.memory: list[NDArray[Any]] = []
        self.malformed = 0

    def add(self, events: list[Any]) -> None:
        """Takes one piece: typed events, or dictionaries where a piece held something unexpected."""
        if events and isinstance(events[0], dict):
            events = self._mend(events)
        spans = [event for event in events if event.ph == "X"]
        if spans:
            self._add_spans(spans)
        if len(spans) < len(events):
            self._add_others([event for event in events if event.ph in ("i", "I", "M")])

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
        rows["correlation"] = _integers([arg.correlation for arg in args])
        rows["external"] = _integers([_first(arg.external, arg.external_old) for arg in args])
        on_device = category < RUNTIME
        self.spans.append(rows[~on_device & (category < IGNORED)])
        wanted = np.flatnonzero(on_device).tolist()
        if wanted:
            self._add_device(rows[on_device], [spans[i] for i in wanted], [args[i] for i in wanted])

    def _add_device(self, rows: NDArray[Any], events: list[_Event], args: list[_Args]) -> None:
        table = np.empty(len(rows), dtype=DEVICE)
        for name in ("start", "duration", "name", "category", "correlation", "external"):
            table[name] = rows[name]
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
        ("external", "i8"),
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


def read_kineto(read: Read, source: Path, chunk_bytes: int = CHUNK_BYTES) -> Timeline:
    """A timeline from a stream of bytes. Raises CaptureError when they are no trace, or end too early."""
    columns = Columns()
    stream = EventStream(read, source, _DECODE, chunk_bytes)
    for events in stream:
        columns.add(events)
    return assemble(columns, stream.metadata, source, stream.notes)


def assemble(columns: Columns, metadata: dict[str, Any], source: Path, notes: Iterable[str] = ()) -> Timeline:
    """The tables of everything that was gathered."""
    said = [*notes]
    if columns.malformed:
        said.append(f"{columns.malformed} malformed events were left out")
    spans = _plausible(_joined(columns.spans, SPAN), said)
    device = _plausible(_joined(columns.device, DEVICE), said)
    if not len(spans) and not len(device):
        raise CaptureError(
            f"{source.name} holds no operators, calls, ranges or device activities.",
            "Keep the profiler on for at least one whole step, and export the trace in on_trace_ready.",
        )
    distributed = _mapping(metadata.get("distributedInfo"))
    rank = _small(distributed.get("rank"))
    strings = tuple(columns.names.order)
    span_thread, memory_thread, threads = _threads(columns, rank, spans, _joined(columns.memory, MEMORY))
    table = _device_table(device, strings, rank)
    category = _range_categories(spans, strings)
    return Timeline(
        source=str(source),
        format="kineto",
        strings=strings,
        device=table,
        runtime=_host_table(spans, span_thread, category == RUNTIME, rank),
        operators=_host_table(spans, span_thread, category == OPERATOR, rank),
        ranges=_host_table(spans, span_thread, category == RANGE, rank),
        python=_host_table(spans, span_thread, category == PYTHON, rank),
        memory=_memory_table(_joined(columns.memory, MEMORY), memory_thread, rank),
        threads=threads,
        devices=_devices(metadata, table, rank),
        world_size=_small(distributed.get("world_size")),
        emulated=any(strings[name].startswith("emulated: ") for name in np.unique(table.name).tolist()),
        notes=(*said, *_overhead_note(spans)),
        facts=_facts(metadata),
    )


def _plausible(rows: NDArray[Any], notes: list[str]) -> NDArray[Any]:
    """Rows whose times can be true; the others are counted in the notes."""
    bad = (rows["duration"] < 0) | (rows["duration"] > LONGEST_NS) | (rows["start"] <= 0)
    good = rows["start"][~bad]
    if len(good):
        middle = np.partition(good, (len(good) - 1) // 2)[(len(good) - 1) // 2]
        bad |= np.abs(rows["start"] - middle) > LONGEST_NS
    dropped = int(bad.sum())
    if not dropped:
        return rows
    notes.append(f"{dropped} events have impossible times (zero, negative or longer than a day) and were left out")
    return rows[~bad]


def _range_categories(spans: NDArray[Any], strings: tuple[str, ...]) -> NDArray[Any]:
    """Old traces write ranges as operators; their names tell."""
    category = spans["category"].copy()
    named = np.array([is_range(name) for name in strings], dtype=bool)
    category[(category == OPERATOR) & named[spans["name"]]] = RANGE
    return category


def _threads(
    columns: Columns, rank: int, spans: NDArray[Any], memory: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], tuple[Thread, ...]]:
    """Thread numbers of spans and memory rows, and the threads."""
    keys = [rows["pid"].astype(np.int64) << 32 | rows["tid"] for rows in (spans, memory)]
    unique, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    threads = []
    for key in unique.tolist():
        pid, tid = key >> 32, key & 0xFFFFFFFF
        name = columns.thread_names.get((pid, tid), "")
        threads.append(Thread(rank, columns.processes.order[pid], columns.tids.order[tid], name))
    numbers = inverse.astype(np.int32).reshape(-1)
    return numbers[: len(spans)], numbers[len(spans) :], tuple(threads)


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


def _host_table(spans: NDArray[Any], thread: NDArray[Any], wanted: NDArray[Any], rank: int) -> HostTable:
    rows = spans[wanted]
    return make_table(
        HostTable,
        len(rows),
        start=rows["start"],
        end=rows["start"] + rows["duration"],
        name=rows["name"],
        rank=np.full(len(rows), rank),
        thread=thread[wanted],
        correlation=rows["correlation"],
        external=rows["external"],
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


def _overhead_note(spans: NDArray[Any]) -> list[str]:
    overhead = spans[spans["category"] == OVERHEAD]
    if not len(overhead):
        return []
    return [f"the profiler's own bookkeeping took {overhead['duration'].sum() / 1e6:.1f} ms on the host"]


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


def _joined(pieces: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=dtype)


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
        return max(-1, min(value, 2**31 - 1))
    found = re.search(r"\d{1,9}", str(value))
    return int(found.group()) if found else -1


def _product(sizes: list[int] | None) -> int:
    result = 1
    for size in sizes or (0,):
        result = min(result * max(size, 0), 2**62)
    return result


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _small(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**62 else 0
