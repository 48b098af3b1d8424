"""torch.profiler's Chrome traces (Kineto), plain or gzipped, of any size → `Timeline`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.fast.json_stream import CHUNK_BYTES, EventStream, ReadBytes
from bottleneck_lab.trace.foreign import refuse_ascend, refuse_jax
from bottleneck_lab.trace.kineto.columns import LONGEST_NS, Columns
from bottleneck_lab.trace.kineto.events import decode
from bottleneck_lab.trace.names import (
    CALIBRATED,
    MODELLED_HOST,
    copy_of,
    is_communication,
    is_range,
)
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    AutogradTable,
    DeviceInfo,
    DeviceTable,
    HostTable,
    Ints,
    MemoryTable,
    Thread,
    Timeline,
    WorkTable,
    fill_table,
    make_table,
    sort_table,
)
from bottleneck_lab.wording import counted

First = TypeVar("First")
Second = TypeVar("Second")

CLOCK_BEGINS_NS = 600_000_000_000
"""A capture whose events lie later than this on its clock did not begin at zero."""
FEW_HALVES = 0.01
"""Of so many events (0-1), a recording's own ends may have cut one half off."""
NOTES = "captureNotes"
"""Key beside a trace's events: what whoever made the capture must say of it, a list of sentences.
"""
_FACTS = (
    "schemaVersion",
    "baseTimeNanoseconds",
    "with_stack",
    "profile_memory",
    "record_shapes",
    "cuda_driver_version",
    "cuda_runtime_version",
    "hip_driver_version",
    "hip_runtime_version",
    MODELLED_HOST,
    CALIBRATED,
)
"""Keys beside a trace's events that a timeline keeps as its facts."""
_Rows = dict[str, NDArray[Any]]
"""Columns of one table, by name."""


def read_kineto(read: ReadBytes, source: Path, chunk_bytes: int = CHUNK_BYTES) -> Timeline:
    """Return a timeline from a stream of bytes. Raises CaptureError if they are not a trace or end
    too early.
    """
    columns = Columns()
    stream = EventStream(read, source, decode, chunk_bytes)
    for events in stream:
        columns.add(events)
    return assemble(columns, stream.metadata, source, stream.notes)


