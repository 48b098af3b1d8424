"""How fast a program could be without something: its recorded dependencies, replayed.

A host launches work, which starts when it has been launched and the device is free; where the host
waits, it goes on when the device has done what it waits for; a collective ends after the last rank
has arrived. With some of the host's time, of the device's or of the waits taken out, everything
else follows as early as these dependencies let it, and the new length is a bound: no fix of that
alone can be faster. It never beats the longer of the host's own time and the device's.

Amdahl's law on idle time is no such bound: a wait that is removed gains nothing where the host has
as much else to do, and a delay of one rank costs all of them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.amdahl import HIGHEST_RATIO
from bottleneck_lab.analysis.causes import Cause
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.trace.timeline import ActivityKind, Direction, Ints, Timeline

LAUNCH_NS = 10_000
"""A kernel starts at most this long after its launch where the device is free."""
PAUSE_NS = 900
"""Between two queued kernels of a stream: about what an H200 needs."""
MOST_TASKS = 40_000
"""Of a device with more stretches of work, the first so many are replayed: a loop is like its
beginning.
"""
LONGEST_DELAY_NS = 1_000_000
"""A longer one is not the device's: what kept it is not in the capture, and may not come again."""
VALUE_BYTES = 4096
"""A copy to the host of at most so much is of values that the program asks for."""
JITTER_NS = 20_000
"""A wait is for work that ends no later than this after it: the two clocks differ by microseconds.
"""


class Removal(NamedTuple):
    """Time that is taken out: the host's for these causes, its waits for devices (but not until a
    copy to one is made), and that of devices in copies, in collectives, or in kernels whose names
    match (but for the share `left`).
    """

    causes: tuple[Cause, ...] = ()
    waits: bool = False
    copies: bool = False
    communication: bool = False
    kernels: re.Pattern[str] | None = None
    left: float = 0.0


NOTHING = Removal()


class Arrival(NamedTuple):
    """One rank's part in a collective that several ranks' captures hold: when its row started and
    ended, and when the last rank's did start, ns. `number` is the same on all ranks.
    """

    number: int
    start: int
    end: int
    last: int


class Program(NamedTuple):
    """One device and the host beside it, as they are replayed.

    The arrays are the device's stretches of work in order: their start, end and launch, ns. `waits`
    are the host's, `sending` its copies to the device, `doing` its time by cause over the whole
    window. `marks` are the positions at which a collective is joined, `after` those that begin when
    all have joined it, both with its number.
    """

    rank: int
    device: int
    window: Window
    start: Ints
    end: Ints
    launch: Ints
    waits: iv.Intervals
    sending: iv.Intervals
    doing: Mapping[Cause, iv.Intervals]
    host_end: int
    marks: Mapping[int, int]
    after: Mapping[int, int]


