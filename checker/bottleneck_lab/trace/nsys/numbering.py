"""The numbers that an export's names, processes and threads have in a timeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.nsys.rows import Rows
from bottleneck_lab.trace.timeline import Ints

_DENSE = 4
"""Ids that span up to so many times as many numbers as are looked up have a table of their own."""


class Strings:
    """Text of the capture, numbered: the file's StringIds first, then what the reader adds."""

    def __init__(self, rows: Sequence[tuple[int, str]]) -> None:
        self.values = [value if isinstance(value, str) else "" for _, value in rows]
        self._ids = np.array([number for number, _ in rows], dtype=np.int64)
        self._order = np.argsort(self._ids, kind="stable")
        self._ids = self._ids[self._order]
        self._added: dict[str, int] = {}

    def look_up(self, ids: Ints) -> NDArray[np.int32]:
        """Return the numbers of names given by StringIds' ids; of an id that the file lacks, the
        empty name's.
        """
        unknown = self.add("")
        if not len(self._ids) or not len(ids):
            return np.full(len(ids), unknown, dtype=np.int32)
        low, high = int(self._ids[0]), int(self._ids[-1])
        # A table by id is many times as fast as a search, unless the ids lie far apart.
        if high - low < _DENSE * len(ids):
            table = np.full(high - low + 1, unknown, dtype=np.int32)
            table[self._ids - low] = self._order
            known = (ids >= low) & (ids <= high)
            numbers: NDArray[np.int32] = table[np.where(known, ids, self._ids[:1]) - low]
            return np.where(known, numbers, np.int32(unknown))
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._order[at], unknown).astype(np.int32)

    def add(self, value: str) -> int:
        if value not in self._added:
            self._added[value] = len(self.values)
            self.values.append(value)
        return self._added[value]


class Ranks:
    """Processes in the order of their numbers: each is a rank."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}

    def of(self, rows: Rows, column: str) -> NDArray[np.int32]:
        """Return the rank of every row, by its globalPid or globalTid."""
        # In the order of their numbers, not of the rows: the same whatever table is read first.
        pids = {number: pid_of(rows.meanings[column][number]) for number in occurring(rows[column])}
        for pid in sorted(pids.values()):
            self.pids.setdefault(pid, len(self.pids))
        return _renumbered(rows[column], {number: self.pids[pid] for number, pid in pids.items()})


class Threads:
    """Threads by their serialised id: bits 24–47 are the process, the low 24 bits the thread."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.ids: dict[int, int] = {}

    def of(self, rows: Rows) -> dict[str, NDArray[np.int32]]:
        """Return rank and thread of every row, by its globalTid."""
        ids = {
            number: rows.meanings["globalTid"][number] for number in occurring(rows["globalTid"])
        }
        for serialised in sorted(ids.values()):
            self.ids.setdefault(serialised, len(self.ids))
        threads = {number: self.ids[serialised] for number, serialised in ids.items()}
        return {
            "rank": self.ranks.of(rows, "globalTid"),
            "thread": _renumbered(rows["globalTid"], threads),
        }


def occurring(numbers: NDArray[np.int32]) -> list[int]:
    """Return the numbers that occur, rising."""
    used: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return used


def _renumbered(numbers: NDArray[np.int32], new: dict[int, int]) -> NDArray[np.int32]:
    """Return every number's new one."""
    table = np.zeros(max(new, default=0) + 1, dtype=np.int32)
    table[list(new)] = list(new.values())
    return table[numbers]


def pid_of(serialised: int) -> int:
    """Return the process in a globalTid or globalPid."""
    return (serialised >> 24) & 0xFFFFFF
