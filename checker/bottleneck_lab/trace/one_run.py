"""Refuse to read captures of unrelated programs as the ranks of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.clocks import clock_base
from bottleneck_lab.trace.timeline import ActivityKind, Timeline, different

APART_NS = 600 * 10**9
"""Ranks of one run begin together; clocks of machines differ by less than this."""
TIME_OF_DAY_NS = 10**18
"""A clock that shows more than this counts from 1970 (this is 2001), not from a machine's start."""
COMMON_SHARE = 0.3
"""Two programs that have less than this share (0-1) of their operators in common differ."""


def refuse_unrelated(timelines: Sequence[Timeline]) -> None:
    """Raise CaptureError for captures that cannot be of one run, with what tells them apart."""
    for other in timelines[1:]:
        if differences := _differences(timelines[0], other):
            names = [Path(each.source).name for each in (timelines[0], other)]
            raise CaptureError(
                f"{names[0]} and {names[1]} are not ranks of one run: {'; '.join(differences)}.",
                "Name one of them, or put the files of one run into a folder of their own."
                " `lab compare OLD NEW` sets two captures against each other.",
            )


def _differences(one: Timeline, other: Timeline) -> list[str]:
    """Return what tells two captures apart; nothing for those of one process, which a profiler
    may take at any time.
    """
    processes = [{thread.pid for thread in each.threads} - {"0"} for each in (one, other)]
    if processes[0] & processes[1]:
        return []
    differences = []
    # Ranks that send each other messages may have different devices, and stages of a pipeline
    # different operators.
    if not (_communicates(one) and _communicates(other)):
        differences += _devices_apart(one, other)
        differences += _programs_apart(one, other)
    began = [_time_of_day(each) for each in (one, other)]
    apart = abs(began[0] - began[1])
    if all(began) and apart > APART_NS:
        hours = apart / 3.6e12
        length = f"{hours:,.0f} hours" if hours >= 2 else f"{apart / 6e10:.0f} minutes"
        differences.append(f"they began {length} apart")
    return differences


def _communicates(timeline: Timeline) -> bool:
    return bool((timeline.device.kind == ActivityKind.COMMUNICATION).any())


def _devices_apart(one: Timeline, other: Timeline) -> list[str]:
    names = [sorted({info.name for info in each.devices if info.name}) for each in (one, other)]
    if not all(names) or set(names[0]) & set(names[1]):
        return []
    return [f"they ran on {' and '.join(', '.join(each) for each in names)}"]


def _programs_apart(one: Timeline, other: Timeline) -> list[str]:
    operators = [
        {each.strings[name] for name in different(each.operators.name).tolist()}
        for each in (one, other)
    ]
    common, together = len(operators[0] & operators[1]), len(operators[0] | operators[1])
    if not all(operators) or common >= COMMON_SHARE * together:
        return []
    return [f"they ran different programs, with {common} of {together} operators in common"]


def _time_of_day(timeline: Timeline) -> int:
    """Return when a capture began, ns since 1970; 0 where it does not say."""
    began = clock_base(timeline) + timeline.extent[0]
    return began if began > TIME_OF_DAY_NS else 0
