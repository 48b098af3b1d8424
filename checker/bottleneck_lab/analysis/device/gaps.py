"""Why a device was idle: every nanosecond of idle time gets exactly one cause.

A gap ends when the next activity starts. What the launching threads did in it is laid over the gap
in a fixed order, and each stretch goes to the first cause that covers it; but where the next
activity was launched before the gap began, the host is not to blame. Of what is left, only
stretches in which the host launched one thing after another are `launch`: it was late all the same.
Where it launched nothing for long, it was between two steps, ran operators of its own, or did
something that was not recorded. Without marked steps, what lies before the first and after the last
work of a device is its start-up and its end, whatever the host did in them.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.view import BUSY_LAUNCHING_NS, HostView
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.trace.timeline import Ints, SmallInts, Timeline

Cause = Literal[
    "input",
    "launch",
    "synchronisation",
    "copy",
    "communication",
    "compilation",
    "imports",
    "sleep",
    "files",
    "between_steps",
    "host",
    "python",
    "queued",
    "startup",
    "ending",
    "unknown",
]
CAUSES: tuple[Cause, ...] = (
    "queued",
    "communication",
    "input",
    "compilation",
    "imports",
    "sleep",
    "files",
    "synchronisation",
    "copy",
    "between_steps",
    "host",
    "python",
    "launch",
    "startup",
    "ending",
    "unknown",
)
OUTSIDE: tuple[Cause, ...] = ("startup", "ending")
"""Idle time that is not a part of the work: before its beginning and after its end."""

Sureness = Literal["certain", "likely", "unsure"]
"""Certain: the host's own rows show it. Likely: it follows from what was recorded around it.
Unsure: nothing was recorded about the host.
"""
_SURE: dict[str, Sureness] = {
    "launch": "likely",
    "host": "likely",
    "between_steps": "likely",
    "unknown": "unsure",
}

LARGEST = 20
"""How many gaps are listed."""

TOGETHER_NS = 20_000
"""A copy call and a wait closer than this belong to one operator."""

SAID: dict[str, str] = {
    "input": "the launching thread was waiting for, or making, the next batch",
    "launch": "the host was launching work, but more slowly than the device finished it",
    "synchronisation": (
        "the host had waited for the device (or in cudaMalloc/cudaFree), so the queue was empty"
        " when it continued"
    ),
    "copy": "the host was inside a copy call, staging data",
    "communication": "the host was waiting for other ranks",
    "compilation": "the host was compiling or loading code",
    "imports": "the host was importing modules",
    "sleep": "the host was asleep",
    "files": "the host was reading or writing files, or printing",
    "between_steps": "the host was between two marked steps and launched nothing",
    "host": "the host launched nothing: it ran operators on the CPU",
    "python": (
        "the host launched nothing and ran no operator: Python, or a wait that was not recorded"
    ),
    "queued": (
        "the next work was already queued: the device's own pause between two kernels, or one"
        " stream waiting for another"
    ),
    "startup": "the device had not been given any work yet",
    "ending": "the device was given no more work",
    "unknown": (
        "no host activity was recorded at that time, or the device had work waiting but seems to"
        " have done nothing"
    ),
}


SAID_ON_CPU: dict[str, str] = SAID | {
    "input": "the main thread was making, or waiting for, the next input",
    "launch": "no operator ran: Python between one operator and the next",
    "between_steps": "no operator ran, between two marked steps",
    "python": "no operator ran for long: Python, another library, or a wait that was not recorded",
    "startup": "no operator had run yet",
    "ending": "no operator ran any more",
}
"""Without an accelerator nothing is launched, and a CPU that prepares input is not idle."""


class GapCause(msgspec.Struct, frozen=True):
    """Idle time of one cause. `gaps` counts the gaps it has the largest part of; `evidence` is one
    sentence; `sure` says what the cause rests on.
    """

    cause: Cause
    idle_ns: int
    share_of_wall: float
    gaps: int
    evidence: str
    sure: Sureness = "certain"


class Gap(msgspec.Struct, frozen=True):
    """One stretch without device work and its main cause, None if that is not told. `before` and
    `after` name the activities around it.
    """

    start_ns: int
    end_ns: int
    cause: Cause | None
    before: str
    after: str
    sure: Sureness = "certain"


def explain_gaps(
    timeline: Timeline,
    start: Ints,
    name: SmallInts | None,
    idle: iv.Intervals,
    parts: dict[Cause, iv.Intervals],
    host: HostView,
    window: Window,
) -> tuple[list[GapCause], list[Gap]]:
    """(idle time by cause, largest first; the largest gaps) of one device. The causes sum to
    `idle.total`.

    `start` and `name` (None: of no use to a reader) are of the device's rows; `parts` is what
    `attribute` says of `idle`.
    """
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
            evidence = (
                f"{part.total / 1e6:.2f} ms {state} ({share:.1%} of the time), mostly in {count}"
                f" gap{'s' * (count != 1)}, in which {said[cause]}."
            )
            causes.append(
                GapCause(cause, part.total, share, count, evidence, how_sure(cause, host))
            )
    longest = np.argsort(idle.start - idle.end, kind="stable")[:LARGEST]

    def named(index: int) -> str:
        """The device's row with this number; "" beyond its ends."""
        return (
            timeline.strings[int(name[index])]
            if name is not None and 0 <= index < len(name)
            else ""
        )

    found = [
        Gap(
            int(idle.start[i]),
            int(idle.end[i]),
            names[int(main[i])],
            before=named(int(np.searchsorted(start, idle.start[i])) - 1),
            after=named(int(np.searchsorted(start, idle.end[i]))),
            sure=how_sure(names[int(main[i])], host),
        )
        for i in longest.tolist()
    ]
    return sorted(causes, key=lambda c: -c.idle_ns), found


