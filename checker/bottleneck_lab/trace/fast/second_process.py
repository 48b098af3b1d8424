"""Another process that works for this one, so that a small machine uses both of its cores: forked
where that is safe, otherwise a fresh interpreter.

A fork takes 2 ms and has every import already, but a copy of a process with threads may wait
forever for a lock that one of them held. A fresh interpreter takes 250 ms. Either dies with the
process that started it, however that ends.

Why it stands: threads are no substitute, since decoding holds the interpreter's lock for much of
its time: an nsys export cost 8.7 s of CPU time with two threads and 6.0 s with two processes
(docs/measured/trace_analysis.md).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

from bottleneck_lab.lifetime import end_with_parent

# A function of a module. Called with a file that both processes share, and with plain arguments.
Work = Callable[..., None]

# Windows has no SIGHUP.
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class SecondProcess(Protocol):
    """The part of `subprocess.Popen` that `_Forked` has too. `wait` returns 0 when the work was
    done.
    """

    def wait(self) -> int: ...

    def kill(self) -> None: ...


def fork(work: Work, shared: IO[bytes], *arguments: Any) -> SecondProcess | None:
    """Return a copy of this process that does `work`; None if this process has other threads, or
    there is no room for another. `shared` is then left as it was.

    NumPy's own threads do no harm: its library stops them before a fork, and starts them again when
    they are needed. So threads are counted afterwards.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return None
    parent = os.getpid()
    written = shared.tell()
    # No handler of this process may run in the copy.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        with warnings.catch_warnings():
            # Of threads, which are looked for below.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _work_and_end(parent, unblocked, work, shared, *arguments)
        process = _Forked(pid)
    except OSError:  # no room for another process
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    if len([*Path("/proc/self/task").iterdir()]) == 1:
        return process
    process.kill()
    process.wait()
    shared.seek(written)  # it had begun, or was done already
    shared.truncate()
    return None


def spawn(work: Work, shared: IO[bytes], *arguments: str | int) -> SecondProcess | None:
    """Return a fresh interpreter that does `work`; None if there is no room for another process, or
    on Windows, where none inherits an open file.
    """
    import subprocess

    if sys.platform == "win32":
        return None

    code = (
        f"from {work.__module__} import {work.__name__} as work; from {__name__} import spawned;"
        " spawned(work)"
    )
    given = [
        sys.executable,
        "-P",
        "-c",
        code,
        str(os.getpid()),
        str(shared.fileno()),
        *map(str, arguments),
    ]
    nothing = subprocess.DEVNULL
    with suppress(OSError):
        return subprocess.Popen(
            given, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=[shared.fileno()]
        )
    return None


def spawned(work: Work) -> NoReturn:
    """Return the fresh interpreter."""
    parent, shared, *arguments = sys.argv[1:]
    _work_and_end(int(parent), (), work, os.fdopen(int(shared), "r+b"), *arguments)


def _work_and_end(parent: int, unblocked: Any, work: Work, *arguments: Any) -> NoReturn:
    """Do the work in the other process and leave it.

    Nothing of the first process may run here: neither its handlers nor what it does at its end.
    """
    status = 1
    try:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        end_with_parent()
        if os.getppid() == parent:
            work(*arguments)
            status = 0
    finally:  # what goes wrong here goes wrong in the first process too, which says what it is
        os._exit(status)


class _Forked:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._status: int | None = None

    def wait(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
