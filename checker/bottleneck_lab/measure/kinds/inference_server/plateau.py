"""What a server answers against its maximum batch size: where larger batches stop paying."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from bottleneck_lab.analysis.plateau import Plateau, Point
from bottleneck_lab.measure.kinds.http_server.load.level import Level

SIZES = (1, 2, 4, 8, 16, 32)
WIDTH = 40
_CONSTANT = re.compile(r"^MAX_BATCH\s*=\s*(\d+)", re.MULTILINE)


def max_batch_of(entry: Path) -> int | None:
    """The constant MAX_BATCH in a server's file; None if there is none to vary."""
    found = _CONSTANT.search(entry.read_text(encoding="utf-8", errors="replace"))
    return int(found[1]) if found else None


def point(size: int, level: Level, seconds: float, images: list[int]) -> Point:
    """The result of a closed loop of `seconds`. `images`: the number in each batch that the device
    ran.
    """
    latencies_s = level.latencies_s()
    quantiles = (float(np.quantile(latencies_s, share, method="higher")) for share in (0.5, 0.99))
    p50_s, p99_s = (value if np.isfinite(value) else None for value in quantiles)
    return Point(size, level.rate(seconds), p50_s, p99_s, float(np.mean(images or [0])))


def show_plateau(plateau: Plateau) -> str:
    """Text for a terminal: rate and latency by maximum batch size, the rates drawn."""
    most = max((each.rate for each in plateau.points), default=0.0) or 1.0
    lines = [
        f"{plateau.clients} concurrent clients, by maximum batch size:",
        "",
        "MAX_BATCH  images  requests/s  p50 ms  p99 ms",
    ]
    for each in plateau.points:
        bar = "█" * max(1, round(WIDTH * each.rate / most))
        ms = f"{_ms(each.p50_s):>6}  {_ms(each.p99_s):>6}"
        lines.append(f"{each.size:>9}  {each.images:>6.1f}  {each.rate:>10.0f}  {ms}  {bar}")
    return "\n".join(lines) + "\n\n"


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{1000 * seconds:.0f}"
