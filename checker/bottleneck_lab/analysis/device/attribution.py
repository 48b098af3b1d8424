"""Attribute idle time: every nanosecond of it gets exactly one cause of `IDLE_CAUSES`.

A gap ends when the next activity starts. What the launching threads did in it is laid over the gap
in a fixed order, and each stretch goes to the first cause that covers it; but where the next
activity was launched before the gap began, the host is not to blame. Of what is left, only
stretches in which the host launched one thing after another are `launch`: it was late all the same;
what the model of a host charges a step whatever runs is `fixed`, and no part of that.
The first of these after a wait follow from it: as much as the device worked during the wait.
Where it launched nothing for long, it waited for what a marked range of another thread made, was
between two steps, ran operators of its own, or did something that was not recorded. Without marked
steps, what lies before the first and after the last work of a device is its start-up and its end,
whatever the host did in them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import CAUSES, Cause
from bottleneck_lab.analysis.host.view import BUSY_LAUNCHING_NS, HostView
from bottleneck_lab.analysis.steps.window import Window

LOADING_NS = 1_000_000
"""A launch takes 5 to 100 us; with lazy loading (CUDA 11.7 on) the first of a kernel loads it."""
TOGETHER_NS = 20_000
"""A copy call and a wait closer than this belong to one operator."""
ALIKE = 5
"""Fewer stretches of about the same length are no loop's."""


class _Claims:
    """Idle time on offer to causes one after another: the first that claims a stretch has it."""

    def __init__(self, idle: iv.Intervals) -> None:
        self.left = idle
        self.parts: dict[Cause, iv.Intervals] = dict.fromkeys(CAUSES, iv.NONE)

    def add(self, cause: Cause, stretches: iv.Intervals) -> None:
        """Give a cause what is left of the idle time in these stretches."""
        self.take(cause, iv.intersect(self.left, stretches))

    def take(self, cause: Cause, claimed: iv.Intervals) -> None:
        """Give a cause these stretches, all of which are left."""
        if len(claimed.start):
            self.parts[cause] = iv.join(self.parts[cause], claimed)
            self.left = iv.subtract(self.left, claimed)


def attribute(
    idle: iv.Intervals,
    host: HostView,
    window: Window,
    *,
    queued: iv.Intervals = iv.NONE,
    elsewhere: iv.Intervals = iv.NONE,
    missing: iv.Intervals = iv.NONE,
    for_ranks: iv.Intervals = iv.NONE,
    starts_up: bool = False,
) -> dict[Cause, iv.Intervals]:
    """Split idle time into disjoint parts by cause; together they are exactly `idle`.

    `queued` are the gaps before work that waited already, `elsewhere` what other devices of the
    process worked in long ones of these; `missing` are the stretches in which the device must have
    worked, although nothing was recorded; `for_ranks` are those in which it only waited for other
    ranks. `starts_up`: the program's start-up lies in its first step.
    """
    claims = _Claims(idle)
    claims.add("unrecorded", missing)
    # Marked steps begin and end with work; without them, the ends of a capture are not its loop's.
    # A window without any work has no first and no last one.
    marked = len(host.steps.start)
    if starts_up or (not marked and idle.total < window.length):
        claims.add("startup", idle.where(idle.start == window.start))
    if not marked and idle.total < window.length:
        claims.add("ending", idle.where(idle.end == window.end))
    claims.add("devices", iv.intersect(queued, elsewhere))
    claims.add("queued", queued)
    follows = _following_from_waits(claims.left, host, window, for_ranks)
    for cause, stretches in host.doing.items():
        claims.add(cause, stretches)
    # A launch that takes this long loads the kernel's code first; one that waits for room in the
    # queue does so while the device is busy.
    claims.add("compilation", host.long_launches.where(host.long_launches.lengths > LOADING_NS))
    claims.add("unknown", iv.complement(host.known, *window))

    # A pause between launches ends at the window's ends too, and where a stretch begins that a name
    # gives away: the same lines would else get another cause beside a long stretch than beside a
    # short one.
    ends = iv.stretch(window.start - 1, window.start), iv.stretch(window.end, window.end + 1)
    bounds = iv.join(*ends, *host.doing.values())
    launching = _bridged(iv.join(host.launching, bounds), BUSY_LAUNCHING_NS)
    near = _bridged(iv.join(host.active, bounds), host.pause_ns)
    drained: list[iv.Intervals] = []

    def launching_late() -> Iterator[iv.Intervals]:
        """Yield the rest of what the host is late with, having put aside what follows from waits: a
        part at a time, since it may be nearly all of the idle time.
        """
        for part in iv.parts(claims.left):
            late = iv.intersect(part, launching)
            drained.append(iv.intersect(late, follows))
            yield _without_pauses(iv.subtract(late, follows), host, near)

    # What the model of a host charges for every step is late, too, but no change removes it.
    late = iv.end_to_end(launching_late())
    claims.take("fixed", iv.intersect(late, host.fixed))
    claims.take("launch", iv.subtract(late, host.fixed))
    claims.take("synchronisation", iv.end_to_end(drained))

    claims.add("communication", host.collectives)
    for cause, stretches in host.handed.items():
        claims.add(cause, stretches)
    if len(host.steps.start):
        first, last = int(host.steps.start[0]), int(host.steps.end[-1])
        claims.add("between_steps", iv.complement(host.steps, first, last))
    claims.add("host", host.in_operators(claims.left))
    claims.add("python", claims.left)
    return claims.parts


