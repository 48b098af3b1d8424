"""Show how a server's rate grows with its maximum batch size: where larger batches stop paying."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from bottleneck_lab.analysis.plateau import Plateau, Point
from bottleneck_lab.measure.kinds.http_server.load.drawing import bar, ms
from bottleneck_lab.measure.kinds.http_server.load.level import Level

SIZES = (1, 2, 4, 8, 16, 32)
_CONSTANT = re.compile(r"^MAX_BATCH\s*=\s*(\d+)", re.MULTILINE)


def max_batch_of(entry: Path) -> int | None:
    """Return the constant MAX_BATCH in a server's file; None if there is none to vary."""
    match = _CONSTANT.search(entry.read_text(encoding="utf-8", errors="replace"))
    return int(match[1]) if match else None


def point(size: int, level: Level, seconds: float, images: list[int]) -> Point:
    """Return the result of a closed loop of `seconds`. `images`: the number in each batch that the
    device ran.
    """
    quantiles = np.quantile(level.latencies_s(), (0.5, 0.99), method="higher").tolist()
    # JSON, to which a plateau is written, has no infinity.
    p50_s, p99_s = (value if np.isfinite(value) else None for value in quantiles)
    return Point(size, level.rate(seconds), p50_s, p99_s, float(np.mean(images or [0])))


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
    if plateau.doubt:
        lines += ["", plateau.doubt]
    return "\n".join(lines) + "\n\n"
