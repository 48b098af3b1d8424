"""The first process of a worker's sandbox: starts the worker, buries orphans, and stops or continues all the others at the verifier's word.

Run as a script, `init.py ORDERS COMMAND…`, by bubblewrap, as process 1 of a namespace of its own: no signal from inside reaches it, and what is in
the sandbox ends with it (pid_namespaces(7)). `kill(-1)` reaches all of them at once, the one that is just being forked, too: the kernel holds the
list of processes meanwhile, and begins a fork anew that a signal comes between. ORDERS is a socket that the worker never has. It imports little.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Threads = dict[int, tuple[str, int]]

_PR_SET_DUMPABLE = 4
_SIGINT, _SIGKILL, _SIGCONT, _SIGSTOP = 2, 9, 18, 19
_IGNORED = (2, 13, 25)
"""What this process ignores, and the worker is not to: SIGINT, SIGPIPE, SIGXFSZ."""
_AT_REST = set("TtZXD")
"""Stopped, at the end, or asleep in the kernel where a signal is not noticed."""
_LOOK_MS, _LOOK_OFTEN_MS = 1000, 20
_AGAIN_S = 0.0005
IN_ALL = 4
_GONE = (2, 3)
"""ENOENT, ESRCH: it has ended meanwhile. Any other error ends this process, and the sandbox with it."""


def _text(path: str) -> str:
    """A file of /proc; empty for a process that has ended."""
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, 4096).decode(errors="replace")
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return ""


def _names(folder: str) -> list[str]:
    """Numbers that are names in a folder of /proc; none for a process that has ended."""
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 - no pathlib
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return []


def _threads() -> Threads:
    """State and nanoseconds on a CPU of every thread in the sandbox but our own."""
    found: Threads = {}
    for process in _names("/proc"):
        for thread in _names(f"/proc/{process}/task") if process != "1" else []:
            status = _text(f"/proc/{process}/task/{thread}/stat").rpartition(")")[2].split()
            if status:
                times = _text(f"/proc/{process}/task/{thread}/schedstat").split()
                found[int(thread)] = (status[0], int(times[0]) if times else 0)
    return found


def _last_born() -> str:
    """The number that the kernel gave last in this namespace, to a process or a thread (proc_loadavg(5))."""
    return _text("/proc/loadavg").rpartition(" ")[2]


class Patience:
    """How long others may take to stand still: `seconds` of CPU time from the first question on, which `ran_s` tells, and `IN_ALL` times that on the clock.

    On a busy machine a process may wait seconds for the core that it needs to stop, and while its disk is busy, or it is a paused guest, all of them stand.
    """

    def __init__(self, seconds: float, ran_s: Callable[[], float]) -> None:
        self._seconds, self._ran_s = seconds, ran_s
        self._most_s: float | None = None
        self._end = time.monotonic() + IN_ALL * seconds

    def ended(self) -> bool:
        """Whether one of both is over."""
        ran_s = self._ran_s()
        if self._most_s is None:
            self._most_s = ran_s + self._seconds
        return time.monotonic() > self._end or ran_s > self._most_s


class _Rest:
    """All threads at a moment when none of them ran."""

    def __init__(self, threads: Threads, last_born: str) -> None:
        self.threads = threads
        self.last_born = last_born

    @classmethod
    def now(cls) -> _Rest | None:
        """None while a thread runs.

        Each is looked at twice. Nobody was born, and none ran between its two looks: so there was a moment when none did, and nobody to wake another.
        """
        last_born, threads = _last_born(), _threads()
        if not {state for state, _ in threads.values()} <= _AT_REST:
            return None
        return cls(threads, last_born) if (_threads(), _last_born()) == (threads, last_born) else None

    def broken(self) -> tuple[int, bool]:
        """Nanoseconds that they have run since, and whether somebody was born or has ended."""
        now = _threads()
        ran = sum(now[thread][1] - ns for thread, (_, ns) in self.threads.items() if thread in now)
        ended = any(thread not in now and state not in "ZX" for thread, (state, _) in self.threads.items())
        return ran, ended or not now.keys() <= self.threads.keys() or _last_born() != self.last_born


def _ran_s() -> float:
    return sum(ns for _, ns in _threads().values()) / 1e9


def _signal_all(number: int) -> None:
    try:  # noqa: SIM105 - no contextlib
        os.kill(-1, number)
    except ProcessLookupError:
        pass


def _stop(patience_s: float) -> _Rest | None:
    """Stops every process; again and again, for one may be in the middle of continuing another. None when they do not come to rest in time."""
    patience = Patience(patience_s, _ran_s)
    while True:
        _signal_all(_SIGSTOP)
        if (rest := _Rest.now()) or patience.ended():
            return rest
        time.sleep(_AGAIN_S)


def _serve(worker: int, orders: int) -> int:
    """Does as told until the worker ends, or the verifier: the exit status, as a shell tells it. Each answer begins with the number of its order."""
    look, look_ms = select.poll(), _LOOK_MS
    look.register(orders, select.POLLIN)
    try:
        look.register(os.pidfd_open(worker), select.POLLIN)
    except OSError:  # a kernel before 5.3, or a container that refuses it
        look_ms = _LOOK_OFTEN_MS
    rest: _Rest | None = None
    while True:
        ready = look.poll(look_ms)
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
        if all(descriptor != orders for descriptor, _ in ready):
            continue
        number, _, order = os.read(orders, 64).decode().partition(" ")
        if order.startswith("stop"):
            rest = _stop(float(order.split()[1]))
            os.write(orders, f"{number} {int(rest is not None)}".encode())
        elif order == "look":
            ran_ns, changed = rest.broken() if rest else (0, False)
            os.write(orders, f"{number} {ran_ns} {int(changed)}".encode())
        elif order == "go":
            _signal_all(_SIGCONT)
        else:
            return 128 + _SIGKILL


def main() -> None:
    """Starts the command, serves, and ends with its exit status; the kernel kills the rest."""
    if os.getpid() != 1:
        sys.exit("not the first process of a sandbox: its signals would reach the whole machine")
    libc = ctypes.CDLL(None)
    # The worker is the same user: without this it could trace us, and open what we have open.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.signal(_SIGINT, ctypes.c_void_p(1))
    orders, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(orders, False)
    worker = os.posix_spawn(command[0], command, os.environ, setsigdef=_IGNORED)
    # The worker's ends of its channels: while they are open here, the verifier would not hear that it has closed them.
    os.closerange(3, orders)
    os.closerange(orders + 1, os.sysconf("SC_OPEN_MAX"))
    os._exit(_serve(worker, orders))


if __name__ == "__main__":
    main()
