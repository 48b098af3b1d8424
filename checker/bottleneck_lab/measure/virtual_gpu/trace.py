"""A run on the virtual GPU as a capture in Kineto's format: every row modelled and named so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip

from bottleneck_lab.measure.emulated_row import emulated_row
from bottleneck_lab.measure.virtual_gpu.books import Books
from bottleneck_lab.measure.virtual_gpu.clock import Span
from bottleneck_lab.measure.virtual_gpu.spec import GpuSpec
from bottleneck_lab.trace.names import LINES_OF, MODELLED_HOST

HOST, DEVICE, STREAM = 1000, 0, 7
LINES = f"{LINES_OF}{HOST}"
"""The track of the program's lines."""
DISPATCH_SHARE = 0.65
"""Of the host's time for an operator, what passes before the driver's own call: Python and
PyTorch's dispatcher.
"""
_HOST_ROWS = {
    "launch": ("cuda_runtime", "cudaLaunchKernel"),
    "wait": ("cuda_runtime", "cudaStreamSynchronize"),
    "pin": ("cuda_runtime", "cudaHostAlloc"),
}
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
        "traceEvents": [*_labels(), *_lines(spans), *_rows(spans), *_memory(books, begin)],
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
    hosts = (span for span in spans if span.kind in _HOST_ROWS and span.line)
    for line, group in groupby(hosts, key=lambda span: span.line):
        rows = list(group)
        yield emulated_row("python_function", line, rows[0].start_us, rows[-1].end_us, HOST, LINES)


def _rows(spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    for span in spans:
        if span.kind == "step":
            yield emulated_row(
                "user_annotation",
                f"ProfilerStep#{span.name}",
                span.start_us,
                span.end_us,
                HOST,
                HOST,
            )
        elif span.kind == "range":
            yield emulated_row("user_annotation", span.name, span.start_us, span.end_us, HOST, HOST)
        elif span.kind in _HOST_ROWS:
            category, name = _HOST_ROWS[span.kind]
            if span.name.startswith("copy"):
                name = "cudaMemcpyAsync"
            if span.kind != "pin":
                # A wait is called "wait for NAME", a copy "copy h2d" or the like.
                operator = "copy_" if "copy" in span.name else span.name.split()[-1]
                yield emulated_row(
                    "cpu_op", f"aten::{operator}", span.start_us, span.end_us, HOST, HOST
                )
            begin = span.start_us
            if span.kind == "launch":
                begin += DISPATCH_SHARE * (span.end_us - span.start_us)
            yield emulated_row(
                category, name, begin, span.end_us, HOST, HOST, correlation=span.correlation
            )
        else:
            yield _device_row(span)


def _memory(books: Books, begin_us: float) -> Iterator[dict[str, Any]]:
    for change in books.changes:
        if change.at_us >= begin_us:
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
                    "line": change.line,
                    "Device Type": 1,
                    "Device Id": DEVICE,
                    "Addr": change.storage,
                    "Bytes": change.nbytes,
                    "Total Allocated": change.allocated,
                },
            }


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
