"""The stretch of a capture that is looked at, and the steps in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.rows import named
from bottleneck_lab.trace.names import STEP, STEP_NAME
from bottleneck_lab.trace.timeline import (
    DeviceTable,
    HostTable,
    Ints,
    Timeline,
    sort_table,
    take,
)

BATCH = re.compile(r"\bbatch (\d+)\)?$")
"""The end of the name of a device's row on which a batch ran, with its images."""
_SERVER_RANGE = re.compile("^(?:preprocess|infer)$")
_LEAST = 3
"""Fewer batches show no rhythm."""

_OPTIMIZER = "Optimizer.step#"

QUEUE = 1024
"""So many launches a driver's queue holds before the next one waits."""
BUSY_QUEUE = 0.9
"""A device that has its work in a queue is busy for at least this share (0-1) of the time."""

Rows = TypeVar("Rows", DeviceTable, HostTable)


class Window(NamedTuple):
    """[start, end), ns on the capture's clock."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class Step(msgspec.Struct, frozen=True):
    """One training or inference step, as the profiler or the program marked it. `range_ns` holds
    the time in each named range on its thread.

    `duration_ns` is the host's: it says little where the host runs ahead of the device. `cost_ns`
    runs from when the step before was done, on host and device, to when this one was: what the step
    really took.
    """

    name: str
    rank: int
    start_ns: int
    duration_ns: int
    cost_ns: int
    range_ns: dict[str, int] = {}


def step_rows(timeline: Timeline) -> HostTable:
    """Return the ranges that mark steps: ProfilerStep#n; "step n" and the like where there is none;
    and where no steps are marked at all, the stretches that each end with an optimizer's step.
    What begins after the last step, and is cut short with nothing in it, is none.
    """
    ranges = timeline.ranges
    if len(ranges):
        for prefix in (STEP, ""):
            marks_step = np.array(
                [
                    name.startswith(prefix) and bool(STEP_NAME.match(name))
                    for name in timeline.strings
                ]
            )
            marked = take(ranges, marks_step[ranges.name])
            if len(marked):
                return _without_remainders(timeline, marked)
    return _optimizer_steps(timeline)


def first_step_name(timeline: Timeline, rank: int) -> str:
    """Return the name of a rank's first step; empty where it has none."""
    steps = step_rows(timeline)
    mine = steps.rank == rank
    return timeline.strings[int(steps.name[mine.argmax()])] if mine.any() else ""


def _without_remainders(timeline: Timeline, steps: HostTable) -> HostTable:
    """Leave out a rank's last step where nothing happened in it and no other is as short:
    `profiler.step()` begins another one after the last, and the profiler's stop ends that.
    """
    tables = (timeline.operators, timeline.runtime, timeline.device)
    if not any(len(table) for table in tables):
        return steps
    keep, lengths = np.ones(len(steps), dtype=bool), steps.end - steps.start
    for rank in np.unique(steps.rank).tolist():
        *others, last = np.flatnonzero(steps.rank == rank)  # in the order of their start
        if not others or lengths[last] >= lengths[others].min():
            continue
        inside = (steps.start[last], steps.end[last])
        keep[last] = any(
            (table.rank[slice(*np.searchsorted(table.start, inside).tolist())] == rank).any()
            for table in tables
        )
    return take(steps, keep) if not keep.all() else steps


def _optimizer_steps(timeline: Timeline) -> HostTable:
    """Return a row for each range of torch's that is around an optimizer's step: from the end of
    the one before to its own. The first begins with the first launch, or operator.
    """
    ranges, runtime, operators = timeline.ranges, timeline.runtime, timeline.operators
    is_step = np.array([name.startswith(_OPTIMIZER) for name in timeline.strings], dtype=bool)
    rows = np.flatnonzero(is_step[ranges.name]) if len(ranges) else np.empty(0, dtype=np.int64)
    chosen: list[NDArray[np.intp]] = []
    starts: list[Ints] = []
    for rank in np.unique(ranges.rank[rows]).tolist():
        own = rows[ranges.rank[rows] == rank]
        # Of several optimizers the one with most steps has one in every step of the program, and
        # the last of them ends it.
        counts = np.bincount(ranges.name[own])[ranges.name[own]]
        own = own[ranges.name[own] == ranges.name[own[counts == counts.max()][-1]]]
        launches = timeline.launching & (runtime.rank == rank)
        begins = ((runtime, launches), (operators, operators.rank == rank))
        first = next(
            (int(table.start[mask.argmax()]) for table, mask in begins if mask.any()),
            int(ranges.start[own[0]]),
        )
        if len(own) > 1:
            chosen.append(own)
            first = min(first, int(ranges.start[own[0]]))
            starts.append(np.concatenate([[first], ranges.end[own[:-1]]]).astype(np.int64))
    if not chosen:
        return take(ranges, slice(0))
    steps = take(ranges, np.concatenate(chosen))
    return sort_table(replace(steps, start=np.concatenate(starts)))


