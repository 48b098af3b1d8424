"""A device that really works: a process of the verifier's own, `python -I -m …benchmark.device`, which does what comes down a pipe, in order.

A piece of work keeps a core busy for a time that is given. How fast a core computes changes by the moment, on shared machines by half and more; how long
it is kept busy does not. It notes when each piece began and ended.
"""

from __future__ import annotations

import argparse
import os
import select
import struct
import time
from collections.abc import Iterator

import numpy as np

COMMAND = struct.Struct("<qd")
"""What to do, and seconds."""
WORK, REPORT = range(2)
SPIN_S = 2e-2
"""How long the next piece of work is looked out for before this process sleeps: to be woken takes longer than a short piece of work."""
HELD_S = 5e-5
"""By how much work may be late and still end when it was to end. What is later was kept from working, and stays late."""


class Core:
    """What does the work: one core of this machine. `notes`: of each piece of work the seconds it was to take, its begin and its end."""

    def __init__(self) -> None:
        self.notes: list[tuple[float, float, float]] = []
        self._a, self._out = np.random.default_rng(0).random(300), np.empty(300)
        self._due = 0.0

    def work(self, seconds: float, waited: bool) -> None:
        """One piece of work. Where nobody waited for it, it begins when the one before was to end, so that taking it up costs nothing."""
        begin = now = time.perf_counter()
        if not waited and now < self._due + HELD_S:
            begin = self._due
        self._due = begin + seconds
        while now < self._due:
            np.sqrt(self._a, out=self._out)
            now = time.perf_counter()
        self.notes.append((seconds, begin, now))


def serve(commands: int, replies: int, core: Core) -> None:
    """Does what comes down the pipe until its other end is closed."""
    for code, seconds, waited in read(commands):
        if code == WORK:
            core.work(seconds, waited)
        elif code == REPORT:
            _send(replies, np.array(core.notes, dtype=np.float64).tobytes())
            core.notes.clear()


def read(commands: int) -> Iterator[tuple[int, float, bool]]:
    """Commands in order, and of each whether it had to be waited for.

    All that lies in the pipe is taken at once: nothing is read between two that came together.
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
    """What comes next down a pipe that does not block, asked for again and again at first; and whether nothing had been there."""
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


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser()
    for name in ("--commands", "--replies"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    os.set_blocking(options.commands, False)
    os.write(options.replies, b"!")
    serve(options.commands, options.replies, Core())


if __name__ == "__main__":
    main()
