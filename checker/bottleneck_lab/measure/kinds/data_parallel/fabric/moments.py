"""What numbers look like whatever they were multiplied with: so scaled gradients and sums are told
from what is no gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Moments(NamedTuple):
    """Sums over some numbers of their sizes, of their squares and of their fourth powers."""

    sizes: float
    squares: float
    fourths: float

    def plus(self, other: Moments) -> Moments:
        """Those of both together."""
        return Moments(
            self.sizes + other.sizes, self.squares + other.squares, self.fourths + other.fourths
        )

    @property
    def spread(self) -> tuple[float, float]:
        """Two figures that a common factor of all numbers does not change, and zeros among them do
        not either. NaN where there are only zeros.
        """
        if not self.squares > 0 or not self.fourths > 0:
            return math.nan, math.nan
        return self.sizes / math.sqrt(self.squares), math.sqrt(
            self.squares / math.sqrt(self.fourths)
        )

    def differs_from(self, right: Moments) -> float:
        """The larger relative difference of the two figures; infinite where one is not finite."""
        off = [
            abs(mine / theirs - 1) for mine, theirs in zip(self.spread, right.spread, strict=True)
        ]
        return max(off) if all(map(math.isfinite, off)) else math.inf


NOTHING = Moments(0.0, 0.0, 0.0)
