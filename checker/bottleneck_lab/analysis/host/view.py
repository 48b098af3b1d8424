"""The host beside a device: the stretches in which its launching threads launched, waited, copied,
or did what their rows' names give away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.host.calls import ALLOCATION_CALL, PYTHON_NS, SHORT_PAUSE_NS
from bottleneck_lab.analysis.host.waits import copying_calls, queued_copies, waiting_calls
from bottleneck_lab.analysis.rows import covered_by, look_up, named, names_in, union_of
from bottleneck_lab.analysis.steps.window import step_rows
from bottleneck_lab.trace.names import FIXED_PRICE, STEP_NAME
from bottleneck_lab.trace.timeline import HostTable, Ints, SmallInts, Timeline, different

COLLECTIVE_RANGE = re.compile(r"^(?:gloo|mpi|ucc):", re.IGNORECASE)
"""Ranges of the libraries for collectives on the CPU, on threads of their own, from queueing to
done.
"""
LAUNCH_CALL = re.compile(
    # Not cudaLaunchHostFunc: that runs a function of the host, in the stream's turn.
    r"^(?:cuda|cu|hip)(?:Ext)?(?:Module)?(?:Graph)?Launch(?!HostFunc)"
    r"|^urEnqueue(?:Kernel|CooperativeKernel|CommandBuffer)|^urCommandBufferEnqueue"
    r"|^zeCommandListAppendLaunch|^clEnqueue(?:NDRange|Task)"
    r"|kernel_?launch|launch_?kernel|graph_?launch",
    re.IGNORECASE,
)
"""Calls that put a kernel, or a graph of them, onto a device: CUDA's, HIP's, Intel's, and others
that are named like them.
"""
_INFERENCE, _COLLECTING = re.compile("^infer$"), re.compile("^queue$")
"""Ranges of a server's thread that hands batches to a model, and before that waits for them."""

BUSY_LAUNCHING_NS = 500_000
"""A host that launches as fast as it can makes a call every 5 to 100 us. One that makes none for
longer than this does something else.
"""
SHORT_PAUSES, LAUNCHES_EACH = 0.25, 4
"""Holes between launches and operators that are shorter than PYTHON_NS are pauses, too, from
SHORT_PAUSE_NS on, where they take this share (0-1) of the time and come with so many launches each:
a host whose launches are slow throughout has one with nearly every launch.
"""
AFTER_WAITS, AFTER_WAIT_NS = 0.1, 20_000
"""Where so much of the time lies in such holes right after waits, as with Python that works on each
token, they are pauses, too.
"""
LONG_LAUNCH_NS = 20_000
"""A launch that takes longer waits for room in the queue, or loads the kernel's code first."""
HANDED_NS = 6_000_000
"""A thread goes on within this time after another has handed it what it waited for: Python's lock
changes hands after 5 ms.
"""
HANDED_SHARE = 0.9
"""One range of another thread covers this share (0-1) of a pause that is a wait for its result."""


@dataclass(frozen=True, slots=True)
class HostView:
    """Disjoint stretches of the launching threads of one rank."""

    doing: Mapping[str, iv.Intervals]
    """By cause, what the names of rows give away. Queueing a collective (`nccl:…`) is no waiting:
    the wait is the collective's own row on the device.
    """
    handed: Mapping[str, iv.Intervals]
    """By cause, what the names of other threads' ranges give away: pauses of the launching threads
    for nearly all of which one range lasts, and which end when it does. Its result was waited for.
    """
    sync: iv.Intervals
    """Waits for devices."""
    copy_calls: iv.Intervals
    """Calls that touch stay apart, as in `long_launches`."""
    allocation: iv.Intervals
    collectives: iv.Intervals
    """In flight, on any thread, while the launching thread may do something else."""
    known: iv.Intervals
    """From the first to the last thing recorded."""
    long_launches: iv.Intervals
    """Calls of over LONG_LAUNCH_NS that launched work."""
    pause_ns: int
    """Between two launches further apart than this, and without an operator, the host does
    something else.
    """
    active: iv.Intervals
    """One launch, wait, operator or fixed price follows another within half of `pause_ns`. None
    where no operators or no launches were recorded: nothing then tells a pause of the host.
    """
    launching: iv.Intervals
    """One launch, with the operator that made it, or wait (or operator, where the rank has no
    device) follows another within BUSY_LAUNCHING_NS; so does a fixed price.
    """
    fixed: iv.Intervals
    """Charged by the model of a host whatever runs; none of a real host."""
    steps: iv.Intervals
    stacks: bool
    """True if frames of Python were recorded."""
    operators: HostTable
    """Of all threads."""
    outermost: SmallInts
    """The rows of these that `find_outermost` returns."""
    threads: NDArray[np.bool_]
    """A mask of the threads that launch."""
    others: NDArray[np.bool_]
    """A mask of the rank's other threads."""

    def in_operators(self, stretches: iv.Intervals) -> iv.Intervals:
        """Return the time in these stretches in which an operator ran on a launching thread."""
        ran = []
        # The time of all operators would take as much memory as a column of their table.
        for block in iv.blocks(len(self.outermost)):
            rows = self.outermost[block]
            start, end = self.operators.start[rows], self.operators.end[rows]
            near = iv.clip(stretches, int(start[0]), int(end.max()))
            if len(near.start):
                mine = self.threads[self.operators.thread[rows]]
                ran.append(iv.intersect(near, iv.union(start[mine], end[mine])))
        return iv.join(*ran)


