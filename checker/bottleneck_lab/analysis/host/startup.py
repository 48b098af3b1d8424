"""The time before a device gets its first work, and the call that took most of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bottleneck_lab.analysis.steps.window import Step, first_step_name, queued_before
from bottleneck_lab.trace.names import STEP, STEP_NAME
from bottleneck_lab.trace.timeline import Timeline

# A start-up is named where it is long, and one call was most of it (0-1).
LEAST_NS = 5_000_000
MOST_OF_IT = 0.3
ALIKE = 0.5
"""A later call of the same name that takes this share (0-1) of the first makes both a loop's."""


class StartUp(msgspec.Struct, frozen=True):
    """The stretch before the first work of a rank's devices, and the call that took most of it:
    the first call of CUDA makes its context, whatever it is called. `first_work_ns` is when that
    stretch ends, on the capture's clock.
    """

    rank: int
    ns: int
    call: str
    call_ns: int
    first_work_ns: int


def find_startup(timeline: Timeline) -> StartUp | None:
    """Return the longest start-up of all ranks; None where none is long, or no one call of the
    runtime was much of it. A recording that began after earlier steps holds no first call.
    """
    return longest_startup(find_startups(timeline))


def find_startups(timeline: Timeline) -> dict[int, StartUp]:
    """Return the start-up of each rank that has one, as `find_startup` does."""
    of_ranks = ((rank, find_startup_of(timeline, rank)) for rank in timeline.ranks)
    return {rank: startup for rank, startup in of_ranks if startup}


def longest_startup(startups: Mapping[int, StartUp]) -> StartUp | None:
    """Return the longest of the ranks' start-ups; None where no rank has one."""
    return max(startups.values(), key=lambda each: each.ns, default=None)


def find_startup_of(timeline: Timeline, rank: int) -> StartUp | None:
    """Return the start-up of one rank, as `find_startup` does."""
    device, calls = timeline.device, timeline.runtime
    works = (device.rank == rank) & device.works
    tables = (calls, timeline.operators, timeline.ranges, timeline.python)
    # Rows are in order: the first of each table begins first.
    begins = [
        int(table.start[mine.argmax()]) for table in tables if (mine := table.rank == rank).any()
    ]
    if not works.any() or not begins or _follows_steps(timeline, rank):
        return None
    first = int(device.start[works.argmax()])
    length = first - min(begins)
    if length < LEAST_NS:
        return None
    rows = np.flatnonzero((calls.rank == rank) & (calls.start < first))
    if not len(rows):
        return None
    inside = np.minimum(calls.end[rows], first) - calls.start[rows]
    most = int(inside.argmax())
    name = timeline.strings[int(calls.name[rows[most]])]
    started = StartUp(rank, length, name, int(inside[most]), first)
    if started.call_ns < MOST_OF_IT * length or _recurs(timeline, int(rows[most])):
        return None
    return started


def costs_without_startup(steps: Sequence[Step], startups: Mapping[int, StartUp]) -> list[int]:
    """Return what each step took, ns, without what a rank's first held of the start-up, also of
    another rank's that it waited for: it happens once, and no mean of steps is about it.
    """
    return _costs_from(steps, _started(steps, startups))


def settled_costs(
    timeline: Timeline, steps: Sequence[Step], startups: Mapping[int, StartUp]
) -> list[int]:
    """Return the same, also without what a rank's first held of work that had been queued before
    the recording.
    """
    begun = _started(steps, startups)
    for rank in {step.rank for step in steps}:
        early = timeline.device.end[queued_before(timeline, rank)]
        begun[rank] = int(early.max(initial=begun.get(rank, 0)))
    return _costs_from(steps, begun)


def _started(steps: Sequence[Step], startups: Mapping[int, StartUp]) -> dict[int, int]:
    """Return when each rank, and all that its first step waited for, had started up."""
    begun = {rank: each.first_work_ns for rank, each in startups.items()}
    last, first = max(begun.values(), default=0), {step.rank: step for step in reversed(steps)}
    for rank, step in first.items():
        if step.start_ns < last < step.start_ns + step.cost_ns:
            begun[rank] = last
    return begun


def _costs_from(steps: Sequence[Step], begun: Mapping[int, int]) -> list[int]:
    """Return what each step took, ns, a rank's first from the moment when it had `begun`."""
    costs = [step.cost_ns for step in steps]
    ranks = [step.rank for step in steps]
    for rank in set(ranks):
        first = ranks.index(rank)
        late = begun.get(rank, 0) - steps[first].start_ns
        costs[first] -= min(max(late, 0), costs[first])
    return costs


def _follows_steps(timeline: Timeline, rank: int) -> bool:
    """Return True if the first recorded step is not the program's first, by its number."""
    name = first_step_name(timeline, rank)
    number = STEP_NAME.match(name)
    # torch.profiler counts from 0; programs count their own steps from 0 or 1.
    return number is not None and int(number[1]) > (0 if name.startswith(STEP) else 1)


def _recurs(timeline: Timeline, call: int) -> bool:
    """Return True if a later call of the same name takes nearly as long: no start-up does."""
    calls = timeline.runtime
    alike = (calls.name == calls.name[call]) & (calls.rank == calls.rank[call])
    alike &= calls.start > calls.start[call]
    lengths = (calls.end - calls.start)[alike]
    return bool(len(lengths)) and int(lengths.max()) >= ALIKE * int(
        calls.end[call] - calls.start[call]
    )
