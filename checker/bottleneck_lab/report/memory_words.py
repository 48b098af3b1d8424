"""A memory snapshot as sentences and rows, shared by all renderings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.memory.holders import NOT_RECORDED, Holder, StepBlocks
from bottleneck_lab.analysis.memory.snapshot import DeviceMemory, FailedAllocation
from bottleneck_lab.report import words
from bottleneck_lab.wording import counted

UNEVEN = 0.5
"""Levels after steps that differ by this part of the peak are worth a sentence."""

SMALL = 0.01
"""Less than this part of the peak is not worth a sentence."""

HARDLY = 0.001
"""If a step leaves less than this part of the peak to be freed later, no sentence says so, nor
which line frees it.
"""
MIB = 1 << 20
ALLOCATED_ONLY = "All of this is allocated. Free blocks that an allocator keeps are not counted."


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


def describe_left_behind(use: MemoryUse, *, blind: bool = False) -> str:
    """Return what a step leaves behind: for good, to be freed only steps later, or both; empty
    where it leaves nothing, or this is not known. `blind`: as in `describe_late_freeing`.
    """
    late = describe_late_freeing(use, blind=blind)
    if late or use.hides_growth:
        return late
    if use.growth_bytes_per_step > 0:
        return f"A step leaves {words.format_bytes(use.growth_bytes_per_step)} behind for good."
    # Too little to be a sign of anything, but the table of lines shows it.
    late_bytes = sum(row.late_bytes_per_step for row in use.holders)
    if not use.period_steps or late_bytes < max(HARDLY * use.peak_bytes, 1):
        return ""
    return f"A step leaves {words.format_bytes(late_bytes)} behind {_until_fall(use)}."


def describe_late_freeing(use: MemoryUse, *, blind: bool = False) -> str:
    """Return what of a step is freed only steps later: how much, where memory falls at equal
    distances; else by how much it rises and falls, where that is more than it grows by. Empty where
    neither is so. `blind`: without what that is a sign of.
    """
    grows = use.growth_bytes_per_step > 0
    sign = "" if blind else ", like reference cycles"
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
    """Return what a step leaves where memory falls at equal distances: all of it first, since a
    partial fix may only move some from what is kept to what is freed later.
    """
    late_bytes = _late_a_step(use)
    until = f"{_until_fall(use)}{sign}"
    kept_bytes = use.growth_bytes_per_step
    if kept_bytes <= 0:
        return f"A step leaves {words.format_bytes(late_bytes)} behind {until}."
    left, kept, late = words.format_sum(kept_bytes, late_bytes)
    return f"A step leaves {left} behind: {kept} for good, and {late} {until}."


def _late_a_step(use: MemoryUse) -> int:
    """Return the bytes that a step leaves until memory next falls: as the table of lines adds up
    those of a typical step, where that is what the fall comes to.
    """
    by_fall = use.late_bytes // (use.period_steps - 1)
    by_lines = sum(row.late_bytes_per_step for row in use.holders)
    return by_lines if abs(by_lines - by_fall) < SMALL * by_fall else by_fall


def _until_fall(use: MemoryUse) -> str:
    return f"until memory next falls (every {use.period_steps:,} steps)"


def changes_between_steps(use: MemoryUse) -> bool:
    """Return True where memory grows from step to step, or is freed only steps later."""
    return use.growth_bytes_per_step > 0 or bool(describe_late_freeing(use))


def describe_growth(use: MemoryUse) -> str:
    """Return by how much memory grows in a step, or that this cannot be told."""
    if use.hides_growth:
        return "cannot tell"
    return words.format_bytes(max(use.growth_bytes_per_step, 0))


def list_peak(use: MemoryUse) -> list[tuple[str, str]]:
    """Return the parts of the peak, then the peak: a figure and its words each, all in one unit.
    They add up as they are printed.
    """
    unit = words.unit_of(use.peak_bytes)
    peak = (use.peak_bytes, f"at the peak{_locate_peak(use)}")
    freed_bytes = use.start_bytes - _base_bytes(use)
    parts = [_describe_start(use, freed_bytes)]
    late_bytes = _late_at_peak(use)
    grows = use.growth_bytes_per_step > 0
    if use.hides_growth or not (grows or late_bytes):
        return [(words.format_in(unit, size), what) for size, what in (*parts, peak)]
    if grows:
        share = words.format_share(use.kept_bytes / max(use.peak_bytes, 1))
        kept = (
            f"kept for good by the {use.steps - 1:,} recorded steps before {_last_step(use)}:"
            f" {share} of the peak"
        )
        parts.append((use.kept_bytes, kept))
    own = "what the peak's step adds, less what it frees"
    if late_bytes:
        left_bytes = late_bytes - freed_bytes * _has_start_at_peak(use)
        left = "left by the steps before the peak's since memory last fell"
        parts.append((left_bytes, f"freed later: {left}"))
    elif use.fall_bytes > SMALL * use.peak_bytes:
        own = f"what is freed later, and {own}"
    step, _ = unit
    printed = [round(size / step, 2) for size in (use.peak_bytes, *(size for size, _ in parts))]
    own_bytes = round((printed[0] - sum(printed[1:])) * step)
    if own_bytes > SMALL * use.peak_bytes:
        parts.append((own_bytes, own))
    return [(words.format_in(unit, size), what) for size, what in (*parts, peak)]


def _last_step(use: MemoryUse) -> str:
    """Return a name of the last step: the peak's, unless the peak is known to lie before."""
    known = use.peak_step_number > 0
    elsewhere = known and use.peak_step_number != use.steps_before + use.steps
    return "the last" if elsewhere else "the peak's"