def view_host(
    timeline: Timeline,
    rank: int,
    patterns: Mapping[str, Mapping[str, re.Pattern[str]]],
    outermost: SmallInts,
) -> HostView:
    """Return the host of a rank, seen from the threads that launch work onto its devices.

    `patterns`: by cause, the names that give it away among `ranges`, `frames`, `operators` and
    `calls`. Worker threads that read ahead are no cause of a gap: only what the launching threads
    do, or wait for, delays a launch. `outermost`: what `find_outermost` returns.
    """
    own = _Own(timeline, rank)
    runtime, ranges, operators = timeline.runtime, timeline.ranges, timeline.operators
    waits, copying = _waits_and_copies(own)
    # A price that the model of a host charges for every step is no work that could be moved: it is
    # a part of how fast that host launches.
    fixed_price = own.covered("ranges", FIXED_PRICE)
    launching = timeline.launching & (runtime.rank == rank)
    launches = iv.separate(runtime.start[launching], runtime.end[launching])
    on_them = look_up(own.threads, operators.thread)
    own_operators = covered_by(operators, outermost[on_them[outermost]])
    # A capture without a device (the CPU's, or nsys without CUDA) shows its pace by operators. If
    # there is a device that no recorded call launched anything on, another process feeds it:
    # operators are then work of the host's own.
    fed = bool((timeline.device.rank == rank).any())
    pace, active, pause_ns = iv.NONE if fed else own_operators, iv.NONE, PYTHON_NS
    if len(launches.start):
        around = _launches_within(operators, launches) & on_them
        pace = iv.join(launches, union_of(operators, around))
        if len(own_operators.start):
            active = iv.join(launches, waits, own_operators, fixed_price)
            pause_ns = _shortest_pause(active, waits, len(launches.start))
            active = iv.close_holes(active, pause_ns // 2)
    doing = {
        cause: iv.join(*(own.covered(rows, pattern) for rows, pattern in by_rows.items()))
        for cause, by_rows in patterns.items()
    }
    # A call's name does not tell whether it waits or stages what it sends.
    doing["synchronisation"] = waits
    doing["copy"] = iv.join(doing["copy"], union_of(runtime, copying))
    handed = _handed_over(own, patterns, [launches, waits, own_operators, *doing.values()])
    long_launches = launches.where(launches.lengths > LONG_LAUNCH_NS)
    del launches, own_operators  # of a large capture they are large, too
    in_flight = named(timeline, ranges, COLLECTIVE_RANGE) & (ranges.rank == rank)
    steps = step_rows(timeline)
    return HostView(
        doing=doing,
        handed=handed,
        sync=waits,
        copy_calls=iv.separate(runtime.start[copying], runtime.end[copying]),
        allocation=own.covered("calls", ALLOCATION_CALL),
        collectives=union_of(ranges, in_flight),
        known=own.extent(),
        long_launches=long_launches,
        pause_ns=pause_ns,
        active=active,
        launching=iv.close_holes(iv.join(pace, waits, fixed_price), BUSY_LAUNCHING_NS),
        fixed=fixed_price,
        steps=union_of(steps, steps.rank == rank),
        stacks=bool((timeline.python.rank == rank).any()),
        operators=operators,
        outermost=outermost,
        threads=own.threads,
        others=own.others,
    )


class _Own:
    """The rows of a rank's launching threads. `threads` and `others` are masks: of these threads,
    and of the rank's others.
    """

    def __init__(self, timeline: Timeline, rank: int) -> None:
        self.timeline = timeline
        self.threads = np.zeros(len(timeline.threads) + 1, dtype=bool)
        self.threads[list(launching_threads(timeline, rank))] = True
        of_rank = np.array([thread.rank == rank for thread in timeline.threads] + [False])
        self.others = of_rank & ~self.threads
        self._tables = {
            "ranges": timeline.ranges,
            "frames": timeline.python,
            "operators": timeline.operators,
            "calls": timeline.runtime,
        }
        self._names = {rows: names_in(timeline, table) for rows, table in self._tables.items()}

    def covered(self, rows: str, pattern: re.Pattern[str]) -> iv.Intervals:
        """Return the time in these rows whose names match."""
        # Most patterns match none of a table's few names: its millions of rows are left alone.
        if not any(pattern.search(self.timeline.strings[name]) for name in self._names[rows]):
            return iv.NONE
        table = self._tables[rows]
        matching = named(self.timeline, table, pattern)
        return union_of(table, matching & look_up(self.threads, table.thread))

    def extent(self) -> iv.Intervals:
        """Return the stretch from the first row to the last; NONE without any."""
        starts, ends = [], []
        for table in self._tables.values():
            mask = look_up(self.threads, table.thread)
            if mask.any():
                starts.append(int(table.start[mask.argmax()]))  # rows are sorted by start
                ends.append(int(table.end.max(where=mask, initial=starts[-1])))
        if not starts:
            return iv.NONE
        return iv.union(np.array([min(starts)]), np.array([max(ends)]))


def _waits_and_copies(own: _Own) -> tuple[iv.Intervals, NDArray[np.bool_]]:
    """Return the waits for devices, and a mask of the calls that stage what they copy."""
    timeline, runtime = own.timeline, own.timeline.runtime
    waiting, of_host = waiting_calls(timeline), look_up(own.threads, runtime.thread)
    copying = copying_calls(timeline, waiting) & of_host
    waits = union_of(runtime, waiting & of_host & ~copying)
    sending, reached = queued_copies(timeline)
    if len(sending):
        mine = of_host[sending]
        waits = iv.join(waits, iv.union(runtime.start[sending[mine]], reached[mine]))
    return waits, copying


def _handed_over(
    own: _Own,
    patterns: Mapping[str, Mapping[str, re.Pattern[str]]],
    acts: Sequence[iv.Intervals],
) -> dict[str, iv.Intervals]:
    """Return, by cause, the pauses between `acts` that were waits for what other threads made."""
    beside = _ranges_beside(own.timeline, own.others, patterns)
    if not beside:
        return {}
    inferring = own.covered("ranges", _INFERENCE)
    acting = iv.close_holes(iv.join(*acts, inferring), PYTHON_NS // 2)
    handed = _handed(acting, beside, own.timeline.extent)
    waiting_for_batch = iv.subtract(own.covered("ranges", _COLLECTING), inferring)
    if "input" in beside and len(waiting_for_batch.start):
        made = iv.intersect(waiting_for_batch, iv.union(*beside["input"]))
        handed["input"] = iv.join(handed["input"], made)
    return handed


def find_outermost(timeline: Timeline) -> SmallInts:
    """Return the rows of operators that no other of their thread encloses whole, ascending: they
    cover the time of all operators, and are mostly few of them. What old traces record as operators
    to mark steps encloses none.
    """
    operators = timeline.operators
    encloses = ~named(timeline, operators, STEP_NAME)
    reached: dict[int, int] = {}  # by thread, when all that encloses so far has ended
    outermost = [np.empty(0, dtype=np.int32)]
    for block in iv.blocks(len(operators)):
        end, thread = operators.end[block], operators.thread[block]
        outer = ~encloses[block]
        for number in different(thread).tolist():
            own = np.flatnonzero((thread == number) & encloses[block])
            before = np.append(reached.get(number, np.iinfo(np.int64).min), end[own])
            np.maximum.accumulate(before, out=before)
            outer[own] = before[:-1] < end[own]
            reached[number] = int(before[-1])
        outermost.append((block.start + np.flatnonzero(outer)).astype(np.int32))
    return np.concatenate(outermost)


def _ranges_beside(
    timeline: Timeline,
    others: NDArray[np.bool_],
    patterns: Mapping[str, Mapping[str, re.Pattern[str]]],
) -> dict[str, tuple[Ints, Ints]]:
    """Return, by cause, starts and ends of the ranges on `others` whose names give it away."""
    ranges, rows = timeline.ranges, {}
    for cause, by_rows in patterns.items():
        if "ranges" in by_rows:
            mask = named(timeline, ranges, by_rows["ranges"]) & look_up(others, ranges.thread)
            if mask.any():
                rows[cause] = ranges.start[mask], ranges.end[mask]
    return rows


def _handed(
    acting: iv.Intervals, ranges: Mapping[str, tuple[Ints, Ints]], extent: tuple[int, int]
) -> dict[str, iv.Intervals]:
    """Return, by cause, the pauses between what the launching threads did that were waits for what
    these ranges made: one, or several that share the work, last for nearly all of the pause, and
    end with it. Threads that read ahead end at any time.
    """
    pauses = iv.complement(acting, *extent) if len(acting.start) else iv.NONE
    handed = {}
    for cause, (begins, ends) in ranges.items():
        shared_out = iv.close_holes(iv.union(begins, ends), HANDED_NS)
        start = np.concatenate((begins, shared_out.start))
        end = np.concatenate((ends, shared_out.end))
        waits = np.zeros(len(pauses.start), dtype=bool)
        # The pause that ends next after the range; or the one before, which the range may outlast
        # a little, where the result is handed over inside it.
        following = np.searchsorted(pauses.end, end)
        for near in (following - 1, following):
            inside = (near >= 0) & (near < len(waits))
            at, begun, ended = near[inside], start[inside], end[inside]
            length = pauses.lengths[at]
            shared = np.minimum(ended, pauses.end[at]) - np.maximum(begun, pauses.start[at])
            most = (1 - HANDED_SHARE) * length
            # What lies in the pause as a whole was made for it, however late the thread goes on.
            most = np.where(begun < pauses.start[at], np.minimum(HANDED_NS, most), most)
            together = np.abs(pauses.end[at] - ended) <= most
            waits[at[together & (shared >= HANDED_SHARE * length)]] = True
        handed[cause] = pauses.where(waits)
    return handed


def _shortest_pause(active: iv.Intervals, waits: iv.Intervals, launches: int) -> int:
    """Return how long a hole in what the host launches and runs is that is no part of it, ns."""
    begun, holes = active.end[:-1], active.start[1:] - active.end[:-1]
    short = (holes >= SHORT_PAUSE_NS) & (holes < PYTHON_NS)
    begun, holes = begun[short], holes[short]
    whole_ns = active.end[-1] - active.start[0]
    waited = np.concatenate(([active.start[0] - 2 * AFTER_WAIT_NS], waits.end))
    since_ns = begun - waited[np.searchsorted(waits.end, begun, side="right")]
    much = holes.sum() >= SHORT_PAUSES * whole_ns
    much |= holes[since_ns < AFTER_WAIT_NS].sum() >= AFTER_WAITS * whole_ns
    return SHORT_PAUSE_NS if much and LAUNCHES_EACH * len(holes) <= launches else PYTHON_NS


def _launches_within(operators: HostTable, launches: iv.Intervals) -> NDArray[np.bool_]:
    """Return a mask of the short operators in which something is launched: what they do around the
    launch belongs to it.
    """
    mask = np.zeros(len(operators), dtype=bool)
    for rows in iv.blocks(len(operators)):
        start, end = operators.start[rows], operators.end[rows]
        near = launches.start[slice(*launches.start.searchsorted((start[0], end.max())))]
        if len(near):
            launch = near[np.minimum(np.searchsorted(near, start), len(near) - 1)]
            mask[rows] = (launch >= start) & (launch < end) & (end - start < PYTHON_NS)
    return mask


def launching_threads(timeline: Timeline, rank: int) -> tuple[int, ...]:
    """Return the threads whose runtime calls launched at least 1% of the rank's device rows.

    Without such calls, the threads that wait in `infer`, the one with most ranges, with most
    operators, or any with calls.
    """
    for threads in _candidates(timeline, rank):
        if len(threads):
            counts = np.bincount(threads)
            return tuple(np.flatnonzero(counts >= max(1, 0.01 * counts.sum())).tolist())
    return ()


def _candidates(timeline: Timeline, rank: int) -> Iterator[SmallInts]:
    """Yield the threads of the rows that may tell which ones launch, the surest first."""
    runtime = timeline.runtime
    mine = runtime.rank == rank
    yield runtime.thread[mine & timeline.launching]
    # A server's model may run in another process: the thread that hands it a batch waits in
    # `infer`, and those that prepare pictures have more ranges.
    ranges = timeline.ranges
    yield ranges.thread[(ranges.rank == rank) & named(timeline, ranges, _INFERENCE)]
    yield _main(ranges, rank)
    yield _main(timeline.operators, rank)
    yield runtime.thread[mine]


def _main(table: HostTable, rank: int) -> NDArray[np.int32]:
    """Return the thread with most rows of the rank, as an array of one; empty if there is none."""
    threads = table.thread[table.rank == rank]
    return np.array([np.bincount(threads).argmax()] if len(threads) else [], dtype=np.int32)
