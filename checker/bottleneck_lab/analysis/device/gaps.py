"""Why a device was idle: every nanosecond of idle time gets exactly one cause of `IDLE_CAUSES`.

A gap ends when the next activity starts. What the launching threads did in it is laid over the gap
in a fixed order, and each stretch goes to the first cause that covers it; but where the next
activity was launched before the gap began, the host is not to blame. Of what is left, only
stretches in which the host launched one thing after another are `launch`: it was late all the same.
Where it launched nothing for long, it was between two steps, ran operators of its own, or did
something that was not recorded. Without marked steps, what lies before the first and after the last
work of a device is its start-up and its end, whatever the host did in them.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import CAUSE_OF, CAUSES, IDLE_CAUSES, Cause, Sureness
from bottleneck_lab.analysis.host.lines import lines_during, operator_during
from bottleneck_lab.analysis.host.view import BUSY_LAUNCHING_NS, PYTHON_NS, HostView
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.trace.timeline import Ints, SmallInts, Timeline

LARGEST = 20
"""Number of gaps that are listed."""
LEAST_LINE_SHARE = 0.05
"""The lines of a cause below this share (0-1) of the time are not looked for."""

LOADING_NS = 1_000_000
"""A launch takes 5 to 100 us; with lazy loading (CUDA 11.7 on) the first of a kernel loads it."""
TOGETHER_NS = 20_000
"""A copy call and a wait closer than this belong to one operator."""

ALIKE = 5
"""Fewer stretches of about the same length are no loop's."""

PATTERNS = {cause.id: cause.patterns for cause in IDLE_CAUSES if cause.patterns}
"""By cause, the names of host rows that give it away: what `view_host` looks for."""


class GapCause(msgspec.Struct, frozen=True):
    """Idle time of one cause. `gaps` counts the gaps it has the largest part of; `evidence` is one
    sentence; `sure` says what the cause rests on; `line` is the user's own code that ran for most
    of it, or the operator in work on the host; empty where neither was recorded.
    """

    cause: Cause
    idle_ns: int
    share_of_wall: float
    gaps: int
    evidence: str
    sure: Sureness = "certain"
    line: str = ""


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
    timeline: Timeline,
    rank: int,
    start: Ints,
    name: SmallInts | None,
    idle: iv.Intervals,
    parts: dict[Cause, iv.Intervals],
    host: HostView,
    window: Window,
) -> tuple[list[GapCause], list[Gap]]:
    """Return (idle time by cause, largest first; the largest gaps) of one device.

    The causes sum to `idle.total`. `start` and `name` (None: of no use to a reader) are of the
    device's rows; `parts` is the result of `attribute` for `idle`.
    """
    # For every gap, the number of the cause that covers most of it.
    main, most = np.zeros((2, len(idle.start)), dtype=np.int64)
    for i, part in enumerate(parts.values()):
        covered = iv.covered_before(part, idle.end) - iv.covered_before(part, idle.start)
        main[covered > most] = i
        most = np.maximum(most, covered)

    on_cpu = not len(timeline.device)
    causes = []
    for i, (cause, part) in enumerate(parts.items()):
        if not part.total:
            continue
        row = CAUSE_OF[cause]
        count = int((main == i).sum())
        share = part.total / window.length
        state, sentence = "idle", row.sentence
        if on_cpu:
            state, sentence = "without an operator", row.cpu_sentence or row.sentence
        evidence = (
            f"{part.total / 1e6:.2f} ms {state} ({share:.1%} of the time), mostly in {count}"
            f" gap{'s' * (count != 1)}, in which {sentence}."
        )
        line = ""
        if share >= LEAST_LINE_SHARE:
            line = lines_during(timeline, part, rank)
            if not line and cause == "host":
                line = operator_during(timeline, part, rank)
        causes.append(
            GapCause(cause, part.total, share, count, evidence, how_sure(cause, host), line)
        )

    def row_name(index: int) -> str:
        """Return the name of the device's row with this number; "" beyond its ends."""
        if name is None or not 0 <= index < len(name):
            return ""
        return timeline.strings[int(name[index])]

    names = tuple(parts)
    largest = []
    for i in np.argsort(idle.start - idle.end, kind="stable")[:LARGEST].tolist():
        cause = names[int(main[i])]
        largest.append(
            Gap(
                int(idle.start[i]),
                int(idle.end[i]),
                cause,
                before=row_name(int(np.searchsorted(start, idle.start[i])) - 1),
                after=row_name(int(np.searchsorted(start, idle.end[i]))),
                sure=how_sure(cause, host),
            )
        )
    return sorted(causes, key=lambda c: -c.idle_ns), largest


