"""Joins device activities to the calls that launched them. Correlation numbers are unique within a
rank only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.signedinteger]
SmallInts = NDArray[np.int32]

# Small enough for each step's results to stay in a core's cache.
BLOCK_ROWS = 1 << 15


def join_rows(
    keys: Numbers, ranks: SmallInts, wanted: Numbers, wanted_ranks: SmallInts
) -> SmallInts:
    """Return for each wanted (rank, key) the index of a row that has it, -1 where none has. Keys
    below 1 join nothing.
    """
    # Mostly every row has a key; then rows and keys need no copies.
    rows = None if (keys > 0).all() else np.flatnonzero(keys > 0).astype(np.int32)
    own = keys if rows is None else keys[rows]
    joined = np.full(len(wanted), -1, dtype=np.int32)
    if not len(own) or not len(wanted):
        return joined
    one_rank = ranks.strides == wanted_ranks.strides == (0,) and ranks[0] == wanted_ranks[0]
    dtype = np.result_type(keys, wanted) if one_rank else np.int64
    own = own.astype(dtype, copy=not one_rank)
    if not one_rank:
        # Rank and number in one key: 4,096 ranks, numbers below 2^51.
        own <<= 12
        own |= ranks if rows is None else ranks[rows]
    # Tools number their calls in order, so that there is usually nothing to sort.
    if (own[1:] < own[:-1]).any():
        order = np.argsort(own, kind="stable").astype(np.int32)
        rows, own = order if rows is None else rows[order], own[order]
    for first in range(0, len(wanted), BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        # Of the same type as the keys: a search would else convert all of these.
        sought = wanted[block].astype(dtype, copy=False)
        if not one_rank:
            sought = sought << 12 | wanted_ranks[block]
        # Numbers of one block lie close together: few keys are searched, not all.
        low, high = np.searchsorted(own, np.array([sought.min(), sought.max()])).tolist()
        low = min(low, len(own) - 1)
        near = own[low : high + 1]
        at = np.minimum(np.searchsorted(near, sought), len(near) - 1)
        same = (near[at] == sought) & (wanted[block] > 0)
        joined[block][same] = low + at[same] if rows is None else rows[low + at[same]]
    return joined