def find_window(timeline: Timeline, rank: int | None = None) -> Window:
    """Return the stretch from the first step's start to the end of the last step and of the device
    work that the steps launched; without steps, from a server's first batch to its last, or
    everything recorded.

    A host that runs ahead has finished its steps long before the device has: a step is the work
    that it launched.
    """
    host, device = host_window(timeline, rank), timeline.device
    if not len(step_rows(timeline)):
        batches = batch_rows(timeline)
        if not len(batches):
            return host
        # A server is recorded for a while, and the ends of that say nothing about it.
        return Window(int(device.start[batches[0]]), int(device.end[batches].max()))
    # Only work that ends after the host's last step can move the end: the rest is not looked at.
    late = np.flatnonzero((device.end > host.end) & device.works)
    launched = launch_times(timeline, late)
    mine = (launched >= host.start) & (launched < host.end)
    if rank is not None:
        mine &= device.rank[late] == rank
    return Window(host.start, int(device.end[late[mine]].max(initial=host.end)))


def batch_rows(timeline: Timeline) -> NDArray[np.intp]:
    """Return the rows of the device on which a server's batches ran, in order; none if they are too
    few to show a rhythm.
    """
    device = timeline.device
    # Names that end so occur in other programs too; a server of ours also marks its own work.
    marked = named(timeline, timeline.ranges, _SERVER_RANGE)
    rows = np.flatnonzero(named(timeline, device, BATCH) if marked.any() else [])
    return rows[np.argsort(device.start[rows], kind="stable")] if len(rows) >= _LEAST else rows[:0]


def host_window(timeline: Timeline, rank: int | None = None) -> Window:
    """Return the stretch from the first step's start to the end of the last one on the host;
    without steps, everything recorded.
    """
    steps = step_rows(timeline)
    if rank is not None:
        steps = take(steps, steps.rank == rank)
    if len(steps):
        return Window(int(steps.start.min()), int(steps.end.max()))
    return Window(*timeline.extent)


def launch_times(timeline: Timeline, rows: NDArray[np.intp] | slice) -> Ints:
    """Return when the host launched these rows of the device table; where no call was recorded,
    when a row began, ns.
    """
    begun, call = timeline.device.start[rows], timeline.launched_by[rows]
    if not len(timeline.runtime):
        return begun
    times: Ints = np.where(call >= 0, timeline.runtime.start[call], begun)
    return times


def queued_before(timeline: Timeline, rank: int) -> NDArray[np.intp]:
    """Return the rows of work that a rank's devices had in their queues when the recording began:
    they come without calls, before all others and one right after another. None if there are more
    than a queue holds.
    """
    device, calls = timeline.device, timeline.launched_by
    mine = (device.rank == rank) & device.works
    called = mine & (calls >= 0)
    if not len(timeline.runtime) or not called.any():
        return np.empty(0, dtype=np.intp)
    rows = np.flatnonzero(mine[: called.argmax()])
    if not 0 < len(rows) <= QUEUE:
        return rows[:0]
    begin, end = int(device.start[rows[0]]), int(device.end[rows].max())
    busy = int((device.end - device.start)[rows].sum())
    return rows if busy >= BUSY_QUEUE * (end - begin) else rows[:0]