def how_sure(cause: Cause, host: HostView) -> Sureness:
    """Return what a cause rests on."""
    # Without frames there is no telling what Python did while it launched nothing.
    if cause == "python" and not host.stacks:
        return "unsure"
    return CAUSE_OF[cause].sure


def attribute(
    idle: iv.Intervals,
    queued: iv.Intervals,
    missing: iv.Intervals,
    host: HostView,
    window: Window,
    elsewhere: iv.Intervals = iv.NONE,
) -> dict[Cause, iv.Intervals]:
    """Split the idle time into disjoint parts by cause; together they are exactly `idle`.

    `queued` are the gaps before work that waited already, `elsewhere` what other devices of the
    process worked in long ones of these; `missing` are those in which the device must
    have worked, although nothing was recorded.
    """
    parts: dict[Cause, iv.Intervals] = dict.fromkeys(CAUSES, iv.NONE)
    # One gap that is the whole window has no first and no last work to lie before or after.
    whole = len(idle.start) == 1 and idle.total == window.length
    if len(idle.start) and not len(host.steps.start) and not whole:
        # Marked steps begin and end with work; without them, the ends of a capture are not its
        # loop's.
        first, last = idle.start == window.start, idle.end == window.end
        parts["startup"] = iv.subtract(iv.Intervals(idle.start[first], idle.end[first]), missing)
        parts["ending"] = iv.subtract(iv.Intervals(idle.start[last], idle.end[last]), missing)
        queued = iv.subtract(queued, iv.join(parts["startup"], parts["ending"]))
    parts["devices"] = iv.intersect(queued, elsewhere)
    parts["queued"] = iv.subtract(queued, elsewhere)
    left = iv.subtract(idle, iv.join(parts["startup"], parts["ending"], queued, missing))
    for cause, stretch in host.doing.items():
        parts[cause] = iv.intersect(left, stretch)
        left = iv.subtract(left, stretch)
    # A launch that takes this long loads the kernel's code first; one that waits for room in the
    # queue does so while the device is busy.
    loading = host.launches.end - host.launches.start > LOADING_NS
    loads = iv.Intervals(host.launches.start[loading], host.launches.end[loading])
    parts["compilation"] = iv.join(parts["compilation"], iv.intersect(left, loads))
    left = iv.subtract(left, loads)
    parts["unrecorded"] = missing
    parts["unknown"] = iv.subtract(left, host.known)
    left = iv.intersect(left, host.known)

    # Stretches in which one launch follows another; the window's ends count as launches.
    ends = iv.union(
        np.array([window.start - 1, window.end]), np.array([window.start, window.end + 1])
    )
    # A hole ends where a stretch begins that a name gives away: else the same lines would get
    # another cause beside a long stretch than beside a short one.
    named = iv.join(*host.doing.values())
    launching = iv.join(host.launching, named, ends)
    launching = iv.close_holes(launching, _limit_between(launching, BUSY_LAUNCHING_NS))
    late = iv.intersect(left, launching)
    drained = _after_waiting(late, idle, host)
    parts["synchronisation"] = iv.join(parts["synchronisation"], drained)
    late = iv.subtract(late, drained)
    left = iv.subtract(left, iv.join(late, drained))
    parts["launch"] = late
    if len(host.operators.start) and len(host.launches.start):
        # Even between two launches the host did something else where neither an operator nor a
        # launch was near.
        calls = iv.join(host.launches, host.sync, host.operators, named, ends)
        near = iv.close_holes(calls, _limit_between(calls, PYTHON_NS))
        far = iv.subtract(late, near)
        long = far.end - far.start > TOGETHER_NS  # less is a launch on its way to the device
        far = iv.Intervals(far.start[long], far.end[long])
        parts["launch"] = iv.subtract(late, far)
        left = iv.join(left, far)

    between = iv.NONE
    if len(host.steps.start):
        between = iv.complement(host.steps, int(host.steps.start[0]), int(host.steps.end[-1]))
    for cause, stretch in (
        ("communication", host.collectives),
        ("between_steps", between),
        ("host", host.operators),
    ):
        parts[cause] = iv.join(parts[cause], iv.intersect(left, stretch))
        left = iv.subtract(left, stretch)
    parts["python"] = left
    return parts


