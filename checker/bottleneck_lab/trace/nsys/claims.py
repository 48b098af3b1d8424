"""Two processes read one nsys export: the first from the beginning of its tables, the other from
their end, until they meet.

Who reads some pages is settled when somebody comes to them: who locks the byte of the shared file
that has the number of the first of them. So both end together however the work is divided, and what
a process that died had claimed is free again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

from bottleneck_lab.trace.fast.second_process import Work
from bottleneck_lab.trace.fast.second_reader import SecondReader
from bottleneck_lab.trace.fast.sqlite_pages import Leaves
from bottleneck_lab.trace.nsys.rows import TablePart

if sys.platform != "win32":  # where pages are not read, so nobody shares them
    import fcntl

# The byte that the first process keeps locked until it needs the other one's rows. No page has
# this number.
_AT_WORK = 0

# Some pages: their table and the first of them.
PageRange = tuple[str, int]


def page_range(table: str, leaves: Leaves) -> PageRange:
    return table, int(leaves.pages[0])


def claim(shared: IO[bytes], pages: PageRange) -> bool:
    """Return True if this process is to read the pages, from now on."""
    try:
        fcntl.lockf(shared, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, pages[1])
    except BlockingIOError:
        return False
    return True


def keep_claims(shared: IO[bytes]) -> None:
    """Keep what the other process has claimed locked until the first one has come to it.

    Were the process to end before, its pages would look free.
    """
    shared.flush()
    fcntl.lockf(shared, fcntl.LOCK_EX, 1, _AT_WORK)


class SharedExport:
    """The first process's side. `work` is what the other one does: it is called with the shared
    file and the path.
    """

    def __init__(self, work: Work, path: Path) -> None:
        self._second = SecondReader()
        fcntl.lockf(self._second.shared, fcntl.LOCK_EX, 1, _AT_WORK)
        _ = self._second.fork(work, str(path)) or self._second.spawn(work, str(path))
        self._read: dict[PageRange, TablePart] | None = None

    def read_by_the_other(self, pages: PageRange) -> TablePart | None:
        """Return what the other process read of `pages`; None if this one is to read them."""
        if self._read is None:
            if claim(self._second.shared, pages):
                return None
            fcntl.lockf(self._second.shared, fcntl.LOCK_UN, 1, _AT_WORK)
            self._read = dict(self._second.handed_over() or ())
        return self._read.pop(pages, None)

    def close(self) -> None:
        self._second.close()
