"""The one-call form for other people's scripts and CI."""

from __future__ import annotations

from pathlib import Path

from bottleneck_lab.analysis.findings import Finding
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.trace.load import load
from bottleneck_lab.trace.timeline import Timeline


def findings(capture: Timeline | Path | str) -> list[Finding]:
    """Return what stands out in a capture, the costliest first. Takes a timeline, or a path and
    loads it; raises CaptureError when it cannot be read.
    """
    return summarise(capture if isinstance(capture, Timeline) else load(capture)).findings
