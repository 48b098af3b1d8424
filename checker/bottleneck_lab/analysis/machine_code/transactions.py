"""The cost of a warp's access to memory: sectors of global memory, passes through the banks of
shared memory.

Sources: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" (sectors of 32 bytes)
and "Shared Memory and Memory Banks" (32 banks of 4 bytes); accesses of 8 and 16 bytes per thread
are served for half and quarter warps at a time, `ldmatrix` for 8 rows of 16 bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis.machine_code.integers import LANES, Lanes

SECTOR, BANKS, BANK = 32, 32, 4


def sectors(addresses: Lanes, size: int) -> tuple[int, int]:
    """Return (32-byte sectors that a request of `size` bytes a lane touches, the fewest that could
    hold as many different bytes).
    """
    # Lanes that ask for the same bytes share a sector. Wider accesses than a word are looked at a
    # word apart, since one may lie across the border of two sectors.
    different = np.unique(addresses)
    touched = np.unique((different[:, None] + np.arange(0, size, min(size, 4))) // SECTOR)
    return len(touched), -(-len(different) * size // SECTOR)


def passes(lanes: NDArray[np.intp], addresses: Lanes, size: int) -> tuple[int, int]:
    """Return (passes through the banks for the accesses of these lanes, the fewest possible).

    A bank gives one word at a time, the same one to all who ask.
    """
    # Accesses of 8 and 16 bytes are served for half and quarter warps at a time.
    groups = lanes // max(1, LANES * BANK // max(size, BANK))
    total = 0
    for group in np.unique(groups):
        words = np.unique(
            addresses[groups == group][:, None] // BANK + np.arange(max(1, size // BANK))
        )
        total += int(np.bincount(words % BANKS).max())
    return total, len(np.unique(groups))


def matrix_passes(addresses: Lanes, matrices: int) -> int:
    """Return the passes for `matrices` of 8x8: lane 8i + r points at row r of matrix i."""
    rows = addresses[: 8 * matrices].reshape(matrices, 8) // 16  # 16 bytes each, four banks
    return sum(int(np.bincount(np.unique(matrix) % 8).max()) for matrix in rows)
