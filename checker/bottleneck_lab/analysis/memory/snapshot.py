"""The memory of GPUs by a snapshot of their allocator: how much is held, reserved and lost, since
when, and by whom.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from bottleneck_lab.analysis.memory.growth import STRETCHES, growth_a_step
from bottleneck_lab.analysis.memory.holders import (
    NOT_RECORDED,
    CallSite,
    Holder,
    Lifetimes,
    find_holders,
    number_sites,
)
from bottleneck_lab.trace.snapshot import (
    Action,
    AllocatorEvents,
    Frame,
    Snapshot,
    empty_events,
)
from bottleneck_lab.trace.timeline import Ints, SmallInts

_STEP = re.compile(r"^ProfilerStep#\d+$")
_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python3[^/]*|torch/(?:csrc|include))/|^<|^\?\?|\.(?:cpp|cc|cu|h|cuh|c|so)\b|^$"
)


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
    texts = [_text(frame) for frame in snapshot.frames]
    own = [not _LIBRARY.search(frame.file) for frame in snapshot.frames]
    # Of each stack, and last of none.
    stacks = [own_lines(texts, own, stack) for stack in (*snapshot.stacks, ())]
    sites, of_stack = number_sites(stacks)
    memories = [_device(snapshot, device, sites, of_stack) for device in snapshot.devices]
    return [memory for memory in memories if memory.reserved_bytes or memory.events]


def own_lines(texts: Sequence[str], own: Sequence[bool], stack: tuple[int, ...]) -> tuple[str, ...]:
    """Return those lines of a stack that are the program's `own`, the innermost first; the
    innermost of all where every one is a library's. `texts` and `own` are of each frame.
    """
    mine = [texts[number] for number in stack if own[number]]
    return tuple(mine or [texts[number] for number in stack[:1]] or [NOT_RECORDED])


def _text(frame: Frame) -> str:
    """Return a frame as "file.py(line): function"."""
    return f"{frame.file.rsplit('/', 1)[-1]}({frame.line}): {frame.function}"


def _device(
    snapshot: Snapshot, device: int, sites: list[CallSite], of_stack: SmallInts
) -> DeviceMemory:
    segments = [segment for segment in snapshot.segments if segment.device == device]
    events = snapshot.events.get(device) or empty_events()
    blocks = [block for segment in segments for block in segment.blocks]
    held = [block for block in blocks if block.active]
    lives = Lifetimes(events, segments, sites, of_stack)
    level = _level(events, (Action.ALLOC,), (events.release,), sum(block.bytes for block in held))
    reserved = _level(
        events,
        (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP),
        (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP),
        sum(segment.bytes for segment in segments),
    )
    steps, last = _steps(snapshot, device, events), len(events) - 1
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
        holders=find_holders(lives, min(int(level.argmax()), last), steps, last),
        refusals=[
            FailedAllocation(
                line=sites[of_stack[events.stack[row]]].line,
                bytes=int(events.bytes[row]),
                device_free_bytes=int(events.address[row]),
                unused_bytes=int(reserved[row] - level[row]),
            )
            for row in np.flatnonzero(events.action == Action.OOM)[-3:].tolist()
        ],
    )


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
