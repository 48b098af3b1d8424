"""Draw figures of load for a terminal."""

from __future__ import annotations

import math

WIDTH = 40
"""Characters of the longest bar."""


def bar(value: float, most: float, *, width: int = WIDTH, mark: str = "█") -> str:
    """Return a bar for `value` on a scale from 0 to `most`: at least one mark, and all of `width`
    for an infinite value.
    """
    if not math.isfinite(value):
        return mark * width
    return mark * max(1, round(width * value / most))


def ms(seconds: float | None, digits: int = 0) -> str:
    """Return seconds as milliseconds; `never` for no answer (infinite), `–` where too few were
    measured (None).
    """
    if seconds is None:
        return "–"
    if not math.isfinite(seconds):
        return "never"
    return f"{1000 * seconds:.{digits}f}"
