"""Reads the second half of a large plain trace in another process, so that both of a small machine's cores decode.

Where the second half begins is guessed: in the middle of the file, at what looks like the place between two events. The guess is proven before it is
used: the first half is decoded from the start, and only when that leaves nothing undecoded at the guessed place do the second half's rows count.
Otherwise reading goes on in one process.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.json_stream import CHUNK_BYTES, EventStream
from bottleneck_lab.trace.kineto import assemble
from bottleneck_lab.trace.kineto_columns import DTYPES, Columns
from bottleneck_lab.trace.kineto_events import decode
from bottleneck_lab.trace.timeline import Timeline

HEAD_START_BYTES = 32 << 20
"""What the first process has decoded before the other one has started."""

_RUN = "from bottleneck_lab.trace.halves import run_second_half; run_second_half()"
_BETWEEN = b"\n  },\n"


class _Half(msgspec.Struct):
    """What the other process found, besides the arrays. `end` is the offset behind the bracket that closes the events."""

    end: int
    names: list[str]
    threads: list[tuple[str, str]]
    thread_names: list[tuple[str, str, str]]
    malformed: int
    overhead_ns: int


def load_in_halves(path: Path) -> Timeline:
    """As `read_kineto`, for a plain file that is worth it."""
    with path.open("rb") as file, tempfile.TemporaryDirectory(prefix="lab-half-") as folder:
        guess = _guess(file, path.stat().st_size)
        columns = Columns()
        if guess is None:
            stream = EventStream(file.read, path, decode)
        else:
            second = _SecondHalf(path, guess, Path(folder))
            stream = EventStream(second.reader(file, columns), path, decode)
            second.stream = stream
        try:
            for events in stream:
                columns.add(events)
        finally:
            if guess is not None:
                second.stop()
        give_back()
        timeline = assemble(columns, stream.metadata, path, stream.notes)
        give_back()
        return timeline


def give_back() -> None:
    """Hands freed memory back to the system. Without it glibc keeps the holes that millions of short-lived events left: several times what the tables take."""
    with suppress(OSError, AttributeError):  # another C library has no such call
        ctypes.CDLL(None).malloc_trim(0)


def _guess(file: IO[bytes], size: int) -> int | None:
    """The offset behind the first comma between events in the second half; None when the file is not laid out as Kineto does.

    The halves are equal in time: the first is larger by what is decoded while the other process starts.
    """
    middle = (size + min(HEAD_START_BYTES, size // 3)) // 2
    file.seek(middle)
    at = file.read(CHUNK_BYTES).find(_BETWEEN)
    file.seek(0)
    return None if at < 0 else middle + at + len(_BETWEEN)


class _SecondHalf:
    """The other process, and the reader of the first half that hands over to it."""

    def __init__(self, path: Path, guess: int, folder: Path) -> None:
        self._guess = guess
        self._folder = folder
        self.stream: EventStream | None = None
        command = [sys.executable, "-P", "-c", _RUN, str(path), str(guess), str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def reader(self, file: IO[bytes], columns: Columns) -> _Reader:
        return _Reader(self, file, columns)

    def rows(self) -> _Half | None:
        """What was found, when the guess is proven and the other process succeeded."""
        if self.stream is None or not self.stream.between_events or self._process.wait() != 0:
            return None
        return msgspec.msgpack.decode((self._folder / "half.msgpack").read_bytes(), type=_Half)

    def add_to(self, columns: Columns, half: _Half) -> None:
        """The other half's rows, renumbered."""
        names = np.array([columns.names[name] for name in half.names], dtype=np.int32)
        threads = np.array([columns.threads[thread] for thread in half.threads], dtype=np.int32)
        numbers = {"name": names, "thread": threads}
        for table in DTYPES:
            rows = np.load(self._folder / f"{table}.npy")
            for column in set(numbers) & set(rows.dtype.names or ()):
                rows[column] = numbers[column][rows[column]]
            columns.pieces[table].append(rows)
        for process, thread, name in half.thread_names:
            columns.thread_names.setdefault((process, thread), name)
        columns.malformed += half.malformed
        columns.overhead_ns += half.overhead_ns

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class _Reader:
    """Reads up to the guess, then from the end of the events when the second half counts, else just on."""

    def __init__(self, second: _SecondHalf, file: IO[bytes], columns: Columns) -> None:
        self._second = second
        self._file = file
        self._columns = columns
        self._left: int | None = second._guess

    def __call__(self, size: int) -> bytes:
        if self._left is None:
            return self._file.read(size)
        if self._left:
            piece = self._file.read(min(size, self._left))
            self._left -= len(piece)
            return piece
        self._left = None
        half = self._second.rows()
        if half is not None:
            self._second.add_to(self._columns, half)
            self._file.seek(half.end - 1)
        return self._file.read(size)


def write_half(path: Path, start: int, folder: Path) -> None:
    """The other process: decodes from `start` to the end of the events and leaves the rows in `folder`."""
    columns = Columns()
    with path.open("rb") as file:
        file.seek(start)
        stream = EventStream(file.read, path, decode, inside=True)
        for events in stream:
            columns.add(events)
    for table in DTYPES:
        np.save(folder / f"{table}.npy", columns.joined(table))
    half = _Half(
        end=start + stream.used_bytes,
        names=columns.names.order,
        threads=columns.threads.order,
        thread_names=[(process, thread, name) for (process, thread), name in columns.thread_names.items()],
        malformed=columns.malformed,
        overhead_ns=columns.overhead_ns,
    )
    (folder / "half.msgpack").write_bytes(msgspec.msgpack.encode(half))


def run_second_half() -> None:
    """The other process."""
    try:
        write_half(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    except (CaptureError, OSError):
        sys.exit(1)  # the first process reads on by itself, and says what is wrong
