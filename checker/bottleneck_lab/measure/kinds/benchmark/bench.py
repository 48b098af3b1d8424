"""The verifier's end of a device that does real work: what a judge queues on it, and what the
device reports.
"""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

import numpy as np

from bottleneck_lab.catalog import Device
from bottleneck_lab.errors import BusyMachineError, MachineError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.benchmark import BenchmarkSettings
from bottleneck_lab.measure.kinds.benchmark.device import (
    COMMAND,
    FAILED,
    REPORT,
    WORK,
    read_soon,
)

PROGRAM = "bottleneck_lab.measure.kinds.benchmark.device"


class Bench:
    """A device with its queue, `cpu` or `cuda`. The host goes on while it works; `report` returns
    when everything has run.

    `done_s`: when the host learned that, seconds of time.perf_counter.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], commands: int, replies: int, device: Device
    ) -> None:
        self._hosts = os.sched_getaffinity(0)
        self.process, self._commands, self._replies = process, commands, replies
        self.device, self.done_s = device, time.perf_counter()

    @classmethod
    def start(cls, device: Device = "cpu") -> Self:
        """Start the process. Raises MachineError on a single core or where the device cannot work,
        VerifierFault where the process ends.
        """
        if len(os.sched_getaffinity(0)) < 2:
            raise MachineError(
                "Host and device need one core each, and this process may use only one.",
                "Use `--device virtual`.",
            )
        theirs, commands = os.pipe()
        replies, ours = os.pipe()
        options = ["--commands", str(theirs), "--replies", str(ours), "--device", device]
        command = [sys.executable, "-I", "-m", PROGRAM, *options]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs, ours])
        os.close(theirs)
        os.close(ours)
        os.set_blocking(replies, False)
        bench = cls(process, commands, replies, device)
        try:
            # The device gets a core to itself and the host the others: a host that wakes the device
            # would otherwise give up its own core.
            os.sched_setaffinity(process.pid, {max(bench._hosts)})
            os.sched_setaffinity(0, beside_the_device())
            bench._require_ready()
        except BaseException:
            bench.close()
            raise
        return bench

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and give the host its cores back."""
        self.process.kill()
        self.process.wait()
        os.sched_setaffinity(0, self._hosts)
        os.close(self._commands)
        os.close(self._replies)

    def _require_ready(self) -> None:
        if self._reply(1) == FAILED:
            reason = self._message().decode(errors="replace")
            raise MachineError(
                f"The `{self.device}` device cannot be used for timed work: {reason}.",
                "`lab doctor` shows what is missing; `--device virtual` needs no such device.",
            )

    def work(self, seconds: float) -> None:
        """Queue a piece of work that should take this long."""
        self._put(WORK, seconds)

    def report(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Wait for the last piece. Returns one row for each piece since the last report: the
        seconds it should take, its begin, its end, as time.perf_counter has them.
        """
        self._put(REPORT)
        self._reply(1)
        self.done_s = time.perf_counter()
        return np.frombuffer(self._message(), dtype=np.float64).reshape(-1, 3)

    def _put(self, code: int, seconds: float = 0.0) -> None:
        try:
            os.write(self._commands, COMMAND.pack(code, seconds))
        except BrokenPipeError:
            raise self._gone() from None

    def _message(self) -> bytes:
        (size,) = struct.unpack("<q", self._reply(8))
        return self._reply(size)

    def _reply(self, size: int) -> bytes:
        reply = b""
        while len(reply) < size:
            more, _ = read_soon(self._replies, size - len(reply))
            if not more:
                raise self._gone()
            reply += more
        return reply

    def _gone(self) -> VerifierFault:
        return VerifierFault(f"The device process ended (status {self.process.wait()}).")


@contextmanager
def judge_settings(context: Context[BenchmarkSettings]) -> Iterator[dict[str, Any]]:
    """Yield the `settings` of the judge's functions; on a real device, with a `bench`."""
    if context.device == "virtual":
        yield context.settings.judge
        return
    with Bench.start(context.device) as bench:
        context.janitor.follow(bench.process.pid)
        try:
            yield {**context.settings.judge, "bench": bench}
        finally:
            context.janitor.forget(bench.process.pid)


QUIET, FIRST_LOOK = 0.8, 20
"""The share of trials that this machine must leave undisturbed, and the number of trials after
which that is first looked at.
"""


class Disturbed(Protocol):
    """Something measured on this machine. `disturbed` says what kept work from taking the time it
    should; empty if nothing did.
    """

    disturbed: str


def is_restless(measured: Sequence[Disturbed]) -> bool:
    """Return True once this machine has clearly disturbed too many trials."""
    return len(measured) >= FIRST_LOOK and _restless(measured)


def require_quiet(measured: Sequence[Disturbed], what: str) -> None:
    """Raise BusyMachineError where this machine disturbed too many trials. `what` names them, in
    the plural.
    """
    if _restless(measured):
        disturbed = [one for one in measured if one.disturbed]
        raise busy(
            f"This machine disturbed {len(disturbed)} of {len(measured)} {what}; in one of them"
            f" {disturbed[0].disturbed}."
        )


def busy(symptom: str) -> BusyMachineError:
    """Return the error for a machine that disturbs what is measured."""
    return BusyMachineError(
        symptom, "Close other programs, or use `--device virtual`, which they cannot disturb."
    )


def _restless(measured: Sequence[Disturbed]) -> bool:
    return sum(bool(one.disturbed) for one in measured) > (1 - QUIET) * len(measured)


def beside_the_device() -> set[int]:
    """Return the cores left to the host: all that this process may use but the last."""
    mine = os.sched_getaffinity(0)
    return mine - {max(mine)}


def stretches(report: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Return the time of each piece as a multiple of the time it should take."""
    return [float(stretch) for stretch in (report[:, 2] - report[:, 1]) / report[:, 0]]


def disturbance(report: np.ndarray[Any, np.dtype[np.float64]], steady: float, share: float) -> str:
    """Describe a disturbance where more than `share` (0–1) of the pieces missed their time by more
    than `steady` (a share of it), either way; empty where they kept to it.
    """
    off = sorted(abs(stretch - 1) for stretch in stretches(report))
    miss = off[math.ceil((1 - share) * len(off)) - 1] if off else 0.0
    if miss <= steady:
        return ""
    if round(miss, 2) >= 1:  # work cannot take less than no time: it took longer
        return f"{share:.0%} of the work took at least {1 + miss:.1f} times as long as it should"
    return f"{share:.0%} of the work was at least {miss:.0%} slower or faster than it should be"
