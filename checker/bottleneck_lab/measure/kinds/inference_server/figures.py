"""Figures of the batches of a closed loop: the server's rate, and how long the device is idle
between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.kinds.http_server.figures import BLOCKS, WARM_UP_S
from bottleneck_lab.measure.kinds.http_server.load.level import Level


def blocks(level: Level, batches: Sequence[Ran]) -> list[list[Ran]]:
    """Return the device's batches of a closed loop in blocks of equal size; each starts with the
    last batch of the one before, whose end starts its clock.
    """
    begin_ns, end_ns = level.begun_ns[0] + WARM_UP_S * 1e9, level.begun_ns[-1]
    run = [batch for batch in batches if begin_ns <= batch.ended_ns <= end_ns]
    # Each block needs a batch before it, so one batch more than blocks.
    size = max(1, (len(run) - 1) // BLOCKS)
    return [run[at : at + size + 1] for at in range(0, len(run) - size, size)]


def rates(level: Level, batches: Sequence[Ran], answers: Mapping[int, int]) -> list[float]:
    """Return the requests/s answered in each block of a closed loop.

    Batches are timed, because answers come in bursts. `answers`: how many rest on each batch, by
    when it ended.
    """
    block_rates = []
    for block in blocks(level, batches):
        answered = sum(answers.get(batch.ended_ns, 0) for batch in block[1:])
        block_rates.append(answered * 1e9 / (block[-1].ended_ns - block[0].ended_ns))
    return block_rates


def device_ms(batches: Sequence[Ran]) -> dict[int, float]:
    """Return the median milliseconds that a batch took on the device, by its number of images."""
    times_ms = defaultdict[int, list[float]](list)
    for batch in batches:
        times_ms[len(batch.means)].append((batch.ended_ns - batch.started_ns) / 1e6)
    return {size: median(times_ms[size]) for size in sorted(times_ms)}


def idle(level: Level, batches: Sequence[Ran], answers: Mapping[int, int]) -> list[float]:
    """Return the share (0–1) of each block's time in which the device ran nothing that an answer
    rests on, while all clients waited. `answers` as in `rates`.
    """
    shares = []
    for block in blocks(level, batches):
        # Images that nobody asked for would keep any device busy.
        busy = sum(
            (batch.ended_ns - batch.started_ns)
            * min(1.0, answers.get(batch.ended_ns, 0) / len(batch.means))
            for batch in block[1:]
        )
        shares.append(max(0.0, 1 - busy / (block[-1].ended_ns - block[0].ended_ns)))
    return shares
