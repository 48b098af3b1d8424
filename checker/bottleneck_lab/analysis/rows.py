"""Rows of a timeline's tables: those whose name matches, and the time that they cover."""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.trace.timeline import Ints, SmallInts, Timeline


class Named(Protocol):
    """Any table with names."""

    @property
    def name(self) -> SmallInts: ...


class Timed(Protocol):
    """Any table whose rows have a start, by which they are in order, and an end."""

    @property
    def start(self) -> Ints: ...

    @property
    def end(self) -> Ints: ...


def names_in(timeline: Timeline, table: Named) -> list[int]:
    """Return the names that a table's rows have, as indices into the timeline's strings."""
    return numbers_in(table.name, len(timeline.strings))


def numbers_in(numbers: SmallInts, count: int) -> list[int]:
    """Return the distinct numbers of a column of numbers from 0 to below `count`, ascending."""
    used = np.zeros(count, dtype=bool)
    # In blocks, since NumPy first makes eight bytes of each number.
    for rows in iv.blocks(len(numbers)):
        used[numbers[rows]] = True
    distinct: list[int] = np.flatnonzero(used).tolist()
    return distinct


def named(timeline: Timeline, table: Named, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return a mask of the rows whose name matches."""
    # Each distinct name is looked at once: a capture has millions of rows and thousands of names.
    matching = [i for i in names_in(timeline, table) if pattern.search(timeline.strings[i])]
    if not matching:
        return np.zeros(len(table.name), dtype=bool)
    matches = np.zeros(len(timeline.strings), dtype=bool)
    matches[matching] = True
    return look_up(matches, table.name)


def look_up(chosen: NDArray[np.bool_], numbers: SmallInts) -> NDArray[np.bool_]:
    """Return a mask of the numbers that are chosen."""
    mask = np.empty(len(numbers), dtype=bool)
    for rows in iv.blocks(len(numbers)):
        mask[rows] = chosen[numbers[rows]]
    return mask


def union_of(table: Timed, mask: NDArray[np.bool_]) -> iv.Intervals:
    """Return the time covered by the masked rows."""
    return iv.chain(
        (table.start[rows][mask[rows]], table.end[rows][mask[rows]])
        for rows in iv.blocks(len(table.start))
    )


def covered_by(table: Timed, rows: NDArray[np.integer]) -> iv.Intervals:
    """Return the time covered by some rows, given by their numbers in ascending order."""
    return iv.chain(
        (table.start[rows[block]], table.end[rows[block]]) for block in iv.blocks(len(rows))
    )
