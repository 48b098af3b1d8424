"""What a level of load says of a server: what it answers a second, how long the device idles between batches, how long requests take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.kinds.server.level import OK, Level

WARM_UP_S = 1.0
"""Of a closed loop, not counted: its clients all begin at once."""
BLOCKS = 16
"""Blocks that a closed loop is cut into, if it has as many batches."""
WINDOW_S = 2.5
"""Of an open loop: each gives one p99."""
NEVER_S = 60.0
"""What a request without an answer is said to have waited: longer than anybody does."""
TARDY_S = 0.010
"""A generator that is later than this in one of a hundred requests has not kept its schedule."""
GREEDY_CORES = 0.8
"""A generator that needs as much has little left to be faster with."""


def blocks(level: Level, batches: Sequence[Ran]) -> list[list[Ran]]:
    """The device's batches of a closed loop, in blocks of equally many; each begins with the last batch of the one before."""
    begin_ns, end_ns = level.begun_ns[0] + WARM_UP_S * 1e9, level.begun_ns[-1]
    run = [batch for batch in batches if begin_ns <= batch.ended_ns <= end_ns]
    size = max(1, (len(run) - 1) // BLOCKS)
    return [run[at : at + size + 1] for at in range(0, len(run) - size, size)]


def rates(level: Level, batches: Sequence[Ran]) -> list[float]:
    """Requests answered a second in each block of a closed loop.

    Batches are what is timed, for answers come in bursts; images that the device ran and nobody was answered with do not count.
    """
    run = sum(len(batch.means) for batch in batches if batch.arrived_ns >= level.begun_ns[0])
    share = min(1.0, int((level.status == OK).sum()) / run) if run else 0.0
    return [
        share * sum(len(batch.means) for batch in block[1:]) * 1e9 / (block[-1].ended_ns - block[0].ended_ns)
        for block in blocks(level, batches)
    ]


def idle(level: Level, batches: Sequence[Ran]) -> list[float]:
    """Share (0–1) of each block's time in which the device ran nothing, while all clients waited."""
    return [
        max(
            0.0,
            1
            - sum(batch.ended_ns - batch.started_ns for batch in block[1:]) / (block[-1].ended_ns - block[0].ended_ns),
        )
        for block in blocks(level, batches)
    ]


def p99_ms(latencies_s: Any) -> float:
    """The 99th percentile in ms, an observed one. What was never answered counts as NEVER_S."""
    return min(NEVER_S, float(np.quantile(latencies_s, 0.99, method="higher"))) * 1000


def window_p99s_ms(level: Level, seconds: float) -> list[float]:
    """The p99 of each window of an open loop of so many seconds, by when the requests were due."""
    count = round(seconds / WINDOW_S)
    number = ((level.begun_ns - level.begun_ns[0]) / (seconds * 1e9) * count).astype(int).clip(0, count - 1)
    latencies_s = level.latencies_s()
    return [p99_ms(latencies_s[number == window]) for window in range(count) if (number == window).any()]


def bottleneck_of_its_own(level: Level) -> str | None:
    """Why the generator, and not the server, may have set the figures of a level; None where it kept its schedule with room to spare."""
    late_s = float(np.quantile(level.lateness_s(), 0.99)) if len(level.lateness_s()) else 0.0
    if late_s > TARDY_S:
        return f"the load generator sent one request in a hundred more than {late_s * 1000:.0f} ms late"
    if level.cores > GREEDY_CORES:
        return f"the load generator needed {level.cores:.1f} cores itself"
    return None
