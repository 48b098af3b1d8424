"""What the terminal and the page say about two captures side by side."""

from __future__ import annotations

from bottleneck_lab.analysis.compare import Change, Comparison
from bottleneck_lab.report import words
from bottleneck_lab.report.breakdown import short_name

GROUPS = {
    "step": "The step",
    "device": "What the device did",
    "gap": "Why it stood idle",
    "range": "Ranges",
    "operator": "Operators",
    "kernel": "Kernels",
    "copy": "Copies",
    "sync": "Waits of the host",
}

_LABELS = {
    ("step", "time"): "whole step",
    ("device", "compute"): "computing",
    ("device", "exposed_communication"): "communicating only",
    ("device", "exposed_copy"): "copying only",
}

ALWAYS = ("step", "device", "gap", "range")
"""Groups of which every figure is shown; of the others only what changed by more than the noise."""

TOP = 8

_OUTCOMES = {
    "better": "faster",
    "worse": "slower",
    "same": "no difference beyond the noise",
    "unclear": "too noisy to say",
}


def describe_speedup(comparison: Comparison) -> str:
    """The ratio of the step times, its interval, and what it means."""
    interval = f"{comparison.speedup_low:.2f}x to {comparison.speedup_high:.2f}x"
    kind = "too few steps for a 95% interval; those seen:" if comparison.few_steps else "95% interval"
    return f"{comparison.speedup:.2f}x: {_OUTCOMES[comparison.outcome]} ({kind} {interval})"


def label_change(change: Change) -> str:
    """What changed, in a reader's words."""
    return _LABELS.get((change.group, change.what)) or short_name(change.what)


def format_change_time(ns: float) -> str:
    """A time before or after; a dash for what is not there at all."""
    return words.format_duration(ns) if ns else "–"


def shown_changes(comparison: Comparison, group: str) -> list[Change]:
    """The changes of one group that are worth a line."""
    changes = [change for change in comparison.changes if change.group == group]
    return [change for change in changes if group in ALWAYS or change.outcome != "same"][:TOP]
