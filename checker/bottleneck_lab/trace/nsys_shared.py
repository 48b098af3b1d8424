"""Two processes that read one nsys export: the first from the beginning of its tables, the other from their end, until they meet.

Who reads some pages is settled when somebody comes to them: who locks the byte of the shared file that has the number of the first of them. So both end
together however the work is divided, and what a process that died had taken is free again.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from pathlib import Path
from typing import IO

from bottleneck_lab.trace.nsys_rows import TablePart
from bottleneck_lab.trace.second_process import Work, fork, spawn
from bottleneck_lab.trace.sqlite_pages import Leaves

if sys.platform != "win32":  # where pages are not read, so nobody shares them
    import fcntl

_AT_WORK = 0
"""The byte that the first process keeps locked until it needs the other one's rows. No page has this number."""

Place = tuple[str, int]
"""Some pages: their table and the first of them."""


def place_of(table: str, leaves: Leaves) -> Place:
    return table, int(leaves.pages[0])


def taken(shared: IO[bytes], place: Place) -> bool:
    """Whether this process is to read the pages, from now on."""
    try:
        fcntl.lockf(shared, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place[1])
    except BlockingIOError:
        return False
    return True


def give(shared: IO[bytes], place: Place, read: TablePart) -> None:
    """To the first process, for when this one has ended."""
    pickle.dump((place, read), shared, protocol=5)


def end(shared: IO[bytes]) -> None:
    """The other process ends when the first one comes to what it has taken: until then that must not look free."""
    shared.flush()
    fcntl.lockf(shared, fcntl.LOCK_EX, 1, _AT_WORK)


class Shared:
    """The first process's side. `work` is what the other one does: it is called with the shared file and the path."""

    def __init__(self, work: Work, path: Path) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _AT_WORK)
        self._process = fork(work, self._file, str(path)) or spawn(work, self._file, str(path))
        self._given: dict[Place, TablePart] | None = None

    def given(self, place: Place) -> TablePart | None:
        """What the other process read there; None where this one is to read."""
        if self._given is None:
            if taken(self._file, place):
                return None
            self._given = self._waited_for()
        return self._given.pop(place, None)

    def _waited_for(self) -> dict[Place, TablePart]:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _AT_WORK)
        if self._process is None or self._process.wait() != 0:
            return {}
        size = self._file.seek(0, 2)
        self._file.seek(0)
        found = {}
        while self._file.tell() < size:
            place, read = pickle.load(self._file)  # the other process wrote it, and nobody else can
            found[place] = read
        return found

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._file.close()
