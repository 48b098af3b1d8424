"""Show how a server's rate grows with its maximum batch size: where larger batches stop paying."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bottleneck_lab.analysis.plateau import Plateau, Point
from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.kinds.http_server.load.drawing import bar, ms
from bottleneck_lab.measure.kinds.http_server.load.level import OK, Level

SIZES = (1, 2, 4, 8, 16, 32)
ROUNDS, MOST_POINT_S = 1.5, 6.0
"""How often each client sends again, on average, and how long that may take for one size."""
_CONSTANT = re.compile(r"^MAX_BATCH\s*=\s*(\d+)", re.MULTILINE)


def max_batch_of(entry: Path) -> int | None:
    """Return the constant MAX_BATCH in a server's file; None if there is none to vary."""
    match = _CONSTANT.search(entry.read_text(encoding="utf-8", errors="replace"))
    return int(match[1]) if match else None


def point(size: int, level: Level, seconds: float, clients: int, batches: Sequence[Ran]) -> Point:
    """Return the result of a closed loop of `seconds` with `clients`. `batches`: those that the
    device ran meanwhile.

    Rate and latencies are those of a server at work, so they agree by Little's law: a batch counts
    from the end of the one before it, and a client's first request, which finds a queue that is
    still filling, counts for no latency. Where most clients sent only one, there is none.
    """
    rate = level.rate(seconds)
    if len(batches) > 1:
        answered = (level.status == OK).mean()
        span_s = (batches[-1].ended_ns - batches[0].ended_ns) / 1e9
        rate = float(answered * sum(len(batch.means) for batch in batches[1:]) / span_s)
    latencies_s = level.latencies_s()[clients:]
    quantiles = [np.inf, np.inf]
    if len(latencies_s) >= clients:
        quantiles = np.quantile(latencies_s, (0.5, 0.99), method="higher").tolist()
    # JSON, to which a plateau is written, has no infinity.
    p50_s, p99_s = (value if np.isfinite(value) else None for value in quantiles)
    images = [len(batch.means) for batch in batches]
    return Point(size, rate, p50_s, p99_s, float(np.mean(images or [0])))


def long_enough_s(clients: int, rate: float, least_s: float) -> float:
    """Return the seconds, at least `least_s`, in which a server of that rate has each client send
    again; at most MOST_POINT_S.
    """
    return max(least_s, min(MOST_POINT_S, ROUNDS * clients / max(rate, 1e-9)))


def show_plateau(plateau: Plateau) -> str:
    """Return text for a terminal: rate and latency by maximum batch size, the rates drawn."""
    most = max((each.rate for each in plateau.points), default=0.0) or 1.0
    lines = [
        f"{plateau.clients} concurrent clients, by maximum batch size:",
        "",
        "MAX_BATCH  images  requests/s  p50 ms  p99 ms",
    ]
    for each in plateau.points:
        latencies = f"{ms(each.p50_s):>6}  {ms(each.p99_s):>6}"
        lines.append(
            f"{each.size:>9}  {each.images:>6.1f}  {each.rate:>10.0f}  {latencies}"
            f"  {bar(each.rate, most)}"
        )
    for remark in filter(None, (plateau.dip, plateau.doubt)):
        lines += ["", remark]
    return "\n".join(lines) + "\n\n"
