"""The growth of memory from step to step, and the lines that it comes from."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec
import numpy as np

from bottleneck_lab.analysis.host.calls import ALLOCATION_CALL
from bottleneck_lab.analysis.host.lines import LINE, code_at, without_folders
from bottleneck_lab.analysis.memory.holders import (
    NOT_RECORDED,
    Holder,
    Lifetimes,
    find_holders,
    number_sites,
)
from bottleneck_lab.analysis.rows import named
from bottleneck_lab.analysis.statistics import largest_fall
from bottleneck_lab.analysis.steps.window import find_window, first_step_name, step_rows
from bottleneck_lab.trace.names import STEP, STEP_NAME
from bottleneck_lab.trace.snapshot import Action, AllocatorEvents
from bottleneck_lab.trace.stacks import split_lines
from bottleneck_lab.trace.timeline import Ints, MemoryTable, Timeline, take


class MemoryUse(msgspec.Struct, frozen=True):
    """Memory of one device (-1: the host) as the framework's allocator saw it.
    `growth_bytes_per_step`: see `growth_a_step`.

    `holders`: the program's lines, or functions or operators where no lines were recorded, by what
    they allocated in the capture and hold at the end of the last step (of the one before, if the
    program let go of most of its memory in the last one); empty if the capture does not tell which
    block was freed.
    """

    rank: int
    device: int
    peak_bytes: int
    first_bytes: int
    last_bytes: int
    growth_bytes_per_step: int
    steps: int
    allocations: int
    driver_calls: int
    lowest_after_step_bytes: int = 0
    highest_after_step_bytes: int = 0
    """The lowest and the highest level at the end of any step but the first and the last."""
    fall_bytes: int = 0
    rise_bytes: int = 0
    """The most by which memory falls, or rises, from the end of one of these steps to that of a
    later one.
    """
    period_steps: int = 0
    """Steps between two large falls, where they come at equal distances; 0 otherwise."""
    steps_before: int = 0
    """Steps before the first one recorded, where torch.profiler counted them; 0 otherwise."""
    peak_step: str = ""
    """The name of the step in which the peak lies; empty outside of the steps."""
    peak_step_number: int = 0
    """Its number, counted from 1, where torch.profiler counted the steps; 0 otherwise."""
    peak_line: str = ""
    """The program's line that ran at the peak; empty if none is known."""
    held_after_steps: int = 0
    """The steps after which the `holders` hold what they do."""
    first_record_bytes: int = 0
    """What the first record adds to the level before it, which `first_bytes` is the one after; 0 if
    levels were not recorded.
    """
    levels_bytes: list[int] = []
    """The highest level in each of equal stretches of the capture, for drawing."""
    holders: list[Holder] = []

    @property
    def start_bytes(self) -> int:
        """Bytes that were there before the first record."""
        return self.first_bytes - self.first_record_bytes

    @property
    def hides_growth(self) -> bool:
        """True if memory grows, but falls again by more than that adds up to, at uneven distances:
        then its growth depends on where in this rise and fall the steps begin and end.
        """
        return 0 < self.kept_bytes < self.fall_bytes and not self.period_steps

    @property
    def is_sawtooth(self) -> bool:
        """True if memory falls at equal distances, or by more than it grows by."""
        return self.hides_growth or self.period_steps > 0

    @property
    def kept_bytes(self) -> int:
        """Bytes that the steps but the last have kept for good; that one has left nothing yet."""
        return max(self.growth_bytes_per_step, 0) * (self.steps - 1)

    @property
    def late_bytes(self) -> int:
        """Bytes that steps leave between two falls at equal distances, and that are freed in the
        second; 0 without these.
        """
        # The step in which memory falls keeps something, too, and falls by so much less.
        return self.fall_bytes + max(self.growth_bytes_per_step, 0) if self.period_steps else 0


