"""The holders of a GPU's memory, by a snapshot of its allocator: how much, since when, from which
lines, and which of them hold more with every step.
"""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec
import numpy as np

from bottleneck_lab.trace.snapshot import (
    Action,
    AllocatorEvents,
    Frame,
    Segment,
    Snapshot,
    empty_events,
)
from bottleneck_lab.trace.timeline import Ints, SmallInts

STRETCHES = 160
MOMENTS, TOP = 12, 30
"""So many moments are compared, and so many of the lines that hold most are listed."""
LEAST_RISE = 0.01
"""A lowest level that rises by less than this share of the highest has not grown."""
MANY_STEPS = 30
"""From so many steps on, each third of them has seen cycles collected."""
FEWEST_STEPS = 4
"""From so many steps on, the moments are those between steps."""
RISING_SHARE = 0.8
"""A line holds more and more where it does so from one moment to the next in this share of all,
once the first quarter of the time is over.
"""
_STEP = re.compile(r"^ProfilerStep#\d+$")
_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python3[^/]*|torch/(?:csrc|include))/|^<|^\?\?|\.(?:cpp|cc|cu|h|cuh|c|so)\b|^$"
)


class Holder(msgspec.Struct, frozen=True):
    """A line of the program's own and what was allocated below it.

    `held_bytes`, `blocks`: when the snapshot was taken. `peak_bytes`: when most was allocated.
    `growth_bytes`: from the end of the recording's first quarter to its end, and a step where steps
    were recorded (else 0). `grows`: nearly every moment showed more than the one before.
    `freed_share`: of the blocks allocated there while it was recorded; `freed_at`: the line that
    freed most of them.
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


class FailedAllocation(msgspec.Struct, frozen=True):
    """An allocation that failed: what was asked for, what the device had free, and what the
    allocator had and nobody used.
    """

    line: str
    bytes: int
    device_free_bytes: int
    unused_bytes: int


class DeviceMemory(msgspec.Struct, frozen=True):
    """One device's memory. `rounding_bytes` are lost to rounding inside held blocks;
    `largest_free_bytes` is the largest piece that is reserved and not held.

    `levels_bytes` and `reserved_levels_bytes`: the highest in each of equally many events. `steps`:
    those recorded, as torch.profiler marks them; `growth_bytes_per_step`: see
    `growth_a_step`.
    """

    device: int
    held_bytes: int
    held_blocks: int
    reserved_bytes: int
    rounding_bytes: int
    largest_free_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int
    events: int
    recorded_us: int
    levels_bytes: list[int]
    reserved_levels_bytes: list[int]
    steps: int
    growth_bytes_per_step: int
    holders: list[Holder]
    refusals: list[FailedAllocation]


def find_device_memory(snapshot: Snapshot) -> list[DeviceMemory]:
    """Return one entry per device that holds or has allocated anything."""
    # The program's own lines, and for each stack (and last for none) the number of its line.
    numbers: dict[str, int] = {}
    texts = [own_line(snapshot.frames, stack) for stack in snapshot.stacks] + ["not recorded"]
    of_stack = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int32)
    lines = list(numbers)
    memories = [_device(snapshot, device, lines, of_stack) for device in snapshot.devices]
    return [memory for memory in memories if memory.reserved_bytes or memory.events]


def own_line(frames: tuple[Frame, ...], stack: tuple[int, ...]) -> str:
    """Return the innermost line that is no library's, as "file.py(line): function"; the innermost
    of all where every one is.
    """
    seen = [frames[number] for number in stack]
    frame = next(
        (frame for frame in seen if not _LIBRARY.search(frame.file)), seen[0] if seen else None
    )
    if frame is None:
        return "not recorded"
    return f"{frame.file.rsplit('/', 1)[-1]}({frame.line}): {frame.function}"


class Lifetimes:
    """Blocks from allocation to release, as rows of the events. What was there before the first
    begins at -1, what is still there ends at their number.
    """

    def __init__(
        self, events: AllocatorEvents, segments: list[Segment], of_stack: SmallInts
    ) -> None:
        rows = np.flatnonzero((events.action == Action.ALLOC) | (events.action == _release(events)))
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

    def by_line(self, row: int, lines: int) -> Ints:
        """Return the bytes that each line holds after an event."""
        there = (self.begin <= row) & (row < self.end)
        return np.bincount(self.line[there], weights=self.bytes[there], minlength=lines).astype(
            np.int64
        )


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


def growth_a_step(levels: Ints) -> int:
    """Return by how many bytes memory grows from step to step, of its levels at the ends of steps:
    the median change over half of them, a step. What is collected or allocated now and then, as
    cycles are, does not look like growth then, and what grows in every tenth step does.

    Where that shows no growth, cycles may hide some: of many steps, the lowest level in the last
    third is compared with that in the third before. After the last step a program may have let go
    of everything, so its level does not count there.
    """
    apart = max((len(levels) - 1) // 2, 1)
    changes = levels[apart:] - levels[:-apart]
    growth = int(np.median(changes)) // apart if len(changes) else 0
    if growth > 0 or len(levels) < MANY_STEPS:
        return growth
    third = (len(levels) - 1) // 3
    before, last = levels[-2 * third - 1 : -third - 1], levels[-third - 1 : -1]
    rise = int(last.min()) - int(before.min())
    return rise // third if rise > LEAST_RISE * levels.max() else growth


def _device(snapshot: Snapshot, device: int, lines: list[str], of_stack: SmallInts) -> DeviceMemory:
    segments = [segment for segment in snapshot.segments if segment.device == device]
    events = snapshot.events.get(device) or empty_events()
    blocks = [block for segment in segments for block in segment.blocks]
    held = [block for block in blocks if block.active]
    lives = Lifetimes(events, segments, of_stack)
    level = _level(events, (Action.ALLOC,), (_release(events),), sum(block.bytes for block in held))
    reserved = _level(
        events,
        (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP),
        (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP),
        sum(segment.bytes for segment in segments),
    )
    steps = _steps(snapshot, device, events)
    return DeviceMemory(
        device=device,
        held_bytes=sum(block.bytes for block in held),
        held_blocks=len(held),
        reserved_bytes=sum(segment.bytes for segment in segments),
        rounding_bytes=sum(block.bytes - block.requested for block in held),
        largest_free_bytes=max((block.bytes for block in blocks if not block.active), default=0),
        peak_bytes=int(level.max()),
        peak_reserved_bytes=int(reserved.max()),
        events=len(events),
        recorded_us=int(events.time_us[-1] - events.time_us[0]) if len(events) else 0,
        levels_bytes=_highest(level),
        reserved_levels_bytes=_highest(reserved),
        steps=max(0, len(steps) - 1),
        growth_bytes_per_step=growth_a_step(level[steps]),
        holders=find_holders(lives, int(level.argmax()), steps, len(events), lines),
        refusals=[
            FailedAllocation(
                line=lines[of_stack[events.stack[row]]],
                bytes=int(events.bytes[row]),
                device_free_bytes=int(events.address[row]),
                unused_bytes=int(reserved[row] - level[row]),
            )
            for row in np.flatnonzero(events.action == Action.OOM)[-3:].tolist()
        ],
    )


def _release(events: AllocatorEvents) -> Action:
    """Return the action that ends a block: a tensor that other streams still use is free only once
    they are done.
    """
    if (events.action == Action.FREE_COMPLETED).any():
        return Action.FREE_COMPLETED
    return Action.FREE_REQUESTED


def _level(
    events: AllocatorEvents, more: tuple[Action, ...], less: tuple[Action, ...], at_end: int
) -> Ints:
    """Return the bytes after each event, counted back from what was there at the end: older events
    may have been dropped.
    """
    if not len(events):
        return np.array([at_end], dtype=np.int64)
    signs = np.zeros(len(Action), dtype=np.int8)
    signs[[*more]], signs[[*less]] = 1, -1
    level: Ints = events.bytes * signs[events.action]
    # In place: a large snapshot's events fill much of the memory already.
    np.cumsum(level, out=level)
    level += at_end - level[-1]
    return np.maximum(level, 0, out=level)


def _steps(snapshot: Snapshot, device: int, events: AllocatorEvents) -> Ints:
    """Return the event before each step's start, and the last event."""
    begins = sorted(
        {
            note.time_us
            for note in snapshot.annotations
            if note.begins and note.device == device and _STEP.match(note.name)
        }
    )
    if not begins or not len(events):
        return np.empty(0, dtype=np.int64)
    at = np.searchsorted(events.time_us, np.array(begins, dtype=np.int64), side="right") - 1
    return np.unique(np.append(at[at >= 0], len(events) - 1))


