"""Stretches in which a device must have worked although no row says so.

A wait returns when the work is done, and launched work runs. So a wait that goes on after all
recorded work has ended, work that ends after the wait for it has returned, work that sits in the
queue of an idle device, and launches without a kernel each prove that rows are missing or carry
wrong times. Idle time there has no cause that could be named, and nothing is gained by removing it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.view import LAUNCH_CALL
from bottleneck_lab.analysis.rows import named, union_of
from bottleneck_lab.trace.timeline import Direction, Ints, Timeline, different

LONGEST_PAUSE_NS = 1_000_000
"""A device with work in its queue pauses for microseconds, and a waiting host wakes within some.
Where either seems to take longer, something that ran was not recorded.
"""
LATE_END_NS = 100_000
"""The clocks of host and device agree to some microseconds: work that ends this long after the wait
for it has returned has a wrong time.
"""
STAGED_BYTES_PER_NS = 1
"""The slowest that a host stages what it sends: a copy that begins later than that, and than a
device pauses, waited for something else.
"""
FEW_LAUNCHES = 20
LOST_SHARE = 0.1
"""Where a capture starts or ends some launches have no kernel: a tenth, or more in a small capture,
is not that.
"""
CONTRADICTED_SHARE = 0.1
"""Waits of which this share return before the work that they waited for, or rows of which this
share start before their launch or out of their turn: the times are wrong.
"""
_WHOLE_DEVICE = re.compile(r"(?:Device|Ctx)Synchronize|SynchronizeDevice")
_EVENT = re.compile(r"Event(?:Host)?Synchronize|EventWait|SynchronizeEvent")
_WAITED_FOR = re.compile(r"^[a-z]\w*Synchronize|^ur(?:QueueFinish|EventWait)")


class Unrecorded(NamedTuple):
    """The stretches of a device's idle time in which it must have worked, and what proves it: waits
    that outlast all recorded work, of so many waits; waits that return before it; rows that start
    before the call that launched them; rows that start after later ones of their stream.
    """

    stretches: iv.Intervals
    waits: int = 0
    outlasting: int = 0
    contradicted: int = 0
    early: int = 0
    disordered: int = 0


def lost_launches(timeline: Timeline, rank: int | None = None) -> tuple[int, int]:
    """Return (calls that launch a kernel, those of them that have none), of one rank or all."""
    calls = named(timeline, timeline.runtime, LAUNCH_CALL)
    if rank is not None:
        calls &= timeline.runtime.rank == rank
    return int(calls.sum()), int((calls & ~timeline.launching).sum())


def find_unrecorded(
    timeline: Timeline, rank: int, rows: NDArray[np.intp], idle: iv.Intervals
) -> Unrecorded:
    """Return the idle stretches of one device in which its rows are missing or wrong.

    `rows`: the device's rows in the timeline. Work that waits in the queue is not among them: see
    `device.use`.
    """
    device, runtime = timeline.device, timeline.runtime
    worked = rows[device.works[rows]]
    waits = np.flatnonzero(named(timeline, runtime, _WAITED_FOR) & (runtime.rank == rank))
    if not len(worked) or not len(runtime):
        return Unrecorded(iv.NONE)
    outlasting, stretches = _outlasting(timeline, rank, waits)
    calls, lost = lost_launches(timeline, rank)
    contradicted = _contradicted(timeline, worked, waits, outlasting, complete=not lost)
    early, disordered = _early_rows(timeline, worked), _disordered_rows(timeline, worked)
    if contradicted > CONTRADICTED_SHARE * len(waits) or early or disordered:
        stretches = iv.join(stretches, idle)  # where the work really ran is not known
    if calls >= FEW_LAUNCHES and lost > LOST_SHARE * calls:
        stretches = iv.join(stretches, _beside_lost_launches(timeline, rank, worked, idle))
    missing = iv.intersect(idle, stretches)
    return Unrecorded(missing, len(waits), len(outlasting), contradicted, early, disordered)


def _outlasting(
    timeline: Timeline, rank: int, waits: NDArray[np.intp]
) -> tuple[NDArray[np.intp], iv.Intervals]:
    """Return (the waits that go on after all recorded work has ended; how long they do)."""
    device, runtime = timeline.device, timeline.runtime
    # A wait is for the rank's work on every device: only where none ran any more did it outlast
    # what was recorded.
    busy = union_of(device, (device.rank == rank) & device.works)
    end = runtime.end[waits]
    begun = np.searchsorted(busy.start, end)
    reached = np.where(begun > 0, np.concatenate(([0], busy.end))[begun], end)
    since = np.maximum(runtime.start[waits], reached)
    long = end - since > LONGEST_PAUSE_NS
    return waits[long], iv.union(since[long], end[long])


def _early_rows(timeline: Timeline, worked: NDArray[np.intp]) -> int:
    """Count the rows that start before the call that launched them; 0 if they are few."""
    call = timeline.launched_by[worked]
    launched, call = worked[call >= 0], call[call >= 0]
    start = timeline.device.start[launched]
    early = int((start < timeline.runtime.start[call] - LATE_END_NS).sum())
    return early if early > CONTRADICTED_SHARE * len(launched) else 0


def _disordered_rows(timeline: Timeline, worked: NDArray[np.intp]) -> int:
    """Count the rows that start after one of their stream has ended that was launched later; 0 if
    they are few.
    """
    device, runtime = timeline.device, timeline.runtime
    rows = worked[timeline.launched_by[worked] >= 0]
    streams = different(device.stream[rows])
    disordered = 0
    for stream in streams.tolist():
        mine = rows if len(streams) == 1 else rows[device.stream[rows] == stream]
        call = timeline.launched_by[mine]
        # Calls stand in the order of their start: their numbers are that order.
        latest = np.maximum.accumulate(call)
        if (latest == call).all():
            continue
        ends = np.maximum.accumulate(device.end[mine])
        before = np.searchsorted(ends, device.start[mine] - LATE_END_NS) - 1
        later = latest[np.maximum(before, 0)]
        after = runtime.start[later] > runtime.end[call]
        disordered += int((after & (before >= 0)).sum())
    return disordered if disordered > CONTRADICTED_SHARE * len(rows) else 0


def _contradicted(
    timeline: Timeline,
    worked: NDArray[np.intp],
    waits: NDArray[np.intp],
    outlasting: NDArray[np.intp],
    *,
    complete: bool,
) -> int:
    """Count the waits that return before work ends that was launched before them. `complete`: every
    launch has its kernels.
    """
    device, runtime = timeline.device, timeline.runtime
    call = timeline.launched_by[worked]
    worked, call = worked[call >= 0], call[call >= 0]
    counted = ~named(timeline, runtime, _EVENT)[waits]
    if len(different(device.stream[worked])) > 1:
        # A stream's wait says nothing about the others, and calls don't record which one it is;
        # but a device that did nothing all the while would have begun what was in their queues.
        whole = named(timeline, runtime, _WHOLE_DEVICE)[waits]
        counted &= whole | np.isin(waits, outlasting)
    if complete:  # an event may be older than the work, but then its own work is not recorded
        counted |= np.isin(waits, outlasting)
    waits = waits[counted]
    if not len(worked) or not len(waits):
        return 0
    # For each wait: when the last ends of what had been launched when it began.
    begun, ends = runtime.start[waits], np.full(len(waits) + 1, timeline.extent[0])
    for rows in iv.blocks(len(worked)):
        first = np.searchsorted(begun, runtime.end[call[rows]])
        np.maximum.at(ends, first, device.end[worked[rows]])
    np.maximum.accumulate(ends, out=ends)
    return int((ends[:-1] - runtime.end[waits] > LATE_END_NS).sum())


def _beside_lost_launches(
    timeline: Timeline, rank: int, worked: NDArray[np.intp], idle: iv.Intervals
) -> iv.Intervals:
    """Return the gaps between two rows between whose launches another kernel was launched that has
    no row: it would have run there.
    """
    device, runtime = timeline.device, timeline.runtime
    calls = named(timeline, runtime, LAUNCH_CALL) & (runtime.rank == rank)
    lost = runtime.start[calls & ~timeline.launching]
    call = timeline.launched_by[worked]
    begun = device.start[worked]
    launch = np.where(call >= 0, runtime.start[np.maximum(call, 0)], begun)
    # The row before the gap and the one behind it, with the moments at which they were launched; a
    # lost launch between the two is of work that ran in the gap.
    after = np.searchsorted(begun, idle.end)
    previous = np.searchsorted(begun, idle.start) - 1
    low = np.where(previous >= 0, launch[np.maximum(previous, 0)], 0)
    high = np.where(after < len(begun), launch[np.minimum(after, len(begun) - 1)], idle.end)
    between = np.searchsorted(lost, high) > np.searchsorted(lost, low, side="right")
    return idle.where(between)


def waiting_in_queue(
    timeline: Timeline, rows: NDArray[np.intp], idle: iv.Intervals, others: iv.Intervals
) -> tuple[iv.Intervals, iv.Intervals]:
    """Return (gaps before work that had been launched when they began; the stretches in which work
    waited for longer than a device pauses) of the device that has these rows.

    In neither is the host why the device did nothing. What waited that long while `others` worked,
    the rank's other devices, waited for these, and is among the first.
    """
    begun = timeline.device.start[rows]
    parts = [_waiting(timeline, rows, begun, gaps) for gaps in iv.parts(idle)]
    queued, waited = iv.chain(part for part, _ in parts), iv.chain(part for _, part in parts)
    missing = iv.subtract(waited, others)
    return iv.join(queued, iv.subtract(waited, missing)), missing


def _waiting(
    timeline: Timeline, rows: NDArray[np.intp], begun: Ints, gaps: iv.Intervals
) -> tuple[iv.Intervals, iv.Intervals]:
    """Return (the gaps before work that had been launched when they began; the stretches in which
    work waited for longer than a device pauses), of some gaps of a device whose rows have `begun`.
    """
    # A gap ends with the row that starts where it ends; the last gap may end with none.
    after = np.searchsorted(begun, gaps.end)
    ended = np.flatnonzero(after < len(rows))
    call = timeline.launched_by[rows[after[ended]]]
    ended, call = ended[call >= 0], call[call >= 0]
    # The call of a copy may block, and ends with the copy: before one to the host it only waits,
    # before one to the device it also stages what it sends.
    row, start, end = rows[after[ended]], timeline.runtime.start[call], timeline.runtime.end[call]
    direction, size = timeline.device.direction[row], timeline.device.bytes[row]
    staged = (direction == Direction.H2D) & (size > 0) & (end > timeline.device.start[row])
    launched = np.where(direction == Direction.D2H, start, end)
    launched = np.where(staged, np.minimum(end, start + size // STAGED_BYTES_PER_NS), launched)
    since = np.maximum(launched, gaps.start[ended])
    long = gaps.end[ended] - since > LONGEST_PAUSE_NS
    early = ended[(end <= gaps.start[ended]) & ~long]
    queued = iv.Intervals(gaps.start[early], gaps.end[early])
    return queued, iv.Intervals(since[long], gaps.end[ended[long]])