def _locate_peak(use: MemoryUse) -> str:
    """Return in which step and line the peak lies, as far as it is known."""
    step = use.peak_step and f": in {use.peak_step}"
    if use.peak_step_number:
        step = f": in step {use.peak_step_number:,} of the run"
    if not use.peak_line:
        return step
    return f"{step}{',' if step else ':'} reached while {use.peak_line} ran"


def describe_peak_without_steps(use: MemoryUse) -> str:
    """Return how much of the peak no step has left behind; empty where steps leave nothing, or it
    is not known how much of the peak is freed only later.
    """
    grows = use.growth_bytes_per_step > 0
    if use.hides_growth or not (grows or _late_at_peak(use)):
        return ""
    if not use.period_steps and use.fall_bytes > SMALL * use.peak_bytes:
        return ""
    left = (_kept_before(use), max(use.kept_bytes, 0), _late_at_peak(use))
    return (
        "Had the steps before the peak's left nothing behind, the peak would be"
        f" {words.format_difference(use.peak_bytes, *filter(None, left))}. A fix may end above"
        " that, by what it still keeps between steps, or below, as it may free the tensors of a"
        " step sooner."
    )


def _late_at_peak(use: MemoryUse) -> int:
    """Return the bytes of the peak that steps have left since memory last fell; 0 where that is
    little or not known.
    """
    late_bytes = use.highest_after_step_bytes - _base_bytes(use) - use.kept_bytes
    return late_bytes if use.period_steps and late_bytes > SMALL * use.peak_bytes else 0


def _base_bytes(use: MemoryUse) -> int:
    """Return what was there at the start, without what steps before the capture had left to be
    freed later, where memory falls to less at equal distances and does not grow.
    """
    if not use.period_steps or use.growth_bytes_per_step > 0:
        return use.start_bytes
    lowest_bytes = use.lowest_after_step_bytes
    # Of the step in which memory falls, something may be left until the next one: a variable of the
    # loop holds its last value for so long. Then it is in the lowest level, too.
    late_a_step = sum(row.late_bytes_per_step for row in use.holders)
    outlives_bytes = late_a_step * (use.period_steps - 1) - use.fall_bytes
    if 0 < outlives_bytes <= late_a_step:
        lowest_bytes -= outlives_bytes
    return min(use.start_bytes, lowest_bytes)


def _has_start_at_peak(use: MemoryUse) -> bool:
    """Return True if memory has not fallen between the first record and the peak."""
    recorded = use.peak_step_number - 1 - use.steps_before
    is_early = use.peak_step_number > 0 and recorded < use.period_steps - 1
    return is_early and use.start_bytes <= use.highest_after_step_bytes


def _kept_before(use: MemoryUse) -> int:
    """Return the bytes that steps before the capture have kept, as many as each later one; 0 where
    they are more than was there at the start.
    """
    earlier_bytes = use.growth_bytes_per_step * use.steps_before
    return earlier_bytes if 0 < earlier_bytes <= use.start_bytes else 0


def _describe_start(use: MemoryUse, freed_bytes: int) -> tuple[int, str]:
    """Return what of the memory at the start is a part of the peak, and how much of it earlier
    steps have kept, or left to be freed later (`freed_bytes`).
    """
    unit = words.unit_of(use.peak_bytes)
    earlier_bytes, start_bytes = _kept_before(use), use.start_bytes
    if freed_bytes > SMALL * use.peak_bytes:
        freed = words.format_in(unit, freed_bytes)
        if _has_start_at_peak(use):
            return start_bytes, f"at the start, {freed} of it freed later"
        start = words.format_in(unit, start_bytes)
        return start_bytes - freed_bytes, (
            f"of the {start} at the start, or made anew in its place; {freed} do not stay"
        )
    if not earlier_bytes:
        return start_bytes, "at the start"
    steps = "step" if use.steps_before == 1 else f"{use.steps_before:,} steps"
    earlier = words.format_in(unit, earlier_bytes)
    return (
        start_bytes,
        f"at the start, about {earlier} of it kept by the {steps} before the capture",
    )


def describe_refusal(refusal: FailedAllocation) -> str:
    """Return an allocation that failed."""
    return (
        f"Out of memory: {words.format_bytes(refusal.bytes)} was requested at {refusal.line}, with "
        f"{words.format_bytes(refusal.device_free_bytes)} free on the device and "
        f"{words.format_bytes(refusal.unused_bytes)} cached and free."
    )


def list_blocks(rows: Sequence[Holder]) -> list[tuple[str, str, str]]:
    """Return of each line that allocates how many blocks it holds in the end, and what becomes of
    them.
    """
    return [(row.line, f"{row.blocks:,}", _describe_blocks(row)) for row in rows]


def describe_counts(use: MemoryUse) -> str:
    """Return how the table of lines counts what the list of the peak's parts has otherwise; empty
    where steps leave nothing.
    """
    if use.hides_growth or not changes_between_steps(use):
        return ""
    return (
        "'At the peak' also counts what a line made in the peak's own step, which the list above"
        " has in a row of its own. A block that something keeps for good counts there alone;"
        " without that, it may count as freed later."
    )


def describe_late_lines(rows: Sequence[Holder], code: Mapping[str, str]) -> str:
    """Return the line during which most bytes are freed late, with its `code`; empty if none is
    known, or hardly anything is.
    """
    late = [row for row in rows if row.a_step.late_freed_at not in ("", NOT_RECORDED)]
    if not late:
        return ""
    largest = max(late, key=lambda row: row.late_bytes_per_step)
    peak_bytes = sum(row.peak_bytes for row in rows)
    if sum(row.late_bytes_per_step for row in rows) < HARDLY * peak_bytes:
        return ""
    line = largest.a_step.late_freed_at
    source = f", `{code[line]}`," if line in code else ""
    return f"Freed later: mostly while {line}{source} runs."


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