def make_program(
    timeline: Timeline,
    rank: int,
    device: int,
    window: Window,
    busy: iv.Intervals,
    working: iv.Intervals,
    waits: iv.Intervals,
    sending: iv.Intervals,
    doing: Mapping[Cause, iv.Intervals],
    known: iv.Intervals,
    arrivals: Sequence[Arrival] = (),
) -> Program:
    """Return one device of a rank, ready to be replayed.

    `busy` is all that it did, `working` all but its collectives; `arrivals` are the rank's.
    """
    if len(busy.start) > MOST_TASKS:
        window = Window(window.start, int(busy.end[MOST_TASKS - 1]))
    busy = iv.clip(busy, *window)
    # A collective that the window cuts has no arrival to replay.
    arrivals = [a for a in arrivals if window.start <= a.start and a.end <= window.end]
    # Waiting for other ranks is no work: it ends when the last has arrived, whatever it took.
    first = np.array([a.start for a in arrivals], dtype=np.int64)
    last = np.array([min(a.last, a.end) for a in arrivals], dtype=np.int64)
    busy = iv.subtract(busy, iv.subtract(iv.union(first, last), working))
    start, end = _cut(busy, first)

    # A stretch of no length where a collective is joined: it has to be launched like any work.
    # It comes before the work that starts with it, which may be the collective's own.
    order = np.argsort(np.concatenate([first, start]), kind="stable")
    number = np.concatenate([np.arange(len(first)), np.full(len(start), -1)])[order]
    start = np.concatenate([first, start])[order]
    end = np.concatenate([first, end])[order]
    marks = {int(at): arrivals[number[at]].number for at in np.flatnonzero(number >= 0)}
    position = {joined: at for at, joined in marks.items()}
    after = {}
    for arrival in arrivals:
        # The transfer itself: the first stretch of work, and not another collective's joining, that
        # begins when the last rank has arrived.
        at = int(np.searchsorted(start, arrival.last))
        while at < len(start) and number[at] >= 0:
            at += 1
        if at < len(start) and start[at] <= min(arrival.last + LAUNCH_NS, arrival.end):
            after[at] = arrival.number

    # A stretch of work counts as launched when its first row was; without a recorded call, when it
    # started.
    begun = timeline.device.start
    rows = np.flatnonzero(
        (timeline.device.rank == rank)
        & (timeline.device.device == device)
        & (timeline.device.kind != ActivityKind.SYNC)
    )
    launch = start.copy()
    if len(rows) and len(timeline.runtime):
        row = rows[np.minimum(np.searchsorted(begun[rows], start), len(rows) - 1)]
        call = timeline.launched_by[row]
        known_call = (call >= 0) & (begun[row] == start)
        launch[known_call] = np.minimum(timeline.runtime.start[call[known_call]], start[known_call])
    for at, joined in after.items():
        # The transfer is not launched by itself: it is the rest of the row that began by waiting.
        launch[at] = min(launch[at], launch[position[joined]])
    host_end = min(int(known.end[-1]), window.end) if len(known.end) else window.start
    return Program(
        rank,
        device,
        window,
        start,
        end,
        launch,
        iv.clip(waits, *window),
        sending,
        doing,
        host_end,
        marks,
        after,
    )


def _cut(intervals: iv.Intervals, moments: Ints) -> tuple[Ints, Ints]:
    """Return starts and ends of the intervals, cut in two at each moment inside one."""
    # The interval that began last before each moment; -1 for a moment before all, looked up at 0.
    at = np.searchsorted(intervals.start, moments, side="right") - 1
    safe = np.maximum(at, 0)
    if len(intervals.start):
        within = (at >= 0) & (moments > intervals.start[safe]) & (moments < intervals.end[safe])
        moments = np.unique(moments[within])
    else:
        moments = moments[:0]
    return (
        np.sort(np.concatenate([intervals.start, moments])),
        np.sort(np.concatenate([intervals.end, moments])),
    )


