"""Reads the pickle of a memory snapshot as data: the opcodes that describe plain values, and no
other.

A pickle is a program for a stack machine, and its opcodes for classes and calls can run anything.
This machine does not have them: it knows dictionaries, lists, tuples, numbers and text, and of
those only the shapes that a snapshot has. An event becomes a row of columns as soon as it is
complete, so that memory stays a fraction of the file's size. Nearly all events are read by the
thousand (snapshot_batches.py); what that does not understand comes here.

Why it stands: `pickle.load` would execute the file, and builds every object. 983 MB are read and
summed up in 7.6 s and 635 MiB (benchmarks/memory_snapshots.py, docs/measured/README.md).

Opcodes as in Lib/pickletools.py of CPython, protocols 2 to 5.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from bottleneck_lab.trace.fast.snapshot_batches import Batches, Stacks
from bottleneck_lab.trace.snapshot import (
    ACTIONS,
    NO_STACK,
    Action,
    AllocatorEvents,
    Annotation,
    Block,
    Frame,
    Segment,
    Snapshot,
)

CHUNK_BYTES = 8 << 20

# So much is in the buffer ahead of any opcode: more than a snapshot's event takes.
AHEAD_BYTES = 1 << 16
TEXT_LIMIT_BYTES = 1 << 20
DEPTH_LIMIT = 1 << 16

# Objects that later ones may refer to. A snapshot has one for each of its lines, blocks and
# texts.
MEMO_LIMIT = 8_000_000

# References up to the end of their list, where that is not only the end of a batch.
LINES = re.compile(rb"((?:h.|j.{4})++)e(?!\()", re.DOTALL)

_FRAME, _MARK, _STOP = 0x95, 0x28, 0x2E
_PLACE = struct.Struct("<I")


class UnusualPickleError(Exception):
    """The file says something that no memory snapshot says; a clause for the reader."""


class Unframed:
    """The file's opcodes, without the headers that protocol 4 puts before every 64 kB of them."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._held = b""
        self._left = 0
        self._as_it_is = False

    def more(self) -> bytes:
        """Return the next piece; empty at the end of the file. From the first opcode that stands
        outside a frame on, headers are left in.
        """
        while data := self._read(CHUNK_BYTES):
            data, self._held = self._held + data, b""
            if piece := b"".join(self._parts(data)):
                return piece
        return b""

    def _parts(self, data: bytes) -> list[memoryview]:
        parts, at, view = [], 0, memoryview(data)
        while at < len(data):
            if not self._left and not self._as_it_is:
                if data[at] != _FRAME:
                    self._as_it_is = True
                elif len(data) - at < 9:
                    self._held = data[at:]
                    break
                else:
                    self._left = int.from_bytes(data[at + 1 : at + 9], "little")
                    at += 9
                    continue
            size = len(data) - at if self._as_it_is else min(self._left, len(data) - at)
            parts.append(view[at : at + size])
            self._left -= 0 if self._as_it_is else size
            at += size
        return parts


class _Dict(dict[Any, Any]):
    """A dictionary being filled, and its place in the memo."""

    slot: int | None = None
    begin: int = -1


class _List:
    """A list being filled; `first_row` is the row that its first event will be."""

    __slots__ = ("first_row", "items", "slot", "stack")

    def __init__(self, first_row: int) -> None:
        self.items: list[Any] = []
        self.first_row = first_row
        self.slot: int | None = None
        self.stack = NO_STACK


class _Line(int):
    """A frame, by its number."""


class _Stack(int):
    """A list of frames, by the stack's number."""


# Stands for an event whose row has been taken.
_EVENT = object()


