"""The gaps in a device's work: how much idle time each cause took, and the largest ones."""

from __future__ import annotations

import msgspec
import numpy as np

from bottleneck_lab.analysis.causes import CAUSE_OF, Cause, Sureness
from bottleneck_lab.analysis.device.time import CPU, DeviceRows, DeviceTime
from bottleneck_lab.analysis.host.lines import lines_during, operator_during, places_during
from bottleneck_lab.analysis.host.view import HostView
from bottleneck_lab.trace.timeline import Ints, Timeline
from bottleneck_lab.wording import counted

LARGEST = 20
"""Number of gaps that are listed."""
LEAST_LINE_SHARE = 0.05
"""The lines of a cause below this share (0-1) of the time are not looked for."""


class GapCause(msgspec.Struct, frozen=True):
    """Idle time of one cause. `gaps` counts the gaps it has the largest part of; `evidence` is one
    sentence; `sure` says what the cause rests on; `line` is the user's own code that ran for most
    of it, or the operator in work on the host; empty where neither was recorded. `inside`: the
    lines or marked ranges that the host was in meanwhile, each with its part of `idle_ns`.
    """

    cause: Cause
    idle_ns: int
    share_of_wall: float
    gaps: int
    evidence: str
    sure: Sureness = "certain"
    line: str = ""
    inside: list[tuple[str, int]] = []


class Gap(msgspec.Struct, frozen=True):
    """One stretch without device work and its main cause, None if that is hidden. `before` and
    `after` name the activities around it.
    """

    start_ns: int
    end_ns: int
    cause: Cause | None
    before: str
    after: str
    sure: Sureness = "certain"


def explain_gaps(
    timeline: Timeline, time: DeviceTime, rows: DeviceRows, host: HostView
) -> tuple[list[GapCause], list[Gap]]:
    """Return (idle time by cause, which sums to `time.idle.total`; the largest gaps) of one device,
    both largest first.
    """
    main = _main_causes(time)
    counts = np.bincount(main, minlength=len(time.causes)).tolist()
    causes = [
        _explain(timeline, time, host, cause, count)
        for cause, count in zip(time.causes, counts, strict=True)
        if time.causes[cause].total
    ]
    return sorted(causes, key=lambda row: -row.idle_ns), _largest(timeline, time, rows, host, main)


def _main_causes(time: DeviceTime) -> Ints:
    """Return for every gap the position of the cause that covers most of it."""
    idle = time.idle
    main, most = np.zeros((2, len(idle.start)), dtype=np.int64)
    for i, part in enumerate(time.causes.values()):
        # Each stretch lies in one gap.
        gap = np.searchsorted(idle.start, part.start, side="right") - 1
        covered = np.bincount(gap, weights=part.lengths, minlength=len(idle.start))
        main[covered > most] = i
        most = np.maximum(most, covered)
    return main


def _explain(
    timeline: Timeline, time: DeviceTime, host: HostView, cause: Cause, count: int
) -> GapCause:
    """Return the idle time of one cause, which has the largest part of `count` gaps."""
    part, row = time.causes[cause], CAUSE_OF[cause]
    share = part.total / time.window.length
    state, sentence = "idle", row.sentence
    if not len(timeline.device):
        state, sentence = "without an operator", row.cpu_sentence or row.sentence
    evidence = (
        f"{part.total / 1e6:.2f} ms {state} ({share:.1%} of the time), mostly in"
        f" {counted(count, 'gap')}, in which {sentence}."
    )
    line, inside = "", []
    if share >= LEAST_LINE_SHARE:
        inside = places_during(timeline, part, time.rank)
        line = lines_during(timeline, part, time.rank)
        if not line and cause == "host":
            line = operator_during(timeline, part, time.rank)
    sure = how_sure(cause, host)
    return GapCause(cause, part.total, share, count, evidence, sure, line, inside)


def _largest(
    timeline: Timeline, time: DeviceTime, rows: DeviceRows, host: HostView, main: Ints
) -> list[Gap]:
    """Return the largest gaps. `main`: for each gap, the position of its main cause."""

    def name_of(row: int) -> str:
        """Return the name of a row of the device; "" beyond its ends and for a CPU's."""
        if time.device == CPU or not 0 <= row < len(rows.name):
            return ""
        return timeline.strings[int(rows.name[row])]

    causes = tuple(time.causes)
    gaps = []
    for i in np.argsort(-time.idle.lengths, kind="stable")[:LARGEST].tolist():
        start, end, cause = int(time.idle.start[i]), int(time.idle.end[i]), causes[int(main[i])]
        before = name_of(int(np.searchsorted(rows.start, start)) - 1)
        after = name_of(int(np.searchsorted(rows.start, end)))
        gaps.append(Gap(start, end, cause, before, after, how_sure(cause, host)))
    return gaps


def how_sure(cause: Cause, host: HostView) -> Sureness:
    """Return what a cause rests on."""
    # Without frames there is no telling what Python did while it launched nothing.
    if cause == "python" and not host.stacks:
        return "unsure"
    return CAUSE_OF[cause].sure