STRETCHES = 160
LEAST_RISE = 0.01
"""A lowest level that rises by less than this share of the highest has not grown."""
MANY_STEPS = 30
"""From so many steps on, each third of them has seen cycles collected."""
LARGE_FALL, FEWEST_FALLS = 0.5, 3
"""A fall is large from this part of the largest on; so many at equal distances have a period."""
LET_GO = 0.5
"""A level below this part of the one a step earlier: the program has let go of what it held."""
JUST_BEFORE_NS = 2
"""The clock of a trace counts 1 ns or more."""


def find_driver_calls(timeline: Timeline) -> dict[str, int]:
    """Return how often the host asked the driver for memory or gave it back, by the calls' names,
    most calls first.
    """
    calls = timeline.runtime.name[named(timeline, timeline.runtime, ALLOCATION_CALL)]
    counts = Counter(calls.tolist()).most_common()
    return {timeline.strings[name]: count for name, count in counts}


def find_memory(timeline: Timeline) -> list[MemoryUse]:
    """Return one entry per device with allocation records; needs a capture made with
    profile_memory.
    """
    memory = timeline.memory
    driver = int(named(timeline, timeline.runtime, ALLOCATION_CALL).sum())
    uses = []
    for rank, device in sorted(set(zip(memory.rank.tolist(), memory.device.tolist(), strict=True))):
        rows = take(memory, (memory.rank == rank) & (memory.device == device))
        uses.append(_use(timeline, rows, rank, device, driver if device >= 0 else 0))
    return uses


def _use(
    timeline: Timeline, rows: MemoryTable, rank: int, device: int, driver_calls: int
) -> MemoryUse:
    # Old captures record changes only: the level is their sum, from an unknown beginning.
    recorded = bool((rows.allocated >= 0).any())
    level = rows.allocated if recorded else np.cumsum(rows.bytes)
    steps = step_rows(timeline)
    ends = np.sort(steps.end[steps.rank == rank])
    at = np.searchsorted(rows.start, ends, side="right") - 1
    levels = level[at[at >= 0]]
    # The highest level in each stretch; one without records keeps the level before it.
    # All of the window is drawn, as its busy time is: records may end long before it does.
    window = find_window(timeline, rank)
    first, last = int(rows.start[0]), int(rows.start[-1]) + 1
    edges = np.linspace(min(first, window.start), max(last, window.end), STRETCHES + 1)
    positions = np.searchsorted(rows.start, edges)
    highest = [
        int(level[max(low - 1, 0) : max(high, 1)].max())
        for low, high in itertools.pairwise(positions)
    ]
    step_ends = np.unique(at[at >= 0])
    if len(step_ends) > 1 and level[step_ends[-1]] < LET_GO * level[step_ends[-2]]:
        step_ends = step_ends[:-1]
    between = levels[1:-1]
    peak = int(level.argmax())
    step = _step_at(timeline, rank, int(rows.start[peak]))
    line = _own_lines(timeline, take(rows, np.array([peak])))[0][0]
    return MemoryUse(
        rank=rank,
        device=device,
        peak_bytes=int(level.max()),
        first_bytes=int(level[0]),
        first_record_bytes=int(rows.bytes[0]) * recorded,
        last_bytes=int(level[-1]),
        growth_bytes_per_step=growth_a_step(levels),
        steps=len(levels),
        allocations=int((rows.bytes > 0).sum()),
        driver_calls=driver_calls,
        lowest_after_step_bytes=int(between.min()) if len(between) else 0,
        highest_after_step_bytes=int(between.max()) if len(between) else 0,
        fall_bytes=int(largest_fall(between)),
        rise_bytes=int(largest_fall(-between)),
        period_steps=fall_period(between),
        steps_before=_step_number(first_step_name(timeline, rank)),
        peak_step=step,
        # torch.profiler counts from 0.
        peak_step_number=_step_number(step) + step.startswith(STEP),
        peak_line="" if line == NOT_RECORDED else line,
        # In a step without records, what is held does not change.
        held_after_steps=int((at[at >= 0] <= step_ends[-1]).sum()) if len(step_ends) else 0,
        levels_bytes=highest,
        holders=_holders(timeline, rows, peak, step_ends, fall_period(between)),
    )


