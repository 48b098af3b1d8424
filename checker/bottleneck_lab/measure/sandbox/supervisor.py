"""Stands between the verifier and a worker. It adopts the orphans that the worker leaves, and ends
them with the worker or with the verifier.

Run as a script, `supervisor.py LIFELINE GROUP COMMAND…`, by a verifier that has made it a
subreaper. The command leads a process group of its own. It imports little: every worker waits for
it.
"""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGKILL = 9
_IGNORED = (13, 25)
"""Signals that Python ignores from its start and the worker must not: SIGPIPE, SIGXFSZ."""
_LOOK_MS, _LOOK_OFTEN_MS = 1000, 20


def _processes() -> Iterator[tuple[int, int]]:
    """Yield every process of this machine and its parent."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # noqa: PTH208 - no pathlib
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - no pathlib
                yield pid, int(file.read().rpartition(b")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue


def end_all() -> None:
    """Kill everything below this process, again and again, until the kernel says that it has no
    child: orphans become its own.
    """
    while True:
        # One reading of /proc, then a generation at a time: psutil would be another import to wait
        # for.
        parents, below, new = dict(_processes()), set[int](), {os.getpid()}
        while new := {pid for pid, parent in parents.items() if parent in new} - below:
            below |= new
        for pid in below:
            try:  # noqa: SIM105 - no contextlib
                os.kill(pid, _SIGKILL)
            except OSError:  # it has ended meanwhile
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _watch(worker: int, lifeline: int) -> int:
    """Return the worker's exit status, as a shell reports it; that of a killed one if the verifier
    closes the lifeline first. Reaps orphans meanwhile.
    """
    look, look_ms = select.poll(), _LOOK_MS
    look.register(lifeline, select.POLLIN)
    try:
        look.register(os.pidfd_open(worker), select.POLLIN)
    except OSError:  # a kernel before 5.3, or a container that refuses it
        look_ms = _LOOK_OFTEN_MS
    while all(descriptor != lifeline for descriptor, _ in look.poll(look_ms)):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
    return 128 + _SIGKILL


def main() -> None:
    """Start the command, wait for it or the verifier to end, and end once all its descendants are
    gone.
    """
    lifeline, group, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    os.set_inheritable(lifeline, False)
    worker = os.posix_spawn(command[0], command, os.environ, setpgroup=0, setsigdef=_IGNORED)
    if group:
        # The worker stays in its control group, which is stopped, limited and charged; this
        # process, which must end it, does not.
        try:
            with open(f"{group}/../cgroup.procs", "w") as file:  # noqa: PTH123 - no pathlib
                file.write("0")
        except OSError:
            pass
    # The worker's ends of its channels: while they are open here, the verifier would not hear that
    # it has closed them.
    os.closerange(3, lifeline)
    os.closerange(lifeline + 1, os.sysconf("SC_OPEN_MAX"))
    status = _watch(worker, lifeline)
    end_all()
    os._exit(status)


if __name__ == "__main__":
    main()
