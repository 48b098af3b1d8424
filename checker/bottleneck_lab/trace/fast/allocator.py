"""Settings of glibc's allocator, which decide how much memory a large capture takes and how long.

With another C library nothing changes. Why it stands: on a 1 GB nsys export, `keep_freed` takes
7.3–9.7 s where the default takes 9.8–12.6 s (alternating runs), and `give_back` returns 430 MB
(benchmarks/trace_analysis.py, docs/measured/trace_analysis.md).
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h
_is_kept = False


def give_back() -> None:
    """Hand freed memory back to the system. Without it glibc keeps the holes that millions of
    short-lived events left: several times what the tables take.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Have all threads reuse freed memory instead of mapping fresh pages.

    Mapping and clearing pages takes up to a third of a gigabyte's summary. This holds for the whole
    process and for good: call it only in one that has nothing else to do.
    """
    global _is_kept  # noqa: PLW0603 - of the process, as what mallopt sets
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
        library.mallopt(_ARENA_MAX, 1)
        _is_kept = True


def keep_small() -> None:
    """Have arrays of a megabyte or more go back as they are freed, where freed memory is kept: for
    who works in blocks, which are smaller, and holds few columns beside them.
    """
    if _is_kept:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)
