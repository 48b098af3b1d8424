"""A memory snapshot as sentences and rows, shared by all renderings."""

from __future__ import annotations

from collections.abc import Sequence

from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.memory.holders import NOT_RECORDED, Caller, Holder, StepBlocks
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory, FailedAllocation
from bottleneck_lab.report import words
from bottleneck_lab.wording import counted

UNEVEN = 0.5
"""Levels after steps that differ by this part of the peak are worth a sentence."""

SMALL = 0.01
"""Less than this part of the peak is not worth a sentence."""

MIB = 1 << 20
CALLERS = 4
"""So many of the lines that call one are listed."""
ALLOCATED_ONLY = "All of this is allocated. Free blocks that an allocator keeps are not counted."
COLUMNS = ("blocks", "at the peak", "growth", "kept or freed")
"""The columns of the table of lines behind their names and what they hold in the end."""


def describe_levels(memory: DeviceMemory) -> list[str]:
    """Return how much memory is held, reserved and lost, and how it grows."""
    unused = memory.reserved_bytes - memory.held_bytes
    share = 0.0
    if memory.reserved_bytes:
        share = unused / memory.reserved_bytes
    sentences = [
        (
            f"{words.format_bytes(memory.held_bytes)} is allocated in"
            f" {counted(memory.held_blocks, 'block')},"
            f" {words.format_bytes(memory.rounding_bytes)} of it from rounding up."
        ),
        (
            f"{words.format_bytes(memory.reserved_bytes)} is reserved: {words.format_bytes(unused)}"
            f" ({words.format_share(share)}) of it is cached and free, in pieces of at most"
            f" {words.format_bytes(memory.largest_free_bytes)}."
        ),
    ]
    if memory.events:
        sentences.append(
            f"The peak was {words.format_bytes(memory.peak_bytes)} allocated, with at most"
            f" {words.format_bytes(memory.peak_reserved_bytes)} reserved, in {memory.events:,}"
            f" events over {words.format_duration(memory.recorded_us * 1000)}."
        )
    else:
        sentences.append(
            "No history was recorded, so how this changed is not known. Call"
            " torch.cuda.memory._record_memory_history() before the work, or record with"
            " `lab profile --tool memory`."
        )
    if memory.steps:
        sentences.append(
            f"Allocated memory grows by {words.format_bytes(memory.growth_bytes_per_step)} per step"
            f" (the median change over half of {memory.steps:,} steps, or how its lowest level"
            " rises)."
        )
    return sentences


def describe_late_freeing(use: MemoryUse, *, blind: bool = False) -> str:
    """Return what of a step is freed only steps later: how much, where memory falls at equal
    distances; else by how much it rises and falls, where that is more than it grows by. Empty where
    neither is so. `blind`: without what that is a sign of.
    """
    grows = use.growth_bytes_per_step > 0
    sign = "" if blind else ", as reference cycles are"
    if use.period_steps:
        much = grows or use.fall_bytes >= UNEVEN * use.peak_bytes
        return _describe_regular_fall(use, sign) if much else ""
    low, high = use.lowest_after_step_bytes, use.highest_after_step_bytes
    apart = use.fall_bytes if use.hides_growth else high - low
    if apart < SMALL * use.peak_bytes:
        return ""
    if not use.hides_growth and (grows or apart < UNEVEN * use.peak_bytes):
        return ""
    fall = f", and falls by up to {words.format_bytes(use.fall_bytes)}" if use.fall_bytes else ""
    return (
        f"Between {words.format_bytes(low)} and {words.format_bytes(high)} at the ends of steps"
        f"{fall}: part of what a step makes is freed only steps later{sign}."
    )


def _describe_regular_fall(use: MemoryUse, sign: str) -> str:
    """Return what falls at equal distances, and by how much memory falls where it also grows."""
    before = use.period_steps - 1
    kept = fall = ""
    if use.growth_bytes_per_step > 0:
        kept = f"{describe_growth(use)} for good, and "
        fall = (
            f" That step itself keeps {describe_growth(use)}, so memory falls by"
            f" {words.format_bytes(use.fall_bytes)}."
        )
    left = "the step before has" if before == 1 else f"the {before:,} steps before have"
    return (
        f"A step adds about {kept}{words.format_bytes(use.late_bytes // before)} that is freed only"
        f" steps later{sign}. Every {use.period_steps:,} steps, the"
        f" {words.format_bytes(use.late_bytes)} that {left} left is freed at once.{fall}"
    )


def changes_between_steps(use: MemoryUse) -> bool:
    """Return True where memory grows from step to step, or is freed only steps later."""
    return use.growth_bytes_per_step > 0 or bool(describe_late_freeing(use))


