"""The gaps in a device's work: how much idle time each cause took, and the largest ones."""

from __future__ import annotations

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import CAUSE_OF, Cause, Sureness
from bottleneck_lab.analysis.device.time import CPU, DeviceTime
from bottleneck_lab.analysis.host.lines import (
    NO_OPERATORS,
    lines_during,
    operator_during,
    places_during,
)
from bottleneck_lab.analysis.host.syncs import idle_after_waits
from bottleneck_lab.analysis.host.view import HostView
from bottleneck_lab.trace.timeline import Timeline, TinyInts
from bottleneck_lab.wording import counted

LARGEST = 20
"""Number of gaps that are listed."""
LEAST_LISTED_NS = 2_000
"""A shorter gap is not listed: it is a device's own pause between two kernels, or a rounding."""
LEAST_LINE_SHARE = 0.05
"""The lines of a cause below this share (0-1) of the time are not looked for."""
BESIDE_SHARE = 0.8
"""What another thread did for this share (0-1) of unexplained time may be what it was lost to."""
ON_ANOTHER_THREAD = ", on another thread"
IN_OPERATORS = ("launch", "synchronisation", "copy", "allocation", "host")
"""Causes that operators show better than the ranges around them, where no lines were recorded."""


class GapCause(msgspec.Struct, frozen=True):
    """Idle time of one cause. `gaps` counts the gaps that it has a part of; `evidence` is two
    sentences; `sure` says what the cause rests on; `line` is the user's own code that ran for most
    of it, or the operator in work on the host; empty where neither was recorded. `inside`: the
    lines, operators or marked ranges that the host was in meanwhile, each with its part of
    `idle_ns`. `beside`: where nothing tells what the launching thread did, what another thread was
    in for most of the time; "" if nothing. `nowhere_ns` is the part in which the host was in none
    that was recorded, where that can be told, and `places` is how many there are, of which `inside`
    lists the longest. `after`: of `synchronisation`, the lines, operators or calls that waited
    before, each with the part of `idle_ns` that follows from its waits.
    """

    cause: Cause
    idle_ns: int
    share_of_wall: float
    gaps: int
    evidence: str
    sure: Sureness = "certain"
    line: str = ""
    inside: list[tuple[str, int]] = []
    beside: str = ""
    nowhere_ns: int = 0
    places: int = 0
    after: list[tuple[str, int]] = []


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
    timeline: Timeline, time: DeviceTime, host: HostView
) -> tuple[list[GapCause], list[Gap]]:
    """Return (idle time by cause, which sums to `time.idle.total`; the largest gaps) of one device,
    both largest first.
    """
    causes = [
        _explain(timeline, time, host, cause) for cause, part in time.causes.items() if part.total
    ]
    largest = _largest(timeline, time, host, _main_causes(time))
    return sorted(causes, key=lambda row: -row.idle_ns), largest


def _main_causes(time: DeviceTime) -> TinyInts:
    """Return for every gap the position of the cause that covers most of it."""
    idle = time.idle
    main = np.zeros(len(idle.start), dtype=np.int8)
    for rows in iv.blocks(len(main)):
        start, end = idle.start[rows], idle.end[rows]
        most = np.zeros(len(start))
        for i, stretches in enumerate(time.causes.values()):
            part = iv.clip(stretches, int(start[0]), int(end[-1]))
            # Each stretch lies in one gap.
            gap = np.searchsorted(start, part.start, side="right") - 1
            covered = np.bincount(gap, weights=part.lengths, minlength=len(start))
            main[rows][covered > most] = i
            np.maximum(most, covered, out=most)
    return main


def _explain(timeline: Timeline, time: DeviceTime, host: HostView, cause: Cause) -> GapCause:
    """Return the idle time of one cause."""
    part, row = time.causes[cause], CAUSE_OF[cause]
    share = part.total / time.window.length
    state, sentence = "idle", row.sentence
    if not len(timeline.device):
        state, sentence = "without an operator", row.cpu_sentence or row.sentence
    gaps = _gaps_with(part, time.idle)
    evidence = (
        f"{part.total / 1e6:.2f} ms {state} ({share:.1%} of the time), in {counted(gaps, 'gap')}."
        f" In that time {sentence}."
    )
    handed = iv.intersect(part, host.handed.get(cause, iv.NONE))
    waited = 2 * handed.total > part.total
    line, beside, nowhere_ns, count = "", "", 0, 0
    inside: list[tuple[str, int]] = []
    after: list[tuple[str, int]] = []
    if cause == "synchronisation":
        after = idle_after_waits(timeline, part, time.rank, host)
    if share >= LEAST_LINE_SHARE:
        own = iv.subtract(part, handed)
        operators = host.outermost if cause in IN_OPERATORS else NO_OPERATORS
        places = places_during(timeline, own, time.rank, host.threads, operators)
        inside = [
            *places.longest,
            *(
                (f"{name}{ON_ANOTHER_THREAD}", min(ns, handed.total))  # of several it is the sum
                for name, ns in places_during(timeline, handed, time.rank, host.others).longest
            ),
        ]
        count += places.different
        if cause in IN_OPERATORS:  # of other causes, operators were not looked at
            nowhere_ns = places.nowhere_ns
        line = lines_during(timeline, part, time.rank)
        if not line and cause == "host":
            line = operator_during(timeline, part, time.rank, host.outermost)
        elif not line and waited:
            line = max(inside, key=lambda row: row[1])[0]
        elif not line and cause == "python":
            beside = _beside(timeline, part, time.rank, host)
    sure = "likely" if waited else how_sure(cause, host)
    return GapCause(
        cause=cause,
        idle_ns=part.total,
        share_of_wall=share,
        gaps=gaps,
        evidence=evidence,
        sure=sure,
        line=line,
        inside=inside,
        beside=beside,
        nowhere_ns=nowhere_ns,
        places=count,
        after=after,
    )


def _beside(timeline: Timeline, part: iv.Intervals, rank: int, host: HostView) -> str:
    """Return the marked range that another thread was in for most of these stretches, or "" where
    none lasted so long.
    """
    ranges = places_during(timeline, part, rank, host.others, top=1).longest
    return next((name for name, ns in ranges if ns >= BESIDE_SHARE * part.total), "")


def _gaps_with(part: iv.Intervals, idle: iv.Intervals) -> int:
    """Return how many gaps have some of a cause's stretches, each of which lies in one gap."""
    count, last = 0, -1
    for stretches in iv.parts(part):
        gap = np.searchsorted(idle.start, stretches.start, side="right") - 1
        count += int((np.diff(gap, prepend=last) > 0).sum())
        last = int(gap[-1])
    return count


def _largest(timeline: Timeline, time: DeviceTime, host: HostView, main: TinyInts) -> list[Gap]:
    """Return the largest gaps. `main`: for each gap, the position of its main cause."""

    rows = time.rows

    def name_of(row: int) -> str:
        """Return the name of a row of the device; "" beyond its ends and for a CPU's."""
        if time.device == CPU or not 0 <= row < len(rows.name):
            return ""
        return timeline.strings[int(rows.name[row])]

    causes, lengths = tuple(time.causes), time.idle.lengths
    # Only those as long as the last one that is listed are put in order: there may be millions.
    least = np.partition(lengths, -LARGEST)[-LARGEST] if len(lengths) > LARGEST else 0
    longest = np.flatnonzero(lengths >= max(least, LEAST_LISTED_NS))
    gaps = []
    for i in longest[np.argsort(-lengths[longest], kind="stable")][:LARGEST].tolist():
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
