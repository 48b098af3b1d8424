"""Writes the rows of an emulated device into a trace beside the real CPU events, named as what they are."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.accelerators import Stated
from bottleneck_lab.measure.feed import Step

DEVICE, COMPUTE_STREAM = 0, 7
PREFIX = "emulated: "


def add_device_rows(trace: Path, steps: Sequence[Step], stated: Stated, batch: int) -> None:
    """Adds one kernel-like row a part of each step that lies within the trace, and takes out what names the host.

    `trace` is a gzipped Chrome trace of torch.profiler; it is replaced as a whole.
    """
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    for private in ("host_name", "hostname", "trace_name"):
        content.pop(private, None)
    content["emulatedDevice"] = f"{stated.name}; {stated.source}"
    begin, end = _span_us(content["traceEvents"])
    base_ns = int(content.get("baseTimeNanoseconds", 0))
    offset_ns = time.time_ns() - time.monotonic_ns() - base_ns
    rows = [
        row
        for step in steps
        for row in _rows(step, stated, batch, offset_ns)
        if begin <= row["ts"] and row["ts"] + row["dur"] <= end
    ]
    content["traceEvents"] += [*rows, *_labels()]
    with gzip.open(trace, "wt", encoding="utf-8") as file:
        json.dump(content, file)


def _span_us(events: list[dict[str, Any]]) -> tuple[float, float]:
    """Begin and end of the recorded steps, in the trace's own µs."""
    steps = [
        event for event in events if event.get("ph") == "X" and str(event.get("name", "")).startswith("ProfilerStep#")
    ]
    spans = steps or [event for event in events if event.get("ph") == "X"]
    return min(event["ts"] for event in spans), max(event["ts"] + event["dur"] for event in spans)


def _rows(step: Step, stated: Stated, batch: int, offset_ns: int) -> Iterator[dict[str, Any]]:
    total_ms, at_ns = sum(stated.parts_ms.values()), step.started_ns
    for part, part_ms in stated.parts_ms.items():
        length_ns = (step.ended_ns - step.started_ns) * part_ms / total_ms
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": f"{PREFIX}ResNet-50 {part} (batch {batch})",
            "pid": DEVICE,
            "tid": COMPUTE_STREAM,
            "ts": (at_ns + offset_ns) / 1000,
            "dur": length_ns / 1000,
            "args": {"device": DEVICE, "stream": COMPUTE_STREAM, "emulated": True},
        }
        at_ns += round(length_ns)


def _labels() -> list[dict[str, Any]]:
    process = {"name": "process_name", "ph": "M", "pid": DEVICE, "tid": 0, "args": {"name": "emulated GPU"}}
    stream = {
        "name": "thread_name",
        "ph": "M",
        "pid": DEVICE,
        "tid": COMPUTE_STREAM,
        "args": {"name": f"stream {COMPUTE_STREAM} (emulated)"},
    }
    return [process, stream]
