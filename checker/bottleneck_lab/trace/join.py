"""Joins device activities to the calls that launched them. Correlation numbers are unique within a
rank only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]

# Small enough for each step's results to stay in a core's cache.
BLOCK_ROWS = 1 << 15


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
    joined = np.full(len(wanted), -1)
    for first in range(0, len(wanted), BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        sought = wanted[block] << 12 | wanted_ranks[block]
        # Numbers of one block lie close together: few keys are searched, not all.
        low, high = np.searchsorted(own, (sought.min(), sought.max())).tolist()
        near = slice(min(low, len(own) - 1), high + 1)
        at = np.minimum(np.searchsorted(own[near], sought), len(own[near]) - 1)
        same = (own[near][at] == sought) & (wanted[block] > 0)
        joined[block][same] = rows[near][at[same]]
    return joined
