"""Traces that a test makes up, written and read as a capture is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bottleneck_lab import load, summarise
from bottleneck_lab.analysis.summary import Summary
from bottleneck_lab.trace.timeline import Timeline


def load_trace(folder: Path, trace: dict[str, Any]) -> Timeline:
    """Write a trace into the folder and read it."""
    path = folder / "x.json"
    path.write_text(json.dumps(trace))
    return load(path)


def load_events(folder: Path, events: list[dict[str, Any]]) -> Timeline:
    """Write a trace of nothing but these events into the folder and read it."""
    return load_trace(folder, {"traceEvents": events})


def summarise_run(folder: Path, run: Any, **facts: Any) -> Summary:
    """Return what a made-up program's trace shows. `facts` stand beside its events."""
    return summarise(load_trace(folder, run.trace() | facts))
