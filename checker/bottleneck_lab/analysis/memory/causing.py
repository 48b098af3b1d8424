"""Memory by the lines of the program that cause it: what each allocates itself, and below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from bottleneck_lab.analysis.memory.holders import Caller, Holder


class Cause(NamedTuple):
    """A line and all that is allocated for it. The `line` of each part is the one that allocates:
    the same, or one below it that other lines call, too.
    """

    line: str
    parts: tuple[Caller, ...]

    @property
    def total(self) -> Caller:
        """The sum of its parts."""
        return add_up(self.line, self.parts)


def add_up(line: str, parts: Sequence[Caller]) -> Caller:
    """Return the sum of figures, under the name `line`."""
    return Caller(
        line,
        held_bytes=sum(part.held_bytes for part in parts),
        peak_bytes=sum(part.peak_bytes for part in parts),
        growth_bytes_per_step=sum(part.growth_bytes_per_step for part in parts),
        growth_bytes=sum(part.growth_bytes for part in parts),
        late_bytes_per_step=sum(part.late_bytes_per_step for part in parts),
    )


def group_by_cause(holders: Sequence[Holder]) -> list[Cause]:
    """Return what lines hold by those that cause it, and the parts of each, the largest at the peak
    first.
    """
    parts: dict[str, list[Caller]] = {}
    for row in holders:
        for caller in row.callers:
            parts.setdefault(caller.line, []).append(replace(caller, line=row.line))
        own = _without_callers(row)
        if own.held_bytes or own.peak_bytes:
            parts.setdefault(row.line, []).append(own)
    causes = [Cause(line, tuple(sorted(each, key=_at_peak))) for line, each in parts.items()]
    return sorted(causes, key=lambda cause: _at_peak(cause.total))


def _without_callers(row: Holder) -> Caller:
    """Return what a line has allocated beside the part that it did for its `callers`."""
    below = add_up(row.line, row.callers)
    grows = row.grows
    return Caller(
        row.line,
        held_bytes=row.held_bytes - below.held_bytes,
        peak_bytes=row.peak_bytes - below.peak_bytes,
        growth_bytes_per_step=max(row.growth_bytes_per_step - below.growth_bytes_per_step, 0)
        * grows,
        growth_bytes=max(row.growth_bytes - below.growth_bytes, 0) * grows,
        late_bytes_per_step=max(row.late_bytes_per_step - below.late_bytes_per_step, 0),
    )


def _at_peak(part: Caller) -> tuple[int, int]:
    return -part.peak_bytes, -part.held_bytes
