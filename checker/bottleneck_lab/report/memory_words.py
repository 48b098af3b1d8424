"""A memory snapshot as sentences and rows, shared by all renderings."""

from __future__ import annotations

from collections.abc import Sequence

from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.memory.holders import NOT_RECORDED, Caller, Holder
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
COLUMNS = ("blocks", "at the peak", "growth", "freed again")
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
    """Return that memory rises and falls between steps by more than it grows; empty where it does
    not. `blind`: without what that is a sign of.
    """
    low, high = use.lowest_after_step_bytes, use.highest_after_step_bytes
    apart = use.fall_bytes if use.is_sawtooth else high - low
    grows = use.growth_bytes_per_step > 0 and not use.is_sawtooth
    if apart < SMALL * use.peak_bytes:
        return ""
    if not use.hides_growth and (grows or apart < UNEVEN * use.peak_bytes):
        return ""
    later = "part of what a step makes is freed only steps later"
    if not blind:
        later += ", as reference cycles are"
    fall = f", and falls by up to {words.format_bytes(use.fall_bytes)}" if use.fall_bytes else ""
    return (
        f"Between {words.format_bytes(low)} and {words.format_bytes(high)} at the ends of steps"
        f"{fall}: {later}."
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
    peak = words.format_bytes(use.peak_bytes)
    ends = (words.format_bytes(use.first_bytes), "at the start"), (peak, "at the peak")
    if use.hides_growth or use.growth_bytes_per_step <= 0:
        return [*ends]
    # The last step has left nothing behind yet.
    before = use.steps - 1
    added_bytes = use.growth_bytes_per_step * before
    share = words.format_share(added_bytes / max(use.peak_bytes, 1))
    left = (
        f"kept for good by the {before:,} steps before the last: {share} of the peak,"
        f" {describe_growth(use)} more each step"
    )
    parts = [ends[0], (words.format_bytes(added_bytes), left)]
    later_bytes = _as_printed(use.peak_bytes) - sum(
        map(_as_printed, (use.first_bytes, added_bytes))
    )
    if later_bytes > SMALL * use.peak_bytes:
        later = "besides: what a step needs for itself"
        if use.fall_bytes > SMALL * use.peak_bytes:
            later += ", and what is freed only steps later"
        parts.append((words.format_bytes(later_bytes), later))
    return [*parts, ends[1]]


def describe_regular_fall(use: MemoryUse) -> str:
    """Return by how much memory falls in every so many steps, where it also grows and no sentence
    of its own says so.
    """
    period = use.period_steps
    if not period or use.growth_bytes_per_step <= 0 or describe_late_freeing(use):
        return ""
    # Between two falls, memory rises in all steps but the one in which it falls.
    added_bytes = (use.growth_bytes_per_step * period + use.fall_bytes) // (period - 1)
    later_bytes = added_bytes - use.growth_bytes_per_step
    return (
        f"A step adds about {words.format_bytes(added_bytes)}: {describe_growth(use)} for good, and"
        f" {words.format_bytes(later_bytes)} that is freed later. Once in {period} steps about"
        f" {words.format_bytes(use.fall_bytes + added_bytes)} are freed; less what that step adds,"
        f" memory falls by {words.format_bytes(use.fall_bytes)}."
    )


def _as_printed(size: float) -> float:
    """Return bytes as they read where they are printed in MiB, so that sums of them do."""
    return round(10 * size / MIB) * MIB / 10 if size >= MIB else size


def describe_end(use: MemoryUse) -> str:
    """Return when a capture's lines hold what is listed of them."""
    if use.held_after_steps in (0, use.steps):
        return "at the end"
    return f"after {use.held_after_steps:,} steps"


def describe_before(use: MemoryUse) -> str:
    """Return what was allocated at the peak besides what the lines have allocated since the capture
    began; empty if that is little.
    """
    before = use.peak_bytes - sum(row.peak_bytes for row in use.holders)
    if before < SMALL * use.peak_bytes:
        return ""
    return (
        f"The rest of the peak, {words.format_bytes(before)}, was allocated before the capture or"
        " by lines that are not listed."
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
    where = row.freed_at
    if where == NOT_RECORDED:
        where = "a line that was not recorded"
    share = words.format_share(row.freed_share)
    freed = f"{share} of {row.allocated:,} blocks, most of them while {where} ran"
    if not row.allocated:
        freed = "allocated before the recording"
    elif not row.freed_at:
        freed = f"none of {row.allocated:,} blocks"
    if row.blocks:
        sizes = [words.format_bytes(row.smallest_bytes), words.format_bytes(row.largest_bytes)]
        sizes = [*dict.fromkeys(sizes)]
        freed += f"; those that stay are {' to '.join(sizes)}{' each' * (len(sizes) == 1)}"
    return [
        row.line,
        words.format_bytes(row.held_bytes),
        f"{row.blocks:,}",
        words.format_bytes(row.peak_bytes),
        growth,
        freed,
    ]


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


def _growth(row: Holder | Caller) -> str:
    """Return by how much what a line holds grows, or how far it swings."""
    if row.growth_bytes_per_step > 0 and not (isinstance(row, Holder) and not row.grows):
        return _per_step(row.growth_bytes_per_step)
    if row.fall_bytes >= UNEVEN * row.peak_bytes > 0:
        return f"swings by {words.format_bytes(row.fall_bytes)}"
    return "none"


def _per_step(growth_bytes: int) -> str:
    return f"+{words.format_bytes(growth_bytes)} per step" if growth_bytes else ""


def holder_rows(rows: Sequence[Holder]) -> list[list[str]]:
    """Return the table of these lines with those that call them, and what they come to where they
    are several.
    """
    table = [cells for row in rows for cells in (holder_cells(row), *caller_rows(row))]
    return [*table, total_cells(rows)] if len(rows) > 1 else table


def total_cells(rows: Sequence[Holder]) -> list[str]:
    """Return what all lines come to, in the order of COLUMNS."""
    growing = [row.growth_bytes_per_step for row in rows if row.grows]
    return [
        "all of these",
        words.format_bytes(sum(row.held_bytes for row in rows)),
        f"{sum(row.blocks for row in rows):,}",
        words.format_bytes(sum(row.peak_bytes for row in rows)),
        _per_step(sum(growing)),
        "",
    ]
