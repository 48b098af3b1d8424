"""The verifier's end of a device that really works: what a judge queues on it, and what it says of that."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

import numpy as np

from bottleneck_lab.errors import BusyMachineError, MachineError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.benchmark import BenchmarkSettings
from bottleneck_lab.measure.kinds.benchmark.device import (
    COMMAND,
    REPORT,
    WORK,
    read_soon,
)

PROGRAM = "bottleneck_lab.measure.kinds.benchmark.device"


class Bench:
    """A device with its queue. The host goes on while it works; `report` returns when all has run."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, replies: int) -> None:
        self._hosts = os.sched_getaffinity(0)
        self.process, self._commands, self._replies = process, commands, replies

    @classmethod
    def start(cls) -> Self:
        """Starts the process. Raises VerifierFault where it does not come up, MachineError on a single core."""
        if len(os.sched_getaffinity(0)) < 2:
            raise MachineError(
                "Host and device need a core each, and this process may use one.", "Use `--device virtual`."
            )
        theirs, commands = os.pipe()
        replies, ours = os.pipe()
        ends = {"--commands": theirs, "--replies": ours}
        command = [sys.executable, "-I", "-m", PROGRAM, *(str(part) for end in ends.items() for part in end)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs, ours])
        os.close(theirs)
        os.close(ours)
        os.set_blocking(replies, False)
        bench = cls(process, commands, replies)
        try:
            bench._part()
            bench._reply(1)
        except BaseException:
            bench.close()
            raise
        return bench

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        os.sched_setaffinity(0, self._hosts)
        os.close(self._commands)
        os.close(self._replies)

    def _part(self) -> None:
        """The device on a core of its own, the host on the others: whoever wakes the device would otherwise run in its place."""
        os.sched_setaffinity(self.process.pid, {max(self._hosts)})
        os.sched_setaffinity(0, beside_the_device())

    def work(self, seconds: float) -> None:
        """Queues a piece of work that is to take so long."""
        self._put(WORK, seconds)

    def report(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Of every piece since the last report: the seconds it was to take, begin and end. Waits for the last."""
        self._put(REPORT)
        (size,) = struct.unpack("<q", self._reply(8))
        return np.frombuffer(self._reply(size), dtype=np.float64).reshape(-1, 3)

    def _put(self, code: int, seconds: float = 0.0) -> None:
        try:
            os.write(self._commands, COMMAND.pack(code, seconds))
        except BrokenPipeError:
            raise self._gone() from None

    def _reply(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more, _ = read_soon(self._replies, size - len(found))
            if not more:
                raise self._gone()
            found += more
        return found

    def _gone(self) -> VerifierFault:
        return VerifierFault(f"The device process ended (status {self.process.wait()}).")


@contextmanager
def judge_settings(context: Context[BenchmarkSettings]) -> Iterator[dict[str, Any]]:
    """What the judge's functions get: on a real device with a `bench` that works."""
    if context.device == "virtual":
        yield context.settings.judge
        return
    with Bench.start() as bench:
        context.janitor.follow(bench.process.pid)
        try:
            yield {**context.settings.judge, "bench": bench}
        finally:
            context.janitor.forget(bench.process.pid)


QUIET, FIRST_LOOK = 0.8, 20
"""Share of the trials, at least, during which this machine has to keep still, and after how many of them this is looked at."""


class Disturbed(Protocol):
    """Something that was measured on this machine. `disturbed`: what kept it from taking its time; empty for nothing."""

    disturbed: str


def is_restless(measured: Sequence[Disturbed]) -> bool:
    """Whether it is plain that this machine does not keep still."""
    return len(measured) >= FIRST_LOOK and _restless(measured)


def require_quiet(measured: Sequence[Disturbed], what: str) -> None:
    """Raises BusyMachineError where this machine did not keep still for enough of them. `what` they are, in the plural."""
    if _restless(measured):
        shaken = [one for one in measured if one.disturbed]
        raise BusyMachineError(
            f"This machine did not keep still for {len(shaken)} of {len(measured)} {what}: in one of them {shaken[0].disturbed}.",
            "Close what else is running; the emulated machines (`--device virtual`) mind none of it.",
        )


def _restless(measured: Sequence[Disturbed]) -> bool:
    return sum(bool(one.disturbed) for one in measured) > (1 - QUIET) * len(measured)


def beside_the_device() -> set[int]:
    """The cores that a device leaves to its host: all that this process may use but the last."""
    mine = os.sched_getaffinity(0)
    return mine - {max(mine)}


def stretches(report: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """How many times as long as it was to take each piece took."""
    return [float(stretch) for stretch in (report[:, 2] - report[:, 1]) / report[:, 0]]


def disturbance(report: np.ndarray[Any, np.dtype[np.float64]], steady: float, share: float) -> str:
    """What was seen where more than `share` of the pieces took longer than they were to by more than `steady`; empty where they kept to it."""
    took = sorted(stretches(report))
    most = took[math.ceil((1 - share) * len(took)) - 1] - 1 if took else 0.0
    return f"{share:.0%} of the work took at least {most:.1%} longer than it was to take" if most > steady else ""
