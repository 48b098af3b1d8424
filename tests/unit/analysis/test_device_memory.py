"""Who holds memory, by made-up snapshots of a few blocks."""

from __future__ import annotations

import numpy as np

from bottleneck_lab.analysis.memory.snapshot import find_device_memory, own_lines
from bottleneck_lab.trace.snapshot import (
    Action,
    AllocatorEvents,
    Annotation,
    Block,
    Frame,
    Segment,
    Snapshot,
)

LIBRARY = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
FRAMES = (
    Frame(LIBRARY, 7, "_call_impl"),
    Frame("/me/train.py", 3, "train"),
    Frame("/me/train.py", 5, "step"),
)
KEPT, FREED, LIBRARY_ONLY = 0, 1, 2
STACKS = ((0, 1), (0, 2, 1), (0,))


def events(*rows: tuple[Action, int, int, int]) -> AllocatorEvents:
    """Rows of action, address, bytes and stack, one every µs."""
    action, address, size, stack = (np.array(column) for column in zip(*rows, strict=True))
    return AllocatorEvents(
        action.astype(np.int8), np.arange(len(rows)), address, size, stack.astype(np.int32)
    )


def growing(steps: int) -> Snapshot:
    """Every step allocates 100 bytes and frees them, and allocates 10 and keeps them; 1000 bytes
    were there before.
    """
    rows, held, notes = [], [Block(1, 1000, 900, active=True, stack=LIBRARY_ONLY)], []
    for step in range(steps):
        notes.append(Annotation(0, len(rows), f"ProfilerStep#{step}", begins=True))
        rows.append((Action.ALLOC, 5000, 100, FREED))
        rows.append((Action.ALLOC, 6000 + step, 10, KEPT))
        rows.append((Action.FREE_REQUESTED, 5000, 100, KEPT))
        rows.append((Action.FREE_COMPLETED, 5000, 100, KEPT))
        held.append(Block(6000 + step, 10, 10, active=True, stack=KEPT))
    free = Block(9000, 4000, 0, active=False, stack=-1)
    total = sum(block.bytes for block in [*held, free])
    return Snapshot(
        "s", FRAMES, STACKS, (Segment(0, total, (*held, free)),), {0: events(*rows)}, tuple(notes)
    )


def test_allocated_reserved_and_rounding_are_told_apart() -> None:
    (memory,) = find_device_memory(growing(20))
    assert (memory.held_bytes, memory.held_blocks) == (1200, 21)
    assert memory.reserved_bytes == 5200
    assert memory.rounding_bytes == 100
    assert memory.largest_free_bytes == 4000


def test_what_was_there_before_the_recording_counts() -> None:
    (memory,) = find_device_memory(growing(20))
    assert memory.peak_bytes == 1000 + 200 + 100
    assert memory.levels_bytes[0] == 1100
    before = next(row for row in memory.holders if row.line.startswith("module.py"))
    assert (before.held_bytes, before.allocated, before.grows) == (1000, 0, False)


def test_the_line_that_keeps_is_the_one_that_grows() -> None:
    (memory,) = find_device_memory(growing(40))
    assert memory.steps == 40
    assert memory.growth_bytes_per_step == 10
    growing_lines = [row for row in memory.holders if row.grows]
    assert [(row.line, row.growth_bytes_per_step, row.freed_share) for row in growing_lines] == [
        ("train.py(3): train", 10, 0.0)
    ]


def test_what_is_freed_names_the_line_that_frees() -> None:
    (memory,) = find_device_memory(growing(20))
    freed = next(row for row in memory.holders if row.line == "train.py(5): step")
    assert (freed.held_bytes, freed.peak_bytes) == (0, 100)
    assert (freed.allocated, freed.freed_share, freed.freed_at) == (20, 1.0, "train.py(3): train")


def test_a_snapshot_tells_the_callers_of_a_line_apart() -> None:
    """A library's frames are between the two, and the outermost line is the same."""
    frames = (*FRAMES, Frame("/me/train.py", 9, "main"))
    stacks = ((0, 1, 3), (0, 1, 0, 2, 3))
    rows = [(Action.ALLOC, n, 10 + stack, stack) for n, stack in enumerate((0, 1, 1))]
    held = tuple(Block(at, size, size, active=True, stack=stack) for _, at, size, stack in rows)
    (memory,) = find_device_memory(
        Snapshot("s", frames, stacks, (Segment(0, 32, held),), {0: events(*rows)})
    )
    (row,) = memory.holders
    assert (row.line, row.held_bytes) == ("train.py(3): train", 32)
    assert [(caller.line, caller.held_bytes) for caller in row.callers] == [
        ("train.py(5): step", 22),
        ("train.py(9): main", 10),
    ]


def test_a_block_that_is_used_again_is_not_held_twice() -> None:
    rows = [(Action.ALLOC, 1, 10, KEPT), (Action.FREE_COMPLETED, 1, 10, KEPT)] * 5 + [
        (Action.ALLOC, 1, 10, FREED)
    ]
    block = Block(1, 10, 10, active=True, stack=FREED)
    (memory,) = find_device_memory(
        Snapshot("s", FRAMES, STACKS, (Segment(0, 10, (block,)),), {0: events(*rows)})
    )
    assert [(row.line, row.held_bytes) for row in memory.holders if row.held_bytes] == [
        ("train.py(5): step", 10)
    ]


def test_without_steps_growth_is_seen_over_the_events() -> None:
    whole = growing(60)
    (memory,) = find_device_memory(
        Snapshot("s", whole.frames, whole.stacks, whole.segments, whole.events)
    )
    (row,) = [row for row in memory.holders if row.grows]
    assert memory.steps == row.growth_bytes_per_step == 0
    assert row.growth_bytes > 400


def test_a_failed_allocation_says_what_was_cached() -> None:
    rows = [
        (Action.SEGMENT_ALLOC, 1, 100, KEPT),
        (Action.ALLOC, 1, 60, KEPT),
        (Action.OOM, 7, 500, FREED),
    ]
    blocks = (Block(1, 60, 60, active=True, stack=KEPT), Block(61, 40, 0, active=False, stack=-1))
    (memory,) = find_device_memory(
        Snapshot("s", FRAMES, STACKS, (Segment(0, 100, blocks),), {0: events(*rows)})
    )
    (refusal,) = memory.refusals
    assert (refusal.line, refusal.bytes) == ("train.py(5): step", 500)
    assert (refusal.device_free_bytes, refusal.unused_bytes) == (7, 40)


def test_a_snapshot_without_a_recording_still_says_who_holds() -> None:
    whole = growing(5)
    (memory,) = find_device_memory(Snapshot("s", whole.frames, whole.stacks, whole.segments))
    assert (memory.events, memory.peak_bytes) == (0, memory.held_bytes)
    assert {row.line: row.held_bytes for row in memory.holders} == {
        "module.py(7): _call_impl": 1000,
        "train.py(3): train": 50,
    }


def test_a_stack_of_libraries_only_is_named_by_its_innermost_line() -> None:
    texts, own = ["module.py(7): _call_impl", "train.py(3): train"], [False, True]
    assert own_lines(texts, own, (0, 1)) == ("train.py(3): train",)
    assert own_lines(texts, own, (0,)) == ("module.py(7): _call_impl",)
    assert own_lines(texts, own, ()) == ("not recorded",)
