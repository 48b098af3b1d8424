"""The rate of a server against its maximum batch size, as `lab run` and `lab profile` find it:
where larger batches stop paying.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

BUSY_CORES = 0.25
"""Cores used by other programs above which rates are in doubt, as in a check."""
LOWER = 0.98
"""Times the best rate, below which a larger size reads as worse: rates are printed in whole
requests/s.
"""
FULL = 0.95
"""Share of a maximum batch size that its batches hold on average, below which they are not full."""
FILE = "plateau.json"
"""In a capture's folder."""


class Point(msgspec.Struct, frozen=True):
    """A maximum batch size, and what came of it under load: requests/s, p50 and p99 in seconds
    (None: too few were answered), mean images in a batch.
    """

    size: int
    rate: float
    p50_s: float | None
    p99_s: float | None
    images: float


class Plateau(msgspec.Struct, frozen=True):
    """A point for each maximum batch size, smallest first, all under load by `clients` at once.
    `other_cores`: how many cores other programs kept busy meanwhile.
    """

    clients: int
    points: list[Point]
    other_cores: float = 0.0

    @property
    def dip(self) -> str:
        """A sentence about a rate that falls again at sizes above the best, "" where none does."""
        best = max(self.points, key=lambda point: point.rate, default=None)
        later = [point for point in self.points if best and point.size > best.size]
        lowest = min(later, key=lambda point: point.rate, default=None)
        if best is None or lowest is None or lowest.rate >= LOWER * best.rate:
            return ""
        short = f"At {lowest.size} the rate is {1 - lowest.rate / best.rate:.0%} below that at"
        filled = ""
        if lowest.images < FULL * lowest.size:
            filled = f", and its batches hold only {lowest.images:.0f} images"
        return (
            f"{short} {best.size}{filled}. A large size is measured over only a few batches: a"
            " tenth less may be chance."
        )

    @property
    def doubt(self) -> str:
        """A sentence about other programs, "" where they took next to nothing."""
        if self.other_cores <= BUSY_CORES:
            return ""
        return (
            f"Other programs kept {self.other_cores:.1f} cores busy meanwhile: rates are too low,"
            " and the best size may be another. Measure again on a quiet machine."
        )


def read_plateau(folder: Path) -> Plateau | None:
    """Read what was measured when the capture in a folder was made; None if no server was loaded
    so, or the file is not what this version writes.
    """
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Plateau)
    except (OSError, msgspec.DecodeError):
        return None


def write_plateau(plateau: Plateau, folder: Path) -> None:
    """Keep it in the folder of a capture."""
    (folder / FILE).write_bytes(msgspec.json.encode(plateau))
