"""Joins device activities to the calls that launched them. Correlation numbers are unique within a
rank only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]


def join_rows(
    keys: Ints, ranks: SmallInts, wanted: Ints, wanted_ranks: SmallInts
) -> NDArray[np.intp]:
    """Return for each wanted (rank, key) the index of a row that has it, -1 where none has. Keys
    below 1 join nothing.
    """
    rows = np.flatnonzero(keys > 0)
    if not len(rows):
        return np.full(len(wanted), -1)
    # Rank and number in one key: 4,096 ranks, numbers below 2^51.
    own = keys[rows]
    own <<= 12
    own |= ranks[rows]
    # Tools number their calls in order, so that there is usually nothing to sort.
    if (own[1:] < own[:-1]).any():
        order = np.argsort(own, kind="stable")
        rows, own = rows[order], own[order]
    sought = wanted << 12 | wanted_ranks
    at = np.minimum(np.searchsorted(own, sought), len(own) - 1)
    return np.where((own[at] == sought) & (wanted > 0), rows[at], -1)
