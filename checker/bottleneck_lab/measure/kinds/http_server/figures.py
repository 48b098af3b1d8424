"""Figures of a level of load: a server's rate, its latencies, and how well the generator kept its
schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.http_server.load.level import OK, Level

WARM_UP_S = 1.0
"""The beginning of a closed loop, not counted: its clients all start at once."""
BLOCKS = 16
"""Blocks that a closed loop is cut into, if it has enough answers."""
WINDOW_S = 2.5
"""A window of an open loop, which gives one p99."""
NEVER_S = 60.0
"""The latency of a request without an answer: longer than anybody waits."""
LATE_S, HELD_UP_S = 0.001, 0.010
"""A generator whose p99 of lateness is above this has not kept its schedule: by its own delay, and
with the time a hypervisor took from it.
"""
MOST_CORES = 0.8
"""A generator that uses this much may itself be the limit."""


def rates(level: Level) -> list[float]:
    """Return the requests answered a second in each block of a closed loop.

    Blocks have equally many answers, so a stall makes one slow block and not an empty one.
    """
    begin_ns, end_ns = level.begun_ns[0] + WARM_UP_S * 1e9, level.begun_ns[-1]
    ended = np.sort(level.ended_ns[level.status == OK])
    ended = ended[(ended >= begin_ns) & (ended <= end_ns)]
    # A slow server answers less than once a block: then each block is one answer.
    size = max(1, (len(ended) - 1) // BLOCKS)
    edges = ended[::size]
    return [float(size * 1e9 / gap) for gap in np.diff(edges) if gap > 0]


def p99_ms(latencies_s: Any) -> float:
    """Return the 99th percentile in ms, an observed value. A request that was never answered counts
    as NEVER_S.
    """
    return min(NEVER_S, float(np.quantile(latencies_s, 0.99, method="higher"))) * 1000


def window_p99s_ms(level: Level, seconds: float) -> list[float]:
    """Return the p99 of each window of an open loop of `seconds`, by when the requests were due."""
    count = round(seconds / WINDOW_S)
    position = (level.begun_ns - level.begun_ns[0]) / (seconds * 1e9)
    number = (position * count).astype(int).clip(0, count - 1)
    latencies_s = level.latencies_s()
    return [
        p99_ms(latencies_s[number == window]) for window in range(count) if (number == window).any()
    ]


def audit(levels: Sequence[Level]) -> str:
    """Return the generator's audit of itself over all levels, as a sentence: how many of the due
    requests it sent, how late (p99), and the cores it used.
    """
    due = sum(len(level.sent_ns) for level in levels)
    sent = sum(int((level.sent_ns > 0).sum()) for level in levels)
    late_ms = 1000 * p99_s(np.concatenate([level.lateness_s() for level in levels]))
    own_ms = 1000 * p99_s(np.concatenate([level.own_lateness_s() for level in levels]))
    own = ""
    if late_ms - own_ms >= 0.1:
        own = f" ({own_ms:.1f} ms without the time a hypervisor took)"
    cores = max((level.cores for level in levels), default=0.0)
    return (
        f"The load generator sent {sent} of {due} requests, 1% of them more than {late_ms:.1f} ms"
        f" late{own}, and used at most {cores:.2f} cores."
    )


def p99_s(late_s: Any) -> float:
    """Return the 99th percentile of how late requests were sent; 0 if none was."""
    return float(np.quantile(late_s, 0.99)) if len(late_s) else 0.0


def generator_doubt(level: Level) -> str | None:
    """Return why the generator, not the server, may have set the figures of a level; None if it
    kept its schedule with room to spare.
    """
    return lateness_doubt(level) or cores_doubt(level)


def lateness_doubt(level: Level) -> str | None:
    """Return how late the generator sent requests, if it did not keep its schedule."""
    own_s, late_s = p99_s(level.own_lateness_s()), p99_s(level.lateness_s())
    if own_s > LATE_S:
        return f"the load generator sent 1% of the requests more than {own_s * 1000:.1f} ms late"
    if late_s > HELD_UP_S:
        return (
            "a hypervisor delayed the load generator, which sent 1% of the requests more than"
            f" {late_s * 1000:.0f} ms late"
        )
    return None


def cores_doubt(level: Level) -> str | None:
    """Return how many cores the generator used, if that was a lot."""
    if level.cores <= MOST_CORES:
        return None
    return f"the load generator itself used {level.cores:.1f} cores"
