"""What the batches of a closed loop show: the server's rate, and how long the device is idle
between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.kinds.http_server.figures import BLOCKS, WARM_UP_S
from bottleneck_lab.measure.kinds.http_server.load.level import OK, Level


def blocks(level: Level, batches: Sequence[Ran]) -> list[list[Ran]]:
    """The device's batches of a closed loop, in blocks of equal size; each starts with the last
    batch of the one before.
    """
    begin_ns, end_ns = level.begun_ns[0] + WARM_UP_S * 1e9, level.begun_ns[-1]
    run = [batch for batch in batches if begin_ns <= batch.ended_ns <= end_ns]
    size = max(1, (len(run) - 1) // BLOCKS)
    return [run[at : at + size + 1] for at in range(0, len(run) - size, size)]


def rates(level: Level, batches: Sequence[Ran]) -> list[float]:
    """Requests/s answered in each block of a closed loop.

    Batches are timed, because answers come in bursts; images that the device ran without an answer
    to a request do not count.
    """
    run = sum(len(batch.means) for batch in batches if batch.arrived_ns >= level.begun_ns[0])
    share = min(1.0, int((level.status == OK).sum()) / run) if run else 0.0
    return [
        share
        * sum(len(batch.means) for batch in block[1:])
        * 1e9
        / (block[-1].ended_ns - block[0].ended_ns)
        for block in blocks(level, batches)
    ]


def device_ms(batches: Sequence[Ran]) -> dict[int, float]:
    """Median milliseconds that a batch took on the device, by the number of its images."""
    sizes = {len(batch.means) for batch in batches}
    return {
        size: median(
            (batch.ended_ns - batch.started_ns) / 1e6
            for batch in batches
            if len(batch.means) == size
        )
        for size in sorted(sizes)
    }


def idle(level: Level, batches: Sequence[Ran]) -> list[float]:
    """Share (0–1) of each block's time in which the device ran nothing, while all clients waited."""
    return [
        max(
            0.0,
            1
            - sum(batch.ended_ns - batch.started_ns for batch in block[1:])
            / (block[-1].ended_ns - block[0].ended_ns),
        )
        for block in blocks(level, batches)
    ]
