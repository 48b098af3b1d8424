"""Keep what an analysis takes of memory small: what one part of it freed goes back to the system
before the next begins.

A command that reads large captures keeps freed memory (`trace.fast.allocator.keep_freed`), in holes
into which the arrays of the next part do not all fit (docs/measured/trace_analysis.md).
"""

from __future__ import annotations

from bottleneck_lab.trace.fast.allocator import give_back
from bottleneck_lab.trace.timeline import Timeline

LARGE_EVENTS = 5_000_000
"""From here on time counts for more than memory: both sides are summed up at once, and what was
freed is kept. With 2.8 million events, both at once gained an eighth of the time for a third more
memory: not worth it.
"""
SMALL_EVENTS = 200_000
"""Up to here the holes are smaller than the interpreter."""


def release_freed(timeline: Timeline) -> None:
    """Hand freed memory back to the system, if the capture is of a size at which that pays."""
    if SMALL_EVENTS < timeline.events < LARGE_EVENTS:
        give_back()
