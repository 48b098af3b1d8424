"""Show how a server answers more and more clients: where its rate stops growing, and how long they
wait beyond that.
"""

from __future__ import annotations

import msgspec
import numpy as np

from bottleneck_lab.measure.kinds.http_server.load.drawing import bar, ms
from bottleneck_lab.measure.kinds.http_server.load.level import Level


class Step(msgspec.Struct, frozen=True):
    """A number of concurrent clients, and the result: requests/s, p50 and p99 in seconds."""

    clients: int
    rate: float
    p50_s: float
    p99_s: float


def counts(most: int) -> list[int]:
    """Return 1, 2, 4, … clients, and finally `most`."""
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def step(clients: int, level: Level, seconds: float) -> Step:
    """Return the result of a closed loop of `seconds`."""
    latencies_s = level.latencies_s()
    p50_s, p99_s = np.quantile(latencies_s, (0.5, 0.99), method="higher").tolist()
    return Step(clients, level.rate(seconds), p50_s, p99_s)


def show_steps(steps: list[Step]) -> str:
    """Return text for a terminal: rate and latency by the number of clients, the rates drawn."""
    most = max((each.rate for each in steps), default=0.0) or 1.0
    lines = ["Closed loops by number of clients:", "", "clients  requests/s  p50 ms  p99 ms"]
    for each in steps:
        latencies = f"{ms(each.p50_s, 1):>6}  {ms(each.p99_s, 1):>6}"
        lines.append(f"{each.clients:>7}  {each.rate:>10.0f}  {latencies}  {bar(each.rate, most)}")
    return "\n".join(lines) + "\n\n"
