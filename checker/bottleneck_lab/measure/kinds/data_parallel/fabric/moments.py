"""The shape of numbers' distribution, whatever they were multiplied with: so scaled gradients and
sums can be told from numbers that are no gradients.
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
        """Return the moments of both together."""
        return Moments(
            self.sizes + other.sizes, self.squares + other.squares, self.fourths + other.fourths
        )

    @property
    def spread(self) -> tuple[float, float]:
        """Two figures that neither a common factor of all numbers nor zeros among them change. NaN
        where there are only zeros.
        """
        if not self.squares > 0 or not self.fourths > 0:
            return math.nan, math.nan
        first = self.sizes / math.sqrt(self.squares)
        return first, math.sqrt(self.squares / math.sqrt(self.fourths))

    def differs_from(self, right: Moments) -> float:
        """Return the larger relative difference of the two figures; infinite where one is not
        finite.
        """
        off = [
            abs(mine / theirs - 1) for mine, theirs in zip(self.spread, right.spread, strict=True)
        ]
        return max(off) if all(map(math.isfinite, off)) else math.inf


NOTHING = Moments(0.0, 0.0, 0.0)
