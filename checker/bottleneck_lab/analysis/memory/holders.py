"""Who holds memory: blocks from allocation to release, by the line of the program, and which lines
hold more with every step.
"""

from __future__ import annotations

import msgspec
import numpy as np

from bottleneck_lab.trace.snapshot import Action, AllocatorEvents, Segment
from bottleneck_lab.trace.timeline import Ints, SmallInts

MOMENTS, TOP = 12, 30
"""So many moments are compared, and so many of the lines that hold most are listed."""
FEWEST_STEPS = 4
"""From so many steps on, the moments are those between steps."""
RISING_SHARE = 0.8
"""A line holds more and more where it does so from one moment to the next in this share of all,
once the first quarter of the time is over.
"""


class Holder(msgspec.Struct, frozen=True):
    """A line of the program's own and what was allocated below it.

    `held_bytes`, `blocks`: when the snapshot was taken. `peak_bytes`: when most was allocated.
    `growth_bytes`: from the end of the recording's first quarter to its end, and a step where steps
    were recorded (else 0). `grows`: nearly every moment showed more than the one before.
    `fall_bytes`: the most by which it fell between the ends of steps, where steps were recorded.
    `freed_share`: of the blocks allocated there while it was recorded; `freed_at`: the line that
    freed most of them. `smallest_bytes`, `largest_bytes`: of the blocks held.
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


class Lifetimes:
    """Blocks from allocation to release, as rows of the events, and the line of `lines` that each
    belongs to: `of_stack` gives it by stack. What was there before the first event begins at -1,
    what is still there ends at their number, `events`.
    """

    def __init__(
        self,
        events: AllocatorEvents,
        segments: list[Segment],
        lines: list[str],
        of_stack: SmallInts,
    ) -> None:
        self.events, self.lines = len(events), lines
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
        sizes, lines = events.bytes[begins], of_stack[events.stack[begins]]
        earlier = _earlier(segments, events, begins[~self.freed], of_stack)
        self.begin: Ints = np.concatenate([begins, np.full(len(earlier), -1)]).astype(np.int64)
        self.end: Ints = np.concatenate([ends, np.full(len(earlier), last)]).astype(np.int64)
        self.bytes: Ints = np.concatenate([sizes, earlier[:, 0]]).astype(np.int64)
        self.line: Ints = np.concatenate([lines, earlier[:, 1]]).astype(np.int64)
        self.freed_by = np.where(
            self.freed, of_stack[events.stack[np.minimum(ends, last - 1)]] if last else 0, -1
        )

    def held_after(self, row: int) -> Ints:
        """Return the bytes that each line holds after an event."""
        there = (self.begin <= row) & (row < self.end)
        held = np.bincount(self.line[there], self.bytes[there], minlength=len(self.lines))
        return held.astype(np.int64)

    def recorded(self, line: int, row: int) -> tuple[int, Ints]:
        """Return how many blocks a line was recorded to allocate until an event, and of each that
        was freed until then the line that freed it.
        """
        known = len(self.freed)
        own = (self.line[:known] == line) & (self.begin[:known] <= row)
        return int(own.sum()), self.freed_by[own & self.freed & (self.end[:known] <= row)]


def _earlier(
    segments: list[Segment], events: AllocatorEvents, open_rows: Ints, of_stack: SmallInts
) -> Ints:
    """Return bytes and line of the blocks held at the end whose allocation was not recorded."""
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
    held, at_peak = lives.held_after(end), lives.held_after(peak)
    falls = (np.maximum.accumulate(over_time) - over_time).max(axis=0)
    if by_step and 0 < period <= last - first:
        first = last - (last - first) // period * period
        alike = moments[first : last + 1 : period]
        over_time = np.array([lives.held_after(row) for row in alike.tolist()])
    rising, growth = (np.diff(over_time, axis=0) > 0).mean(axis=0), held - over_time[0]
    there = (lives.begin <= end) & (lives.end > end)
    blocks = np.bincount(lives.line[there], minlength=len(lives.lines))
    holders = []
    for i in np.lexsort((-at_peak, -held))[:TOP].tolist():
        if not held[i] and not at_peak[i]:
            continue
        allocated, freed_by = lives.recorded(i, end)
        sizes = lives.bytes[there & (lives.line == i)]
        holders.append(
            Holder(
                line=lives.lines[i],
                held_bytes=int(held[i]),
                blocks=int(blocks[i]),
                peak_bytes=int(at_peak[i]),
                growth_bytes=int(growth[i]),
                growth_bytes_per_step=int(growth[i] // (last - first)) if by_step else 0,
                grows=bool(rising[i] >= RISING_SHARE and growth[i] > 0),
                allocated=allocated,
                freed_share=len(freed_by) / allocated if allocated else 0.0,
                freed_at=lives.lines[np.bincount(freed_by).argmax()] if len(freed_by) else "",
                fall_bytes=int(falls[i]) if by_step else 0,
                smallest_bytes=int(sizes.min()) if len(sizes) else 0,
                largest_bytes=int(sizes.max()) if len(sizes) else 0,
            )
        )
    return holders