class WhatIf:
    """The programs of a capture, with what it takes to find what each could do without."""

    def __init__(self, timeline: Timeline, programs: Sequence[Program]) -> None:
        self._timeline = timeline
        self._programs = programs
        self._whole = self._replay(NOTHING) if programs else 0

    def gain(self, removal: Removal) -> float | None:
        """Return how many times as fast the program would be at most; None if it has no devices."""
        if not self._whole:
            return None
        # Against a replay of everything, not the recording: what the replay simplifies is then in
        # both.
        rest = self._replay(removal)
        return min(max(self._whole / max(rest, 1), 1.0), HIGHEST_RATIO)

    def _replay(self, removal: Removal) -> int:
        """Return the summed lengths of all programs without what is removed, ns."""
        arrived: dict[int, dict[int, int]] = {}
        members: dict[int, int] = {}
        for program in self._programs:
            for number in program.marks.values():
                members[number] = members.get(number, 0) + 1
        # Ranks that meet in collectives are replayed on one clock.
        begin = min((p.window.start for p in self._programs if p.marks), default=0)
        running = []
        for key, program in enumerate(self._programs):
            offset = program.window.start - begin if program.marks else 0
            replay = _Replay(program, removal, self._removed(program, removal), offset)
            running.append(replay.run(arrived, key))
        # Each replay runs until it needs a collective that others have not joined yet, so that none
        # is ahead of an arrival it depends on.
        waiting: list[int | None] = [None] * len(running)
        lengths = [0] * len(running)
        left = set(range(len(running)))
        while left:
            moved = False
            for key in sorted(left):
                needed = waiting[key]
                if needed is not None and len(arrived.get(needed, {})) < members[needed]:
                    continue
                moved = True
                try:
                    waiting[key] = next(running[key])
                except StopIteration as ended:
                    lengths[key] = ended.value
                    left.discard(key)
            if not moved:  # captures that do not match to the end: nobody waits any longer
                members = dict.fromkeys(members, 0)
        return sum(lengths)

    def _removed(self, program: Program, removal: Removal) -> Ints:
        """Return how much of each stretch of a device's work is removed, ns."""
        table = self._timeline.device
        mine = (table.rank == program.rank) & (table.device == program.device)
        wanted = np.zeros(len(table), dtype=bool)
        if removal.copies:
            wanted |= (table.kind == ActivityKind.COPY) | (table.kind == ActivityKind.MEMSET)
        if removal.waits:  # the values that the host waits for
            wanted |= (table.direction == Direction.D2H) & (table.bytes <= VALUE_BYTES)
        if removal.communication:
            wanted |= table.kind == ActivityKind.COMMUNICATION
        if removal.kernels is not None:
            matches = np.array(
                [bool(removal.kernels.search(name)) for name in self._timeline.strings], dtype=bool
            )
            wanted |= (table.kind == ActivityKind.KERNEL) & matches[table.name]
        wanted &= mine & (table.kind != ActivityKind.SYNC)
        if not wanted.any():
            return np.zeros(len(program.start), dtype=np.int64)
        rest = mine & ~wanted & (table.kind != ActivityKind.SYNC)
        # What runs beside other work takes no time of its own.
        alone = iv.subtract(
            iv.union(table.start[wanted], table.end[wanted]),
            iv.union(table.start[rest], table.end[rest]),
        )
        covered = iv.covered_before(alone, program.end) - iv.covered_before(alone, program.start)
        return (covered * (1 - removal.left)).astype(np.int64)


