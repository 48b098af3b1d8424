"""Keep what an analysis of a large capture takes of time and memory small: its parts are worked on
by two processes, and what one part freed goes back to the system before the next begins.

A command that reads large captures keeps freed memory (`trace.fast.allocator.keep_freed`), in holes
into which the arrays of the next part do not all fit (docs/measured/trace_analysis.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from bottleneck_lab.trace.fast.allocator import give_back
from bottleneck_lab.trace.fast.second_reader import beside
from bottleneck_lab.trace.timeline import Timeline

LARGE_EVENTS = 5_000_000
"""From here on time counts for more than memory: what was freed is kept."""
SMALL_EVENTS = 200_000
"""Up to here the holes are smaller than the interpreter, and a second process gains nothing."""


def release_freed(timeline: Timeline) -> None:
    """Hand freed memory back to the system, if the capture is of a size at which that pays."""
    if SMALL_EVENTS < timeline.events < LARGE_EVENTS:
        give_back()


def at_once(
    tasks: Sequence[Callable[[Timeline], Any]], timeline: Timeline
) -> AbstractContextManager[Callable[[], list[Any]]]:
    """Have `tasks` done with the timeline at the same time as what follows, if the capture is of a
    size at which that pays; gives what waits for their results.
    """
    copied = timeline.events > SMALL_EVENTS and (os.cpu_count() or 1) > 1
    if copied:
        _ = timeline.launching  # both need it: joined before, it is joined and held once
    return beside(tasks, timeline, copied=copied)
