"""Execution traces → `Timeline`: PyTorch's as JSON, where Chakra has linked times to them, and
Chakra's own protobuf.

An execution trace is a graph of operators and their dependencies. PyTorch's observer records no
times: chakra_trace_link adds those of a Kineto trace (`ts`, `inclusive_dur`, in µs). Nodes become
the events of a Chrome trace and are then read as such.

Formats: `nodes` as in torch/csrc/profiler/standalone/execution_trace_observer.cpp; the protobuf as
in et_def.proto of mlcommons/chakra, each message preceded by its length.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.foreign import varint
from bottleneck_lab.trace.kineto.events import DEVICE_CATEGORIES
from bottleneck_lab.trace.kineto.reader import read_kineto
from bottleneck_lab.trace.timeline import Timeline

_JSON = re.compile(rb'"schema"\s*:\s*"|"nodes"\s*:\s*\[')
_PROTOBUF = re.compile(rb"[\x03-\x7f]\x0a[\x01-\x20]\d+\.\d+")
_CALL = re.compile(r"(?:cuda|hip|cu|musa)[A-Z]\w+$")
_MARK = "[pytorch|profiler|"  # the nodes of the process and its threads: they span everything

_NO_TIMES = (
    "Link it with the Kineto trace recorded beside it (`chakra_trace_link`), or pass that trace:"
    " `lab report TRACE.json`."
)

# et_def.proto: fields of Node, and the node types that are communication.
_NAME, _TYPE, _START, _DURATION, _ATTRIBUTE = 2, 3, 6, 7, 10
_SEND, _RECEIVE, _COLLECTIVE = 5, 6, 7
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def is_execution_trace(start: bytes) -> bool:
    """Return True for JSON of an execution trace, by its first bytes."""
    return b'"traceEvents"' not in start and len({*_JSON.findall(start)}) > 1


def is_chakra(start: bytes, name: str) -> bool:
    """Return True for Chakra's protobuf: the length of the first message, and its version."""
    return bool(_PROTOBUF.match(start)) or (name.endswith(".et") and start[:1] != b"{")


def read_execution_trace(data: bytes, source: Path) -> Timeline:
    """Return the timeline of linked JSON. Raises CaptureError if it is damaged or without times."""
    try:
        document = msgspec.json.decode(data)
        nodes = [node for node in document["nodes"] if isinstance(node, dict)]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CaptureError(
            f"{source.name} is a damaged execution trace: {error}.", "Record it again."
        ) from error
    return _timeline([event for node in nodes for event in _node_events(node)], source)


def _node_events(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the event of a node; none for one without times."""
    attributes = {
        str(attribute.get("name")): attribute.get("value")
        for attribute in node.get("attrs") or ()
        if isinstance(attribute, dict)
    }
    name, start = str(node.get("name", "")), node.get("ts")
    duration = node.get("inclusive_dur", node.get("dur"))
    if not isinstance(start, (int, float)) or not isinstance(duration, (int, float)):
        return
    if name.startswith(_MARK):
        return
    category = str(node.get("cat") or "")
    thread = node.get("tid", attributes.get("tid", 0))
    args: dict[str, Any] = {}
    if category.lower() in DEVICE_CATEGORIES:
        # A kernel depends on the operator that launched it.
        args = {"stream": node.get("stream", 0), "device": 0, "External id": node.get("ctrl_deps")}
    elif _CALL.match(name):
        category = "cuda_runtime"
    else:
        inputs = node.get("inputs")
        category, args = category or "cpu_op", {"External id": node.get("id")}
        if isinstance(inputs, dict):
            types = [
                re.sub(r"^Tensor\((.*)\)$", r"\1", str(each)) for each in inputs.get("types") or ()
            ]
            args |= {"Input Dims": inputs.get("shapes") or [], "Input type": types}
    yield {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": node.get("pid", 0),
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def read_chakra(data: bytes, source: Path) -> Timeline:
    """Return the timeline of Chakra's protobuf. Raises CaptureError as `read_execution_trace`."""
    events: list[dict[str, Any]] = []
    nodes = _messages(data)
    next(nodes, None)  # metadata: the version
    for node in nodes:
        name, kind, start, duration, on_host = "", 0, 0, 0, False
        for field, value in _fields(node):
            if field == _NAME and isinstance(value, bytes):
                name = value.decode("utf-8", "replace")
            elif field == _ATTRIBUTE and isinstance(value, bytes):
                parts = dict(_fields(value))
                if parts.pop(1, b"") == b"is_cpu_op":
                    on_host = any(parts.values())
            elif isinstance(value, int):
                if field == _TYPE:
                    kind = value
                elif field == _START:
                    start = value
                elif field == _DURATION:
                    duration = value
        if not start or not duration:
            continue
        communicates = kind in (_SEND, _RECEIVE, _COLLECTIVE)
        if communicates and not name.lower().startswith("nccl"):
            name = f"nccl:{name}"
        category = "cpu_op" if on_host else "kernel"
        where = {"device": 0, "stream": 1 if communicates else 0}
        event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 0, "ts": start}
        events.append({**event, "dur": duration, "args": {} if on_host else where})
    return _timeline(events, source)


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = varint(data, at)
        yield data[at : at + length]
        at += length


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protobuf message, as far as it is whole."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        value: int | bytes = 0
        if tag & 7 == _VARINT:
            value, at = varint(message, at)
        elif tag & 7 == _BYTES:
            length, at = varint(message, at)
            value, at = message[at : at + length], at + length
        elif tag & 7 in (_FIXED64, _FIXED32):
            size = 8 if tag & 7 == _FIXED64 else 4
            value, at = message[at : at + size], at + size
        else:
            return
        yield tag >> 3, value


def _timeline(events: list[dict[str, Any]], source: Path) -> Timeline:
    if not events:
        raise CaptureError(
            f"{source.name} is an execution trace (a graph of operators) without times.", _NO_TIMES
        )
    chrome = msgspec.json.encode({"traceEvents": events})
    return replace(read_kineto(io.BytesIO(chrome).read, source), format="execution trace")