def describe_growth(use: MemoryUse) -> str:
    """Return by how much memory grows in a step, or that this cannot be told."""
    if use.hides_growth:
        return "cannot tell"
    return words.format_bytes(max(use.growth_bytes_per_step, 0))


def list_peak(use: MemoryUse) -> list[tuple[str, str]]:
    """Return the parts of the peak, then the peak: a figure and its words each. They add up as they
    are printed.
    """
    peak = (words.format_bytes(use.peak_bytes), "at the peak")
    if use.hides_growth or use.growth_bytes_per_step <= 0:
        return [(words.format_bytes(use.first_bytes), "at the start"), peak]
    share = words.format_share(use.kept_bytes / max(use.peak_bytes, 1))
    kept = (
        f"kept for good by the {use.steps - 1:,} recorded steps before the last: {share} of the"
        f" peak, {describe_growth(use)} more each step"
    )
    parts = [(use.first_bytes, _describe_start(use)), (use.kept_bytes, kept)]
    own = "what the last step needs, and what it leaves behind"
    if late_bytes := _late_at_peak(use):
        parts.append(
            (late_bytes, "freed only steps later: what steps have left since memory last fell")
        )
    elif use.fall_bytes > SMALL * use.peak_bytes:
        own = "what is freed only steps later, and what the last step needs"
    own_bytes = _as_printed(use.peak_bytes) - sum(_as_printed(size) for size, _ in parts)
    if own_bytes > SMALL * use.peak_bytes:
        parts.append((round(own_bytes), f"the rest: {own}"))
    return [*((words.format_bytes(size), what) for size, what in parts), peak]


def describe_peak_without_steps(use: MemoryUse) -> str:
    """Return how much of the peak no step has left behind; empty where memory does not grow, or it
    is not known how much of the peak is freed only later.
    """
    if use.hides_growth or use.growth_bytes_per_step <= 0:
        return ""
    if not use.period_steps and use.fall_bytes > SMALL * use.peak_bytes:
        return ""
    left_bytes = use.peak_bytes - use.kept_bytes - _kept_before(use) - _late_at_peak(use)
    return (
        "Had the steps before the last left nothing behind, the peak would be"
        f" {words.format_bytes(left_bytes, decimals=2)}, with what the last one itself leaves."
    )


def _late_at_peak(use: MemoryUse) -> int:
    """Return the bytes of the peak that steps have left since memory last fell; 0 where that is
    little or not known.
    """
    late_bytes = use.highest_after_step_bytes - use.first_bytes - use.kept_bytes
    return late_bytes if use.period_steps and late_bytes > SMALL * use.peak_bytes else 0


def _kept_before(use: MemoryUse) -> int:
    """Return the bytes that steps before the capture have kept, as many as each later one; 0 where
    they are more than was there at the start.
    """
    earlier_bytes = use.growth_bytes_per_step * use.steps_before
    return earlier_bytes if earlier_bytes <= use.first_bytes else 0


def _describe_start(use: MemoryUse) -> str:
    """Return that memory was there at the start, and how much of it earlier steps have kept."""
    earlier_bytes = _kept_before(use)
    if not earlier_bytes:
        return "at the start"
    steps = "step" if use.steps_before == 1 else f"{use.steps_before:,} steps"
    return (
        f"at the start, about {words.format_bytes(earlier_bytes)} of it kept by the {steps} before"
        " the capture"
    )


def _as_printed(size: float) -> float:
    """Return bytes as they read where they are printed in MiB, so that sums of them do."""
    return round(10 * size / MIB) * MIB / 10 if size >= MIB else size


def describe_end(use: MemoryUse) -> str:
    """Return when a capture's lines hold what is listed of them."""
    if use.held_after_steps in (0, use.steps):
        return "at the end"
    return f"after {use.held_after_steps:,} of {use.steps:,} steps"


def describe_before(use: MemoryUse) -> str:
    """Return what was allocated at the peak besides what the lines have allocated since the capture
    began; empty if that is little.
    """
    before = use.peak_bytes - sum(row.peak_bytes for row in use.holders)
    if before < SMALL * use.peak_bytes:
        return ""
    freed = ""
    if before < use.first_bytes:
        freed = " Part of what was there at the start is freed by then."
    return (
        f"The rest of the peak, {words.format_bytes(before)}, was allocated before the capture or"
        f" by lines that are not listed.{freed}"
    )


