"""Replay programs: every task as early as its dependencies let it, with something removed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.device.attribution import TOGETHER_NS
from bottleneck_lab.analysis.what_if.host import Host
from bottleneck_lab.analysis.what_if.program import LAUNCH_NS, Program, Tasks, previous_ends
from bottleneck_lab.analysis.what_if.removal import Removal
from bottleneck_lab.trace.timeline import Ints

PAUSE_NS = 900
"""Between two queued kernels of a stream: about what an H200 needs."""
LONGEST_DELAY_NS = 1_000_000
"""A longer one is not the device's: what kept it is not in the capture, and may not come again."""
JITTER_NS = 20_000
"""A wait is for work that ends no later than this after it: the two clocks differ by microseconds.
"""
ROWS_AT_ONCE = 1 << 12


class Plan(NamedTuple):
    """The data that a replay goes by, in ns; the program begins at `offset` on its clock.

    A row of `tasks` holds how many of the waits have passed when it is launched, and when it would
    be ready without them; its stream, length, and pause after the task before it; the position of
    the task that it needs and its lag behind that one's end; the numbers of the collective that it
    joins and of the one that it transfers. -1: none.

    A row of `waits` holds its start on the replay's clock, but for the waits before; the position
    of the task that it is for (-1: none), how long before that one's end it returns, and how long
    after it.
    """

    offset: int
    streams: int
    tasks: Iterable[tuple[int, ...]]
    waits: Sequence[tuple[int, ...]]
    host_end: int
    collectives: Sequence[int]


def make_plan(
    program: Program, removal: Removal, removed: Ints, offset: int, gone: iv.Intervals = iv.NONE
) -> Plan:
    """Return the plan of a program without what is removed: of each task, `removed` ns, and of the
    host's time what is `gone`, beside that of the removal's causes.
    """
    tasks, host, window = program.tasks, program.host, program.window
    gone = iv.join(gone, *(host.doing.get(cause, iv.NONE) for cause in removal.causes))
    gone = iv.subtract(gone, host.fixed)
    # Waits are taken out of the host's time here and put back by the replay, as long as they then
    # take.
    lost = iv.clip(iv.join(gone, host.waits), *window)

    def own(moments: Ints) -> Ints:
        """Return moments on the replay's clock, but for the host's waits."""
        moments = np.maximum(moments, window.start)
        own_moments: Ints = moments - window.start - iv.covered_before(lost, moments) + offset
        return own_moments

    length = tasks.end - tasks.start - removed
    if "files" in removal.causes:  # the copies of a checkpoint go with the checkpoint
        files = host.doing.get("files", iv.NONE)
        length[iv.meets(files, tasks.launch, tasks.launch + 1)] = 0
    # Without launches that come too late all work is queued, and the device pauses before it.
    delay, pause = _find_delays(tasks, window.start, PAUSE_NS if "launch" in removal.causes else 0)
    pause[(length == 0) & (tasks.end > tasks.start)] = 0
    needs = tasks.needs
    if removal.devices:
        devices = program.devices[tasks.stream]
        needs = np.where(devices == devices[needs], needs, -1)
    lag = tasks.start - tasks.end[needs]
    waits = _find_waits(host, removal, gone)
    passed = np.searchsorted(waits.end, tasks.launch, side="right")
    # What is launched during a wait is launched by another thread, which goes on meanwhile.
    into_wait = np.maximum(tasks.launch - np.append(waits.start, window.end)[passed], 0)
    ready = own(tasks.launch) + into_wait + delay
    return Plan(
        offset=offset,
        streams=int(tasks.stream.max(initial=0)) + 1,
        tasks=_rows(
            *(passed, ready, tasks.stream, length, pause, needs, lag),
            *(tasks.joins, tasks.transfers),
        ),
        waits=list(_rows(own(waits.start), *_find_awaited(tasks, waits, host.fetching))),
        host_end=int(own(np.array([host.end]))[0]),
        collectives=tasks.joins[tasks.joins >= 0].tolist(),
    )


def _rows(*columns: Ints) -> Iterator[tuple[int, ...]]:
    """Return columns as rows of Python's numbers. One by one NumPy's take several times as long,
    and all at once five times the memory of the columns.
    """
    slices = (
        slice(first, first + ROWS_AT_ONCE) for first in range(0, len(columns[0]), ROWS_AT_ONCE)
    )
    return chain.from_iterable(
        zip(*(column[rows].tolist() for column in columns), strict=True) for rows in slices
    )


def _find_delays(tasks: Tasks, begin: int, least_pause: int) -> tuple[Ints, Ints]:
    """Return (delay after its launch, pause after the task before it on its stream) of each task.

    Queued work starts after the device's own pause, work that needs other work as long after that
    as it did, and the rest as long after its launch.
    """
    previous = previous_ends(tasks, begin)
    held, since = tasks.needs >= 0, tasks.start - tasks.launch
    soonest = since[(tasks.launch > previous) & ~held].min(initial=LAUNCH_NS)
    # What was on its way when its stream came free was launched too late to be queued.
    queued = tasks.launch + soonest <= previous
    free = ~queued & ~held
    delay = np.minimum(since, np.where(free, LONGEST_DELAY_NS, soonest))
    recorded = np.clip(tasks.start - previous, 0, LONGEST_DELAY_NS)
    pause = np.where(queued & ~held, recorded, least_pause)
    # Before the transfer of a collective, nothing but the other ranks is waited for.
    delay[tasks.transfers >= 0] = pause[tasks.transfers >= 0] = 0
    return delay, pause