def _step_at(timeline: Timeline, rank: int, moment: int) -> str:
    """Return the name of a rank's step that a moment lies in; empty outside of the steps."""
    steps = step_rows(timeline)
    there = (steps.rank == rank) & (steps.start <= moment) & (moment <= steps.end)
    return timeline.strings[int(steps.name[there][0])] if there.any() else ""


def _step_number(name: str) -> int:
    """Return how many steps came before one, as torch.profiler counts them; 0 for steps that are
    marked in another way, which may be counted from 0 or 1.
    """
    number = STEP_NAME.match(name)
    return int(number[1]) if number and name.startswith(STEP) else 0


def fall_period(levels: Ints) -> int:
    """Return the steps between two large falls of memory, as where something is collected or let go
    of in every tenth step; 0 if they do not come at equal distances, or in one step after another.
    """
    falls = -np.diff(levels)
    if not len(falls) or falls.max() <= LEAST_RISE * levels.max():
        return 0
    large = np.flatnonzero(falls >= LARGE_FALL * falls.max())
    distances = set(np.diff(large).tolist())
    if len(distances) != 1 or len(large) < FEWEST_FALLS:
        return 0
    period = distances.pop()
    return period if period > 1 else 0


def growth_a_step(levels: Ints) -> int:
    """Return by how many bytes memory grows from step to step, of its levels at the ends of steps:
    the median change over half of them, a step. What is collected or allocated now and then, as
    cycles are, does not look like growth then, and what grows in every tenth step does. Where
    memory falls at equal distances, levels are compared that are a multiple of these apart.

    Where that shows no growth, cycles may hide some: of many steps, the lowest level in the last
    third is compared with that in the third before. After the last step a program may have let go
    of everything, so its level does not count there.
    """
    apart = max((len(levels) - 1) // 2, 1)
    if period := fall_period(levels[1:-1]):
        apart = max(apart // period, 1) * period
    changes = levels[apart:] - levels[:-apart]
    growth = int(np.median(changes)) // apart if len(changes) else 0
    if growth > 0 or len(levels) < MANY_STEPS:
        return growth
    third = (len(levels) - 1) // 3
    before, last = levels[-2 * third - 1 : -third - 1], levels[-third - 1 : -1]
    rise = int(last.min()) - int(before.min())
    return rise // third if rise > LEAST_RISE * levels.max() else growth


def _own_lines(timeline: Timeline, rows: MemoryTable) -> list[tuple[str, ...]]:
    """Return the program's lines at each row, the innermost first: as recorded with it, else the
    one that ran just before, since an allocation may be recorded at the very end of its operator's
    time.
    """
    ran = code_at(timeline, rows.start - JUST_BEFORE_NS, rows.thread)
    recorded = {
        name: tuple(map(without_folders, split_lines(timeline.strings[name])))
        for name in set(rows.name.tolist())
        if LINE.match(timeline.strings[name])
    }
    return [
        recorded.get(name, (text or NOT_RECORDED,))
        for name, text in zip(rows.name.tolist(), ran, strict=True)
    ]


def _holders(
    timeline: Timeline, rows: MemoryTable, peak: int, steps: Ints, period: int
) -> list[Holder]:
    """Return who holds what was allocated in the capture, at the end of its last step; `steps` are
    the last rows of each, `period` as in `find_holders`.
    """
    if not (rows.address >= 0).any():
        return []
    end = int(steps[-1]) if len(steps) else len(rows) - 1
    until = max(end, peak) + 1
    numbers: dict[tuple[str, ...], int] = {}
    stacks = [
        numbers.setdefault(lines, len(numbers)) for lines in _own_lines(timeline, rows)[:until]
    ]
    sites, of_stack = number_sites(list(numbers))
    actions = np.where(rows.bytes > 0, Action.ALLOC, Action.FREE_COMPLETED).astype(np.int8)
    events = AllocatorEvents(
        action=actions[:until],
        time_us=rows.start[:until] // 1000,
        address=rows.address[:until],
        bytes=np.abs(rows.bytes[:until]),
        stack=np.array(stacks, dtype=np.int32),
    )
    lives = Lifetimes(events, [], sites, of_stack)
    return find_holders(lives, peak, steps, end, period)
