"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h."""


def end_with_parent(signum: int | None = None) -> None:
    """Have the kernel send this process `signum`, SIGKILL if there is none, when its parent ends,
    however that ends. Only Linux can; elsewhere nothing happens.

    A parent that has ended already sends nothing: the caller compares `os.getppid()` afterwards
    with the parent that it knows. In a child that was forked from a thread, the signal comes when
    that thread ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum or signal.SIGKILL)
