"""Tables of an nsys export → tables of a timeline: one function a kind of activity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.names import is_communication, is_range
from bottleneck_lab.trace.nsys.export import Export, quoted
from bottleneck_lab.trace.nsys.numbering import Ranks, Strings, Threads, occurring, pid_of
from bottleneck_lab.trace.nsys.rows import NUMBER_MARKS, Rows
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceInfo,
    DeviceTable,
    Direction,
    HostMemory,
    HostTable,
    Ints,
    Thread,
    concatenate,
    devices_of,
    make_table,
)

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

_LONGEST_NS = 86_400_000_000_000
"""A day."""

_VERSION = re.compile(r"_v\d+(?:_ptsz)?$|_ptsz$")


def read_strings(export: Export) -> Strings:
    """Return the file's own strings; none where it has no table of them."""
    if "StringIds" not in export.columns:
        return Strings([])
    query = """SELECT id, value FROM "StringIds" WHERE typeof(id) = 'integer'"""
    return Strings(export.rows("StringIds", query))


def read_device(export: Export, strings: Strings, ranks: Ranks, notes: list[str]) -> DeviceTable:
    """Return all that ran on devices. Rows with impossible times are left out, with a note."""
    return concatenate(
        [
            _read_kernels(export, strings, ranks, notes),
            _read_copies(export, strings, ranks, notes),
            *_read_others(export, strings, ranks, notes),
        ]
    )


def _read_kernels(export: Export, strings: Strings, ranks: Ranks, notes: list[str]) -> DeviceTable:
    """Return the kernels, of which those that communicate are told by their names."""
    rows = _plausible(export.table("CUPTI_ACTIVITY_KIND_KERNEL"), notes)
    name = strings.look_up(rows["kernelName"])
    communicates = np.array([is_communication(value) for value in strings.values], dtype=bool)
    kind = np.where(
        communicates[name], np.int8(ActivityKind.COMMUNICATION), np.int8(ActivityKind.KERNEL)
    )
    return _activities(rows, ranks, name, kind, grid=rows["grid"], block=rows["block"])


