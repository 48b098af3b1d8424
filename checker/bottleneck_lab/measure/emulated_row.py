"""A row of an emulated device's or host's in a trace of torch.profiler's form, marked as
emulated.
"""

from __future__ import annotations

from typing import Any


def emulated_row(
    category: str, name: str, start_us: float, end_us: float, pid: int, tid: int | str, **about: Any
) -> dict[str, Any]:
    """Return a span of `category` (Kineto's `cat`) from `start_us` to `end_us`, to the nanosecond;
    `about` are further `args` of it.
    """
    # The end is rounded, not the length: else a row could overlap the one that follows it at once.
    start_us, end_us = round(start_us, 3), round(end_us, 3)
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": round(end_us - start_us, 3),
        "args": {"emulated": True, **about},
    }
