"""Reads the events of a memory snapshot by the thousand.

The C pickler writes all events of a list alike: the same keys in the same order, each a reference
to text that was written once. So the bytes are cut where an event begins, and every field is then
read for all events at once. What does not fit exactly, down to the byte where the next event
begins, is left to the machine that reads opcode by opcode (snapshot_pickle.py).

Why it stands: a snapshot of 66 MB is read in 0.6 s, and in 37 s opcode by opcode (one process,
one pair); whole commands are measured by benchmarks/memory_snapshots.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.trace.snapshot import ACTIONS, NO_STACK, Action
from bottleneck_lab.trace.timeline import Ints

# EMPTY_DICT, MEMOIZE, MARK: how the pickler begins an event, before its first key.
BEGIN = b"}\x94("

# Bytes looked at together: few until that turns out to be worth while.
FEW, MANY = 1 << 15, 4 << 20

# Where fewer events than this fit, the next so many are read one by one.
FEWEST = 8
_REFERENCES = re.compile(rb"(?:h.|j.{4})++", re.DOTALL)
_REFERENCE = re.compile(rb"h(.)|j(.{4})", re.DOTALL)
_H, _J, _K, _M, _I, _LONG, _TEXT = ord("h"), ord("j"), ord("K"), ord("M"), ord("J"), 0x8A, 0x8C
_MEMOIZE = 0x94
_PAIR = 0x86
_LIST = ord("]")
_MARK = ord("(")
_APPENDS = ord("e")
_APPEND = ord("a")
_SET = ord("u")

# Bytes of a token by its opcode; 0 for one that is not of a fixed length.
_WIDTHS = np.zeros(256, dtype=np.int64)
_WIDTHS[[_H, _K]], _WIDTHS[_M], _WIDTHS[[_J, _I]], _WIDTHS[ord("G")] = 2, 3, 5, 9
_WIDTHS[[ord("N"), 0x88, 0x89]] = 1

# Bytes of the number behind an opcode for integers of a fixed length.
_INTEGER_BYTES = np.zeros(256, dtype=np.int64)
_INTEGER_BYTES[[_K, _M, _I]] = 1, 2, 4

Mask = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Wide = NDArray[np.uint64]


@dataclass(frozen=True)
class Shape:
    """The keys of an event, as the bytes that stand for them, with what they mean. Frames come
    last.
    """

    keys: tuple[bytes, ...]
    names: tuple[str, ...]
    pairs: frozenset[str]
    """Keys whose value is a tuple of two numbers."""


class Stacks(dict[bytes, int]):
    """By a run of references the number of the stack that it spells; NO_STACK where it is no such
    run, or refers to anything else than lines.

    Each different stack is there once. `line_at` says which line is at a place of the memo.
    """

    def __init__(self, line_at: Callable[[int], int | None]) -> None:
        super().__init__()
        self._line_at = line_at
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, lines: tuple[int, ...]) -> int:
        """Return the number of a stack."""
        return self._numbers.setdefault(lines, len(self._numbers))

    def __missing__(self, run: bytes) -> int:
        if not _REFERENCES.fullmatch(run):
            return NO_STACK
        slots = (match[1] or match[2] for match in _REFERENCE.finditer(run))
        lines = [self._line_at(int.from_bytes(slot, "little")) for slot in slots]
        known = tuple(line for line in lines if line is not None)
        self[run] = number = self.number(known) if len(known) == len(lines) else NO_STACK
        return number

    def all(self) -> tuple[tuple[int, ...], ...]:
        """Return every stack, by number."""
        return tuple(self._numbers)


class Batches:
    """The columns of the events so far, from both ways of reading, and the memo of the lists of
    frames that were read by the thousand.
    """

    def __init__(self, stacks: Stacks) -> None:
        self.rows = 0
        self._stacks = stacks
        self._shape: Shape | None = None
        self._bytes, self._pause = FEW, 0
        self._single: list[tuple[int, int, int, int, int]] = []
        self._parts: list[list[NDArray[Any]]] = []
        self._places, self._numbers = _Growing(np.int64), _Growing(np.int32)

    @property
    def ready(self) -> bool:
        """True if it knows what an event looks like and it was worth while lately."""
        return self._shape is not None and self._pause == 0

    def add(self, action: int, time_us: int, address: int, size: int, stack: int) -> None:
        """Append one event that was read alone."""
        self._single.append((action, time_us, address, size, stack))
        self.rows += 1
        self._pause = max(0, self._pause - 1)

    def learn(self, event: bytes, memo_of: Callable[[int], Any]) -> None:
        """Take an event, read one by one, as the model of those to come."""
        self._shape = learn(event, memo_of) or self._shape

    def list_at(self, slot: int) -> int | None:
        """Return the number of the stack at a place of the memo, where one is there."""
        number = int(self._lists(np.array([slot]))[0])
        return None if number == NO_STACK else number

    def _lists(self, places: Ints) -> NDArray[np.int32]:
        known, numbers = self._places.values, self._numbers.values
        if not len(known):
            return np.full(len(places), NO_STACK, dtype=np.int32)
        at = np.minimum(np.searchsorted(known, places), len(known) - 1)
        return np.where(known[at] == places, numbers[at], np.int32(NO_STACK))

    def take(
        self, buffer: bytes, begin: int, memo_next: int, memo_of: Callable[[int], Any]
    ) -> tuple[int, int] | None:
        """Read events from `begin` on, where one begins. Returns where it got to and the memo's
        next place; None when it understood none.
        """
        assert self._shape is not None
        # Eight bytes from any byte of an event on are read as one number: some must stand behind.
        end = min(begin + self._bytes, len(buffer) - 16)
        events = _Events.cut(buffer, begin, end, self._shape)
        count = events.read(self._stacks, memo_next) if events else 0
        if events is None or count < FEWEST:
            self._bytes, self._pause = FEW, FEWEST
            return None
        # Few bytes at first, four times as many whenever that went well.
        self._bytes = min(MANY, 4 * self._bytes)
        fresh = events.fresh[:count]
        self._places.add(events.list_places[:count][fresh])
        self._numbers.add(events.stacks[:count][fresh])
        stacks = events.stacks[:count]
        # An event may refer to the list of an earlier one, in this batch or before it.
        stacks[~fresh] = self._lists(events.referred[:count][~fresh])
        for row in np.flatnonzero(stacks == NO_STACK).tolist():
            stack = memo_of(int(events.referred[row]))
            stacks[row] = int(stack) if isinstance(stack, int) else NO_STACK
        actions, which = np.unique(events.values["action"][:count], return_inverse=True)
        known = [ACTIONS.get(memo_of(int(slot)), Action.OTHER) for slot in actions.tolist()]
        columns = [events.values[name][:count] for name in ("time_us", "addr", "size")]
        self._flush()
        self._parts.append([np.array(known, dtype=np.int8)[which], *columns, stacks])
        self.rows += count
        return int(events.ends[count - 1]), memo_next + int(events.memoized[:count].sum())

    def _flush(self) -> None:
        if self._single:
            kinds = (np.int8, np.int64, np.int64, np.int64, np.int32)
            columns = zip(*self._single, strict=True)
            self._parts.append(
                [np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)]
            )
            self._single.clear()

    def columns(self) -> list[NDArray[Any]]:
        """Return action, time, address, bytes and stack of all events, a column each.

        The parts are emptied on the way: together they may be most of the memory.
        """
        self._flush()
        kinds = (np.int8, np.int64, np.int64, np.int64, np.int32)
        return [
            (
                np.concatenate([part.pop(0) for part in self._parts])
                if self._parts
                else np.empty(0, dtype=kind)
            )
            for kind in kinds
        ]


class _Growing:
    """Numbers added at the end, without a copy of all each time."""

    def __init__(self, dtype: Any) -> None:
        self._room, self._length = np.empty(1 << 12, dtype=dtype), 0

    @property
    def values(self) -> NDArray[Any]:
        return self._room[: self._length]

    def add(self, values: NDArray[Any]) -> None:
        while self._length + len(values) > len(self._room):
            self._room = np.concatenate([self._room, np.empty_like(self._room)])
        self._room[self._length : self._length + len(values)] = values
        self._length += len(values)


class _Events:
    """Events that lie one behind the other in a buffer, and what has been read of them. An event
    whose bytes do not fit is bad, with all after it.
    """

    def __init__(self, buffer: bytes, shape: Shape, bodies: Ints, ends: Ints) -> None:
        self._buffer, self._shape = buffer, shape
        self._data: Bytes = np.frombuffer(buffer, dtype=np.uint8)
        self._wide = _wide(buffer)
        self._at, self._good = bodies.copy(), np.ones(len(bodies), dtype=bool)
        self.ends = ends
        """Where the next event begins."""
        self.memoized = np.ones(len(bodies), dtype=np.int64)
        self.values: dict[str, Ints] = {}
        self.fresh = np.zeros(len(bodies), dtype=bool)
        """True where an event's list of frames is its own, and not one that was there before."""
        self.stacks = np.full(len(bodies), NO_STACK, dtype=np.int32)
        self.list_places = np.zeros(len(bodies), dtype=np.int64)
        self.referred = np.zeros(len(bodies), dtype=np.int64)

    @classmethod
    def cut(cls, buffer: bytes, begin: int, end: int, shape: Shape) -> _Events | None:
        """Return the events of a stretch, but for the last, whose end is not known; None if there
        are too few.
        """
        first = BEGIN + shape.keys[0]
        # Where an event may begin: the byte of EMPTY_DICT, followed by the rest of what begins
        # one.
        starts = np.flatnonzero(
            np.frombuffer(buffer, dtype=np.uint8, count=end - begin, offset=begin) == BEGIN[0]
        )
        starts = starts[_alike(_wide(buffer), starts + begin, first)] + begin
        if len(starts) <= FEWEST or starts[0] != begin:
            return None
        return cls(buffer, shape, starts[:-1] + len(first), starts[1:])

    def read(self, stacks: Stacks, memo_next: int) -> int:
        """Read every field; return how many events fit, from the first on."""
        for number, (key, name) in enumerate(zip(self._shape.keys, self._shape.names, strict=True)):
            if number:
                self._expect(key)
            if name == "frames":
                break
            self._field(name)
        self._places(memo_next)
        self._frames(stacks)
        if self._good.all():
            return len(self._good)
        return int(self._good.argmin())

    def _move(self, widths: Any) -> None:
        self._at = np.minimum(self._at + widths, len(self._wide) - 1)

    def _expect(self, expected: bytes) -> None:
        """Require the same bytes, at most eight, in all events."""
        self._good &= _alike(self._wide, self._at, expected)
        self._move(len(expected))

    def _field(self, name: str) -> None:
        if name in self._shape.pairs:
            self._integers()
            self._integers()
            self._expect(bytes((_PAIR, _MEMOIZE)))
            self.memoized += 1
        elif name == "action":
            # Places of the memo.
            code = self._data[self._at]
            self._good &= (code == _H) | (code == _J)
            masks = np.where(code == _H, np.uint64(0xFF), np.uint64(0xFFFFFFFF))
            places = ((self._wide[self._at] >> np.uint64(8)) & masks).astype(np.int64)
            self._move(_WIDTHS[code])
            self.values[name] = places
        elif name in ("addr", "size", "time_us"):
            self.values[name] = self._integers()
        else:
            # Skip a value that is not needed: a reference, a number, or a short text, which
            # takes a place in the memo.
            type_code, text = self._data[self._at], self._data[self._at] == _TEXT
            is_long = type_code == _LONG
            length = self._data[self._at + 1].astype(np.int64)
            self._good &= text | is_long | (_WIDTHS[type_code] > 0)
            self._move(np.where(text | is_long, 2 + length, _WIDTHS[type_code]))
            self._good &= ~text | (self._data[self._at] == _MEMOIZE)
            self._move(text.astype(np.int64))
            self.memoized += text

    def _integers(self) -> Ints:
        code = self._data[self._at]
        is_long = code == _LONG
        size = np.where(is_long, self._data[self._at + 1], _INTEGER_BYTES[code])
        self._good &= (size > 0) & (size <= 8)
        self._move(1 + is_long)
        # Little-endian: the number's bytes go to the top of the word and are shifted back down,
        # which extends the sign.
        shift = (64 - 8 * np.clip(size, 1, 8)).astype(np.uint64)
        high = self._wide[self._at] << shift
        self._move(np.clip(size, 1, 8))
        signed = high.view(np.int64) >> shift.astype(np.int64)
        return np.where((code == _K) | (code == _M), (high >> shift).view(np.int64), signed)

    def _places(self, memo_next: int) -> None:
        """Work out which place of the memo each list of frames takes: it is the last thing that its
        event puts there.
        """
        code = self._data[self._at]
        self.fresh = code == _LIST
        self.memoized += self.fresh
        self.list_places = memo_next + np.cumsum(self.memoized) - 1

    def _frames(self, stacks: Stacks) -> None:
        """Read lists of references to the memo, or a reference to such a list, up to the end of
        each event.

        An event is followed by the next one's start or by a new batch of the list's.
        """
        # APPENDS MARK between two batches of a thousand.
        joined = self._data[self.ends - 1] == _MARK
        self._good &= ~joined | (self._data[self.ends - 2] == _APPENDS)
        last = self.ends - 1 - 2 * joined
        self._good &= self._data[last] == _SET
        several = self._data[np.minimum(self._at + 2, len(self._data) - 1)] == _MARK
        begins, closing = self._at + 2 + several, np.where(several, _APPENDS, _APPEND)
        self._good &= ~self.fresh | (
            (self._data[self._at + 1] == _MEMOIZE) & (self._data[last - 1] == closing)
        )
        # Only lists before the first bad event are looked up: behind it places mean nothing.
        sure = len(self._good) if self._good.all() else int(self._good.argmin())
        own = np.flatnonzero(self.fresh[:sure])
        # The places that the rows refer to, whose reference must end where the event does.
        code = self._data[self._at]
        masks = np.where(code == _H, np.uint64(0xFF), np.uint64(0xFFFFFFFF))
        self.referred = ((self._wide[self._at] >> np.uint64(8)) & masks).astype(np.int64)
        fits = ((code == _H) | (code == _J)) & (self._at + _WIDTHS[code] == last)
        self._good &= self.fresh | fits
        buffer = self._buffer
        ends = (last[own] - 1).tolist()
        self.stacks[own] = [
            stacks[buffer[a:b]] for a, b in zip(begins[own].tolist(), ends, strict=True)
        ]
        self._good &= ~self.fresh | (self.stacks != NO_STACK)


