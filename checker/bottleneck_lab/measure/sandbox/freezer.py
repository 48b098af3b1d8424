"""Stopping a worker while another is measured: with a control group at once, otherwise with signals
to its process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import psutil

FREEZE_S = 20.0
"""Longest wait for a worker to stop. A stopped process still finishes its system call; on a busy
machine, stopping also needs a core first.
"""
_AT_REST = set("TtZXD")
"""Stopped, at the end, or asleep in the kernel where a signal is not noticed."""


class Freezer(Protocol):
    """Stops a worker, lets it run again, and ends it."""

    def freeze(self) -> bool:
        """Stop it; False if it has not come to rest in `FREEZE_S`."""

    def thaw(self) -> None:
        """Let it run again."""

    def kill(self) -> None:
        """End what it can reach of it."""


class Signals:
    """The process group that a supervisor has given to its worker, stopped by SIGSTOP. What leaves
    the group is not stopped; the supervisor ends it.
    """

    def __init__(self, supervisor: psutil.Process) -> None:
        self._supervisor = supervisor
        self._group: int | None = None

    def freeze(self) -> bool:
        """Stop the group and wait until its threads are at rest."""
        self._send(signal.SIGSTOP)
        end = time.monotonic() + FREEZE_S
        while not self._at_rest():
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True

    def thaw(self) -> None:
        """Continue the group."""
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the group."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._group is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._group = next((child.pid for child in self._supervisor.children()), None)
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)

    def _at_rest(self) -> bool:
        members = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in self._supervisor.children(recursive=True):
                with contextlib.suppress(ProcessLookupError):
                    if os.getpgid(child.pid) == self._group:
                        members.append(child)
        return thread_states(members) <= _AT_REST


def of_threads(processes: Iterable[psutil.Process], file: str) -> Iterator[tuple[int, str]]:
    """Yield the number of each living thread of these processes, with the text of its `file` in
    /proc/PID/task/TID.
    """
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                with contextlib.suppress(OSError):  # so has this
                    yield int(thread.name), (thread / file).read_text(errors="replace")


def thread_states(processes: Iterable[psutil.Process]) -> set[str]:
    """Return the states of all living threads of these processes, as the letters of ps(1)."""
    # The state follows the name, which the process chose and may itself hold a bracket.
    return {text.rpartition(")")[2].split()[0] for _, text in of_threads(processes, "stat")}
