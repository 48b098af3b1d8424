"""The gain a whole can gain from making a part of it faster."""

from __future__ import annotations

HIGHEST_RATIO = 1000.0
CEILING_TOLERANCE = 0.10
"""By how much of itself a ceiling that somebody worked out may be off."""


def ceiling(share: float) -> float:
    """Return the speed-up of the whole when `share` (0–1) of it takes no time at all: 1 / (1 −
    share), at most 1000 (Amdahl 1967).
    """
    return predicted(share, float("inf"))


def predicted(share: float, part_ratio: float) -> float:
    """Return the speed-up of the whole when `share` (0–1) of it becomes `part_ratio` times faster:
    1 / ((1 − share) + share / part_ratio).

    Raises ValueError if the share is not one, or the ratio is not positive.
    """
    if not 0 <= share <= 1 or part_ratio <= 0:
        raise ValueError(
            f"a share lies in 0–1 and a ratio is positive, not {share} and {part_ratio}"
        )
    return min(1 / max(1 - share + share / part_ratio, 1 / HIGHEST_RATIO), HIGHEST_RATIO)


def is_ceiling(ratio: float, share: float) -> bool:
    """Return True if a ratio is the ceiling of a share (0–1), to within a tenth."""
    return abs(ratio - ceiling(share)) <= CEILING_TOLERANCE * ceiling(share)


def describe_misfit(share: str, ratio: str) -> str:
    """Return that the answers of these names contradict each other: either may be the wrong one."""
    return (
        f"`{share}` and `{ratio}` do not fit together: by Amdahl's law, 1 / (1 - share), one of"
        " them is wrong."
    )