def _find_waits(host: Host, removal: Removal, gone: iv.Intervals) -> iv.Intervals:
    """Return the waits of the host that remain. One that lies in what is `gone` goes with it."""
    waits = host.waits
    half = (waits.lengths + 1) // 2
    remain = iv.covered_within(gone, *waits) < half
    if removal.waits:
        remain &= iv.covered_within(host.sending, *waits) >= half
    return waits.where(remain)


def _find_awaited(
    tasks: Tasks, waits: iv.Intervals, fetching: iv.Intervals
) -> tuple[Ints, Ints, Ints]:
    """Return, for each wait, the position of the task that it was for (-1: none), how long before
    that one's end it returned, and how long after it, ns. `fetching`: the calls that copy back.
    """
    awaited, early = np.full(len(waits.start), -1), np.zeros(len(waits.start), dtype=np.int64)
    late = waits.lengths
    if not len(tasks.start):
        return awaited, early, late
    start, launch = tasks.start, tasks.launch
    end = np.where(tasks.joins < 0, tasks.end, -1)  # nobody waits for a collective to be joined
    by_end, by_start = np.argsort(end, kind="stable"), np.argsort(start, kind="stable")
    # The task that ended last before the wait returned, of those launched before it.
    at = np.searchsorted(end[by_end], waits.end + JITTER_NS, side="right") - 1
    while True:
        last = by_end[np.maximum(at, 0)]
        ended = (at >= 0) & (end[last] > waits.start)
        later = ended & (launch[last] >= waits.start)
        if not later.any():
            break
        at[later] -= 1
    awaited[ended] = last[ended]
    late[ended] = np.maximum(waits.end - end[last], 0)[ended]
    # Inside a longer task something ended that the wait was for, if nothing else did shortly before
    # it returned.
    at = np.searchsorted(start[by_start], waits.end) - 1
    within = by_start[np.maximum(at, 0)]
    inside = (at >= 0) & (end[within] > waits.end) & (launch[within] < waits.start)
    inside &= ~ended | (late > JITTER_NS)
    awaited[inside] = within[inside]
    early[inside] = (end[within] - waits.end)[inside]
    late[inside] = 0
    # `.item()` waits for its copy also where that was over at once, as with a slow host: a faster
    # one has to wait.
    copies = _fetched(tasks, waits, fetching)
    over = (awaited < 0) & (copies >= 0)
    awaited[over] = copies[over]
    early[over] = late[over]  # what the call takes passes beside the copy
    return awaited, early, late


def _fetched(tasks: Tasks, waits: iv.Intervals, fetching: iv.Intervals) -> Ints:
    """Return, for each wait, the position of the copy back that was launched right before it, -1 if
    it was none or no task of its own.
    """
    fetched = np.full(len(waits.start), -1)
    if not len(fetching.start):
        return fetched
    call = np.searchsorted(fetching.start, waits.start, side="right") - 1
    begun, ended = fetching.start[call], fetching.end[call]
    task = np.searchsorted(tasks.launch, begun, side="right") - 1
    near = (call >= 0) & (waits.start - ended < TOGETHER_NS) & (task >= 0)
    near &= tasks.launch[task] == begun
    fetched[near] = task[near]
    return fetched


def replay(plans: Sequence[Plan]) -> int:
    """Return the summed lengths of programs that are replayed together, ns.

    Each runs until it needs a collective that others have not joined yet, so that none is ahead of
    an arrival that it depends on.
    """
    members = Counter(number for plan in plans for number in plan.collectives)
    joined: dict[int, list[int]] = defaultdict(list)
    needed: dict[Generator[int, None, int], int | None]
    needed = {_Replay(plan).run(joined): None for plan in plans}
    total = 0
    while needed:
        ready = [
            running
            for running, number in needed.items()
            if number is None or len(joined[number]) >= members[number]
        ]
        if not ready:  # captures that do not match to the end: nobody waits any longer
            members.clear()
        for running in ready or list(needed):
            try:
                needed[running] = next(running)
            except StopIteration as ended:
                total += ended.value
                del needed[running]
    return total


class _Replay:
    """A program on its way through a replay."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._done: list[int] = []  # when each task ended, of those replayed so far
        self._waited = 0  # by the host so far, ns
        self._passed = 0  # so many waits

    def run(self, joined: Mapping[int, list[int]]) -> Generator[int, None, int]:
        """Replay the program; return its length, ns.

        Yields the number of a collective that it needs, and is resumed when all members have joined
        it: `joined` has when, by collective.
        """
        plan, done = self._plan, self._done
        free = [plan.offset] * plan.streams  # from when on each stream is
        # For up to 40,000 tasks, several times: `max` takes twice as long as a comparison.
        for passed, own, stream, length, pause, needs, lag, joins, transfers in plan.tasks:
            if passed > self._passed:
                self._pass_waits(passed)
            ready = own + self._waited
            queued = free[stream] + pause
            if queued > ready:  # noqa: PLR1730 - see above
                ready = queued
            if needs >= 0:
                needed = done[needs] + lag
                if needed > ready:  # noqa: PLR1730 - see above
                    ready = needed
            if joins >= 0:
                joined[joins].append(ready)
                done.append(ready)
                continue
            if transfers >= 0:
                yield transfers
                ready = max([ready, *joined[transfers]])
            free[stream] = ready + length
            done.append(free[stream])
        self._pass_waits(len(plan.waits))
        return max(*free, plan.host_end + self._waited) - plan.offset

    def _pass_waits(self, until: int) -> None:
        """Let the host go through its waits up to the one at this position."""
        for own, awaited, early, late in self._plan.waits[self._passed : until]:
            begins = returns = own + self._waited
            if awaited >= 0 and self._done:
                # A task that is not replayed yet was launched after this wait: it cannot be meant.
                returns = self._done[min(awaited, len(self._done) - 1)] - early
            self._waited += max(begins, returns) + late - begins
        self._passed = until