def begun_inside(timeline: Timeline) -> Timeline:
    """Keep only the device work, calls and operators that began in their rank's window: what is
    summed up to be set against the time of the steps.

    Before the first step lies a program's start-up: it copies the model, allocates, makes the first
    weights. Without steps it is the timeline itself.
    """
    if not len(step_rows(timeline)):
        return timeline
    ranks = timeline.ranks
    host = {rank: host_window(timeline, rank) for rank in ranks}
    return replace(
        timeline,
        device=_begun(timeline.device, {rank: find_window(timeline, rank) for rank in ranks}),
        runtime=_begun(timeline.runtime, host),
        operators=_begun(timeline.operators, host),
    )


def _begun(table: Rows, windows: dict[int, Window]) -> Rows:
    if len(windows) == 1:  # a slice takes no memory
        (window,) = windows.values()
        return take(table, slice(*np.searchsorted(table.start, window).tolist()))
    inside = np.zeros(len(table), dtype=bool)
    for rank, window in windows.items():
        inside |= (table.rank == rank) & (table.start >= window.start) & (table.start < window.end)
    return take(table, inside)


def find_steps(timeline: Timeline) -> list[Step]:
    """Return steps in order, each with the time in the ranges on its thread that no other range
    encloses within it.
    """
    steps = step_rows(timeline)
    others = take(timeline.ranges, ~np.isin(timeline.ranges.name, steps.name))
    costs = step_costs(timeline, steps)
    steps_found = []
    for i in range(len(steps)):
        start, end = int(steps.start[i]), int(steps.end[i])
        near = take(others, slice(*np.searchsorted(others.start, (start, end)).tolist()))
        mine = (near.thread == steps.thread[i]) & (near.end <= end)
        steps_found.append(
            Step(
                name=timeline.strings[int(steps.name[i])],
                rank=int(steps.rank[i]),
                start_ns=start,
                duration_ns=end - start,
                cost_ns=int(costs[i]),
                range_ns=outermost_times(timeline, take(near, mine)),
            )
        )
    return steps_found


def count_launches(timeline: Timeline, steps: Sequence[Step]) -> list[int]:
    """Return how many kernels each step launches; without calls of a device's runtime, how many
    operators it calls.
    """
    table, counted = timeline.runtime, timeline.launching
    if not len(table):
        table, counted = timeline.operators, np.ones(len(timeline.operators), dtype=bool)
    several = len(timeline.ranks) > 1
    counts = []
    for step in steps:
        ends = (step.start_ns, step.start_ns + step.duration_ns)
        rows = slice(*np.searchsorted(table.start, ends).tolist())
        mine = counted[rows] & (table.rank[rows] == step.rank) if several else counted[rows]
        counts.append(int(np.count_nonzero(mine)))
    return counts


def step_costs(timeline: Timeline, steps: HostTable) -> Ints:
    """Return, for each step, the time from the end of the step before (the start, for the first of
    a rank) to the end of this one, ns; a step ends with the device work launched in it.
    """
    done = steps.end.copy()
    device = timeline.device
    costs = np.zeros(len(steps), dtype=np.int64)
    for rank in np.unique(steps.rank).tolist():
        mine = np.flatnonzero(steps.rank == rank)
        work = (device.rank == rank) & device.works
        for block in iv.blocks(len(device)):
            rows = block.start + np.flatnonzero(work[block])
            launched = launch_times(timeline, rows)
            at = np.searchsorted(steps.start[mine], launched, side="right") - 1
            inside = (at >= 0) & (launched < steps.end[mine].max())
            # A step is done when the host is and all work that it launched: overlapping steps end
            # in order.
            np.maximum.at(done, mine[at[inside]], device.end[rows[inside]])
        ends = np.maximum.accumulate(done[mine])
        costs[mine] = np.diff(ends, prepend=steps.start[mine[0]])
    return costs


def outermost_times(timeline: Timeline, rows: HostTable) -> dict[str, int]:
    """Return the time by name of rows of one thread, without those inside another of the same name,
    ns. Longest first.
    """
    times: dict[str, int] = {}
    until: dict[int, int] = {}
    for name, start, end in zip(
        rows.name.tolist(), rows.start.tolist(), rows.end.tolist(), strict=True
    ):
        if start >= until.get(name, -1):
            until[name] = end
            key = timeline.strings[name]
            times[key] = times.get(key, 0) + end - start
    return dict(sorted(times.items(), key=lambda item: -item[1]))
