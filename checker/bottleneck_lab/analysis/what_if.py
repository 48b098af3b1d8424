"""How fast a program could be without something: its recorded dependencies, replayed.

A host launches work, which starts when it has been launched, its stream is free and what it waits
for on another stream is done; where the host waits, it goes on when the device has done what it
waits for; a collective ends after the last rank has arrived. With some of the host's time, of the
device's or of the waits taken out, everything else follows as early as these dependencies let it,
and the new length is a bound: no fix of that alone can be faster. It never beats the longer of the
host's own time and the device's.

Amdahl's law on idle time is no such bound: a wait that is removed gains nothing where the host has
as much else to do, and a delay of one rank costs all of them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.amdahl import HIGHEST_RATIO
from bottleneck_lab.analysis.causes import Cause
from bottleneck_lab.analysis.steps.window import Window
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    Direction,
    Ints,
    SmallInts,
    Timeline,
    different,
)

LAUNCH_NS = 10_000
"""A kernel starts at most this long after its launch where its stream is free. Launched work that
starts later had to wait for other work.
"""
PAUSE_NS = 900
"""Between two queued kernels of a stream: about what an H200 needs."""
MOST_TASKS = 40_000
"""Of a rank with more stretches of work, the first so many are replayed: a loop is like its
beginning.
"""
LONGEST_DELAY_NS = 1_000_000
"""A longer one is not the device's: what kept it is not in the capture, and may not come again."""
VALUE_BYTES = 4096
"""A copy to the host of at most so much is of values that the program asks for."""
JITTER_NS = 20_000
"""A wait is for work that ends no later than this after it: the two clocks differ by microseconds.
"""
ROUNDING_NS = 1_000
"""Formats in microseconds place the end of one row after the start of the next."""


class Removal(NamedTuple):
    """Time that is taken out: the host's for these causes, its waits for devices (but not until a
    copy to one is made), and that of devices in copies, in collectives, or in kernels whose names
    match (but for the share `left`), or in waiting for other `devices` of their process.
    """

    causes: tuple[Cause, ...] = ()
    waits: bool = False
    copies: bool = False
    communication: bool = False
    devices: bool = False
    kernels: re.Pattern[str] | None = None
    left: float = 0.0


NOTHING = Removal()


class Arrival(NamedTuple):
    """One rank's part in a collective that several ranks' captures hold: when its row started and
    ended, and when the last rank's did start, ns. `number` is the same on all ranks; `row` is the
    one of the device table.
    """

    number: int
    start: int
    end: int
    last: int
    row: int


class Program(NamedTuple):
    """One rank: its devices' streams and the host beside them, as they are replayed.

    `rows` are its rows of the device table, each on the stream that `streams` numbers, and
    `devices` the streams' devices. The arrays are the streams' stretches of work in the order in
    which they were launched: their stream, start, end and launch, ns, and the position of the
    stretch on another stream that each had to wait for (-1: none). `waits` are the host's,
    `sending` its copies to the device, `doing` its time by cause over the whole window. `marks` are
    the positions at which a collective is joined, `after` those that begin when all have joined it,
    both with its number.
    """

    rank: int
    window: Window
    rows: NDArray[np.intp]
    streams: SmallInts
    devices: Ints
    stream: Ints
    start: Ints
    end: Ints
    launch: Ints
    needs: Ints
    waits: iv.Intervals
    sending: iv.Intervals
    doing: Mapping[Cause, iv.Intervals]
    host_end: int
    marks: Mapping[int, int]
    after: Mapping[int, int]


