"""Events of a Chrome trace that begin (phase B) and end (E) apart → whole ones.

A thread's events lie inside one another, as its calls do: an end closes the last event of its
thread that is open, or, where it has a name, the last of that name. Those inside that one are then
left without an end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from bottleneck_lab.trace.kineto.events import TraceEvent


class Halves:
    """The beginnings that have no end yet, by thread, and all `ends` without a beginning, in the
    order of the file.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], list[TraceEvent]] = defaultdict(list)
        self._unclosed = 0
        self.ends: list[TraceEvent] = []

    def join(self, halves: Sequence[TraceEvent]) -> Iterator[TraceEvent]:
        """Yield the events that these halves, the next in the file, make whole."""
        for half in halves:
            is_open = self._open[str(half.pid), str(half.tid)]
            if half.ph == "B":
                is_open.append(half)
                continue
            at = _last_named(is_open, half.name)
            if at < 0:
                self.ends.append(half)
                continue
            self._unclosed += sum(event.is_known for event in is_open[at + 1 :])
            begin = is_open[at]
            del is_open[at:]
            yield msgspec.structs.replace(begin, ph="X", dur=half.ts - begin.ts)

    def follow(self, later: Halves) -> Iterator[TraceEvent]:
        """Yield the events that the halves of a later part of the file make whole with these."""
        yield from self.join(later.ends)
        self._unclosed += later._unclosed
        for thread, events in later._open.items():
            self._open[thread] += events

    @property
    def left_out(self) -> tuple[int, int]:
        """The numbers of beginnings without an end and of ends without a beginning, but for those
        of categories that are not read.
        """
        is_open = sum(event.is_known for events in self._open.values() for event in events)
        return self._unclosed + is_open, sum(not end.cat or end.is_known for end in self.ends)


def _last_named(events: Sequence[TraceEvent], name: str) -> int:
    """Return the position of the last event of this name, of any if it is empty; -1: none."""
    for at in range(len(events) - 1, -1, -1):
        if not name or events[at].name == name:
            return at
    return -1
