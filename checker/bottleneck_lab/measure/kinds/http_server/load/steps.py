"""What a server answers as more and more clients arrive: where its rate stops growing, and how long
they wait beyond that.
"""

from __future__ import annotations

import msgspec
import numpy as np

from bottleneck_lab.measure.kinds.http_server.load.level import Level

WIDTH = 40


class Step(msgspec.Struct, frozen=True):
    """A number of concurrent clients, and the result: requests/s, p50 and p99 in seconds."""

    clients: int
    rate: float
    p50_s: float
    p99_s: float


def counts(most: int) -> list[int]:
    """1, 2, 4, … clients, and finally `most`."""
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def step(clients: int, level: Level, seconds: float) -> Step:
    """The result of a closed loop of `seconds`."""
    latencies_s = level.latencies_s()
    p50_s, p99_s = (
        float(np.quantile(latencies_s, share, method="higher")) for share in (0.5, 0.99)
    )
    return Step(clients, level.rate(seconds), p50_s, p99_s)


def show_steps(steps: list[Step]) -> str:
    """Text for a terminal: rate and latency by the number of clients, the rates drawn."""
    most = max((each.rate for each in steps), default=0.0) or 1.0
    lines = ["Closed loops by number of clients:", "", "clients  requests/s  p50 ms  p99 ms"]
    for each in steps:
        bar = "█" * max(1, round(WIDTH * each.rate / most))
        lines.append(
            f"{each.clients:>7}  {each.rate:>10.0f}  {_ms(each.p50_s):>6}  {_ms(each.p99_s):>6} "
            f" {bar}"
        )
    return "\n".join(lines) + "\n\n"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}" if np.isfinite(seconds) else "none"
