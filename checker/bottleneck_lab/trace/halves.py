"""Reads the second half of a large plain trace in another process, so that both of a small machine's cores decode.

Where the second half begins is guessed: in the middle of the file, at what looks like the place between two events. The guess is proven before it is
used: the first half is decoded from the start, and only when that leaves nothing undecoded at the guessed place do the second half's rows count.
Otherwise reading goes on in one process.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from bottleneck_lab.trace.allocator import give_back
from bottleneck_lab.trace.json_stream import CHUNK_BYTES, EventStream
from bottleneck_lab.trace.kineto import assemble
from bottleneck_lab.trace.kineto_columns import Columns, renumber
from bottleneck_lab.trace.kineto_events import decode
from bottleneck_lab.trace.second_process import SecondProcess, fork, spawn
from bottleneck_lab.trace.timeline import Timeline

HEAD_START_BYTES = 32 << 20
"""What the first process has decoded before a fresh interpreter has started."""

WRITTEN_TOGETHER = 64
"""Pieces of the trace whose rows are written at once: some megabytes."""

_BETWEEN = b"\n  },\n"
_LENGTH_BYTES = 8


class _Half(msgspec.Struct):
    """What the other process found, besides the rows: `pieces` says how many rows of which table follow each other in the shared file.
    `end` is the offset behind the bracket that closes the events."""

    end: int
    pieces: list[tuple[str, int]]
    names: list[str]
    threads: list[tuple[str, str]]
    thread_names: list[tuple[str, str, str]]
    malformed: int
    overhead_ns: int


def load_in_halves(path: Path) -> Timeline:
    """As `read_kineto`, for a plain file that is worth it."""
    with path.open("rb") as file, tempfile.TemporaryFile() as shared:
        columns = Columns()
        half = _start(file, path, shared)
        reader = None if half is None else _Reader(file, columns, shared, *half)
        stream = EventStream(reader or file.read, path, decode)
        try:
            if reader:
                reader.stream = stream
            for events in stream:
                columns.add(events)
        finally:
            if half is not None:
                half[0].kill()
                half[0].wait()
        give_back()
        timeline = assemble(columns, stream.metadata, path, stream.notes)
        give_back()
        return timeline


def _start(file: IO[bytes], path: Path, shared: IO[bytes]) -> tuple[SecondProcess, int] | None:
    """The other process, and where it begins. None when the file is not laid out as Kineto does.

    The halves are equal in time: the first is larger by what is decoded while a fresh interpreter starts.
    """
    size = path.stat().st_size
    for way, head_start in ((fork, 0), (spawn, min(HEAD_START_BYTES, size // 3))):
        start = _between_events(file, (size + head_start) // 2)
        if start is None:
            return None
        if process := way(write_half, shared, str(path), start):
            return process, start
    return None


def _between_events(file: IO[bytes], middle: int) -> int | None:
    """The offset behind the first comma between events from `middle` on, most likely."""
    file.seek(middle)
    at = file.read(CHUNK_BYTES).find(_BETWEEN)
    file.seek(0)
    return None if at < 0 else middle + at + len(_BETWEEN)


class _Reader:
    """Reads up to the guess, then from the end of the events when the second half counts, else just on."""

    stream: EventStream

    def __init__(
        self, file: IO[bytes], columns: Columns, shared: IO[bytes], process: SecondProcess, guess: int
    ) -> None:
        self._file = file
        self._columns = columns
        self._shared = shared
        self._process = process
        self._left: int | None = guess

    def __call__(self, size: int) -> bytes:
        if self._left is None:
            return self._file.read(size)
        if self._left:
            piece = self._file.read(min(size, self._left))
            self._left -= len(piece)
            return piece
        self._left = None
        if self.stream.between_events and self._process.wait() == 0:  # the guess is proven, and the other one succeeded
            self._file.seek(read_half(self._columns, self._shared) - 1)
        return self._file.read(size)


def write_half(shared: IO[bytes], path: str, start: int | str) -> None:
    """The other process: decodes from `start` to the end of the events. Rows are written as they come, so that little memory is needed."""
    columns = Columns()
    pieces: list[tuple[str, int]] = []
    with Path(path).open("rb") as file:
        file.seek(int(start))
        stream = EventStream(file.read, Path(path), decode, inside=True)
        for number, events in enumerate(stream, 1):
            columns.add(events)
            if number % WRITTEN_TOGETHER == 0:
                pieces += _written(columns, shared)
    pieces += _written(columns, shared)
    half = _Half(
        end=int(start) + stream.used_bytes,
        pieces=pieces,
        names=columns.names.order,
        threads=columns.threads.order,
        thread_names=[(process, thread, name) for (process, thread), name in columns.thread_names.items()],
        malformed=columns.malformed,
        overhead_ns=columns.overhead_ns,
    )
    packed = msgspec.msgpack.encode(half)
    shared.write(packed + len(packed).to_bytes(_LENGTH_BYTES, "little"))
    shared.flush()


def _written(columns: Columns, shared: IO[bytes]) -> list[tuple[str, int]]:
    """Writes all rows and gives them up; says how many of which table."""
    pieces = []
    for name, table in columns.tables.items():
        for rows in table.pieces():
            pieces.append((name, len(rows)))
            shared.write(rows.tobytes())
        table.clear()
    return pieces


def read_half(columns: Columns, shared: IO[bytes]) -> int:
    """Adds the rows that the other process found, renumbered; returns where it ended."""
    size = shared.seek(-_LENGTH_BYTES, 2)
    shared.seek(size - int.from_bytes(shared.read(_LENGTH_BYTES), "little"))
    half = msgspec.msgpack.decode(shared.read()[:-_LENGTH_BYTES], type=_Half)
    numbers = {
        "name": np.array([columns.names[name] for name in half.names], dtype=np.int32),
        "thread": np.array([columns.threads[thread] for thread in half.threads], dtype=np.int32),
    }
    shared.seek(0)
    for table, length in half.pieces:
        rows = columns.tables[table].room(length)
        rows[:] = np.frombuffer(shared.read(rows.nbytes), dtype=rows.dtype)
        renumber(rows, numbers)
    for process, thread, name in half.thread_names:
        columns.thread_names.setdefault((process, thread), name)
    columns.malformed += half.malformed
    columns.overhead_ns += half.overhead_ns
    return half.end
