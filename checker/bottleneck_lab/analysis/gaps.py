"""Why a device stood idle: every nanosecond of idle time gets exactly one cause.

A gap ends when the next activity starts. What the launching threads did in it is laid over the gap in a fixed order, and each stretch goes to the
first cause that covers it; what is left is the host being late with the next launch, unless it was only just released from waiting for the device
(then the wait emptied the queue), or nothing is known of the host at all.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host import HostView
from bottleneck_lab.analysis.window import Window
from bottleneck_lab.trace.timeline import Ints, SmallInts, Timeline

Cause = Literal["input", "launch", "synchronisation", "copy", "communication", "unknown"]
CAUSES: tuple[Cause, ...] = ("communication", "input", "synchronisation", "copy", "launch", "unknown")

LARGEST = 20
"""So many gaps are listed."""

TOGETHER_NS = 20_000
"""A copy call and a wait closer than this belong to one operator."""

SAID: dict[str, str] = {
    "input": "the launching thread was waiting for, or making, the next batch",
    "launch": "the host had not yet launched the next kernel: it was running Python, operators and launch calls",
    "synchronisation": "the host had waited for the device (or in cudaMalloc/cudaFree), so the queue was empty when it went on",
    "copy": "the host was inside a copy call, staging data",
    "communication": "the host was waiting for other ranks",
    "unknown": "nothing was recorded of the host at that time",
}


SAID_ON_CPU: dict[str, str] = SAID | {
    "input": "the main thread was making, or waiting for, the next input",
    "launch": "no operator ran: Python and other work between them",
}
"""Where no accelerator was recorded nothing is launched, and a CPU that prepares input is not idle."""


class GapCause(msgspec.Struct, frozen=True):
    """Idle time of one cause. `gaps` counts the gaps it has the largest part of; `evidence` is one sentence."""

    cause: Cause
    idle_ns: int
    share_of_wall: float
    gaps: int
    evidence: str


class Gap(msgspec.Struct, frozen=True):
    """One stretch without device work and its main cause. `before` and `after` name the activities around it."""

    start_ns: int
    end_ns: int
    cause: Cause
    before: str
    after: str


def explain_gaps(
    timeline: Timeline, start: Ints, name: SmallInts | None, idle: iv.Intervals, host: HostView, window: Window
) -> tuple[list[GapCause], list[Gap]]:
    """(idle time by cause, largest first; the largest gaps) of one device. The causes sum to `idle.total`.

    `start` and `name` (None: of no use to a reader) are of the device's rows.
    """
    parts = attribute(idle, host)
    main, most = np.zeros((2, len(idle.start)), dtype=np.int64)
    for i, part in enumerate(parts.values()):
        covered = iv.covered_before(part, idle.end) - iv.covered_before(part, idle.start)
        main[covered > most] = i
        most = np.maximum(most, covered)
    names = tuple(parts)
    causes = []
    on_cpu = not len(timeline.device)
    state, said = ("without an operator", SAID_ON_CPU) if on_cpu else ("idle", SAID)
    for i, (cause, part) in enumerate(parts.items()):
        if part.total:
            count = int((main == i).sum())
            share = part.total / window.length
            evidence = f"{part.total / 1e6:.2f} ms {state} ({share:.1%} of the time), mostly in {count} gaps, in which {said[cause]}."
            causes.append(GapCause(cause, part.total, share, count, evidence))
    longest = np.argsort(idle.start - idle.end, kind="stable")[:LARGEST]

    def named(index: int) -> str:
        """The device's row of this number; "" beyond its ends."""
        return timeline.strings[int(name[index])] if name is not None and 0 <= index < len(name) else ""

    found = [
        Gap(
            int(idle.start[i]),
            int(idle.end[i]),
            names[int(main[i])],
            before=named(int(np.searchsorted(start, idle.start[i])) - 1),
            after=named(int(np.searchsorted(start, idle.end[i]))),
        )
        for i in longest.tolist()
    ]
    return sorted(causes, key=lambda c: -c.idle_ns), found


def attribute(idle: iv.Intervals, host: HostView) -> dict[Cause, iv.Intervals]:
    """The idle time, split into disjoint parts by cause; together they are exactly `idle`."""
    parts: dict[Cause, iv.Intervals] = {}
    left = idle
    waited = iv.join(host.sync, host.allocation)
    covering: tuple[tuple[Cause, iv.Intervals], ...] = (
        ("communication", host.communication),
        ("input", host.input),
        ("synchronisation", waited),
        ("copy", host.copy),
    )
    for cause, stretch in covering:
        parts[cause] = iv.intersect(left, stretch)
        left = iv.subtract(left, stretch)
    late = _after_waiting(left, idle, host)
    nowhere = iv.subtract(left, host.known)
    drained = iv.subtract(late, nowhere)
    parts["synchronisation"] = iv.join(parts["synchronisation"], drained)
    parts["unknown"] = nowhere
    parts["launch"] = iv.subtract(iv.subtract(left, nowhere), drained)
    return {cause: parts[cause] for cause in CAUSES}


def _after_waiting(left: iv.Intervals, idle: iv.Intervals, host: HostView) -> iv.Intervals:
    """The remaining stretches of gaps that began because the host stood waiting for the device.

    A wait that was still open when the device ran dry, or ended within the gap, kept the host from launching ahead: the whole gap follows from it.
    """
    waits = _waits(host)
    if not len(left.start) or not len(waits.start):
        return iv.NONE
    gap = np.searchsorted(idle.start, left.start, side="right") - 1
    begin, stop = idle.start[gap], idle.end[gap]
    index = np.searchsorted(waits.end, begin, side="left")
    inside = index < len(waits.end)
    safe = np.minimum(index, len(waits.end) - 1)
    keep = inside & (waits.start[safe] <= begin) & (waits.end[safe] <= stop)
    return iv.Intervals(left.start[keep], left.end[keep])


def _waits(host: HostView) -> iv.Intervals:
    """Waits with the copy calls right before them: `.item()` is a copy to the host and then a wait for it, and both block."""
    joined = iv.close_holes(iv.join(host.sync, host.copy), TOGETHER_NS)
    waited = iv.covered_before(host.sync, joined.end) > iv.covered_before(host.sync, joined.start)
    return iv.Intervals(joined.start[waited], joined.end[waited])