def _highest(level: Ints) -> list[int]:
    edges = np.linspace(0, len(level), min(STRETCHES, len(level)) + 1).astype(np.int64)
    return [int(level[low : max(high, low + 1)].max()) for low, high in pairwise(edges.tolist())]


def find_holders(
    lives: Lifetimes, peak: int, steps: Ints, count: int, lines: list[str]
) -> list[Holder]:
    """Return the lines that hold anything at the end or at the event `peak`, the largest first;
    `steps` are the events between them, of `count` in all.
    """
    width, last = len(lines), count - 1
    by_step = len(steps) >= FEWEST_STEPS
    moments = steps if by_step else np.linspace(0, max(last, 0), 4 * MOMENTS).astype(np.int64)
    chosen = moments[
        np.unique(np.linspace(len(moments) // 4, len(moments) - 1, MOMENTS).astype(np.int64))
    ]
    passed = len(steps) - 1 - len(steps) // 4 if by_step else 0
    # Start-up is over after the first quarter of the time: what grows from there on goes on
    # growing.
    over_time = np.array([lives.by_line(row, width) for row in chosen.tolist()])
    held, at_peak = lives.by_line(last, width), lives.by_line(peak if count else last, width)
    blocks = np.bincount(lives.line[lives.end >= count], minlength=width)
    recorded = lives.line[: len(lives.freed)]
    allocated = np.bincount(recorded, minlength=width)
    freed = np.bincount(recorded[lives.freed], minlength=width)
    rising, growth = (np.diff(over_time, axis=0) > 0).mean(axis=0), held - over_time[0]
    holders = []
    for i in np.lexsort((-at_peak, -held))[:TOP].tolist():
        if not held[i] and not at_peak[i]:
            continue
        # The line that frees most of its blocks.
        frees = lives.freed_by[(recorded == i) & lives.freed]
        freed_at = lines[int(np.bincount(frees).argmax())] if len(frees) else ""
        holders.append(
            Holder(
                line=lines[i],
                held_bytes=int(held[i]),
                blocks=int(blocks[i]),
                peak_bytes=int(at_peak[i]),
                growth_bytes=int(growth[i]),
                growth_bytes_per_step=int(growth[i] // passed) if passed else 0,
                grows=bool(rising[i] >= RISING_SHARE and growth[i] > 0),
                allocated=int(allocated[i]),
                freed_share=float(freed[i] / allocated[i]) if allocated[i] else 0.0,
                freed_at=freed_at,
            )
        )
    return holders
