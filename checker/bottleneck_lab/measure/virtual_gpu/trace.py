"""A run on the virtual GPU as a capture in Kineto's format: every row modelled and named so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip
from msgspec.structs import replace

from bottleneck_lab.measure.emulated_row import emulated_row
from bottleneck_lab.measure.virtual_gpu.books import Books
from bottleneck_lab.measure.virtual_gpu.clock import Span
from bottleneck_lab.measure.virtual_gpu.spec import GpuSpec
from bottleneck_lab.trace.names import LINES_OF, MODELLED_HOST

HOST, DEVICE, STREAM = 1000, 0, 7
LINES = f"{LINES_OF}{HOST}"
"""The track of the program's lines."""
DISPATCH_SHARE = 0.65
"""Of the host's time for an operator, what passes before the driver's own call."""
_CALLS = {
    "launch": "cudaLaunchKernel",
    "copy": "cudaMemcpyAsync",
    "wait": "cudaStreamSynchronize",
    "await_event": "cudaEventSynchronize",
    "pin": "cudaHostAlloc",
    "allocate": "cudaMalloc",
}
_STARTS = ("launch", "copy")
_COPIES = {"h2d": "Memcpy HtoD ({} -> Device)", "d2h": "Memcpy DtoH (Device -> {})"}
_MEMORY = {True: "Pinned", False: "Pageable"}


def write_trace(books: Books, spec: GpuSpec, trace: Path, *, skip_steps: int = 0) -> None:
    """Write the timeline to `trace` (.json.gz), without the first steps: they warm up."""
    steps = [span for span in books.spans if span.kind == "step"]
    begin = steps[skip_steps].start_us if len(steps) > skip_steps else 0.0
    spans = [span for span in books.spans if span.start_us >= begin]
    content = {
        "schemaVersion": 1,
        "emulated": f"Modelled times of {spec.name}; not a capture of a GPU.",
        MODELLED_HOST: 1,
        "assumptions": [spec.source],
        "deviceProperties": [{"id": DEVICE, "name": f"emulated: {spec.name}"}],
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "with_stack": 1,
        "profile_memory": 1,
        "traceEvents": [
            *_labels(),
            *_lines(spans),
            *_operators(spans),
            *_rows(spans),
            *_memory(books, begin),
        ],
    }
    trace.write_bytes(igzip.compress(msgspec.json.encode(content), compresslevel=2))


def _labels() -> Iterator[dict[str, Any]]:
    for pid, tid, kind, name in (
        (HOST, 0, "process_name", "host (emulated)"),
        (HOST, HOST, "thread_name", "thread of the program (emulated)"),
        (DEVICE, 0, "process_name", "virtual GPU 0 (emulated)"),
        (DEVICE, STREAM, "thread_name", f"stream {STREAM} (emulated)"),
    ):
        yield {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _lines(spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    """Yield the program's lines, as the frames of a stack: one row for as long as the host was in a
    line.
    """
    hosts = (span for span in spans if span.line and span.kind in (*_CALLS, "collect"))
    for line, group in groupby(hosts, key=lambda span: span.line):
        rows = list(group)
        yield emulated_row("python_function", line, rows[0].start_us, rows[-1].end_us, HOST, LINES)


def _operators(spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    """Yield the operators that the program calls: one that waits does so at its end."""
    calls: list[Span] = []
    for span in spans:
        if span.kind in _STARTS:
            calls.append(span)
        elif span.kind == "wait" and calls and span.name == calls[-1].name:
            calls[-1] = replace(calls[-1], end_us=span.end_us)
    for call in calls:
        yield _host_row("cpu_op", f"aten::{call.name}", call)


def _rows(spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    for span in spans:
        if span.kind == "step":
            yield _host_row("user_annotation", f"ProfilerStep#{span.name}", span)
        elif span.kind in ("range", "collect"):
            yield _host_row("user_annotation", span.name, span)
        elif span.kind in _CALLS:
            # Of an operator's time, Python's and the dispatcher's comes before the driver's call.
            passed = DISPATCH_SHARE if span.kind in _STARTS else 0.0
            begin_us = span.start_us + passed * (span.end_us - span.start_us)
            call = replace(span, start_us=begin_us)
            yield _host_row("cuda_runtime", _CALLS[span.kind], call, correlation=span.correlation)
        else:
            yield _device_row(span)


def _memory(books: Books, begin_us: float) -> Iterator[dict[str, Any]]:
    for change in books.changes:
        # What the step before has let go of is gone as the first one recorded begins.
        if change.at_us > begin_us:
            yield {
                "ph": "i",
                "s": "t",
                "name": "[memory]",
                "cat": "cpu_instant_event",
                "pid": HOST,
                "tid": HOST,
                "ts": round(change.at_us, 3),
                "args": {
                    "emulated": True,
                    "line": change.stack,
                    "Device Type": 1,
                    "Device Id": DEVICE,
                    "Addr": change.storage,
                    "Bytes": change.nbytes,
                    "Total Allocated": change.allocated,
                },
            }


def _host_row(category: str, name: str, span: Span, **about: Any) -> dict[str, Any]:
    return emulated_row(category, name, span.start_us, span.end_us, HOST, HOST, **about)


def _device_row(span: Span) -> dict[str, Any]:
    about: dict[str, Any] = {
        "device": DEVICE,
        "context": 1,
        "stream": STREAM,
        "correlation": span.correlation,
        "bytes": span.nbytes,
    }
    if span.kind == "kernel":
        return emulated_row(
            "kernel", f"emulated: {span.name}", span.start_us, span.end_us, DEVICE, STREAM, **about
        )
    name = _COPIES[span.kind].format(_MEMORY[span.pinned])
    return emulated_row("gpu_memcpy", name, span.start_us, span.end_us, DEVICE, STREAM, **about)
