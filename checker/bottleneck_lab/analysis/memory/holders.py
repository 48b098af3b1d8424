"""Who holds memory: blocks from allocation to release, by the line of the program, and which lines
hold more with every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.snapshot import Action, AllocatorEvents, Segment
from bottleneck_lab.trace.timeline import Ints, SmallInts

MOMENTS, TOP = 12, 30
"""So many moments are compared, and so many of the lines that hold most are listed."""
MOST_STEPS = 200
"""So many of the last steps are looked at for what falls now and then."""
NOT_RECORDED = "not recorded"
"""Stands for a line of which nothing is known."""
MOST = 0.5
"""More than this share of the steps, or blocks, are most of them."""
FEWEST_STEPS = 4
"""From so many steps on, the moments are those between steps."""
RISING_SHARE = 0.8
"""A line holds more and more where it does so from one moment to the next in this share of all,
once the first quarter of the time is over.
"""


class Caller(msgspec.Struct, frozen=True):
    """Of what a line allocated, the part that it did for one of the lines that call it; the figures
    are those of `Holder`.
    """

    line: str
    held_bytes: int
    peak_bytes: int
    growth_bytes_per_step: int
    fall_bytes: int = 0
    growth_bytes: int = 0
    late_bytes_per_step: int = 0


class StepBlocks(msgspec.Struct, frozen=True):
    """The fate of the blocks that a line allocates in a step: of a typical one, where most steps
    are alike, else on average.

    `made`: all of them; `kept`: by how many more are held after each step, where a line `grows`;
    `freed`, `freed_in_next`: in the step that made them, or in the next. The others are freed
    later: `late_freed_at` is the line that frees most of those, empty if none does.
    """

    made: float = 0.0
    kept: float = 0.0
    freed: float = 0.0
    freed_in_next: float = 0.0
    late_freed_at: str = ""

    @property
    def freed_late(self) -> float:
        """Blocks that are freed after the step that follows the one that made them."""
        return self.made - self.kept - self.freed - self.freed_in_next


class Holder(msgspec.Struct, frozen=True):
    """A line of the program's own and what was allocated below it.

    `held_bytes`, `blocks`: when the snapshot was taken. `peak_bytes`: when most was allocated.
    `growth_bytes`: from the end of the recording's first quarter to its end, and a step where steps
    were recorded (else 0). `grows`: nearly every moment showed more than the one before.
    `fall_bytes`: the most by which it fell between the ends of steps, where steps were recorded.
    `freed_share`: of the blocks allocated there while it was recorded; `freed_at`: the line that
    freed most of them. `smallest_bytes`, `largest_bytes`: of the blocks held. `a_step`: what
    becomes of the blocks of a step, over the same steps as `growth_bytes`; all 0 where no steps
    were recorded. `late_bytes_per_step`: what a typical step allocates that is freed after the step
    that follows it. `callers`: where several lines of the program's call it, those that hold
    anything.
    """

    line: str
    held_bytes: int
    blocks: int
    peak_bytes: int
    growth_bytes: int
    growth_bytes_per_step: int
    grows: bool
    allocated: int
    freed_share: float
    freed_at: str
    fall_bytes: int = 0
    smallest_bytes: int = 0
    largest_bytes: int = 0
    a_step: StepBlocks = StepBlocks()
    callers: tuple[Caller, ...] = ()
    late_bytes_per_step: int = 0


class CallSite(NamedTuple):
    """A line of the program's, and which of several others called it."""

    line: str
    caller: str = ""


