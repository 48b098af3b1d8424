"""Writes the rows of the device that was fed into a trace beside the host's events: an emulated
one's are named as what they are.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.channel.messages import Trained
from bottleneck_lab.measure.kinds.input_pipeline import InputPipelineSettings

DEVICE, COMPUTE_STREAM = 0, 7
PREFIX = "emulated: "
STANDS_FOR = (
    "an accelerator whose time for a step is set by what the shipped loader takes on this machine"
)


Row = tuple[str, int, int]
"""What the device did: its name, begin and end in ns of the monotonic clock."""


def add_device_rows(
    trace: Path, steps: Sequence[Trained], settings: InputPipelineSettings, *, emulated: bool
) -> None:
    """Adds kernel-like rows for each step that lies within the trace.

    An emulated device's step is cut into the parts of what it stands for. A real one's is one row,
    of which nothing more is known.
    """
    rows = [row for step in steps for row in _parts(step, settings)]
    stands_for = settings.stands_for
    said = f"{stands_for.name}; {stands_for.source}" if stands_for else STANDS_FOR
    add_rows(trace, rows, said if emulated else None)


def add_rows(trace: Path, rows: Iterable[Row], emulated: str | None, *, cut: bool = False) -> None:
    """Adds what the device did within the trace as kernel-like rows, and takes out what names the
    host. A row across an end is `cut`, or left out.

    `emulated` says what an emulated device stands for. `trace` is a gzipped Chrome trace of
    torch.profiler; it is replaced as a whole.
    """
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    for private in ("host_name", "hostname", "trace_name"):
        content.pop(private, None)
    if emulated:
        content["emulatedDevice"] = emulated
    begin, end = _span_us(content["traceEvents"])
    base_ns = int(content.get("baseTimeNanoseconds", 0))
    offset_ns = time.time_ns() - time.monotonic_ns() - base_ns
    kernels = [_kernel(row, offset_ns, emulated is not None) for row in rows]
    if cut:
        kernels = [
            _cut(row, begin, end)
            for row in kernels
            if row["ts"] < end and row["ts"] + row["dur"] > begin
        ]
    content["traceEvents"] += [
        row for row in kernels if cut or (begin <= row["ts"] and row["ts"] + row["dur"] <= end)
    ]
    content["traceEvents"] += _labels(emulated is not None)
    with gzip.open(trace, "wt", encoding="utf-8") as file:
        json.dump(content, file)


def _span_us(events: list[dict[str, Any]]) -> tuple[float, float]:
    """Begin and end of the recorded steps, in the trace's own µs. Where a GPU is recorded, Kineto
    draws them once more beside its kernels.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    marked = [event for event in spans if event.get("cat") == "user_annotation"]
    spans = [
        event for event in marked if str(event.get("name", "")).startswith("ProfilerStep#")
    ] or spans
    return min(event["ts"] for event in spans), max(event["ts"] + event["dur"] for event in spans)


def _parts(step: Trained, settings: InputPipelineSettings) -> Iterator[Row]:
    parts = settings.stands_for.parts_ms if settings.stands_for else {"training step": 1.0}
    total, at_ns = sum(parts.values()), step.started_ns
    for part, weight in parts.items():
        length_ns = round((step.ended_ns - step.started_ns) * weight / total)
        yield f"{settings.model} {part} (batch {settings.batch})".lstrip(), at_ns, at_ns + length_ns
        at_ns += length_ns


def _kernel(row: Row, offset_ns: int, emulated: bool) -> dict[str, Any]:
    name, begin_ns, end_ns = row
    mark = {"emulated": True} if emulated else {}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"{PREFIX if emulated else ''}{name}",
        "pid": DEVICE,
        "tid": COMPUTE_STREAM,
        "ts": (begin_ns + offset_ns) / 1000,
        "dur": (end_ns - begin_ns) / 1000,
        "args": {"device": DEVICE, "stream": COMPUTE_STREAM, **mark},
    }


def _cut(row: dict[str, Any], begin: float, end: float) -> dict[str, Any]:
    start, stop = max(row["ts"], begin), min(row["ts"] + row["dur"], end)
    return {**row, "ts": start, "dur": max(0.0, stop - start)}


def _labels(emulated: bool) -> list[dict[str, Any]]:
    gpu, stream = (
        ("emulated GPU", f"stream {COMPUTE_STREAM} (emulated)")
        if emulated
        else ("GPU", f"stream {COMPUTE_STREAM}")
    )
    process = {"name": "process_name", "ph": "M", "pid": DEVICE, "tid": 0, "args": {"name": gpu}}
    thread = {
        "name": "thread_name",
        "ph": "M",
        "pid": DEVICE,
        "tid": COMPUTE_STREAM,
        "args": {"name": stream},
    }
    return [process, thread]
