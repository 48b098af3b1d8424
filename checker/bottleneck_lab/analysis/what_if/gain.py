"""The gain from removing something from a program."""

from __future__ import annotations

from collections.abc import Sequence

from bottleneck_lab.analysis.amdahl import HIGHEST_RATIO
from bottleneck_lab.analysis.device.use import find_device_uses
from bottleneck_lab.analysis.what_if.program import Program
from bottleneck_lab.analysis.what_if.removal import NOTHING, Removal, removed_from_tasks, time_in
from bottleneck_lab.analysis.what_if.replay import Plan, make_plan, replay
from bottleneck_lab.trace.timeline import Timeline


class WhatIf:
    """The programs of a capture, with what it takes to find what each could do without."""

    def __init__(self, timeline: Timeline, programs: Sequence[Program]) -> None:
        self._timeline = timeline
        self._programs = programs
        # Several findings may ask for the same.
        self._lengths: dict[Removal, int] = {}

    def gain(self, removal: Removal) -> float | None:
        """Return how many times as fast the program would be at most; None if it has no devices."""
        # Against a replay of everything, not the recording: what the replay simplifies is then in
        # both.
        whole = self.length_ns(NOTHING)
        if not whole:
            return None
        return min(max(whole / max(self.length_ns(removal), 1), 1.0), HIGHEST_RATIO)

    def length_ns(self, removal: Removal) -> int:
        """Return the summed length of all programs, replayed without what is removed."""
        if removal not in self._lengths:
            self._lengths[removal] = replay([self._plan(each, removal) for each in self._programs])
        return self._lengths[removal]

    def _plan(self, program: Program, removal: Removal) -> Plan:
        # Ranks that meet in collectives are replayed on one clock.
        offset = 0
        if (program.tasks.joins >= 0).any():
            offset = program.window.start - min(
                each.window.start for each in self._programs if (each.tasks.joins >= 0).any()
            )
        removed = removed_from_tasks(self._timeline, program, removal)
        gone = time_in(self._timeline, program, removal)
        return make_plan(program, removal, removed, offset, gone)


def replayed(timeline: Timeline) -> WhatIf:
    """Return the programs of a capture, each rank by itself, to be replayed without something."""
    programs = [time.program for _, time in find_device_uses(timeline) if time.program is not None]
    return WhatIf(timeline, programs)
