"""Reads integer columns of a large SQLite table from the file's pages by arrays instead of row by
row.

Written from the published file format (https://www.sqlite.org/fileformat2.html). Only plain files
and plain rows are read: whatever is unusual is left to SQLite itself (`UnusualFileError` for a
whole table, `Cells.odd` for a row), and a tree that cannot be right is refused
(`DamagedTreeError`).

Why it stands: a 1 GB nsys export takes 13.5 s and 1.3 GB this way, 51.1 s and 3.6 GB by SQL in the
same run (benchmarks/trace_analysis.py --nsys, docs/measured/trace_analysis.md).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

CHUNK_BYTES = 2 << 20
_LONGEST = 1 << 31

# Bytes behind the pages of a chunk, so that no look-ahead from within them must be tested for the
# end.
_PADDING = 256
_INTERIOR, _LEAF = 5, 13
_DEEPEST = 20
_LOCK_AT = 1 << 30
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class UnusualFileError(Exception):
    """Nothing need be wrong, but only SQLite itself can read it."""


class DamagedTreeError(ValueError):
    """An intact file does not look like this."""


@dataclass(frozen=True, slots=True)
class Leaves:
    """Where a table's rows are: page numbers in the order of the rows, and from which to which
    rowid each page may go.
    """

    pages: Ints
    lowest: Ints
    highest: Ints

    @property
    def fewest(self) -> int:
        """Rows that each page has at least: only a table that is one page may be empty."""
        return 0 if self.lowest[0] == _FIRST and self.highest[0] == _LAST else 1


class Database:
    """A database file that nobody is writing to."""

    def __init__(self, path: Path) -> None:
        """Raise UnusualFileError for a format that is not read here or a system that cannot
        (Windows), OSError when there is no reading it.
        """
        if not hasattr(os, "preadv"):
            raise UnusualFileError(path.name)
        self._buffer = np.empty(0, dtype=np.uint8)
        self._file = os.open(path, os.O_RDONLY)
        head = os.pread(self._file, 100, 0)
        if len(head) < 100 or not _is_plain(head):
            os.close(self._file)
            raise UnusualFileError(path.name)
        self.page_bytes = _number(head, 16, 2) if _number(head, 16, 2) != 1 else 65536
        self.usable = self.page_bytes - head[20]
        by_size = os.fstat(self._file).st_size // self.page_bytes
        # The header's own count of pages holds only where the change counter is the one it was
        # written with (section 1.3.7); older writers left it alone.
        self.pages = by_size
        if head[24:28] == head[92:96]:
            self.pages = min(_number(head, 28, 4) or by_size, by_size)
        # A cell is at least four bytes long and has a pointer of two.
        self._most_cells = (self.usable - 8) // 6

    def close(self) -> None:
        os.close(self._file)

    def leaves(self, root: int) -> Leaves:
        """Return the table whose tree starts at page `root`, from its interior pages alone. Every
        page stands in it once, and keys rise.
        """
        # Level by level from the root: the pages of one level are read together, and a page that
        # is met twice is a loop that SQLite would follow forever.
        seen = np.zeros(self.pages + 1, dtype=bool)
        level = Leaves(*np.array([[root], [_FIRST], [_LAST]], dtype=np.int64))
        for _ in range(_DEEPEST):
            pages = level.pages
            # SQLite locks bytes at 1 GiB, so the page there is never used.
            lock = _LOCK_AT // self.page_bytes + 1
            if pages.min() < 2 or pages.max() > self.pages or (pages == lock).any():
                raise DamagedTreeError("a table refers to a page that cannot be its own")
            if seen[pages].any() or len(np.unique(pages)) < len(pages):
                raise DamagedTreeError("a table has a page twice")
            if (level.lowest > level.highest).any():
                raise DamagedTreeError("a table's rows are not in order")
            seen[pages] = True
            kind = self._load(level.pages[:1])[0]
            if kind == _LEAF:
                return level
            if kind != _INTERIOR and len(level.pages) == 1:
                raise UnusualFileError("no table with rowids")
            below = [self._children(part) for part in self.parts(level)]
            level = Leaves(*(np.concatenate(columns) for columns in zip(*below, strict=True)))
        raise DamagedTreeError("a table's tree is too deep")

    def parts(self, leaves: Leaves) -> Iterator[Leaves]:
        """Yield the same in pieces that are read at once."""
        step = max(1, CHUNK_BYTES // self.page_bytes)
        for at in range(0, len(leaves.pages), step):
            some = slice(at, at + step)
            yield Leaves(leaves.pages[some], leaves.lowest[some], leaves.highest[some])

    def _load(self, pages: Ints) -> Bytes:
        """Return the bytes of the pages one after the other, and padding. Good until others are
        loaded: fresh memory for all would take a third longer.
        """
        size = len(pages) * self.page_bytes + _PADDING
        if len(self._buffer) < size:
            self._buffer = np.zeros(size, dtype=np.uint8)
        data: Bytes = self._buffer[:size]
        data[-_PADDING:] = 0
        view = data.data
        # Pages that lie side by side in the file are read by one call.
        breaks = np.flatnonzero(np.diff(pages) != 1) + 1
        for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(pages)], strict=True):
            target = view[first * self.page_bytes : last * self.page_bytes]
            if os.preadv(self._file, [target], (int(pages[first]) - 1) * self.page_bytes) != len(
                target
            ):
                raise DamagedTreeError("the file ends within a table")
        return data

    def _pointers(self, data: Bytes, kind: int, header: int, least: int = 1) -> tuple[Ints, Ints]:
        """Return how many cells each page has (`least` or more), and where in `data` the cells
        begin, in the order of the rows. All pages are of one `kind`.
        """
        at = np.arange(0, len(data) - _PADDING, self.page_bytes)
        if (data[at] != kind).any():
            raise DamagedTreeError("a table has a page of another kind")
        # Bytes 3 and 4 of a page's header are its number of cells, big-endian (section 1.6).
        count = data[at + 3].astype(np.int64) << 8 | data[at + 4]
        if count.max() > self._most_cells or count.min() < least:
            raise DamagedTreeError("a page has an impossible number of rows")
        # The pointers to the cells stand behind the header, two bytes each.
        table = data[: len(at) * self.page_bytes].view(">u2").reshape(len(at), -1)
        table = table[:, header // 2 : header // 2 + int(count.max())]
        pointers = table[np.arange(table.shape[1]) < count[:, None]].astype(np.int64)
        if (
            len(pointers)
            and (
                (pointers < np.repeat(header + 2 * count, count)) | (pointers > self.usable - 4)
            ).any()
        ):
            raise DamagedTreeError("a row lies outside of its page")
        return count, pointers + np.repeat(at, count)

    def _children(self, level: Leaves) -> tuple[Ints, Ints, Ints]:
        """Return the pages below interior pages: as `Leaves`."""
        data = self._load(level.pages)
        count, at = self._pointers(data, _INTERIOR, 12)
        # An interior cell is the number of a child page and the highest key below it; the last
        # child has no key and stands in the page's header, at byte 8.
        key, _ = _varint(data, at + 4)
        if (key == _LAST).any():
            raise DamagedTreeError("a table's rows are not in order")
        last = np.cumsum(count + 1) - 1
        inner = np.ones(int(last[-1]) + 1, dtype=bool)
        inner[last] = False
        pages, lowest, highest = np.empty((3, len(inner)), dtype=np.int64)
        starts = np.arange(0, len(data) - _PADDING, self.page_bytes)
        pages[inner], pages[last] = words(data)[at] >> 32, words(data)[starts + 8] >> 32
        highest[inner], highest[last] = key, level.highest
        lowest[1:], lowest[last - count] = highest[:-1] + (highest[:-1] < _LAST), level.lowest
        return pages & 0xFFFFFFFF, lowest, highest

    def check(self, root: int) -> None:
        """Check that a table's tree is a tree, so that SQLite cannot loop in it. For tables that
        SQLite reads.
        """
        for part in self.parts(self.leaves(root)):
            self._pointers(self._load(part.pages), _LEAF, 8, part.fewest)

    def cells(self, leaves: Leaves) -> Cells:
        """Return the rows of some leaves."""
        data = self._load(leaves.pages)
        count, at = self._pointers(data, _LEAF, 8, leaves.fewest)
        # A leaf's cell: size of the record, rowid, record.
        payload, at = _varint(data, at)
        rowid, at = _varint(data, at)
        behind = np.cumsum(count)
        if len(rowid) and (
            (rowid[1:] <= rowid[:-1]).any()
            or (rowid[behind - count] < leaves.lowest).any()
            or (rowid[behind - 1] > leaves.highest).any()
        ):
            raise DamagedTreeError("a table's rows are not in order")
        ends = np.repeat(np.arange(0, len(data) - _PADDING, self.page_bytes) + self.usable, count)
        # A longer record goes on in overflow pages, which SQLite reads.
        odd = (payload < 1) | (payload > self.usable - 35)
        end = np.where(odd, 0, payload) + at
        return Cells(data, rowid, at, end, odd | (end > ends))


@dataclass(slots=True)
class Cells:
    """The rows of some leaves: `at` and `end` are where their records lie in `data`; `odd` rows are
    for SQLite to read, their values here mean nothing.
    """

    data: Bytes
    rowid: Ints
    at: Ints
    end: Ints
    odd: Mask

    def fields(self, wanted: Collection[int]) -> dict[int, Field]:
        """Return the columns of these numbers. Records that do not add up become odd."""
        # A record begins with the size of its header, then the serial type of each column. A size
        # of more than one byte (more than 127 columns) is left to SQLite.
        size = self.data[self.at].astype(np.int64)
        self.odd |= (size < 1) | (size > 127) | (self.at + size > self.end)
        type_at = self.at + 1
        offset = header_end = self.at + np.where(self.odd, 1, size)
        fields = {}
        left = int((header_end - type_at).min(initial=_PADDING))
        for index in range(max(wanted) + 1):
            # `left`: how many more types even the shortest header holds. While there are any, no
            # record can end here, and looking at all of them would take a while.
            left -= 1
            absent = type_at >= header_end if left < 0 else _NOTHING
            some_absent = bool(absent.any())
            kind = self.data[type_at]
            if some_absent:
                kind[absent] = 0
            length = _SIZES[kind]
            # Types of text and blobs longer than 57 bytes take several bytes: even is a blob, odd
            # is text.
            wide = np.flatnonzero(kind > 127)
            if len(wide):
                number, behind = _varint(self.data, type_at[wide])
                # A type below 128 has no business in several bytes.
                far = (number < 128) | (number > _LONGEST)
                self.odd[wide[far]] = True
                length[wide] = np.where(far, 0, (number - 12) >> 1)
                kind[wide] = 12 + (number & 1)
                left -= int((behind - type_at[wide]).max()) - 1
                type_at[wide] = behind - 1
            if index in wanted:
                fields[index] = Field(kind, offset, length, absent if some_absent else None)
            type_at += ~absent if some_absent else 1
            offset = offset + length
        self.odd |= (
            (type_at > header_end)
            | (offset > self.end)
            | ((type_at == header_end) & (offset != self.end))
        )
        # The sizes that odd rows state may be anything, so their values are not read.
        if self.odd.any():
            for field in fields.values():
                field.kind[self.odd] = 0
                field.offset = np.where(self.odd, 0, field.offset)
        return fields

    def integers(self, field: Field) -> tuple[Ints, Mask | None]:
        """Return a column's numbers, and where it has none (None: nowhere). Rows in which it is not
        an integer become odd.
        """
        kind = field.kind
        low, high = int(kind.min(initial=255)), int(kind.max(initial=0))
        # Types 8 and 9 are the numbers 0 and 1 themselves, type 0 is NULL: nothing is stored.
        if low == high and low in (0, 8, 9):
            return np.full(len(kind), low == 9, dtype=np.int64), kind == 0 if low == 0 else None
        # Eight bytes from the value on, shifted down to the value's own size. The shift is
        # arithmetic, so that the sign stays.
        values = words(self.data)[field.offset]
        values = values.astype(np.int64) >> (_SHIFTS[low] if low == high else _SHIFTS[kind])
        if high > 6:
            values = np.where(kind > 6, kind == 9, values)
            self.odd |= (kind == 7) | (kind > 9)
        return values, kind == 0 if low == 0 else None


@dataclass(slots=True)
class Field:
    """A column in some rows: serial types, where the values begin and how long they are; `absent`
    where the record ends before it.
    """

    kind: Bytes
    offset: Ints
    length: Ints
    absent: Mask | None


def _is_plain(head: bytes) -> bool:
    """Return True if a file's first 100 bytes announce what is read here: no write-ahead log,
    UTF-8, a format of today.
    """
    page = _number(head, 16, 2)
    return (
        head[:16] == b"SQLite format 3\x00"
        and (page == 1 or (512 <= page <= 32768 and page & (page - 1) == 0))
        and head[18:20] == b"\x01\x01"
        and (page if page > 1 else 65536) - head[20] >= 480
        and head[21:24] == b"\x40\x20\x20"
        and 1 <= _number(head, 44, 4) <= 4
        and _number(head, 56, 4) == 1
    )


def _number(head: bytes, at: int, length: int) -> int:
    return int.from_bytes(head[at : at + length], "big")


def words(data: Bytes) -> NDArray[Any]:
    """Return the eight bytes that begin at every place, as big-endian numbers."""
    return np.ndarray((len(data) - 7,), ">i8", data, 0, (1,))


def _varint(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the numbers of variable length at some places, and the places behind them."""
    byte = data[at]
    value = (byte & 127).astype(np.int64)
    behind = at + 1
    more = byte > 127
    for nth in range(1, 9):
        if not more.any():
            break
        byte = data[behind]
        # Seven bits a byte, most significant first; a ninth byte brings all eight.
        longer = value << 8 | byte if nth == 8 else value << 7 | byte & 127
        value = longer if more.all() else np.where(more, longer, value)
        behind += more
        more &= byte > 127
    return value, behind


# Bytes of a value by its serial type.
_SIZES = np.array(
    [0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((n - 12) // 2 for n in range(12, 128)), *[0] * 128]
)
_NOTHING = np.zeros(1, dtype=bool)
_SHIFTS = np.array([0, 56, 48, 40, 32, 16, *[0] * 250])