def number_sites(stacks: Sequence[tuple[str, ...]]) -> tuple[list[CallSite], SmallInts]:
    """Return the sites where stacks of the program's own lines, the innermost first, end, and the
    number of each stack's. Callers are told apart by the nearest line in which the stacks of one
    line differ; a stack without any, as where something is let go of, tells nothing.
    """
    above: dict[str, set[tuple[str, ...]]] = {}
    for line, *callers in stacks:
        above.setdefault(line, set()).update({tuple(callers)} if callers else ())
    differ = {
        line: next((at for at, each in enumerate(zip_longest(*all_)) if len(set(each)) > 1), None)
        for line, all_ in above.items()
    }
    numbers: dict[CallSite, int] = {}
    of_stack = []
    for line, *callers in stacks:
        at = differ[line]
        site = CallSite(line, callers[at] if at is not None and at < len(callers) else "")
        of_stack.append(numbers.setdefault(site, len(numbers)))
    return list(numbers), np.array(of_stack, dtype=np.int32)


class Lifetimes:
    """Blocks from allocation to release, as rows of the events, and the site of `sites` that each
    belongs to: `of_stack` gives it by stack. What was there before the first event begins at -1,
    what is still there ends at their number, `events`.
    """

    def __init__(
        self,
        events: AllocatorEvents,
        segments: list[Segment],
        sites: list[CallSite],
        of_stack: SmallInts,
    ) -> None:
        self.events, self.sites = len(events), sites
        self.lines = list(dict.fromkeys(site.line for site in sites))
        numbers = {line: number for number, line in enumerate(self.lines)}
        self.line_of = np.array([numbers[site.line] for site in sites], dtype=np.int64)
        """The number of each site's line."""
        rows = np.flatnonzero((events.action == Action.ALLOC) | (events.action == events.release))
        rows = rows[np.argsort(events.address[rows], kind="stable")]
        allocs = events.action[rows] == Action.ALLOC
        # Sorted by address and then in time, an allocation is followed by its own release.
        same = np.zeros(len(rows), dtype=bool)
        same[:-1] = events.address[rows[1:]] == events.address[rows[:-1]]
        freed = np.zeros(len(rows), dtype=bool)
        freed[:-1] = same[:-1] & allocs[:-1] & ~allocs[1:]
        begins, last = rows[allocs], len(events)
        ends = np.full(len(rows), last, dtype=np.int64)
        ends[:-1][freed[:-1]] = rows[1:][freed[:-1]]
        ends = ends[allocs]
        self.freed = freed[allocs]
        sizes, held_at = events.bytes[begins], of_stack[events.stack[begins]]
        earlier = _earlier(segments, events, begins[~self.freed], of_stack)
        self.begin: Ints = np.concatenate([begins, np.full(len(earlier), -1)]).astype(np.int64)
        self.end: Ints = np.concatenate([ends, np.full(len(earlier), last)]).astype(np.int64)
        self.bytes: Ints = np.concatenate([sizes, earlier[:, 0]]).astype(np.int64)
        self.site: Ints = np.concatenate([held_at, earlier[:, 1]]).astype(np.int64)
        freed_at = of_stack[events.stack[np.minimum(ends, last - 1)]] if last else 0
        self.freed_by = np.where(self.freed, self.line_of[freed_at], -1)

    def held_after(self, row: int) -> Ints:
        """Return the bytes that are held after an event, by site."""
        there = (self.begin <= row) & (row < self.end)
        held = np.bincount(self.site[there], self.bytes[there], minlength=len(self.sites))
        return held.astype(np.int64)

    def by_line(self, by_site: Ints) -> Ints:
        """Return figures by line: the sums of those by site, which are the last axis."""
        lines = np.zeros((*by_site.shape[:-1], len(self.lines)), dtype=np.int64)
        np.add.at(lines.T, self.line_of, by_site.T)
        return lines

    def recorded(self, line: int, row: int) -> tuple[int, Ints]:
        """Return how many blocks a line was recorded to allocate until an event, and of each that
        was freed until then the line that freed it.
        """
        known = len(self.freed)
        own = (self.line_of[self.site[:known]] == line) & (self.begin[:known] <= row)
        return int(own.sum()), self.freed_by[own & self.freed & (self.end[:known] <= row)]


