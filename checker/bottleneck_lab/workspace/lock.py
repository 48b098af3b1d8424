"""One writer at a time, across processes. The kernel drops the lock when its holder dies, however
it dies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bottleneck_lab.errors import MachineError
from bottleneck_lab.needs import require_linux
from bottleneck_lab.workspace.atomic import explained

if sys.platform != "win32":
    import fcntl


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Return a descriptor that holds the lock file `path`; None while another one holds it.

    The lock goes with the last process that has the descriptor: whoever inherits it holds it too.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _take(descriptor: int, *, wait: bool, on_wait: Callable[[str], None] | None) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # The file holds the name of whoever took the lock last: whoever holds it now.
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another command"
        if not wait:
            raise MachineError(
                f"{holder} is already running in this folder.",
                "Wait until it has finished, or stop it with Ctrl-C.",
            ) from None
        if on_wait:
            on_wait(holder)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextmanager
def locked(
    path: Path, who: str, *, wait: bool = True, on_wait: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the lock file `path` for the block.

    `who` is the name that others see, with this process's number. While it is taken, wait, after
    one call of `on_wait` with its holder's name; with `wait` False, raise MachineError. So it does
    on Windows, where nothing is written to a workspace.
    """
    if sys.platform == "win32":
        require_linux("Working on a lab")
    with explained(path):
        # No link is followed: in somebody else's workspace it may point to a file of ours.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        with explained(path):
            _take(descriptor, wait=wait, on_wait=on_wait)
            # Padded, so that a longer name written before does not show behind it.
            os.pwrite(descriptor, f"{who} (process {os.getpid()})".ljust(100).encode(), 0)
        yield
    finally:
        os.close(descriptor)
