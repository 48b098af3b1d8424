"""The large tables of an nsys export, by `sqlite_pages`: millions of rows a second.

What a column of ours is made of is told by `TableQuery`, for this way and for SQL: the answers are
the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.fast.sqlite_pages import (
    Bytes,
    Cells,
    Database,
    Field,
    Ints,
    Leaves,
    Mask,
    UnusualFileError,
    words,
)

PRODUCTS = {"grid": ("gridX", "gridY", "gridZ"), "block": ("blockX", "blockY", "blockZ")}
FIRSTS = {"kernelName": ("demangledName", "shortName")}

# What tells one call of an operator from the next begins with one of these.
NUMBER_MARKS = (", seq = ", ", op_id = ")
_MANY = 1000
_SHARE = 256
_LONG_NAME = 128
_SLOT_BITS = 20
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def sources_of(name: str) -> tuple[str, ...]:
    """Return the columns of the file that one of ours is made of."""
    return PRODUCTS.get(name, FIRSTS.get(name, (name,)))


@dataclass(frozen=True)
class TableQuery:
    """Columns of ours with their defaults; rows only where a column is `among` some values and
    others are `there`; names from a column of text.
    """

    columns: dict[str, int]
    among: dict[str, tuple[int, ...]] = field(default_factory=dict)
    there: tuple[str, ...] = ()
    text: str | None = None

    @property
    def sources(self) -> set[str]:
        """The columns of the file that are needed."""
        text = () if self.text is None else (self.text,)
        return {
            *chain.from_iterable(map(sources_of, self.columns)),
            *self.among,
            *self.there,
            *text,
        }

    @property
    def where(self) -> str:
        """Which rows, as SQL."""
        among = [
            f'"{name}" IN ({", ".join(map(str, values))})' for name, values in self.among.items()
        ]
        return " AND ".join([*among, *(f'"{name}" IS NOT NULL' for name in self.there)]) or "TRUE"


Column = NDArray[Any]


@dataclass
class Rows:
    """Columns of one length. Some number what stands in `meanings`, in the order of its first row:
    names (-1 is none), and columns of few values.
    """

    columns: dict[str, Column]
    meanings: dict[str, list[Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def only(self, mask: Mask) -> Rows:
        """Return the rows where it is true."""
        if mask.all():
            return self
        return self.at(mask)

    def at(self, rows: Mask | Ints) -> Rows:
        """Return the rows of these places."""
        return Rows({name: values[rows] for name, values in self.columns.items()}, self.meanings)


def joined(parts: list[Rows]) -> Rows:
    """Return one after the other. The parts are emptied on the way: together they may be most of
    the memory.
    """
    meanings: dict[str, dict[Any, int]] = {name: {} for name in parts[0].meanings}
    for part in parts:
        for name, known in meanings.items():
            numbers = [known.setdefault(meaning, len(known)) for meaning in part.meanings[name]]
            part.columns[name] = np.array([*numbers, -1], dtype=np.int32)[part.columns[name]]
    columns = {
        name: np.concatenate([part.columns.pop(name) for part in parts])
        for name in list(parts[0].columns)
    }
    return Rows(columns, {name: list(known) for name, known in meanings.items()})


# Columns of few values.
FEW = ("globalTid", "globalPid")


def numbered(rows: Rows) -> Rows:
    """Return the same with the columns of few values numbered."""
    for name in rows.columns.keys() & {*FEW}:
        values = rows[name]
        groups = _grouped(values.astype(np.uint64) * _SPREAD, [values])
        if groups is None:
            used, inverse = np.unique(values, return_inverse=True)
            rows.columns[name] = inverse.reshape(-1).astype(np.int32)
            rows.meanings[name] = used.tolist()
        else:
            rows.columns[name], rows.meanings[name] = groups[0], values[groups[1]].tolist()
    return rows


@dataclass(frozen=True)
class Layout:
    """Where a table's columns stand in its records: `places`; those that rows written before them
    lack are not NULL there but `added`.
    """

    root: int
    places: dict[str, int]
    added: frozenset[int]


@dataclass
class TablePart:
    """Rows from some pages, and those that only SQLite can read: where they stand, and their
    rowids.
    """

    rows: Rows
    odd_at: Ints
    odd: Ints


def read_part(database: Database, leaves: Leaves, layout: Layout, query: TableQuery) -> TablePart:
    """Return the rows of some pages."""
    cells = database.cells(leaves)
    used = {name: layout.places[name] for name in query.sources if name in layout.places}
    fields = cells.fields(used.values()) if used else {}
    for index in layout.added & fields.keys():
        if (absent := fields[index].absent) is not None:
            cells.odd |= absent
    numbers = {
        name: cells.integers(fields[index]) for name, index in used.items() if name != query.text
    }
    columns = {
        name: _column(name, default, numbers, cells) for name, default in query.columns.items()
    }
    keep = np.ones(len(cells.rowid), dtype=bool)
    for name, among in query.among.items():
        keep &= np.logical_or.reduce([numbers[name][0] == value for value in among])
    for name in (*query.among, *query.there):
        null = numbers[name][1]
        keep &= True if null is None else ~null
    names = None
    if query.text is not None:
        columns["text"], names = _texts(cells, fields[used[query.text]], keep)
    keep |= cells.odd
    rows = Rows(
        {name: _narrow(values) for name, values in columns.items()},
        {} if names is None else {"text": names},
    )
    rows = numbered(rows.only(keep))
    return TablePart(rows, np.flatnonzero(cells.odd[keep]), cells.rowid[cells.odd])


def read_rows(parts: Iterator[TablePart]) -> TablePart:
    """Return the whole table from its parts. Raises UnusualFileError when too much of it is
    unusual.
    """
    read, length, unusual = [], 0, 0
    for part in parts:
        read.append(replace(part, odd_at=part.odd_at + length))
        length += len(part.rows)
        unusual += len(part.odd)
        if unusual > _MANY + length // _SHARE:
            raise UnusualFileError("many unusual rows")
    odd_at, odd = (
        np.concatenate([getattr(part, name) for part in read]) for name in ("odd_at", "odd")
    )
    return TablePart(joined([part.rows for part in read]), odd_at, odd)


def _narrow(values: Column) -> Column:
    """Return the column in four bytes where they suffice."""
    fits = not len(values) or (values.min() >= -(2**31) and values.max() < 2**31)
    if fits:
        return values.astype(np.int32)
    return values


def _column(
    name: str, default: int, numbers: dict[str, tuple[Ints, Mask | None]], cells: Cells
) -> Ints:
    """Return a column of ours. Rows whose product is too large become odd: SQL goes on with
    fractions.
    """
    if name == "rowid":
        return cells.rowid
    there = [numbers[source] for source in sources_of(name) if source in numbers]
    if not there:
        return np.full(len(cells.rowid), default, dtype=np.int64)
    if name in PRODUCTS:
        factors = [_filled(values, null, default) for values, null in there]
        if (
            math.prod(
                max(abs(int(values.min(initial=0))), abs(int(values.max(initial=0))))
                for values in factors
            )
            >= 2**62
        ):
            cells.odd |= (
                np.abs(np.prod([values.astype(float) for values in factors], axis=0)) >= 2**62
            )
        return np.asarray(np.multiply.reduce(factors))
    result, null = there[0]
    for values, missing in there[1:]:
        if null is not None:
            result = np.where(null, values, result)
            null = null & missing if missing is not None else None
    return _filled(result, null, default)


def _filled(values: Ints, null: Mask | None, default: int) -> Ints:
    if null is None:
        return values
    return np.where(null, default, values)


def _texts(cells: Cells, column: Field, keep: Mask) -> tuple[Ints, list[bytes]]:
    """Return the names in a column of text, without what numbers them, and which each row that is
    kept has.
    """
    kind = column.kind
    cells.odd |= keep & (kind > 0) & ((kind < 13) | (kind & 1 == 0))
    rows = np.flatnonzero((kind > 12) & keep & ~cells.odd)
    codes = np.full(len(kind), -1, dtype=np.int64)
    start, length = column.offset[rows], column.length[rows]
    # Texts count only up to the first of the marks.
    # A mark behind everything, so that every text has a next one.
    starts, ends = [np.array([len(cells.data)])], [np.array([len(cells.data)])]
    commas = np.flatnonzero(cells.data[:-16] == ord(","))
    words_there = words(cells.data)[commas]
    for mark in NUMBER_MARKS:
        at = commas[words_there == int.from_bytes(mark.encode()[:8], "big")]
        for nth in range(8, len(mark)):
            at = at[cells.data[at + nth] == ord(mark[nth])]
        starts.append(at)
        ends.append(at + len(mark))
    marks = np.concatenate(starts)
    order = np.argsort(marks, kind="stable")
    marks, behind = marks[order], np.concatenate(ends)[order]
    nearest = np.searchsorted(marks, start)
    codes[rows], names = distinct(
        cells.data,
        start,
        np.where(behind[nearest] <= start + length, marks[nearest] - start, length),
    )
    return codes, names


def distinct(data: Bytes, start: Ints, length: Ints) -> tuple[Column, list[bytes]]:
    """Return the different texts among those given by place and length, in the order of the first
    of each, and which each is.
    """
    if len(start) and length.max() > _LONG_NAME:
        return _distinct_by_hand(data, start, length)
    columns = [length]
    hashed = length.astype(np.uint64)
    # Texts are compared and hashed as words of eight bytes; bytes behind a text's end are masked.
    for at in range(0, int(length.max(initial=0)), 8):
        rows = np.flatnonzero(length > at) if at else slice(None)
        mask = _MASKS[np.minimum(length[rows] - at, 8)]
        column = np.zeros(len(start), dtype=np.int64)
        column[rows] = words(data)[start[rows] + at] & mask
        columns.append(column)
        hashed = (hashed ^ column.view(np.uint64)) * _SPREAD
        hashed ^= hashed >> np.uint64(29)
    groups = _grouped(hashed, columns)
    if groups is None:
        return _distinct_by_hand(data, start, length)
    codes, firsts = groups
    return codes, [data[start[row] : start[row] + length[row]].tobytes() for row in firsts.tolist()]


def _grouped(
    hashed: NDArray[np.uint64], columns: list[Column]
) -> tuple[NDArray[np.int32], Ints] | None:
    """Give rows of the same columns one number; return it for each row, and each number's first
    row. None when two different rows share a slot of the table.
    """
    slot = (hashed >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)
    owner = np.empty(1 << _SLOT_BITS, dtype=np.int32)
    numbers = np.arange(len(slot), dtype=np.int32)
    # Written from the last row to the first, so that each slot keeps its first row.
    owner[slot[::-1]] = numbers[::-1]
    first = owner[slot]
    # Two different rows in one slot: rare enough to leave to a slower way.
    if not all((column == column[first]).all() for column in columns):
        return None
    firsts = np.flatnonzero(first == numbers)
    owner[slot[firsts]] = numbers[: len(firsts)]
    return owner[slot], firsts


def _distinct_by_hand(data: Bytes, start: Ints, length: Ints) -> tuple[Ints, list[bytes]]:
    """Return the same for long texts and for the rare ones that share a slot."""
    whole = data.tobytes()
    names: dict[bytes, int] = {}
    texts = (
        whole[at : at + long] for at, long in zip(start.tolist(), length.tolist(), strict=True)
    )
    return np.array([names.setdefault(text, len(names)) for text in texts], dtype=np.int64), list(
        names
    )


# What keeps the first bytes of a big-endian word.
_MASKS = np.array([0, *(-1 << 8 * (8 - kept) for kept in range(1, 9))], dtype=np.int64)