def _read_copies(export: Export, strings: Strings, ranks: Ranks, notes: list[str]) -> DeviceTable:
    """Return the copies, with their direction and the memory on the host's side."""
    rows = _plausible(export.table("CUPTI_ACTIVITY_KIND_MEMCPY"), notes)
    # The host's memory is the target of a copy to the host, else the source.
    host_side = np.where(rows["copyKind"] == 2, rows["dstKind"], rows["srcKind"])
    return _activities(
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


def _read_others(
    export: Export, strings: Strings, ranks: Ranks, notes: list[str]
) -> Iterator[DeviceTable]:
    """Yield memsets, waits, and CUDA graphs that were recorded as wholes."""
    memsets = _plausible(export.table("CUPTI_ACTIVITY_KIND_MEMSET"), notes)
    yield _activities(
        memsets,
        ranks,
        np.full(len(memsets), strings.add("Memset")),
        ActivityKind.MEMSET,
        bytes=memsets["bytes"],
    )
    syncs = _plausible(export.table("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"), notes)
    yield _activities(
        syncs, ranks, _named(strings, syncs["syncType"], _SYNC_NAMES, ""), ActivityKind.SYNC
    )
    graphs = _plausible(export.table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"), notes)
    if len(graphs):
        notes.append(
            f"{len(graphs)} CUDA graph launches were recorded without their kernels (use"
            " --cuda-graph-trace=node)"
        )
    yield _activities(
        graphs, ranks, np.full(len(graphs), strings.add("CUDA graph")), ActivityKind.KERNEL
    )


def read_calls(export: Export, strings: Strings, threads: Threads) -> HostTable:
    """Return the calls of the runtime."""
    rows = export.table("CUPTI_ACTIVITY_KIND_RUNTIME")
    rows = rows.only((rows["start"] >= 0) & (rows["end"] >= rows["start"]))
    # cudaLaunchKernel_v7000 is cudaLaunchKernel: names are cleaned once each, not once a row.
    names = strings.look_up(rows["nameId"])
    plain = {n: strings.add(_VERSION.sub("", strings.values[n])) for n in occurring(names)}
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


def read_ranges(export: Export, strings: Strings, threads: Threads) -> tuple[HostTable, HostTable]:
    """Return (ranges, operators): `emit_nvtx` and nsys' own PyTorch tracing write operators as
    ranges with their full names.
    """
    if not {"start", "end", "eventType"} <= export.columns.get("NVTX_EVENTS", set()):
        return make_table(HostTable), make_table(HostTable)
    rows = export.table("NVTX_EVENTS")
    rows = rows.only((rows["start"] >= 0) & (rows["end"] >= rows["start"]))
    names = strings.look_up(rows["textId"])
    if "text" in rows.columns:
        added = np.array(
            [strings.add(name.decode()) for name in rows.meanings["text"]] + [0], dtype=np.int32
        )
        names = np.where(rows["text"] >= 0, added[rows["text"]], names)
    used = occurring(names)
    # Names are looked at once each, not once a row.
    renamed = np.arange(len(strings.values) + len(used) + 1, dtype=np.int32)
    operator = np.zeros(len(strings.values) + len(used) + 1, dtype=bool)
    for number in used:
        value = strings.values[number]
        renamed[number] = strings.add(_MARKS.split(value, 1)[0]) if _MARKS.search(value) else number
        operator[number] = bool(_OPERATOR.match(value)) and not is_range(value)
    is_operator = operator[names]
    columns = {
        "start": rows["start"],
        "end": rows["end"],
        "name": renamed[names],
        **threads.of(rows),
    }
    del rows, names
    if is_operator.all() or not is_operator.any():  # nothing to tell apart needs no copy
        table, nothing = make_table(HostTable, len(is_operator), **columns), make_table(HostTable)
        return (nothing, table) if is_operator.any() else (table, nothing)
    ranges, operators = (
        make_table(
            HostTable, int(mask.sum()), **{name: values[mask] for name, values in columns.items()}
        )
        for mask in (~is_operator, is_operator)
    )
    return ranges, operators


def list_threads(export: Export, strings: Strings, threads: Threads) -> tuple[Thread, ...]:
    """Return the threads that have any row, with their names where these were recorded."""
    named = export.table("ThreadNames")
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


def list_devices(export: Export, device: DeviceTable) -> tuple[DeviceInfo, ...]:
    """Return the devices that have any row, described as far as the export does."""
    described = {}
    wanted = ("id", "name", "smCount", "totalMemory", "computeMajor", "computeMinor")
    there = export.columns.get("TARGET_INFO_GPU", set())
    if {"id", "name"} <= there:
        picked = ", ".join(quoted(c) if c in there else "0" for c in wanted)
        described = {
            row[0]: row
            for row in export.rows("TARGET_INFO_GPU", f'SELECT {picked} FROM "TARGET_INFO_GPU"')
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


def read_facts(export: Export) -> dict[str, str]:
    """Return the version of the tool and of the schema, from wherever this generation keeps them,
    and when the report's clock began (Unix time), under Kineto's key.

    Nothing that names the machine or its user.
    """
    facts: dict[str, str] = {}
    if "utcEpochNs" in export.columns.get("TARGET_INFO_SESSION_START_TIME", set()):
        began = (
            "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME WHERE typeof(utcEpochNs) ="
            " 'integer' LIMIT 1"
        )
        for (ns,) in export.rows("TARGET_INFO_SESSION_START_TIME", began):
            facts["baseTimeNanoseconds"] = str(ns)
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if {"name", "value"} <= export.columns.get(table, set()):
            wanted = ("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION")
            facts |= {
                str(n): str(v)[:40]
                for n, v in export.rows(table, f'SELECT name, value FROM "{table}"')
                if n in wanted
            }
    return facts


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


def _activities(
    rows: Rows, ranks: Ranks, name: NDArray[Any], kind: Any, **more: NDArray[Any]
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


def _named(strings: Strings, values: Ints, names: dict[int, str], prefix: str) -> NDArray[np.int32]:
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