class SnapshotReader:
    """One reading of one file. `read(n)` returns up to n bytes, and none at the end."""

    def __init__(self, read: Callable[[int], bytes], source: str) -> None:
        self._source = source
        self._unframed = Unframed(read)
        self._read = read
        self._buffer, self._at, self._refill_at = b"", 0, 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._memo_next = 0
        self._texts: dict[str, str] = {}
        self._frames: dict[Frame, _Line] = {}
        self._stacks = Stacks(self._line_at)
        self._batches = Batches(self._stacks)
        self._operations = self._table()

    def read(self) -> Snapshot:
        """Return the snapshot. Raises UnusualPickleError."""
        start = self._read(2)
        # PROTO and its number.
        if start[:1] != b"\x80" or len(start) < 2 or not 2 <= start[1] <= 5:
            raise UnusualPickleError("it is not a pickle of protocol 2 to 5")
        try:
            return self._snapshot(self._run())
        except (IndexError, struct.error):
            raise UnusualPickleError("it is damaged or ends early") from None
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise UnusualPickleError(f"its values are not a snapshot's ({error})") from None

    def _run(self) -> Any:
        operations = self._operations
        while True:
            if self._at >= self._refill_at:
                self._refill()
            code = self._buffer[self._at]
            # A dictionary begins inside a list: where one event follows another, as many as the
            # batches understand are taken at once.
            if (
                code == ord("}")
                and self._batches.ready
                and self._marks
                and isinstance(self._stack[self._marks[-1] - 1], _List)
            ):
                taken = self._batches.take(self._buffer, self._at, self._memo_next, self._memo_of)
                if taken:
                    self._at, self._memo_next = taken
                    continue
            self._at += 1
            if code == _STOP:
                return self._stack.pop()
            operation = operations.get(code)
            if operation is None:
                raise UnusualPickleError(
                    f"it asks for opcode {bytes((code,))!r}, which no snapshot needs"
                )
            operation()

    def _refill(self) -> None:
        piece = self._unframed.more()
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
        # Near the end of the buffer more is read, so that no opcode needs to look whether its
        # bytes are there.
        self._refill_at = len(self._buffer) - AHEAD_BYTES if piece else len(self._buffer)
        # Events that began in what has gone from the buffer cannot be learnt from.
        for item in self._stack:
            if isinstance(item, _Dict):
                item.begin = -1

    def _take(self, size: int) -> bytes:
        data = self._buffer[self._at : self._at + size]
        while len(data) < size:
            before = len(self._buffer) - self._at
            self._refill()
            if len(self._buffer) - self._at == before:
                raise UnusualPickleError("it ends early")
            data = self._buffer[self._at : self._at + size]
        self._at += size
        return data

    # what opcodes do

    def _table(self) -> dict[int, Callable[[], object]]:
        """Return what to do for each opcode that the pickler uses for a snapshot, by the opcodes of
        Python's `pickletools`. Any other could run code, and is refused.
        """
        stack, push = self._stack, self._push
        values = {ord("N"): None, 0x88: True, 0x89: False}
        numbers = {
            code: struct.Struct(form)
            for code, form in (("K", "<B"), ("M", "<H"), ("J", "<i"), ("G", ">d"))
        }
        table: dict[int, Callable[[], object]] = {
            _FRAME: lambda: self._take(8),  # the frame's size, which nothing here needs
            _MARK: self._mark,
            ord("}"): self._new_dict,
            ord("]"): lambda: push(_List(self._batches.rows)),
            ord(")"): lambda: push(()),
            0x85: lambda: push(self._tuple(1)),
            0x86: lambda: push(self._tuple(2)),
            0x87: lambda: push(self._tuple(3)),
            ord("t"): lambda: push(tuple(self._since_mark())),
            ord("u"): lambda: self._set_items(self._since_mark()),
            ord("s"): lambda: self._set_items([stack.pop(-2), stack.pop()]),
            ord("e"): lambda: self._append(self._since_mark()),
            ord("a"): lambda: self._append([stack.pop()]),
            0x94: lambda: self._put(self._memo_next),
            ord("q"): lambda: self._put(self._take(1)[0]),
            ord("r"): lambda: self._put(self._number(_PLACE)),
            ord("h"): lambda: push(self._memo_of(self._take(1)[0])),
            ord("j"): lambda: push(self._memo_of(self._number(_PLACE))),
            0x8A: lambda: push(
                int.from_bytes(self._take(self._size(self._take(1)[0], 9)), "little", signed=True)
            ),
            0x8C: lambda: push(self._text(self._take(1)[0])),
            ord("X"): lambda: push(self._text(self._number(_PLACE))),
        }
        table |= {code: partial(push, value) for code, value in values.items()}
        table |= {ord(code): partial(self._push_number, form) for code, form in numbers.items()}
        return table

    def _push(self, value: Any) -> None:
        if len(self._stack) >= DEPTH_LIMIT:
            raise UnusualPickleError(f"it puts more than {DEPTH_LIMIT:,} values on the stack")
        self._stack.append(value)

    def _mark(self) -> None:
        if len(self._marks) >= 64:
            raise UnusualPickleError("it nests deeper than a snapshot does")
        top = self._stack[-1] if self._stack else None
        if (
            isinstance(top, _List)
            and not top.items
            and (run := LINES.match(self._buffer, self._at))
        ):
            # A list of frames that were all seen before: one run of references spells it whole.
            top.stack = self._stacks[run[1]]
            if top.stack != NO_STACK:
                self._at = run.end()
                return
        self._marks.append(len(self._stack))

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    def _push_number(self, form: struct.Struct) -> None:
        self._push(self._number(form))

    def _size(self, size: int, limit: int) -> int:
        if size > limit:
            raise UnusualPickleError(
                f"it holds a value of {size:,} bytes, where a snapshot's have at most {limit:,}"
            )
        return size

    def _text(self, size: int) -> str:
        text = self._take(self._size(size, TEXT_LIMIT_BYTES)).decode("utf-8", "replace")
        return self._texts.setdefault(text, text)

    def _tuple(self, size: int) -> tuple[Any, ...]:
        items = tuple(self._stack[-size:])
        if len(items) != size:
            raise UnusualPickleError("it ends early")
        del self._stack[-size:]
        return items

    def _new_dict(self) -> None:
        made = _Dict()
        made.begin = self._at - 1
        self._push(made)

    def _put(self, slot: int) -> None:
        top = self._stack[-1]
        if len(self._memo) >= MEMO_LIMIT:
            raise UnusualPickleError(f"it keeps more than {MEMO_LIMIT:,} values to refer to")
        self._memo[slot] = top
        self._memo_next = max(self._memo_next, slot + 1)
        if isinstance(top, (_Dict, _List)):
            top.slot = slot

    def _memo_of(self, slot: int) -> Any:
        """Return the value kept at `slot`; None for one that no snapshot refers to again, and was
        let go.
        """
        value = self._memo.get(slot)
        if value is None and (kept := self._batches.list_at(slot)) is not None:
            return _Stack(kept)
        return value

    def _line_at(self, slot: int) -> int | None:
        line = self._memo.get(slot)
        if isinstance(line, _Line):
            return int(line)
        return None

    # what the values are

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, _List):
            raise UnusualPickleError("it appends to something else than a list")
        target.items += [item for item in items if item is not _EVENT]

    def _set_items(self, items: list[Any]) -> None:
        made = self._stack[-1]
        if not isinstance(made, _Dict):
            raise UnusualPickleError("it sets items of something else than a dictionary")
        made.update(zip(items[::2], items[1::2], strict=True))
        self._stack[-1] = value = self._understood(made)
        if value is not made and made.slot is not None:
            if value is _EVENT:
                self._memo.pop(made.slot, None)
            else:
                self._memo[made.slot] = value

    def _understood(self, made: _Dict) -> Any:
        if "action" in made:
            # An event whose bytes are still in the buffer can teach the batches its shape.
            if made.begin >= 0 and made.slot is not None:
                self._batches.learn(self._buffer[made.begin : self._at], self._memo_of)
            self._batches.add(
                ACTIONS.get(made["action"], Action.OTHER),
                int(made.get("time_us", 0)),
                int(made.get("addr", made.get("device_free", 0))),
                int(made.get("size", 0)),
                self._stack_of(made.get("frames")),
            )
            return _EVENT
        if "filename" in made:
            frame = Frame(
                str(made["filename"]), int(made.get("line") or 0), str(made.get("name", ""))
            )
            return self._frames.setdefault(frame, _Line(len(self._frames)))
        if "state" in made:
            active = str(made["state"]).startswith("active")
            size = int(made["size"])
            requested = int(made.get("requested_size", size))
            return Block(
                int(made.get("address", 0)),
                size,
                requested,
                active,
                self._stack_of(made.get("frames")),
            )
        if "blocks" in made:
            # The event that asked for the segment refers to the same list.
            self._stack_of(made.get("frames"))
            blocks = [block for block in made["blocks"].items if isinstance(block, Block)]
            return Segment(int(made.get("device", 0)), int(made["total_size"]), tuple(blocks))
        if "stage" in made:
            begins = made["stage"] == "START"
            return Annotation(
                int(made.get("device", 0)), int(made["time_us"]), str(made.get("name", "")), begins
            )
        return made

    def _stack_of(self, frames: Any) -> int:
        """Return the number of a list of lines; NO_STACK where none were recorded."""
        if isinstance(frames, _Stack):
            return int(frames)
        if not isinstance(frames, _List):
            return NO_STACK
        number = frames.stack
        if frames.items:
            if any(not isinstance(line, _Line) for line in frames.items):
                raise UnusualPickleError("a stack holds something else than lines")
            number = self._stacks.number(tuple(int(line) for line in frames.items))
        if frames.slot is not None and number != NO_STACK:
            self._memo[frames.slot] = _Stack(number)
        return number

    def _snapshot(self, result: Any) -> Snapshot:
        if (
            not isinstance(result, _Dict)
            or "segments" not in result
            or "device_traces" not in result
        ):
            raise UnusualPickleError("it has no segments and traces")
        traces, segments = result["device_traces"].items, result["segments"].items
        annotations = getattr(result.get("external_annotations"), "items", [])
        columns = self._batches.columns()
        begins = [trace.first_row for trace in traces]
        events = {
            device: AllocatorEvents(*(column[begin:end] for column in columns))
            for device, (begin, end) in enumerate(
                zip(begins, [*begins[1:], self._batches.rows], strict=True)
            )
            if end > begin
        }
        settings = result.get("allocator_settings")
        return Snapshot(
            source=self._source,
            frames=tuple(self._frames),
            stacks=self._stacks.all(),
            segments=tuple(segment for segment in segments if isinstance(segment, Segment)),
            events=events,
            annotations=tuple(note for note in annotations if isinstance(note, Annotation)),
            settings=(
                {str(k): str(v) for k, v in settings.items()} if isinstance(settings, _Dict) else {}
            ),
        )