class _Replay:
    """One program with something removed. It begins at `offset` ns on the replay's clock."""

    def __init__(self, program: Program, removal: Removal, removed: Ints, offset: int) -> None:
        self.program = program
        self.offset = offset
        out = iv.NONE
        if removal.causes:
            out = iv.join(*(program.doing.get(cause, iv.NONE) for cause in removal.causes))
        waits = program.waits
        # Waits are taken out of the host's time here and put back by `_wait`, as long as they then
        # take.
        self._gone = iv.join(out, waits)
        self.launched = self._own(program.launch)
        # The copies of a checkpoint go with the checkpoint.
        along = iv.NONE
        if "files" in removal.causes:
            along = program.doing.get("files", iv.NONE)
        before, after = (iv.covered_before(along, program.launch + past) for past in (0, 1))
        self.length = np.where(after > before, 0, program.end - program.start - removed).tolist()
        # When the device had last done everything before each stretch.
        previous = np.concatenate(
            [[program.window.start], np.maximum.accumulate(program.end)[:-1]]
        ).astype(np.int64)
        # Queued work starts after the device's own pause, other work as long after its launch as it
        # did.
        queued = program.launch <= previous[: len(program.launch)]
        since = program.start - program.launch
        gap = np.maximum(program.start - previous[: len(program.start)], 0)
        self.delay = np.minimum(since, np.where(queued, LAUNCH_NS, LONGEST_DELAY_NS)).tolist()
        # Without launches that come too late all work is queued, and the device pauses before it.
        least = PAUSE_NS if "launch" in removal.causes else 0
        self.pause = np.where(queued, np.minimum(gap, LONGEST_DELAY_NS), least).tolist()
        for at in program.after:  # the gap before it was waiting for the other ranks
            self.pause[at] = 0

        # A wait that lies in what is removed goes with it.
        half = (waits.end - waits.start + 1) // 2
        inside, sending = (
            iv.covered_before(each, waits.end) - iv.covered_before(each, waits.start)
            for each in (out, program.sending)
        )
        kept = inside < half
        if removal.waits:
            kept &= sending >= half
        self.wait_start = waits.start[kept]
        self.wait_end = waits.end[kept]
        self.wait_at = self._own(self.wait_start)
        self._find_awaited()
        # As Python's numbers: going through NumPy's one by one takes several times as long.
        columns = (self.wait_start, self.awaited, self.early, self.tail)
        start, awaited, early, tail = (column.tolist() for column in columns)
        self.waits = list(zip(start, self.wait_at, awaited, early, tail, strict=True))
        self.finish: list[int] = []
        self.waited = 0
        self.next_wait = 0

    def _own(self, moments: Ints) -> list[int]:
        """Return the moments on the replay's clock, but for the host's waits."""
        begin = self.program.window.start
        moments = np.maximum(moments, begin)
        lost = iv.covered_before(self._gone, moments)
        lost = lost - iv.covered_before(self._gone, np.array([begin]))
        own: list[int] = (moments - begin - lost + self.offset).tolist()
        return own

    def _find_awaited(self) -> None:
        """Find the stretch of work that each wait is for, how long before that stretch's end the
        wait returned, and how long after it.
        """
        start, end = self.program.start, self.program.end
        count = len(self.wait_start)
        self.awaited, self.early = np.full(count, -1, dtype=np.int64), np.zeros(count, np.int64)
        self.tail = self.wait_end - self.wait_start
        if not len(start):
            return
        # The stretch that ended last before the wait returned, if it ended during the wait.
        last = np.searchsorted(end, self.wait_end + JITTER_NS, side="right") - 1
        ended = (last >= 0) & (end[np.maximum(last, 0)] > self.wait_start)
        self.awaited[ended] = last[ended]
        self.tail[ended] = np.maximum(self.wait_end - end[np.maximum(last, 0)], 0)[ended]
        # Inside a longer stretch of work something ended that the wait was for.
        within = np.searchsorted(start, self.wait_end, side="left") - 1
        safe = np.maximum(within, 0)
        still = ~ended & (within >= 0) & (end[safe] > self.wait_end)
        self.awaited[still] = within[still]
        self.early[still] = (end[safe] - self.wait_end)[still]
        self.tail[still] = 0

    def _wait(self, until: int) -> None:
        """Let the host go through its waits up to a moment of the recording."""
        while self.next_wait < len(self.waits) and self.waits[self.next_wait][0] < until:
            _, at, awaited, early, tail = self.waits[self.next_wait]
            self.next_wait += 1
            here = done = at + self.waited
            if awaited >= 0 and self.finish:
                # Work that is not replayed yet was launched after this wait: it cannot be meant.
                done = self.finish[min(awaited, len(self.finish) - 1)] - early
            self.waited += max(here, done) + tail - here

    def run(self, arrived: dict[int, dict[int, int]], key: int) -> Generator[int, None, int]:
        """Replay the program; return its length, ns.

        Yields the number of a collective that it needs, and is resumed when all members have
        joined it: `arrived` has when, by collective and program.
        """
        program, free = self.program, self.offset
        for i, launch in enumerate(program.launch.tolist()):
            self._wait(launch)
            ready = max(self.launched[i] + self.waited + self.delay[i], free + self.pause[i])
            if i in program.marks:
                # A collective is joined on a stream of its own, which holds up no other work.
                arrived.setdefault(program.marks[i], {})[key] = ready
                self.finish.append(free)
                continue
            if i in program.after:
                number = program.after[i]
                yield number
                ready = max(ready, max(arrived.get(number, {}).values(), default=0))
            free = ready + self.length[i]
            self.finish.append(free)
        self._wait(program.window.end + 1)
        host = self._own(np.array([program.host_end]))[0] + self.waited
        return max(free, host) - self.offset
