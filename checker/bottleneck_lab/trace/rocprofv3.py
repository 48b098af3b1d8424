"""rocprofv3's JSON (`--output-format json`) → `Timeline`.

Its records become the events of a Chrome trace, as Kineto writes them on ROCm, and are then read as
such: kernels, copies, HIP calls and roctx ranges. Format: source/docs/data-format in
ROCm/rocprofiler-sdk; releases differ in what they leave out, so that every field but the times has
a default.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.kineto.reader import read_kineto
from bottleneck_lab.trace.timeline import Timeline

KEY = b'"rocprofiler-sdk-tool"'

# A copy's operation, and the words by which `names.copy_of` tells its direction.
_COPIES = {
    "HOST_TO_DEVICE": "Memcpy HtoD",
    "DEVICE_TO_HOST": "Memcpy DtoH",
    "DEVICE_TO_DEVICE": "Memcpy DtoD",
    "HOST_TO_HOST": "Memcpy HtoH",
}
_GPU = 2  # rocprofiler_agent_type_t


class _Handle(msgspec.Struct):
    handle: int = 0


class _Correlation(msgspec.Struct):
    internal: int = -1
    external: Any = None


class _Size(msgspec.Struct):
    x: int = 1
    y: int = 1
    z: int = 1


class _Dispatch(msgspec.Struct):
    agent_id: _Handle = msgspec.field(default_factory=_Handle)
    queue_id: _Handle = msgspec.field(default_factory=_Handle)
    kernel_id: int = 0
    workgroup_size: _Size = msgspec.field(default_factory=_Size)
    grid_size: _Size = msgspec.field(default_factory=_Size)


class _Record(msgspec.Struct):
    """A record of any kind; `kind` and `operation` are indices into the strings' names."""

    start_timestamp: int
    end_timestamp: int
    kind: int = -1
    operation: int = -1
    thread_id: int = 0
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    dispatch_info: _Dispatch | None = None
    stream_id: _Handle | None = None
    src_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    dst_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    bytes: int = 0


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct):
    key: int = -1
    value: str = ""


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Symbol(msgspec.Struct):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Agent(msgspec.Struct):
    id: _Handle = msgspec.field(default_factory=_Handle)
    type: int = 0
    logical_node_type_id: int = 0
    product_name: str = ""
    name: str = ""
    cu_count: int = 0


class _Buffers(msgspec.Struct):
    kernel_dispatch: list[_Record] = []
    memory_copy: list[_Record] = []
    hip_api: list[_Record] = []
    hsa_api: list[_Record] = []
    marker_api: list[_Record] = []


class _Metadata(msgspec.Struct):
    pid: int = 0


class _Process(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[_Agent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Buffers = msgspec.field(default_factory=_Buffers)


class _Document(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool", default=[])


def read_rocprofv3(data: bytes, source: Path) -> Timeline:
    """Return the timeline of one file, all its processes in it. Raises CaptureError if it is
    damaged or holds no activity.
    """
    try:
        document = msgspec.json.decode(data, type=_Document, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CaptureError(
            f"{source.name} is damaged JSON of rocprofv3: {error}.",
            "Record it again, and let the program run to its end.",
        ) from error
    events = [event for process in document.processes for event in _events(process)]
    if not events:
        raise CaptureError(
            f"{source.name} is JSON of rocprofv3 without any kernel, copy or call.",
            "Record with `rocprofv3 --output-format json --hip-trace --kernel-trace"
            " --memory-copy-trace -- PROGRAM`.",
        )
    gpus = {
        agent.logical_node_type_id: {
            "id": agent.logical_node_type_id,
            "name": agent.product_name or agent.name,
            "numSms": agent.cu_count,
        }
        for process in document.processes
        for agent in process.agents
        if agent.type == _GPU
    }
    chrome = msgspec.json.encode({"deviceProperties": list(gpus.values()), "traceEvents": events})
    timeline = read_kineto(io.BytesIO(chrome).read, source)
    # A compute capability is NVIDIA's notion, and was not in the file.
    devices = tuple(replace(device, compute_capability="") for device in timeline.devices)
    return replace(timeline, format="rocprofv3", devices=devices)


def _events(process: _Process) -> Iterator[dict[str, Any]]:
    """Yield a process's records as events of a Chrome trace."""
    gpus = {
        agent.id.handle: agent.logical_node_type_id
        for agent in process.agents
        if agent.type == _GPU
    }
    yield from _kernels(process, gpus)
    yield from _copies(process, gpus)
    pid, records = process.metadata.pid, process.buffer_records
    # Calls of HSA are made by those of HIP: both would count the same time twice.
    for record in records.hip_api or records.hsa_api:
        args = {"correlation": record.correlation_id.internal}
        name = _operation(process, record)
        yield _event("cuda_runtime", name, record, pid, record.thread_id, args)
    messages = {message.key: message.value for message in process.strings.marker_api}
    for record in records.marker_api:
        name = messages.get(record.correlation_id.internal) or _operation(process, record)
        yield _event("user_annotation", name, record, pid, record.thread_id, {})


def _kernels(process: _Process, gpus: dict[int, int]) -> Iterator[dict[str, Any]]:
    """Yield the kernels. `gpus`: the number of each GPU, by its handle."""
    names = {
        symbol.kernel_id: symbol.formatted_kernel_name
        or symbol.demangled_kernel_name
        or symbol.kernel_name
        for symbol in process.kernel_symbols
    }
    for record in process.buffer_records.kernel_dispatch:
        dispatch = record.dispatch_info or _Dispatch()
        device = gpus.get(dispatch.agent_id.handle, 0)
        threads, block = (
            (size.x, size.y, size.z) for size in (dispatch.grid_size, dispatch.workgroup_size)
        )
        args = {
            "device": device,
            "stream": (record.stream_id or dispatch.queue_id).handle,
            "correlation": record.correlation_id.internal,
            # A grid of HIP counts threads, one of CUDA blocks: the tables hold blocks.
            "grid": [-(-size // max(of, 1)) for size, of in zip(threads, block, strict=True)],
            "block": list(block),
        }
        name = names.get(dispatch.kernel_id, "kernel")
        yield _event("kernel", name, record, device, device, args)


def _copies(process: _Process, gpus: dict[int, int]) -> Iterator[dict[str, Any]]:
    """Yield the copies, each on the GPU that is its source or its target."""
    for record in process.buffer_records.memory_copy:
        operation = _operation(process, record)
        name = next((name for word, name in _COPIES.items() if word in operation), "Memcpy")
        agent = record.src_agent_id if "DtoH" in name else record.dst_agent_id
        device = gpus.get(agent.handle, 0)
        args = {
            "device": device,
            "stream": record.stream_id.handle if record.stream_id else -1,
            "correlation": record.correlation_id.internal,
            "bytes": record.bytes,
        }
        yield _event("gpu_memcpy", name, record, device, device, args)


def _event(
    category: str, name: str, record: _Record, pid: int, tid: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": record.start_timestamp / 1000,  # ns → µs
        "dur": (record.end_timestamp - record.start_timestamp) / 1000,
        "args": args,
    }


def _operation(process: _Process, record: _Record) -> str:
    """Return the name of a record's operation; empty where the file does not say."""
    kinds = process.strings.buffer_records
    if 0 <= record.kind < len(kinds) and 0 <= record.operation < len(kinds[record.kind].operations):
        return kinds[record.kind].operations[record.operation]
    return ""