def describe_refusal(refusal: FailedAllocation) -> str:
    """Return an allocation that failed."""
    return (
        f"Out of memory: {words.format_bytes(refusal.bytes)} was requested at {refusal.line}, with "
        f"{words.format_bytes(refusal.device_free_bytes)} free on the device and "
        f"{words.format_bytes(refusal.unused_bytes)} cached and free."
    )


def holder_cells(row: Holder) -> list[str]:
    """Return one line of the table, in the order of COLUMNS."""
    growth = _growth(row)
    if row.grows and not row.growth_bytes_per_step:
        growth = f"+{words.format_bytes(row.growth_bytes)}"
    return [
        row.line,
        words.format_bytes(row.held_bytes),
        f"{row.blocks:,}",
        words.format_bytes(row.peak_bytes),
        growth,
        _describe_blocks(row),
    ]


def _describe_blocks(row: Holder) -> str:
    """Return what becomes of a line's blocks: of those of a step, where steps were recorded, else
    of all.
    """
    sizes = ""
    if row.blocks:
        each = [words.format_bytes(row.smallest_bytes), words.format_bytes(row.largest_bytes)]
        each = [*dict.fromkeys(each)]
        sizes = f"; those held are {' to '.join(each)}{' each' * (len(each) == 1)}"
    if not row.allocated:
        return f"allocated before the recording{sizes}"
    step = row.a_step
    # One block that grows is no block more.
    if round(step.made, 1) and (round(step.kept, 1) > 0 or not row.grows):
        return f"{_describe_step(step)}{sizes}"
    held = row.allocated - round(row.freed_share * row.allocated)
    text = f"of {counted(row.allocated, 'block')}, {f'{held:,}' if held else 'none'} still held"
    freed = ""
    if row.freed_at:
        where = row.freed_at
        if where == NOT_RECORDED:
            where = "a line that was not recorded"
        freed = f"; most of those freed are freed while {where} runs"
    return f"{text}{sizes}{freed}"


def _describe_step(step: StepBlocks) -> str:
    """Return how many blocks of a step are kept, and when the others are freed."""
    late = "freed only steps later"
    if step.late_freed_at not in ("", NOT_RECORDED):
        late += f" (mostly while {step.late_freed_at} runs)"
    parts = {
        "kept for good": step.kept,
        late: step.freed_late,
        "freed in the next step": step.freed_in_next,
        "freed in the step": step.freed,
    }
    counts = [f"{part:,.3g} {what}" for what, part in parts.items() if round(part, 1) > 0]
    made = f"{step.made:,.3g}"
    return f"of {made} block{'s' * (made != '1')} a step, {', '.join(counts)}"


def caller_rows(row: Holder) -> list[list[str]]:
    """Return what a line allocated for the largest of those that call it, in the order of COLUMNS;
    nothing where only one does.
    """
    return [
        [
            f"from {caller.line}",
            words.format_bytes(caller.held_bytes),
            "",
            words.format_bytes(caller.peak_bytes),
            _growth(caller),
            "",
        ]
        for caller in row.callers[:CALLERS]
    ]


def describe_callers(rows: Sequence[Holder]) -> str:
    """Return how a table is read in which lines that call others have rows; empty without any."""
    if any(row.callers for row in rows):
        return "What a line causes is its own row and all rows `from` it."
    return ""


def _growth(row: Holder | Caller) -> str:
    """Return by how much what a line holds grows, or how far it swings."""
    if row.growth_bytes_per_step > 0 and not (isinstance(row, Holder) and not row.grows):
        return f"+{words.format_bytes(row.growth_bytes_per_step)} per step"
    if row.fall_bytes >= UNEVEN * row.peak_bytes > 0:
        return f"swings by {words.format_bytes(row.fall_bytes)}"
    return "none"


def holder_rows(rows: Sequence[Holder]) -> list[list[str]]:
    """Return the table of these lines with those that call them, and what they come to where they
    are several.
    """
    table = [cells for row in rows for cells in (holder_cells(row), *caller_rows(row))]
    return [*table, total_cells(rows)] if len(rows) > 1 else table


def total_cells(rows: Sequence[Holder]) -> list[str]:
    """Return what all lines come to, in the order of COLUMNS."""
    growing = [row for row in rows if row.grows]
    growth = "none"
    if per_step := sum(row.growth_bytes_per_step for row in growing):
        growth = f"+{words.format_bytes(per_step)} per step"
    elif growing:
        growth = f"+{words.format_bytes(sum(row.growth_bytes for row in growing))}"
    return [
        "all of these",
        words.format_bytes(sum(row.held_bytes for row in rows)),
        f"{sum(row.blocks for row in rows):,}",
        words.format_bytes(sum(row.peak_bytes for row in rows)),
        growth,
        "",
    ]
