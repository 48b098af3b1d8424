"""What glibc does with freed memory, which decides how much a large capture takes and how long.
With another C library all stays as it is.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h


def give_back() -> None:
    """Hands freed memory back to the system. Without it glibc keeps the holes that millions of
    short-lived events left: several times what the tables take.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Has freed memory used again by all threads, in place of fresh pages, whose mapping and
    clearing takes up to a third of a gigabyte's summary.

    For the whole process and for good: only for one that has nothing else to do.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
        library.mallopt(_ARENA_MAX, 1)
