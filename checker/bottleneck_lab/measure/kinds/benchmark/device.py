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

import numpy as np

from bottleneck_lab.measure.kinds.benchmark.works import Core, Works

COMMAND = struct.Struct("<qd")
"""A code, WORK or REPORT, and the seconds of a piece of work."""
WORK, REPORT = range(2)
READY, FAILED = b"!", b"?"
"""The first byte of a reply: the device is up, or all of its work has run; or it cannot work, and
the reason follows.
"""
SPIN_S = 2e-2
"""How long this process polls for the next command before it sleeps: waking up takes longer than a
short piece of work.
"""


def serve(commands: int, replies: int, works: Works) -> None:
    """Carry out the commands from the pipe until its other end is closed."""
    for code, seconds, waited in read(commands):
        if code == WORK:
            works.work(seconds, waited)
        elif code == REPORT:
            works.wait()
            os.write(replies, READY)  # at once: writing the notes down is no part of the wait
            _send(replies, np.array(works.take_notes(), dtype=np.float64).tobytes())


def read(commands: int) -> Iterator[tuple[int, float, bool]]:
    """Yield the code and seconds of each command in order, and True where it had to be waited for.

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
    """Read the next bytes from a non-blocking pipe, polled at first. Returns them, empty at its
    end, and True if they had to be waited for.
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
    # A pipe takes 64 KiB at a time.
    data = struct.pack("<q", len(payload)) + payload
    while data:
        data = data[os.write(replies, data) :]


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser()
    for name in ("--commands", "--replies"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    options = parser.parse_args()
    os.set_blocking(options.commands, False)
    try:
        if options.device == "cpu":
            works: Works = Core()
        else:
            from bottleneck_lab.measure.kinds.benchmark.gpu import open_gpu

            works = open_gpu()
    except Exception as error:  # whatever keeps it from working, the verifier tells it
        os.write(options.replies, FAILED)
        _send(options.replies, f"{type(error).__name__}: {error}".encode())
        return
    os.write(options.replies, READY)
    serve(options.commands, options.replies, works)


if __name__ == "__main__":
    main()
