"""The axes of a roofline and the letters of its operators: the same in a terminal and on a page."""

from __future__ import annotations

import string
from collections.abc import Sequence
from math import ceil, floor, log10

LETTERS = string.ascii_uppercase
"""Names of the operators in the drawing, in the order of the list beside it."""

_ROUND = (1, 2, 5)


def intensity_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis that holds `values`: 1, 2 or 5 times a power of ten, a little
    beyond the smallest and the largest.
    """
    low, high = min(values) / 1.5, max(values) * 1.5
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = [digit * 10.0**decade for decade in decades for digit in _ROUND]
    return max(step for step in steps if step <= low), min(step for step in steps if step >= high)