def how_sure(cause: Cause, host: HostView) -> Sureness:
    """What a cause rests on. Without frames, what Python did while it launched nothing is not
    known.
    """
    if cause == "python":
        return "likely" if host.stacks else "unsure"
    return _SURE.get(cause, "certain")


def attribute(
    idle: iv.Intervals, queued: iv.Intervals, missing: iv.Intervals, host: HostView, window: Window
) -> dict[Cause, iv.Intervals]:
    """The idle time, split into disjoint parts by cause; together they are exactly `idle`.

    `queued` are the gaps before work that waited already; `missing` those that are too long for it.
    """
    parts: dict[Cause, iv.Intervals] = dict.fromkeys(CAUSES, iv.NONE)
    parts["startup"], parts["ending"] = _ends(idle, host, window)
    parts["queued"] = queued
    left = iv.subtract(idle, iv.join(parts["startup"], parts["ending"], queued, missing))
    left = _cover(parts, left, _covering(host))
    parts["unknown"] = iv.join(iv.subtract(left, host.known), missing)
    left = iv.intersect(left, host.known)
    late = iv.intersect(left, _launching(host, window))
    drained = _after_waiting(late, idle, host)
    parts["synchronisation"] = iv.join(parts["synchronisation"], drained)
    parts["launch"] = iv.subtract(late, drained)
    parts["python"] = _cover(parts, iv.subtract(left, late), _not_launching(host))
    return parts


Covering = tuple[tuple[Cause, iv.Intervals], ...]


def _cover(
    parts: dict[Cause, iv.Intervals], left: iv.Intervals, covering: Covering
) -> iv.Intervals:
    """Gives each stretch of `left` to the first cause that covers it; what no cause covers."""
    for cause, stretch in covering:
        parts[cause] = iv.join(parts[cause], iv.intersect(left, stretch))
        left = iv.subtract(left, stretch)
    return left


def _ends(idle: iv.Intervals, host: HostView, window: Window) -> tuple[iv.Intervals, iv.Intervals]:
    """The gaps before the first and after the last work, where no steps were marked that begin and
    end with work.
    """
    whole = len(idle.start) == 1 and idle.total == window.length
    if not len(idle.start) or len(host.steps.start) or whole:
        return iv.NONE, iv.NONE
    first, last = (idle.start == window.start), (idle.end == window.end)
    return iv.Intervals(idle.start[first], idle.end[first]), iv.Intervals(
        idle.start[last], idle.end[last]
    )


def _covering(host: HostView) -> Covering:
    """What the host's own rows name."""
    return (
        ("communication", host.communication),
        ("input", host.input),
        ("compilation", host.compiling),
        ("imports", host.importing),
        ("sleep", host.sleeping),
        ("files", host.files),
        ("synchronisation", iv.join(host.sync, host.allocation)),
        ("copy", host.copy),
    )


def _launching(host: HostView, window: Window) -> iv.Intervals:
    """The stretches in which one launch follows another; the window's ends count as launches."""
    ends = iv.union(
        np.array([window.start - 1, window.end]), np.array([window.start, window.end + 1])
    )
    return iv.close_holes(iv.join(host.launching, ends), BUSY_LAUNCHING_NS)


def _not_launching(host: HostView) -> Covering:
    """What the host did where it launched nothing for long."""
    steps = host.steps
    between = (
        iv.complement(steps, int(steps.start[0]), int(steps.end[-1]))
        if len(steps.start)
        else iv.NONE
    )
    return (
        ("communication", host.collectives),
        ("between_steps", between),
        ("host", host.operators),
    )


def _after_waiting(left: iv.Intervals, idle: iv.Intervals, host: HostView) -> iv.Intervals:
    """The remaining stretches that follow from the host's having stood waiting for the device.

    A wait that was still open when the device ran dry, or ended within the gap, kept the host from
    launching ahead: the whole gap follows from it. So do later gaps before the next wait, where the
    host launches faster than the device works: it would be ahead by then.
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
    held = _held_back(waits, idle)
    keep |= iv.covered_before(held, begin + 1) > iv.covered_before(held, begin)
    return iv.Intervals(left.start[keep], left.end[keep])


def _held_back(waits: iv.Intervals, idle: iv.Intervals) -> iv.Intervals:
    """From one wait's end to the next one's start, where the host launched for less time than the
    device then worked.
    """
    start, end = waits.end[:-1], waits.start[1:]
    done = waits.end[1:]
    worked = done - start - (iv.covered_before(idle, done) - iv.covered_before(idle, start))
    quick = end - start < worked
    return iv.Intervals(start[quick], end[quick])


def _waits(host: HostView) -> iv.Intervals:
    """Waits with the copy calls right before them: `.item()` is a copy to the host and then a wait
    for it, and both block.
    """
    joined = iv.close_holes(iv.join(host.sync, host.copy), TOGETHER_NS)
    waited = iv.covered_before(host.sync, joined.end) > iv.covered_before(host.sync, joined.start)
    return iv.Intervals(joined.start[waited], joined.end[waited])