def _without_pauses(late: iv.Intervals, host: HostView, near: iv.Intervals) -> iv.Intervals:
    """Return `late` without what is far from all launches, operators and other bounds, which is not
    in `near`: even between two launches the host did something else there.
    """
    if not len(host.active.start):
        return late
    far = iv.subtract(late, near)
    # Less is a launch on its way to the device.
    return iv.subtract(late, far.where(far.lengths > TOGETHER_NS))


def _bridged(calls: iv.Intervals, about_ns: int) -> iv.Intervals:
    """Return calls with the holes between them filled that are not longer than `about_ns`, or, if
    many are about as long, than what lies next to these: a loop's own hole is then not on one side
    in one step and on the other in the next.
    """
    holes = calls.start[1:] - calls.end[:-1]
    near = np.unique(holes[(holes > about_ns // 2) & (holes < 2 * about_ns)])
    edges = np.concatenate(([about_ns // 2], near, [2 * about_ns]))
    # The more there are, the closer together lie those that are the same one in all steps.
    spaces = np.flatnonzero(edges[1:] > (1 + 2 / max(len(near), 1)) * edges[:-1])
    if len(near) < ALIKE or not len(spaces):
        return iv.close_holes(calls, about_ns)
    limits = np.clip(about_ns, edges[spaces], edges[spaces + 1] - 1)
    return iv.close_holes(calls, int(limits[np.argmin(np.abs(np.log(limits / about_ns)))]))


def _following_from_waits(
    idle: iv.Intervals, host: HostView, window: Window, for_ranks: iv.Intervals
) -> iv.Intervals:
    """Return the time in which `idle` time follows from the host's having waited for the device.

    A host that never waits would be ahead by the work that the device did while this one waited,
    and the first idle time after a wait would not be seen: as much of it as the host would be
    ahead (Lindley's recursion for a queue: Proc. Camb. Phil. Soc. 48, 1952). The rest it would
    leave, too. `idle`: without the device's own pauses. Idle time inside a wait is the wait's own.
    To wait for other ranks is no work: whoever made them late would else seem to be a wait.
    """
    # `.item()` is a copy to the host and then a wait for it, and both block. What lies between two
    # such waits, however close they are, is the host's own work.
    copies = host.doing["copy"]
    near = iv.union(host.sync.start - TOGETHER_NS, host.sync.end + TOGETHER_NS)
    waits = iv.clip(iv.join(host.sync, copies.where(iv.meets(near, *copies))), *window)
    if not len(waits.start):
        return iv.NONE
    again = np.append(waits.start[1:], window.end)
    worked = waits.lengths - iv.covered_within(iv.join(idle, for_ranks), *waits)
    idled = iv.covered_within(idle, waits.end, again)
    # Less its lowest point so far, this is how far ahead the host would be after each wait.
    ahead = np.cumsum(worked - np.append(0, idled[:-1]))
    ahead -= np.minimum(0, np.minimum.accumulate(ahead - worked))
    hidden = np.minimum(ahead, idled)
    ends = iv.covered_until(idle, waits.end, again, hidden)
    return iv.Intervals(waits.end, ends).where(hidden > 0)