def _earlier(
    segments: list[Segment], events: AllocatorEvents, open_rows: Ints, of_stack: SmallInts
) -> Ints:
    """Return bytes and site of the blocks held at the end whose allocation was not recorded."""
    known = set(events.address[open_rows].tolist())
    blocks = (block for segment in segments for block in segment.blocks)
    held = [
        (block.bytes, of_stack[block.stack])
        for block in blocks
        if block.active and block.address not in known
    ]
    return np.array(held, dtype=np.int64).reshape(-1, 2)


def find_holders(
    lives: Lifetimes, peak: int, steps: Ints, end: int, period: int = 0
) -> list[Holder]:
    """Return the lines that hold anything after the event `end` or `peak`, the largest first;
    `steps` are the events between steps. Memory falls in every step that is a multiple of `period`,
    if it is one: growth is then that between steps so far apart.
    """
    by_step = len(steps) >= FEWEST_STEPS
    moments = steps if by_step else np.linspace(0, max(end, 0), 4 * MOMENTS).astype(np.int64)
    # Start-up is over after the first quarter of the time: what grows from there on keeps growing.
    first, last = len(moments) // 4, len(moments) - 1
    chosen = moments[np.unique(np.linspace(first, last, MOMENTS).astype(np.int64))]
    over_time = np.array([lives.held_after(row) for row in chosen.tolist()])
    # What falls is high in one step and low in the next, so that none can be left out; but the ends
    # are, as where all memory is looked at.
    at_each = np.array([lives.held_after(row) for row in moments[1:-1][-MOST_STEPS:].tolist()])
    falls, falls_by_site = _falls(lives.by_line(at_each)), _falls(at_each)
    if by_step and 0 < period <= last - first:
        first = last - (last - first) // period * period
        alike = moments[first : last + 1 : period]
        over_time = np.array([lives.held_after(row) for row in alike.tolist()])
    held_now, held_at_peak = lives.held_after(end), lives.held_after(peak)
    rising, growth = _growth(lives.by_line(over_time), lives.by_line(held_now))
    held, at_peak = lives.by_line(held_now), lives.by_line(held_at_peak)
    growths = _growth(over_time, held_now)
    steps_apart = last - first if by_step else 0
    late = _late_bytes(lives, moments, first) if by_step else np.zeros_like(held_now)
    late_by_line = lives.by_line(late)
    callers = _callers(lives, growths, held_now, held_at_peak, falls_by_site, late, steps_apart)
    there = (lives.begin <= end) & (lives.end > end)
    line = lives.line_of[lives.site]
    holders = []
    for i in np.lexsort((-at_peak, -held))[:TOP].tolist():
        if not held[i] and not at_peak[i]:
            continue
        allocated, freed_by = lives.recorded(i, end)
        own = line == i
        sizes = lives.bytes[there & own]
        holders.append(
            Holder(
                line=lives.lines[i],
                held_bytes=int(held[i]),
                blocks=len(sizes),
                peak_bytes=int(at_peak[i]),
                growth_bytes=int(growth[i]),
                growth_bytes_per_step=int(growth[i] // (last - first)) if by_step else 0,
                grows=bool(rising[i]),
                allocated=allocated,
                freed_share=len(freed_by) / allocated if allocated else 0.0,
                freed_at=lives.lines[np.bincount(freed_by).argmax()] if len(freed_by) else "",
                fall_bytes=int(falls[i]) if by_step else 0,
                smallest_bytes=int(sizes.min()) if len(sizes) else 0,
                largest_bytes=int(sizes.max()) if len(sizes) else 0,
                a_step=(
                    _blocks_a_step(lives, own, moments, first, grows=bool(rising[i]))
                    if by_step
                    else StepBlocks()
                ),
                callers=tuple(callers.get(lives.lines[i], ())),
                late_bytes_per_step=int(late_by_line[i]),
            )
        )
    return holders


def _blocks_a_step(
    lives: Lifetimes, own: NDArray[np.bool_], ends: Ints, first: int, *, grows: bool
) -> StepBlocks:
    """Return what becomes of a line's `own` blocks of each step; steps end with the events `ends`,
    and those up to the `first` do not count.
    """
    begin, end = lives.begin[own], lives.end[own]
    made_in, freed_in = np.searchsorted(ends, begin), np.searchsorted(ends, end)
    age, steps = freed_in - made_in, len(ends) - 1 - first
    # Those of the step before are counted where they are freed: in the last step, it is not known
    # yet what becomes of its own.
    each = (made_in, freed_in[age == 0], freed_in[age == 1])
    counts = np.array([np.bincount(of, minlength=len(ends) + 1)[first + 1 : -1] for of in each])
    kept = 0.0
    if grows:
        held, before = ((begin <= row) & (row < end) for row in (ends[-1], ends[first]))
        kept = (int(held.sum()) - int(before.sum())) / steps
    # The step that frees what others have left also frees its own, and is none like the others.
    typical = np.median(counts, axis=1)
    alike = (counts == typical[:, None]).all(axis=0)
    if alike.mean() <= MOST or kept % 1:
        typical = counts.mean(axis=1)
    made, freed, freed_in_next = typical.tolist()
    late = np.flatnonzero(own)[(age > 1) & (freed_in > first) & (freed_in < len(ends))]
    late_by = np.bincount(lives.freed_by[late], minlength=1)
    late_freed_at = lives.lines[late_by.argmax()] if late_by.max() > MOST * late_by.sum() else ""
    return StepBlocks(made, kept, freed, freed_in_next, late_freed_at)


def _late_bytes(lives: Lifetimes, ends: Ints, first: int) -> Ints:
    """Return by site the bytes that a typical step makes and that are freed after the step that
    follows it; `ends` and `first` as in `_blocks_a_step`.
    """
    made_in, freed_in = np.searchsorted(ends, lives.begin), np.searchsorted(ends, lives.end)
    # What the capture's last rows free is let go of at its end, not later in the loop.
    late = (freed_in - made_in > 1) & (made_in > first) & (freed_in < len(ends))
    typical = np.zeros(len(lives.sites), dtype=np.int64)
    if not late.any():
        return typical
    # Later steps may leave as much, but nothing has freed it yet.
    steps = int(made_in[late].max()) - first
    each = np.zeros((steps, len(lives.sites)), dtype=np.int64)
    np.add.at(each, (made_in[late] - first - 1, lives.site[late]), lives.bytes[late])
    typical[:] = np.median(each, axis=0)
    return typical


def _growth(over_time: Ints, held: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Return what grows, of the bytes held at some moments and at the end, and by how much."""
    growth = held - over_time[0]
    rising = (np.diff(over_time, axis=0) > 0).mean(axis=0)
    return (rising >= RISING_SHARE) & (growth > 0), growth


def _falls(over_time: Ints) -> Ints:
    """Return the most by which bytes held fell from one moment to a later one."""
    falls: Ints = (np.maximum.accumulate(over_time) - over_time).max(axis=0)
    return falls


def _callers(
    lives: Lifetimes,
    growths: tuple[NDArray[np.bool_], Ints],
    held: Ints,
    at_peak: Ints,
    falls: Ints,
    late: Ints,
    steps: int,
) -> dict[str, list[Caller]]:
    """Return the callers of each line that has several, the largest first, with their growth over
    so many steps (0: no steps were recorded); the figures are by site.
    """
    grows, growth = growths
    callers: dict[str, list[Caller]] = {}
    for i in np.lexsort((-at_peak, -held)).tolist():
        site = lives.sites[i]
        if site.caller and (held[i] or at_peak[i]):
            more = int(growth[i] // steps) if steps and grows[i] else 0
            callers.setdefault(site.line, []).append(
                Caller(
                    site.caller,
                    int(held[i]),
                    int(at_peak[i]),
                    more,
                    int(falls[i]) if steps else 0,
                    int(growth[i]) if grows[i] else 0,
                    int(late[i]),
                )
            )
    return callers
