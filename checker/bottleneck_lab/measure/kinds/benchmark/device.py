"""A device that does real work: a process owned by the verifier, `python -I -m …benchmark.device`,
that carries out commands from a pipe in order.

A piece of work keeps a core or a GPU busy for a given time, not for a given amount of computing:
how fast hardware computes changes from moment to moment, on shared machines by half and more. The
process notes when each piece began and ended.
"""

from __future__ import annotations

import argparse
import os
import select
import struct
import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np

COMMAND = struct.Struct("<qd")
"""What to do, and seconds."""
WORK, REPORT = range(2)
READY, FAILED = b"!", b"?"
"""The first byte of a reply: the device is up, or all of its work has run; or it cannot work, and
the reason follows.
"""
SPIN_S = 2e-2
"""How long this process polls for the next command before it sleeps: waking up takes longer than a
short piece of work.
"""
HELD_S = 5e-5
"""A piece of work that starts at most this late still ends on time. One that starts later was held
up, and ends late.
"""
Note = tuple[float, float, float]
"""Of a piece of work: the seconds it should take, then its begin and its end in seconds of
time.perf_counter.
"""


class Works(Protocol):
    """What does the work: a Core, or a Gpu (gpu.py)."""

    def work(self, seconds: float, waited: bool) -> None:
        """Takes on one piece of work. `waited`: whether this process had run out of commands."""

    def wait(self) -> None:
        """Returns when all work has run."""

    def take_notes(self) -> list[Note]:
        """The notes since the last call, once all work has run."""


class Core:
    """One core of this machine, which works while `work` runs."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._a, self._out = np.random.default_rng(0).random(300), np.empty(300)
        self._due = 0.0

    def work(self, seconds: float, waited: bool) -> None:
        """Works for that long. A piece that was already queued begins when the one before it was
        due to end, so fetching it costs nothing.
        """
        begin = now = time.perf_counter()
        if not waited and now < self._due + HELD_S:
            begin = self._due
        self._due = begin + seconds
        while now < self._due:
            np.sqrt(self._a, out=self._out)
            now = time.perf_counter()
        self._notes.append((seconds, begin, now))

    def wait(self) -> None:
        """All of it has run."""

    def take_notes(self) -> list[Note]:
        """The notes since the last call."""
        notes, self._notes = self._notes, []
        return notes


def serve(commands: int, replies: int, works: Works) -> None:
    """Carries out the commands from the pipe until its other end is closed."""
    for code, seconds, waited in read(commands):
        if code == WORK:
            works.work(seconds, waited)
        elif code == REPORT:
            works.wait()
            os.write(replies, READY)  # at once: writing the notes down is no part of the wait
            _send(replies, np.array(works.take_notes(), dtype=np.float64).tobytes())


def read(commands: int) -> Iterator[tuple[int, float, bool]]:
    """The commands in order, each with whether it had to be waited for.

    Takes everything in the pipe at once: nothing is read between two commands that came together.
    """
    rest = b""
    while True:
        more, waited = read_soon(commands, 1 << 16)
        if not more:
            return
        whole, rest = (rest + more), b""
        odd = len(whole) % COMMAND.size
        if odd:
            whole, rest = whole[:-odd], whole[-odd:]
        for code, seconds in COMMAND.iter_unpack(whole):
            yield code, seconds, waited
            waited = False


def read_soon(pipe: int, size: int) -> tuple[bytes, bool]:
    """The next bytes from a non-blocking pipe, polled at first, and whether they had to be waited
    for.
    """
    until, waited = time.perf_counter() + SPIN_S, False
    while True:
        try:
            return os.read(pipe, size), waited
        except BlockingIOError:
            waited = True
            if time.perf_counter() > until:
                select.select([pipe], [], [])


def _send(replies: int, payload: bytes) -> None:
    data = struct.pack("<q", len(payload)) + payload
    while data:
        data = data[os.write(replies, data) :]


def _start(device: str) -> Works:
    if device == "cpu":
        return Core()
    from bottleneck_lab.measure.kinds.benchmark.gpu import open_gpu

    return open_gpu()


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser()
    for name in ("--commands", "--replies"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    options = parser.parse_args()
    os.set_blocking(options.commands, False)
    try:
        works = _start(options.device)
    except Exception as error:  # whatever keeps it from working, the verifier tells it
        os.write(options.replies, FAILED)
        _send(options.replies, f"{type(error).__name__}: {error}".encode())
        return
    os.write(options.replies, READY)
    serve(options.commands, options.replies, works)


if __name__ == "__main__":
    main()
