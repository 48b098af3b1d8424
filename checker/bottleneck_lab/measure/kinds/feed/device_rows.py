"""Writes the rows of the device that was fed into a trace beside the host's events: an emulated one's are named as what they are."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.channel.messages import Trained
from bottleneck_lab.measure.kinds.feed.device_specs import StepTimes

DEVICE, COMPUTE_STREAM = 0, 7
PREFIX = "emulated: "


def add_device_rows(trace: Path, steps: Sequence[Trained], emulated: StepTimes | None, batch: int) -> None:
    """Adds kernel-like rows for each step that lies within the trace, and takes out what names the host.

    `emulated` is what an emulated device stands for: each step is cut into its parts. A real device's step (None) is one row, of which nothing more is known.
    `trace` is a gzipped Chrome trace of torch.profiler; it is replaced as a whole.
    """
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    for private in ("host_name", "hostname", "trace_name"):
        content.pop(private, None)
    if emulated:
        content["emulatedDevice"] = f"{emulated.name}; {emulated.source}"
    begin, end = _span_us(content["traceEvents"])
    base_ns = int(content.get("baseTimeNanoseconds", 0))
    offset_ns = time.time_ns() - time.monotonic_ns() - base_ns
    rows = [
        row
        for step in steps
        for row in _rows(step, emulated, batch, offset_ns)
        if begin <= row["ts"] and row["ts"] + row["dur"] <= end
    ]
    content["traceEvents"] += [*rows, *_labels(emulated)]
    with gzip.open(trace, "wt", encoding="utf-8") as file:
        json.dump(content, file)


def _span_us(events: list[dict[str, Any]]) -> tuple[float, float]:
    """Begin and end of the recorded steps, in the trace's own µs. Where a GPU is recorded, Kineto draws them once more beside its kernels."""
    spans = [event for event in events if event.get("ph") == "X"]
    marked = [event for event in spans if event.get("cat") == "user_annotation"]
    spans = [event for event in marked if str(event.get("name", "")).startswith("ProfilerStep#")] or spans
    return min(event["ts"] for event in spans), max(event["ts"] + event["dur"] for event in spans)


def _rows(step: Trained, emulated: StepTimes | None, batch: int, offset_ns: int) -> Iterator[dict[str, Any]]:
    parts = emulated.parts_ms if emulated else {"training step": 1.0}
    mark = {"emulated": True} if emulated else {}
    total, at_ns = sum(parts.values()), step.started_ns
    for part, weight in parts.items():
        length_ns = (step.ended_ns - step.started_ns) * weight / total
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": f"{PREFIX if emulated else ''}ResNet-50 {part} (batch {batch})",
            "pid": DEVICE,
            "tid": COMPUTE_STREAM,
            "ts": (at_ns + offset_ns) / 1000,
            "dur": length_ns / 1000,
            "args": {"device": DEVICE, "stream": COMPUTE_STREAM, **mark},
        }
        at_ns += round(length_ns)


def _labels(emulated: StepTimes | None) -> list[dict[str, Any]]:
    gpu, stream = (
        ("emulated GPU", f"stream {COMPUTE_STREAM} (emulated)") if emulated else ("GPU", f"stream {COMPUTE_STREAM}")
    )
    process = {"name": "process_name", "ph": "M", "pid": DEVICE, "tid": 0, "args": {"name": gpu}}
    thread = {"name": "thread_name", "ph": "M", "pid": DEVICE, "tid": COMPUTE_STREAM, "args": {"name": stream}}
    return [process, thread]