def _wide(buffer: bytes) -> Wide:
    """Return the eight bytes from each byte of the buffer on, as numbers."""
    return np.ndarray((len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))


def _alike(wide: Wide, places: Ints, expected: bytes) -> Mask:
    """Return True if these bytes, at most eight, are at each of the places."""
    mask = np.uint64((1 << 8 * len(expected)) - 1)
    alike: Mask = (wide[places] & mask) == np.uint64(int.from_bytes(expected, "little"))
    return alike


def learn(event: bytes, memo_of: Callable[[int], Any]) -> Shape | None:
    """Return the shape of an event from one of them; None if a key is not a reference yet, or the
    frames do not come last.
    """
    if not event.startswith(BEGIN):
        return None
    keys, names, pairs, at = [], [], set(), len(BEGIN)
    while at < len(event) - 1:
        key = _REFERENCE.match(event, at)
        name = memo_of(int.from_bytes(key[1] or key[2], "little")) if key else None
        if key is None or not isinstance(name, str):
            return None
        keys.append(key[0])
        names.append(name)
        if name == "frames":
            break
        at = _after(event, key.end())
        # Two numbers and what makes a tuple of them.
        if event[at : at + 1] != b"h" and event[at : at + 1] != b"j":
            at = _after(event, at) + 2
            pairs.add(name)
    needed = {"action", "addr", "size", "time_us", "frames"}
    if needed <= {*names} and names[0] == "action":
        return Shape(tuple(keys), tuple(names), frozenset(pairs))
    return None


def _after(event: bytes, at: int) -> int:
    """Return where the token that begins at `at` ends."""
    code = event[at]
    if code == _LONG:
        return at + 2 + event[at + 1]
    if code == _TEXT:
        return at + 2 + event[at + 1] + 1
    return at + max(1, int(_WIDTHS[code]))