def make_program(
    timeline: Timeline,
    rank: int,
    window: Window,
    waits: iv.Intervals,
    sending: iv.Intervals,
    doing: Mapping[Cause, iv.Intervals],
    known: iv.Intervals,
    arrivals: Sequence[Arrival] = (),
) -> Program:
    """Return a rank, ready to be replayed. `arrivals` are its parts in collectives."""
    device = timeline.device
    rows = np.flatnonzero(
        (device.rank == rank)
        & (device.kind != ActivityKind.SYNC)
        & (device.start < window.end)
        & (device.end > window.start)
    )
    # Each pair of device and stream as one number: to sort pairs takes thirty times as long.
    own_devices, own_streams = different(device.device[rows]), different(device.stream[rows])
    pairs = np.searchsorted(own_devices, device.device[rows]) * len(own_streams)
    pairs += np.searchsorted(own_streams, device.stream[rows])
    numbers = different(pairs)
    streams = np.searchsorted(numbers, pairs).astype(np.int32)
    devices = own_devices[numbers // max(len(own_streams), 1)].astype(np.int64)
    # A collective that the window cuts has no arrival to replay.
    arrivals = [a for a in arrivals if window.start <= a.start and a.end <= window.end]
    joined = np.array([a.row for a in arrivals], dtype=np.int64)
    alone = np.isin(rows, joined)

    work = _by_stream(timeline, rows[~alone], streams[~alone], window)
    stream = work.start // (window.length + 1)
    behind = stream * (window.length + 1) - window.start
    start, end = work.start - behind, work.end - behind
    # A stretch of work counts as launched when its first row was.
    first = rows[~alone][np.lexsort((device.start[rows[~alone]], streams[~alone]))]
    shifted = np.sort(_shift(timeline, rows[~alone], streams[~alone], window)[0])
    launch = _launch_times(timeline, first[np.searchsorted(shifted, work.start)], start)

    # A collective is a stretch of no length where it is joined, and the transfer, which begins when
    # the last rank has: waiting for other ranks is no work.
    at = np.searchsorted(rows, joined)
    begun = np.array([a.start for a in arrivals], dtype=np.int64)
    ended = np.array([a.end for a in arrivals], dtype=np.int64)
    last = np.minimum(np.array([a.last for a in arrivals], dtype=np.int64), ended)
    called = _launch_times(timeline, joined, begun)
    number = np.array([a.number for a in arrivals], dtype=np.int64)
    none = np.full(len(start), -1)
    start, end = np.concatenate([start, begun, last]), np.concatenate([end, begun, ended])
    stream = np.concatenate([stream, streams[at], streams[at]]).astype(np.int64)
    launch = np.concatenate([launch, called, called])
    marked = np.concatenate([none, number, np.full(len(number), -1)])
    following = np.concatenate([none, np.full(len(number), -1), number])

    # A stream works in the order of launches: what has no recorded call was launched, at the
    # latest, before what came after it.
    in_turn = np.lexsort((following >= 0, start, stream))
    apart = stream[in_turn] * (int(start.max(initial=0)) - int(launch.min(initial=0)) + 1)
    launch[in_turn] = np.minimum.accumulate((launch[in_turn] + apart)[::-1])[::-1] - apart
    order = np.lexsort((following >= 0, start, launch))[:MOST_TASKS]
    stream, start, end, launch = stream[order], start[order], end[order], launch[order]
    if len(order) == MOST_TASKS:
        window = Window(window.start, int(end.max()))
    marks = {int(i): int(marked[order[i]]) for i in np.flatnonzero(marked[order] >= 0)}
    after = {int(i): int(following[order[i]]) for i in np.flatnonzero(following[order] >= 0)}
    host_end = min(int(known.end[-1]), window.end) if len(known.end) else window.start
    return Program(
        rank,
        window,
        rows,
        streams,
        devices,
        stream,
        start,
        end,
        launch,
        _find_needs(stream, start, end, launch, list(marks), list(after)),
        iv.clip(waits, *window),
        sending,
        doing,
        host_end,
        marks,
        after,
    )


def _shift(
    timeline: Timeline, rows: NDArray[np.intp], streams: SmallInts, window: Window
) -> tuple[Ints, Ints]:
    """Return (starts, ends) of rows inside the window as ns of one axis on which the streams lie
    behind one another, so that sets of intervals never mix two of them.
    """
    behind = streams.astype(np.int64) * (window.length + 1) - window.start
    start = np.clip(timeline.device.start[rows], *window) + behind
    return start, np.clip(timeline.device.end[rows], *window) + behind


def _by_stream(
    timeline: Timeline, rows: NDArray[np.intp], streams: SmallInts, window: Window
) -> iv.Intervals:
    """Return the time covered by the rows, as `_shift` places it."""
    return iv.union(*_shift(timeline, rows, streams, window))


def _launch_times(timeline: Timeline, rows: NDArray[np.intp], start: Ints) -> Ints:
    """Return when the rows were launched; `start` where no call was recorded, or a later one."""
    launch = start.copy()
    if len(timeline.runtime):
        call = timeline.launched_by[rows]
        known = call >= 0
        launch[known] = np.minimum(timeline.runtime.start[call[known]], start[known])
    return launch


def _find_needs(
    stream: Ints, start: Ints, end: Ints, launch: Ints, joins: list[int], transfers: list[int]
) -> Ints:
    """Return, for each stretch, the position of the one on another stream that it waited for; -1
    where it began as soon as it was launched and its own stream was free.

    No tool records what a stream waits for. It is what was launched before, and ended last before
    the stretch began; or, where nothing ended shortly before, what was then running: a stretch is
    many rows, of which one may have been the one.
    """
    needs = np.full(len(start), -1, dtype=np.int64)
    if len(start) < 2:
        return needs
    by_stream = np.argsort(stream, kind="stable")
    ready = launch.copy()
    same = stream[by_stream[1:]] == stream[by_stream[:-1]]
    ready[by_stream[1:][same]] = np.maximum(launch[by_stream[1:]], end[by_stream[:-1]])[same]
    waited = start - ready > LAUNCH_NS
    waited[transfers] = False
    rows = np.flatnonzero(waited)

    worked = np.ones(len(start), dtype=bool)
    worked[joins] = False  # joining is no work that anything could wait for
    ended, running = np.full((2, len(rows)), -1, dtype=np.int64)
    for number in range(int(stream.max()) + 1):
        own = np.flatnonzero((stream == number) & worked)
        other = stream[rows] != number
        if not len(own):
            continue
        # The last one of that stream that had ended, of those launched before; then the next.
        before = np.searchsorted(own, rows) - 1
        last = np.searchsorted(end[own], start[rows] + ROUNDING_NS, side="right") - 1
        last = np.minimum(last, before)
        candidate = own[np.maximum(last, 0)]
        good = other & (last >= 0) & (end[candidate] > ready[rows])
        good &= (ended < 0) | (end[candidate] > end[ended])
        ended[good] = candidate[good]
        candidate = own[np.minimum(last + 1, len(own) - 1)]
        good = other & (last < before) & (start[candidate] < start[rows])
        good &= (running < 0) | (start[candidate] > start[running])
        running[good] = candidate[good]
    just = (ended >= 0) & (start[rows] - end[ended] <= LAUNCH_NS)
    needs[rows] = np.where(just | (running < 0), ended, running)
    return needs


class WhatIf:
    """The programs of a capture, with what it takes to find what each could do without."""

    def __init__(self, timeline: Timeline, programs: Sequence[Program]) -> None:
        self._timeline = timeline
        self._programs = programs
        # Several findings may ask for the same.
        self._lengths: dict[Removal, int] = {}

    def gain(self, removal: Removal) -> float | None:
        """Return how many times as fast the program would be at most; None if it has no devices."""
        # Against a replay of everything, not the recording: what the replay simplifies is then in
        # both.
        whole = self.length_ns(NOTHING)
        if not whole:
            return None
        return min(max(whole / max(self.length_ns(removal), 1), 1.0), HIGHEST_RATIO)

    def length_ns(self, removal: Removal) -> int:
        """Return the summed length of all programs, replayed without what is removed."""
        if removal not in self._lengths:
            self._lengths[removal] = self._replay(removal)
        return self._lengths[removal]

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
        """Return how much of each stretch of work is removed, ns."""
        table, rows = self._timeline.device, program.rows
        kind = table.kind[rows]
        wanted = np.zeros(len(rows), dtype=bool)
        if removal.copies:
            wanted |= (kind == ActivityKind.COPY) | (kind == ActivityKind.MEMSET)
        if removal.waits:  # the values that the host waits for
            wanted |= (table.direction[rows] == Direction.D2H) & (table.bytes[rows] <= VALUE_BYTES)
        if removal.communication:
            wanted |= kind == ActivityKind.COMMUNICATION
        if removal.kernels is not None:
            matches = np.array(
                [bool(removal.kernels.search(name)) for name in self._timeline.strings], dtype=bool
            )
            wanted |= (kind == ActivityKind.KERNEL) & matches[table.name[rows]]
        if not wanted.any():
            return np.zeros(len(program.start), dtype=np.int64)
        # What runs beside other work of its stream, in a graph, takes no time of its own.
        alone, rest = (
            _by_stream(self._timeline, rows[chosen], program.streams[chosen], program.window)
            for chosen in (wanted, ~wanted)
        )
        alone = iv.subtract(alone, rest)
        behind = program.stream * (program.window.length + 1) - program.window.start
        covered = iv.covered_before(alone, program.end + behind)
        covered -= iv.covered_before(alone, program.start + behind)
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
        # When a stretch's own stream had done what came before it.
        by_stream = np.argsort(program.stream, kind="stable")
        stream, previous = program.stream[by_stream], np.full(len(by_stream), program.window.start)
        previous[by_stream[1:]] = np.where(
            stream[1:] == stream[:-1], program.end[by_stream[:-1]], program.window.start
        )
        # Queued work starts after the device's own pause, work that needs other work as long after
        # that as it did, and the rest as long after its launch.
        queued = program.launch <= previous
        since = program.start - program.launch
        gap = np.maximum(program.start - previous, 0)
        held = program.needs >= 0
        self.needs = program.needs
        if removal.devices:
            devices = program.devices[program.stream]
            self.needs = np.where(devices == devices[program.needs], program.needs, -1)
        self.lag = (program.start - program.end[self.needs]).tolist()
        free = ~queued & ~held
        soonest = int(since[free].min(initial=LAUNCH_NS))
        self.delay = np.minimum(since, np.where(free, LONGEST_DELAY_NS, soonest))
        # Without launches that come too late all work is queued, and the device pauses before it.
        least = PAUSE_NS if "launch" in removal.causes else 0
        pause = np.where(queued & ~held, np.minimum(gap, LONGEST_DELAY_NS), least)
        pause[(np.asarray(self.length) == 0) & (program.end > program.start)] = 0
        for at in program.after:  # before it, nothing but the other ranks is waited for
            pause[at] = self.delay[at] = 0
        self.pause, self.delay = pause.tolist(), self.delay.tolist()

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
        columns = (self.wait_start, self.wait_end, self.awaited, self.early, self.tail)
        start, end, awaited, early, tail = (column.tolist() for column in columns)
        self.waits: list[tuple[int, ...]] = list(
            zip(start, end, self.wait_at, awaited, early, tail, strict=True)
        )
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
        start, end = self.program.start, self.program.end.copy()
        count = len(self.wait_start)
        self.awaited, self.early = np.full(count, -1, dtype=np.int64), np.zeros(count, np.int64)
        self.tail = self.wait_end - self.wait_start
        if not len(start):
            return
        end[list(self.program.marks)] = -1  # nobody waits for a collective to be joined
        by_end, by_start = np.argsort(end, kind="stable"), np.argsort(start, kind="stable")
        # The stretch that ended last before the wait returned, of those launched before it.
        at = np.searchsorted(end[by_end], self.wait_end + JITTER_NS, side="right") - 1
        while True:
            last = by_end[np.maximum(at, 0)]
            later = (at >= 0) & (self.program.launch[last] >= self.wait_start)
            later &= end[last] > self.wait_start
            if not later.any():
                break
            at[later] -= 1
        ended = (at >= 0) & (end[last] > self.wait_start)
        self.awaited[ended] = last[ended]
        self.tail[ended] = np.maximum(self.wait_end - end[last], 0)[ended]
        # Inside a longer stretch of work something ended that the wait was for, if nothing else
        # did shortly before it returned.
        at = np.searchsorted(start[by_start], self.wait_end, side="left") - 1
        within = by_start[np.maximum(at, 0)]
        still = (at >= 0) & (end[within] > self.wait_end)
        still &= ~ended | (self.tail > JITTER_NS)
        still &= self.program.launch[within] < self.wait_start
        self.awaited[still] = within[still]
        self.early[still] = (end[within] - self.wait_end)[still]
        self.tail[still] = 0

    def _wait(self, until: int) -> int:
        """Let the host go through its waits up to a moment of the recording. Return how long it is
        then in the next one, in which another of its threads goes on, ns.
        """
        while self.next_wait < len(self.waits):
            start, end, at, awaited, early, tail = self.waits[self.next_wait]
            if end > until:
                return max(until - start, 0)
            self.next_wait += 1
            here = done = at + self.waited
            if awaited >= 0 and self.finish:
                # Work that is not replayed yet was launched after this wait: it cannot be meant.
                done = self.finish[min(awaited, len(self.finish) - 1)] - early
            self.waited += max(here, done) + tail - here
        return 0

    def run(self, arrived: dict[int, dict[int, int]], key: int) -> Generator[int, None, int]:
        """Replay the program; return its length, ns.

        Yields the number of a collective that it needs, and is resumed when all members have
        joined it: `arrived` has when, by collective and program.
        """
        program = self.program
        free = [self.offset] * (int(program.stream.max(initial=0)) + 1)
        # As Python's numbers, like the waits.
        launches, streams, needs = (
            column.tolist() for column in (program.launch, program.stream, self.needs)
        )
        for i, (launch, stream, needed) in enumerate(zip(launches, streams, needs, strict=True)):
            launched = self.launched[i] + self._wait(launch) + self.waited
            ready = max(launched + self.delay[i], free[stream] + self.pause[i])
            if needed >= 0:
                ready = max(ready, self.finish[needed] + self.lag[i])
            if i in program.marks:
                arrived.setdefault(program.marks[i], {})[key] = ready
                self.finish.append(ready)
                continue
            if i in program.after:
                number = program.after[i]
                yield number
                ready = max(ready, max(arrived.get(number, {}).values(), default=0))
            free[stream] = ready + self.length[i]
            self.finish.append(free[stream])
        self._wait(program.window.end + 1)
        host = self._own(np.array([program.host_end]))[0] + self.waited
        return max(*free, host) - self.offset
