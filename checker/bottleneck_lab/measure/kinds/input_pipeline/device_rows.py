"""Add the device's rows to a trace, beside the host's events. Those of an emulated device are named
as what they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bottleneck_lab.measure.channel.messages import Trained
from bottleneck_lab.measure.kinds.input_pipeline import InputPipelineSettings
from bottleneck_lab.measure.kinds.profiling import edited_trace
from bottleneck_lab.trace.names import CALIBRATED, STEP

DEVICE, COMPUTE_STREAM = 0, 7
PREFIX = "emulated: "
STANDS_FOR = (
    "an accelerator whose time for a step is set by what the shipped loader takes on this machine"
)


Row = tuple[str, int, int]
"""A piece of the device's work: name, begin and end in ns of the monotonic clock."""


def add_device_rows(
    trace: Path,
    steps: Sequence[Trained],
    settings: InputPipelineSettings,
    *,
    emulated: bool,
    step_s: float,
) -> None:
    """Add kernel-like rows for each step, and take the mark off the first recorded one. `step_s`:
    what a step of the device was calibrated to.

    A step is cut into the parts of the accelerator that the device stands for, in proportion to
    their published times; without one it is a single row.
    """
    parts_ms, source = {"training step": 1.0}, STANDS_FOR
    if settings.stands_for:
        parts_ms = settings.stands_for.parts_ms
        source = f"{settings.stands_for.name}; {settings.stands_for.source}"
    rows = []
    for step in steps:
        begin_ns = step.started_ns
        for part, weight in parts_ms.items():
            share = weight / sum(parts_ms.values())
            end_ns = begin_ns + round((step.ended_ns - step.started_ns) * share)
            name = f"{settings.model} {part} (batch {settings.batch})".lstrip()
            rows.append((name, begin_ns, end_ns))
            begin_ns = end_ns
    with edited_trace(trace) as content:
        _unmark_first_step(content["traceEvents"])
    add_rows(trace, rows, source if emulated else None, calibrated_s=step_s)


def _unmark_first_step(events: list[dict[str, Any]]) -> None:
    """Remove the first recorded step's mark. While the profiler starts, batches are loaded and the
    device works on: that step finds both queues as no other does.
    """
    marks = [event for event in events if str(event.get("name", "")).startswith(STEP)]
    if len({event["name"] for event in marks}) > 1:
        first = min(marks, key=lambda event: float(event["ts"]))["name"]
        events[:] = [event for event in events if event.get("name") != first]


def add_rows(
    trace: Path, rows: Iterable[Row], emulated: str | None, *, calibrated_s: float
) -> None:
    """Add the device's work to a trace as kernel-like rows, and remove the fields that name the
    host.

    `trace`: a gzipped Chrome trace of torch.profiler, which is rewritten. `emulated`: what an
    emulated device stands for; None for a real one. `calibrated_s`: seconds that a full batch takes
    by this machine's speed. A row that crosses an end of the recorded steps is cut there.
    """
    with edited_trace(trace) as content:
        for private in ("host_name", "hostname", "trace_name"):
            content.pop(private, None)
        if emulated:
            content["emulatedDevice"] = emulated
        content[CALIBRATED] = round(calibrated_s * 1e9)
        begin, end = _span_us(content["traceEvents"])
        base_ns = int(content.get("baseTimeNanoseconds", 0))
        # The device's clock is monotonic; the trace counts Unix time from its own base.
        offset_ns = time.time_ns() - time.monotonic_ns() - base_ns
        for name, begin_ns, end_ns in rows:
            start_us = max(begin, (begin_ns + offset_ns) / 1000)
            length_us = min(end, (end_ns + offset_ns) / 1000) - start_us
            if length_us > 0:
                kernel = _kernel(name, start_us, length_us, emulated is not None)
                content["traceEvents"].append(kernel)
        content["traceEvents"] += _labels(emulated is not None)


def _span_us(events: list[dict[str, Any]]) -> tuple[float, float]:
    """Return begin and end of the recorded steps, in the trace's own µs; of all spans if no step is
    marked.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    steps = [
        event
        for event in spans
        # Only these: beside a recorded GPU's kernels Kineto draws each step once more.
        if event.get("cat") == "user_annotation" and str(event.get("name", "")).startswith(STEP)
    ]
    spans = steps or spans
    return min(event["ts"] for event in spans), max(event["ts"] + event["dur"] for event in spans)


def _kernel(name: str, start_us: float, length_us: float, emulated: bool) -> dict[str, Any]:
    args: dict[str, Any] = {"device": DEVICE, "stream": COMPUTE_STREAM}
    if emulated:
        args["emulated"] = True
        name = f"{PREFIX}{name}"
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": DEVICE,
        "tid": COMPUTE_STREAM,
        "ts": start_us,
        "dur": length_us,
        "args": args,
    }


def _labels(emulated: bool) -> list[dict[str, Any]]:
    gpu, stream = "GPU", f"stream {COMPUTE_STREAM}"
    if emulated:
        gpu, stream = f"emulated {gpu}", f"{stream} (emulated)"
    process = {"name": "process_name", "ph": "M", "pid": DEVICE, "tid": 0, "args": {"name": gpu}}
    thread = {
        "name": "thread_name",
        "ph": "M",
        "pid": DEVICE,
        "tid": COMPUTE_STREAM,
        "args": {"name": stream},
    }
    return [process, thread]
