"""Rows of a timeline's tables: those whose name matches, and the time that they cover."""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.trace.timeline import DeviceTable, HostTable, SmallInts, Timeline


class Named(Protocol):
    """Any table with names."""

    @property
    def name(self) -> SmallInts: ...


def names_in(table: Named) -> list[int]:
    """Return the names that a table's rows have, as indices into the timeline's strings."""
    used: list[int] = np.flatnonzero(np.bincount(table.name, minlength=1)).tolist()
    return used


def named(timeline: Timeline, table: Named, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return a mask of the rows whose name matches."""
    # Each distinct name is looked at once: a capture has millions of rows and thousands of names.
    matches = np.zeros(len(timeline.strings) + 1, dtype=bool)
    matches[[i for i in names_in(table) if pattern.search(timeline.strings[i])]] = True
    return np.asarray(matches[table.name])


def union_of(table: HostTable | DeviceTable, mask: NDArray[np.bool_]) -> iv.Intervals:
    """Return the time covered by the masked rows."""
    parts = []
    for rows in iv.blocks(len(table)):
        chosen = mask[rows]
        parts.append(iv.union(table.start[rows][chosen], table.end[rows][chosen]))
    return iv.join(iv.NONE, *parts)
