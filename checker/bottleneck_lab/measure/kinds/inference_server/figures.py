"""Figures of the batches of a closed loop: the server's rate, and how long the device is idle
between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.kinds.http_server.figures import BLOCKS, WARM_UP_S
from bottleneck_lab.measure.kinds.http_server.load.level import OK, Level


def blocks(level: Level, batches: Sequence[Ran]) -> list[list[Ran]]:
    """Return the device's batches of a closed loop in blocks of equal size; each starts with the
    last batch of the one before, whose end starts its clock.
    """
    begin_ns, end_ns = level.begun_ns[0] + WARM_UP_S * 1e9, level.begun_ns[-1]
    run = [batch for batch in batches if begin_ns <= batch.ended_ns <= end_ns]
    # Each block needs a batch before it, so one batch more than blocks.
    size = max(1, (len(run) - 1) // BLOCKS)
    return [run[at : at + size + 1] for at in range(0, len(run) - size, size)]


def rates(level: Level, batches: Sequence[Ran]) -> list[float]:
    """Return the requests/s answered in each block of a closed loop.

    Batches are timed, because answers come in bursts.
    """
    # Images that the device ran without an answer to a request do not count.
    images = sum(len(batch.means) for batch in batches if batch.arrived_ns >= level.begun_ns[0])
    answered = int((level.status == OK).sum())
    share = min(1.0, answered / images) if images else 0.0
    block_rates = []
    for block in blocks(level, batches):
        block_images = sum(len(batch.means) for batch in block[1:])
        block_rates.append(share * block_images * 1e9 / (block[-1].ended_ns - block[0].ended_ns))
    return block_rates


def device_ms(batches: Sequence[Ran]) -> dict[int, float]:
    """Return the median milliseconds that a batch took on the device, by its number of images."""
    times_ms = defaultdict[int, list[float]](list)
    for batch in batches:
        times_ms[len(batch.means)].append((batch.ended_ns - batch.started_ns) / 1e6)
    return {size: median(times_ms[size]) for size in sorted(times_ms)}


def idle(level: Level, batches: Sequence[Ran]) -> list[float]:
    """Return the share (0–1) of each block's time in which the device ran nothing, while all
    clients waited.
    """
    shares = []
    for block in blocks(level, batches):
        busy = sum(batch.ended_ns - batch.started_ns for batch in block[1:])
        shares.append(max(0.0, 1 - busy / (block[-1].ended_ns - block[0].ended_ns)))
    return shares