def _limit_between(calls: iv.Intervals, about_ns: int) -> int:
    """Return a limit for the holes between calls: `about_ns`, or, if many are about as long, what
    lies next to these, so that a loop's own stretch is not on one side in one step and on the other
    in the next.
    """
    holes = calls.start[1:] - calls.end[:-1]
    near = np.unique(holes[(holes > about_ns // 2) & (holes < 2 * about_ns)])
    edges = np.concatenate(([about_ns // 2], near, [2 * about_ns]))
    # The more there are, the closer together lie those that are the same one in all steps.
    spaces = np.flatnonzero(edges[1:] > (1 + 2 / max(len(near), 1)) * edges[:-1])
    if len(near) < ALIKE or not len(spaces):
        return about_ns
    limits = np.clip(about_ns, edges[spaces], edges[spaces + 1] - 1)
    return int(limits[np.argmin(np.abs(np.log(limits / about_ns)))])


def _after_waiting(left: iv.Intervals, idle: iv.Intervals, host: HostView) -> iv.Intervals:
    """Return the part of `left` that follows from the host's having stood waiting for the device.

    A wait that was still open when the device ran dry, or ended within the gap, kept the host from
    launching ahead: the whole gap follows from it. So do later gaps before the next wait, unless a
    host that never waits would be late there too.
    """
    # `.item()` is a copy to the host and then a wait for it, and both block: a wait counts from
    # the start of the copy call right before it.
    joined = iv.close_holes(iv.join(host.sync, host.doing["copy"]), TOGETHER_NS)
    waited = iv.covered_before(host.sync, joined.end) > iv.covered_before(host.sync, joined.start)
    waits = iv.Intervals(joined.start[waited], joined.end[waited])
    if not len(left.start) or not len(waits.start):
        return iv.NONE
    gap = np.searchsorted(idle.start, left.start, side="right") - 1
    begin, stop = idle.start[gap], idle.end[gap]
    index = np.searchsorted(waits.end, begin, side="left")
    inside = index < len(waits.end)
    safe = np.minimum(index, len(waits.end) - 1)
    keep = inside & (waits.start[safe] <= begin) & (waits.end[safe] <= stop)

    # From one wait's end to the next one's: the host's own time until it waits again, what the
    # device then worked, and how long it was idle.
    start, end, done = waits.end[:-1], waits.start[1:], waits.end[1:]
    idled = iv.covered_before(idle, done) - iv.covered_before(idle, start)
    slow = _host_bound(end - start, done - start - idled, idled)
    held = iv.Intervals(start[~slow], end[~slow])
    keep |= iv.covered_before(held, begin + 1) > iv.covered_before(held, begin)
    blamed = iv.Intervals(start[slow], done[slow])
    keep &= iv.covered_before(blamed, stop) <= iv.covered_before(blamed, stop - 1)
    return iv.Intervals(left.start[keep], left.end[keep])


def _host_bound(own: Ints, worked: Ints, idled: Ints) -> NDArray[np.bool_]:
    """Return the stretches between waits whose idle time a host that never waits would leave too,
    given its own time, the device's work and idle time in each, ns.

    Without waits, what the device has left to do from earlier stretches covers those in which the
    host needs longer (Lindley's recursion for a queue: Proc. Camb. Phil. Soc. 48, 1952). Where
    that covers a part only, stretches are taken in turn so that the sum is right.
    """
    ahead = np.cumsum(worked - own)
    late = -np.diff(np.minimum.accumulate(np.minimum(ahead, 0)), prepend=0)
    slow = np.zeros(len(own), dtype=bool)
    owed = 0
    for i in np.flatnonzero(late).tolist():
        owed += int(late[i])
        if 2 * owed > idled[i]:
            slow[i] = True
            owed -= int(idled[i])
    return slow
