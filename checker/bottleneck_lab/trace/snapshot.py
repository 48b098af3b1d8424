"""A memory snapshot of PyTorch's allocator: its events in columns, and the blocks held when it was
taken.

Only the structures stand here; `load.load_snapshot` and the readers in `fast/` both import them.
The format is that of `torch.cuda.memory._snapshot()` (torch/csrc/cuda/Module.cpp,
THCPModule_memorySnapshot).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from bottleneck_lab.trace.timeline import Ints, SmallInts, TinyInts

NO_STACK = -1


class Action(IntEnum):
    """The allocator's deeds. Others concern neither allocated nor reserved bytes."""

    OTHER = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    SEGMENT_ALLOC = 4
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    SEGMENT_UNMAP = 7
    OOM = 8


ACTIONS = {action.name.lower(): action for action in Action if action is not Action.OTHER}


@dataclass(frozen=True, slots=True)
class Frame:
    """A line on a stack, as it was recorded."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class AllocatorEvents:
    """One device's allocator's events, oldest first. An OOM's `address` is what the device had
    free; `stack` indexes `Snapshot.stacks`, or is NO_STACK.
    """

    action: TinyInts
    time_us: Ints
    address: Ints
    bytes: Ints
    stack: SmallInts

    def __len__(self) -> int:
        return len(self.action)

    @property
    def release(self) -> Action:
        """Return the action that ends a block: a tensor that other streams still use is free only
        once they are done.
        """
        completed = (self.action == Action.FREE_COMPLETED).any()
        return Action.FREE_COMPLETED if completed else Action.FREE_REQUESTED


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a segment: held by the program (`active`) or kept for later. `requested` is what
    was asked for, before rounding.
    """

    address: int
    bytes: int
    requested: int
    active: bool
    stack: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that the allocator has from the device."""

    device: int
    bytes: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Annotation:
    """A range of the program, as `torch.profiler.record_function` marks it, begins or ends."""

    device: int
    time_us: int
    name: str
    begins: bool


@dataclass(frozen=True)
class Snapshot:
    """A whole snapshot. A stack is a tuple of indices into `frames`, the line that
    allocated first.
    """

    source: str
    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    segments: tuple[Segment, ...] = ()
    events: dict[int, AllocatorEvents] = field(default_factory=dict)
    """By device; devices without events are left out."""
    annotations: tuple[Annotation, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> list[int]:
        """Every device that it says anything about."""
        return sorted({*self.events, *(segment.device for segment in self.segments)})


def empty_events() -> AllocatorEvents:
    """Return no events."""
    return AllocatorEvents(
        action=np.empty(0, dtype=np.int8),
        time_us=np.empty(0, dtype=np.int64),
        address=np.empty(0, dtype=np.int64),
        bytes=np.empty(0, dtype=np.int64),
        stack=np.empty(0, dtype=np.int32),
    )
