"""Reads the second half of a large plain trace in another process, so that both cores of a small
machine decode.

Where the second half begins is guessed: in the middle of the file, at what looks like the place
between two events. The guess is proven before it is used: the first half is decoded from the start,
and only when that leaves nothing undecoded at the guessed place do the second half's rows count.
Otherwise reading goes on in one process.

Why it stands: 104 MB take 0.75–0.88 of the time (40 alternating pairs;
benchmarks/trace_analysis.py, docs/measured/trace_analysis.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.fast.allocator import give_back, keep_small
from bottleneck_lab.trace.fast.json_stream import CHUNK_BYTES, EventStream
from bottleneck_lab.trace.fast.second_reader import SecondReader, hand_over
from bottleneck_lab.trace.kineto.columns import Columns
from bottleneck_lab.trace.kineto.events import decode
from bottleneck_lab.trace.kineto.halves import Halves
from bottleneck_lab.trace.kineto.reader import First, Second, assemble
from bottleneck_lab.trace.timeline import Timeline, narrowed

# What the first process has decoded before a fresh interpreter has started.
HEAD_START_BYTES = 32 << 20

# Pieces of the trace whose rows are written at once: some megabytes.
WRITTEN_TOGETHER = 64

_BETWEEN = b"\n  },\n"


@dataclass
class _Piece:
    """Rows read since the last piece, by table, and the names and threads first numbered in them.

    The other fields are totals so far; in the last piece `offset` is behind the bracket that closes
    the events.
    """

    rows: list[tuple[str, NDArray[Any]]]
    names: list[str]
    threads: list[tuple[str, str]]
    thread_names: dict[tuple[str, str], str]
    malformed: int
    halves: Halves
    overhead_ns: int
    offset: int


def load_in_parallel(path: Path, *, with_nodes: bool = True) -> Timeline:
    """Read a plain Kineto trace as `read_kineto` does, in two processes. For files of
    `load.WORTHWHILE_BYTES` or more. Autograd's nodes may be left out, to take less time.
    """
    keep_small()
    columns = Columns(with_nodes=with_nodes)
    with path.open("rb") as file, SecondReader() as second:
        guess = _start(second, file, path, with_nodes=with_nodes)
        reader = None if guess is None else _Reader(file, columns, second, guess)
        stream = EventStream(reader or file.read, path, decode)
        if reader:
            reader.stream = stream
        for events in stream:
            columns.add(events)
    give_back()
    timeline = assemble(columns, stream.metadata, path, stream.notes, _by_threads)
    give_back()
    return timeline


def _by_threads(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """Return the results of two functions, worked out at once by two threads: to copy and to sort
    columns, NumPy lets go of the interpreter's lock. No thread is left.
    """
    with ThreadPoolExecutor(1) as thread:
        of_second = thread.submit(second)
        return first(), of_second.result()


def _start(second: SecondReader, file: IO[bytes], path: Path, *, with_nodes: bool) -> int | None:
    """Start the other process; where it begins. None when there is no such process, or the file is
    not laid out as Kineto does.

    The halves are equal in time: the first is larger by what is decoded while a fresh interpreter
    starts.
    """
    size = path.stat().st_size
    for start, head_start in ((second.fork, 0), (second.spawn, min(HEAD_START_BYTES, size // 3))):
        # The offset behind the first comma between events from `middle` on, most likely.
        middle = (size + head_start) // 2
        file.seek(middle)
        at = file.read(CHUNK_BYTES).find(_BETWEEN)
        file.seek(0)
        guess = None if at < 0 else middle + at + len(_BETWEEN)
        if guess is None or start(write_half, str(path), guess, int(with_nodes)):
            return guess
    return None


class _Reader:
    """Reads up to the guess, then from the end of the events when the second half counts, else just
    on.
    """

    stream: EventStream

    def __init__(self, file: IO[bytes], columns: Columns, second: SecondReader, guess: int) -> None:
        self._file = file
        self._columns = columns
        self._second = second
        self._left: int | None = guess

    def __call__(self, size: int) -> bytes:
        if self._left is None:
            return self._file.read(size)
        if self._left:
            piece = self._file.read(min(size, self._left))
            self._left -= len(piece)
            return piece
        self._left = None
        proven = self.stream.between_events
        if proven and (pieces := self._second.handed_over()) is not None:
            self._file.seek(add_second_half(self._columns, pieces) - 1)
        return self._file.read(size)


def write_half(shared: IO[bytes], path: str, start: int | str, with_nodes: int | str) -> None:
    """Decode from `start` to the end of the events, in the other process.

    Rows are handed over as they come, so that little memory is needed.
    """
    columns = Columns(with_nodes=bool(int(with_nodes)))
    tables = columns.tables.items()
    numbered = (0, 0)
    with Path(path).open("rb") as file:
        file.seek(int(start))
        stream = EventStream(file.read, Path(path), decode, inside=True)
        for number, events in enumerate(stream, 1):
            columns.add(events)
            if number % WRITTEN_TOGETHER == 0:
                rows = [(name, block) for name, table in tables for block, _ in table.full()]
                offset = int(start) + stream.used_bytes
                numbered = _hand_over(shared, columns, rows, numbered, offset)
    if stream.skipped:
        # What was left out is told by one process only: the first one reads on alone.
        raise CaptureError(f"{path} holds events that are not JSON.", "")
    rows = [(name, block) for name, table in tables for block, _ in table.blocks()]
    _hand_over(shared, columns, rows, numbered, int(start) + stream.used_bytes)
    shared.flush()


def _hand_over(
    shared: IO[bytes],
    columns: Columns,
    rows: list[tuple[str, NDArray[Any]]],
    numbered: tuple[int, int],
    offset: int,
) -> tuple[int, int]:
    """Hand over some rows. `numbered`: how many names and threads were handed over already; returns
    how many now are.
    """
    piece = _Piece(
        rows=rows,
        names=columns.names.order[numbered[0] :],
        threads=columns.threads.order[numbered[1] :],
        thread_names=columns.thread_names,
        malformed=columns.malformed,
        halves=columns.halves,
        overhead_ns=columns.overhead_ns,
        offset=offset,
    )
    hand_over(shared, piece)
    return len(columns.names.order), len(columns.threads.order)


def add_second_half(columns: Columns, pieces: Iterator[_Piece]) -> int:
    """Add the rows that the other process found, renumbered; returns the offset at which it
    ended.
    """
    names: list[int] = []
    threads: list[int] = []
    for piece in pieces:
        names += [columns.names[name] for name in piece.names]
        threads += [columns.threads[thread] for thread in piece.threads]
        numbered = narrowed(np.array(names, dtype=np.int32))
        numbers = {
            "name": numbered,
            "shapes": numbered,
            "thread": narrowed(np.array(threads, dtype=np.int32)),
        }
        for table, rows in piece.rows:
            columns.tables[table].append((rows, numbers))
    for thread, name in piece.thread_names.items():
        columns.thread_names.setdefault(thread, name)
    columns.malformed += piece.malformed
    columns.add([*columns.halves.follow(piece.halves)])
    columns.overhead_ns += piece.overhead_ns
    return piece.offset