def one_by_one(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """Return the results of two functions."""
    return first(), second()


def assemble(
    columns: Columns,
    metadata: dict[str, Any],
    source: Path,
    reader_notes: Iterable[str] = (),
    results_of: Callable[..., tuple[Any, Any]] = one_by_one,
) -> Timeline:
    """Return the timeline of everything that was gathered. Each table's rows are freed as it is
    made, so that nothing is held twice for long. `results_of` calls the two functions that make the
    tables, each about half of them.
    """
    value = metadata.get("distributedInfo")
    distributed = value if isinstance(value, dict) else {}
    rank = _small(distributed.get("rank"))
    columns.settle()
    strings = tuple(columns.names.order)
    bad: list[int] = []

    def make_operators() -> list[HostTable]:
        return [_host_table(_plausible(rows, bad), rank) for rows in _take_operators(columns)]

    def make_others() -> tuple[HostTable, HostTable, DeviceTable]:
        return (
            _host_table(_plausible(columns.take("runtime"), bad), rank),
            _host_table(_plausible(columns.take("python"), bad), rank),
            _device_table(_plausible(columns.take("device"), bad), strings, rank),
        )

    (operators, ranges), (runtime, python, device) = results_of(make_operators, make_others)
    if not len(device):
        refuse_ascend(source, columns.process_names)
    if not any(map(len, (device, operators, ranges, runtime, python))):
        refuse_jax(source, columns.process_names)
        raise CaptureError(
            f"{source.name} holds no operators, calls, ranges or device activities, as"
            " torch.profiler writes them.",
            "Keep the profiler on for at least one whole step, and export the trace in"
            " on_trace_ready. JSON from rocprof before version 3 and from browsers is not read.",
        )
    events = sum(map(len, (device, operators, ranges, runtime, python)))
    work, memory, autograd = (columns.take(name) for name in ("work", "memory", "autograd"))
    return Timeline(
        source=str(source),
        format="kineto",
        strings=strings,
        device=device,
        runtime=runtime,
        operators=operators,
        ranges=ranges,
        python=python,
        memory=make_table(MemoryTable, **memory, rank=_everywhere(rank, memory)),
        threads=tuple(
            Thread(rank, pid, tid, columns.thread_names.get((pid, tid), ""))
            for pid, tid in columns.threads.order
        ),
        devices=_devices(metadata, device, rank),
        world_size=_small(distributed.get("world_size")),
        emulated=any(
            strings[name].startswith("emulated: ") for name in np.unique(device.name).tolist()
        ),
        notes=(*reader_notes, *_notes(columns, metadata, sum(bad), events)),
        facts={key: str(metadata[key])[:80] for key in _FACTS if key in metadata},
        work=WorkTable(rank=np.full(len(work["name"]), rank, dtype=np.int32), **work),
        autograd=AutogradTable(rank=np.full(len(autograd["thread"]), rank, np.int32), **autograd),
    )


def _take_operators(columns: Columns) -> tuple[_Rows, _Rows]:
    """Take the rows of operators and of ranges out of the columns. Old traces write some ranges as
    operators, where their names tell: those are moved.
    """
    named = np.array([is_range(name) for name in columns.names.order], dtype=bool)
    operators, ranges = columns.take("operators"), columns.take("ranges")
    is_range_row = named[operators["name"]] if named.any() else named
    if is_range_row.any():
        for column, values in operators.items():
            ranges[column] = np.concatenate([ranges[column], values[is_range_row]])
            operators[column] = values[~is_range_row]
    return operators, ranges


def _notes(
    columns: Columns, metadata: dict[str, Any], impossible: int, events: int
) -> Iterator[str]:
    """Yield what readers of the capture must know: the file's own notes, and what was left out of
    it beside the `events` that were read.
    """
    remarks = metadata.get(NOTES)
    if isinstance(remarks, list):
        yield from (str(each)[:300] for each in remarks[:10])
    if columns.malformed:
        yield f"{columns.malformed} malformed events were left out"
    begun, ended = columns.halves.left_out
    if begun or ended:
        # The ends of a recording cut a few.
        many = "malformed: " if begun + ended > FEW_HALVES * events else ""
        yield (
            f"{many}{counted(begun, 'event')} without an end (B without E) and"
            f" {counted(ended, 'end')} without a beginning (E without B) were left out"
        )
    if columns.overhead_ns:
        yield f"the profiler's own bookkeeping took {columns.overhead_ns / 1e6:.1f} ms on the host"
    if impossible:
        yield (
            f"{impossible} events have impossible times (zero, negative or longer than a day) and"
            " were left out"
        )


def _plausible(rows: _Rows, dropped: list[int]) -> _Rows:
    """Return the rows whose times can be true; the number of the others is appended to `dropped`.

    A start of zero is a time that was never filled in, unless the whole capture's clock begins
    there.
    """
    start, duration = rows["start"], rows["duration"]
    if _are_plausible(start, duration):
        dropped.append(0)
        return rows
    bad = (duration < 0) | (duration > LONGEST_NS) | (start < 0)
    good = start[~bad & (start > 0)][:100_000]
    if len(good):
        # The median, of the first 100,000: times of day and times since start do not mix in a
        # file.
        middle = np.partition(good, (len(good) - 1) // 2)[(len(good) - 1) // 2]
        bad |= (start > middle + LONGEST_NS) | (start < middle - LONGEST_NS)
        bad |= (start == 0) & (middle > CLOCK_BEGINS_NS)
    dropped.append(int(bad.sum()))
    if dropped[-1]:
        return {name: values[~bad] for name, values in rows.items()}
    return rows


def _are_plausible(start: Ints, duration: Ints) -> bool:
    """Return True if all times of a table can be true, as nearly always: told from their bounds,
    since masks of all rows take fresh memory. Rows that start a day apart are looked at one by one.
    """
    if not len(start):
        return True
    first, last = int(start.min()), int(start.max())
    whole = duration.min() >= 0 and duration.max() <= LONGEST_NS
    return bool(whole and first > 0 and last - first <= LONGEST_NS)


def _everywhere(rank: int, rows: _Rows) -> NDArray[np.int32]:
    """Return the rank for every row; it takes no memory."""
    return np.broadcast_to(np.int32(rank), len(rows["start"]))


def _host_table(rows: _Rows, rank: int) -> HostTable:
    table = fill_table(HostTable, **_with_end(rows), rank=_everywhere(rank, rows))
    return sort_table(table, in_place=True)


def _with_end(rows: _Rows) -> _Rows:
    """Turn the durations of rows into their ends."""
    end = rows.pop("duration")
    end += rows["start"]
    return {**rows, "end": end}


def _device_table(rows: _Rows, strings: tuple[str, ...], rank: int) -> DeviceTable:
    kind = rows["kind"]
    communicates = np.array([is_communication(name) for name in strings], dtype=bool)
    copies = np.array([copy_of(name) for name in strings], dtype=np.int8).reshape(-1, 2)
    if len(kind):
        # Kineto calls NCCL's kernels kernels like any other.
        kind[(kind == ActivityKind.KERNEL) & communicates[rows["name"]]] = (
            ActivityKind.COMMUNICATION
        )
    is_copy = kind == ActivityKind.COPY
    table = fill_table(
        DeviceTable,
        **_with_end(rows),
        rank=_everywhere(rank, rows),
        direction=np.where(is_copy, copies[rows["name"], 0] if len(strings) else 0, 0),
        host_memory=np.where(is_copy, copies[rows["name"], 1] if len(strings) else 0, 0),
    )
    return sort_table(table, in_place=True)


def _devices(metadata: dict[str, Any], table: DeviceTable, rank: int) -> tuple[DeviceInfo, ...]:
    """Return the devices that did something, with what the capture says of them."""
    described = metadata.get("deviceProperties")
    if isinstance(described, list):
        by_index = {_small(d.get("id")): d for d in described if isinstance(d, dict)}
    else:
        by_index = {}
    devices = []
    for index in np.unique(table.device).tolist():
        facts = by_index.get(index, {})
        if facts:
            capability = f"{_small(facts.get('computeMajor'))}.{_small(facts.get('computeMinor'))}"
        else:
            capability = ""
        devices.append(
            DeviceInfo(
                rank=rank,
                index=index,
                name=str(facts.get("name", ""))[:120],
                multiprocessors=_small(facts.get("numSms")),
                compute_capability=capability,
                memory_bytes=_small(facts.get("totalGlobalMem")),
            )
        )
    return tuple(devices)


def _small(value: Any) -> int:
    if isinstance(value, int) and 0 <= value < 2**62:
        return value
    return 0
