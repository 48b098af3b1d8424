"""Joins device activities to the calls that launched them. Correlation numbers are unique within a
rank only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64] | NDArray[np.int32]
SmallInts = NDArray[np.int32]

# Small enough for each step's results to stay in a core's cache.
BLOCK_ROWS = 1 << 15


def join_rows(
    keys: Numbers, ranks: SmallInts, wanted: Numbers, wanted_ranks: SmallInts
) -> SmallInts:
    """Return for each wanted (rank, key) the index of a row that has it, -1 where none has. Keys
    below 1 join nothing.
    """
    rows = np.flatnonzero(keys > 0).astype(np.int32)
    if not len(rows):
        return np.full(len(wanted), -1, dtype=np.int32)
    # Rank and number in one key: 4,096 ranks, numbers below 2^51.
    own = np.empty(len(rows), dtype=np.int64)
    for first in range(0, len(rows), BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        own[block] = keys[rows[block]].astype(np.int64) << 12 | ranks[rows[block]]
    # Tools number their calls in order, so that there is usually nothing to sort.
    if (own[1:] < own[:-1]).any():
        order = np.argsort(own, kind="stable")
        rows, own = rows[order], own[order]
    joined = np.full(len(wanted), -1, dtype=np.int32)
    for first in range(0, len(wanted), BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        sought = wanted[block].astype(np.int64) << 12 | wanted_ranks[block]
        # Numbers of one block lie close together: few keys are searched, not all.
        low, high = np.searchsorted(own, (sought.min(), sought.max())).tolist()
        near = slice(min(low, len(own) - 1), high + 1)
        at = np.minimum(np.searchsorted(own[near], sought), len(own[near]) - 1)
        same = (own[near][at] == sought) & (wanted[block] > 0)
        joined[block][same] = rows[near][at[same]]
    return joined
