"""Run a step in a process of its own, and end it with all that it started."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

from scripts.gpu_run.plan import ROOT

GRACE_S, ORPHANS_S = 20.0, 5.0
"""For a step that has to end before its time, to stop its program and remove its temporary files;
then for what it has left to go by itself.
"""


@dataclass(frozen=True)
class Ran:
    """How a step's process ended: its exit status (None: out of time) and its last output."""

    status: int | None
    output: str


Runner = Callable[[list[str], float], Ran]
"""Runs a step's command line for at most so many seconds."""
Entry = Callable[[list[str]], int]
"""A program's `main`: takes its arguments, returns its exit status."""
WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(
    ["__main__", "torch", "torchvision", "bottleneck_lab.course.proving", "bottleneck_lab.capture"]
)
"""Where the main program's own steps are forked: a process that has imported what takes seconds,
and never touches CUDA, which a fork would not survive.
"""


class Forked:
    """A step of the main program in a process forked from the warm one, used as a Popen is."""

    def __init__(self, entry: Entry, arguments: list[str], out: str, err: str) -> None:
        self._process = WARM.Process(target=forked, args=(entry, arguments, out, err))
        self._process.start()
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for its end. Raises TimeoutExpired if that does not come in time."""
        self._process.join(timeout_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("step", timeout_s or 0.0)


def forked(entry: Entry, arguments: list[str], out: str, err: str) -> None:
    """Call the main program's entry point with its output in files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    sys.exit(entry(arguments))


def run_step(command: list[str], limit_s: float, entry: Entry | None = None) -> Ran:
    """Run a step in a process of its own: one that crashes or hangs costs one step. Nothing that it
    started outlives it. `entry`: the main program's entry point, if the command is a call of it: it
    is then forked from the warm process.
    """
    from bottleneck_lab.measure.sandbox.janitor import adopt_orphans

    adopt_orphans()
    if entry:
        forkserver.ensure_running()
    bystanders = children()
    with (
        tempfile.NamedTemporaryFile("w+", errors="replace") as out,
        tempfile.NamedTemporaryFile("w+", errors="replace") as err,
    ):
        process: Forked | subprocess.Popen[bytes]
        if entry:
            process = Forked(entry, command[2:], out.name, err.name)
        else:
            process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return Ran(None, f"not done after {limit_s:.0f} s")
        finally:
            end(process, bystanders)
        for file in (out, err):
            file.seek(0)
        output = out.read()
        return Ran(
            process.returncode, output if process.returncode == 0 else (output + err.read())[-4000:]
        )


def children() -> set[Any]:
    """Return the children of this process, as psutil has them."""
    import psutil

    return set(psutil.Process().children())


def end(process: Forked | subprocess.Popen[bytes], bystanders: set[Any]) -> None:
    """Have a step tidy up and end, then kill what is left of it, whose parents may be gone: it
    would go on using the GPU.

    `bystanders`: children of this process that were there before the step.
    """
    import psutil

    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    left = []
    for orphan in children() - bystanders:
        with contextlib.suppress(psutil.NoSuchProcess):
            left += [orphan, *orphan.children(recursive=True)]
    for orphan in psutil.wait_procs(left, ORPHANS_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()
    psutil.wait_procs(left, GRACE_S)
