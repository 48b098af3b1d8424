"""Cleans up after a verifier however it ends: run as a script, it waits for its standard input to
close, then removes what it remembers.

A verifier that is killed outright cannot tidy up; this process, which outlives it by a moment, can.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATIENCE_S = 30.0
SUPERVISOR_S = 10.0
"""How long a supervisor whose verifier is gone may take to end its worker with all that came of it.
"""
_CHILDREN = ("pid", "supervisor")
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own (linux/prctl.h). Children
    do not inherit it, a new program keeps it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Janitor:
    """Owns a verifier's temporary folder, control groups and children, and removes them when it
    closes or when the verifier dies.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._lifelines: set[int] = set()
        self._remembered: list[list[str]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="bottleneck-lab-"))
        self._tell("folder", self.folder)

    def __enter__(self) -> Janitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, what: str, name: object) -> None:
        _note(self._remembered, what, str(name))
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed: `close` does its work
                self._process.stdin.write(f"{what} {name}\n".encode())
                self._process.stdin.flush()

    def follow(self, pid: int) -> None:
        """Remember a child and its session, to be killed should the verifier die."""
        self._tell("pid", pid)

    def lifeline(self) -> tuple[int, int]:
        """Return both ends of a pipe, the supervisor's and ours. When ours is cut, by us or by the
        verifier's death, a supervisor ends all it is in charge of.
        """
        theirs, ours = os.pipe()
        self._lifelines.add(ours)
        return theirs, ours

    def cut(self, lifeline: int) -> None:
        """Tell a supervisor to end; with a message, since a process that the verifier forked may
        hold the pipe open.
        """
        self._lifelines.remove(lifeline)
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(lifeline, b"x")
        os.close(lifeline)

    def leave_time(self, pid: int) -> None:
        """Remember a supervisor, to be killed if it has not ended in time after its lifeline was
        cut.
        """
        self._tell("supervisor", pid)

    def forget(self, pid: int) -> None:
        """Forget a child that has been waited for: its number may soon be somebody else's."""
        self._tell("forget", pid)

    def follow_group(self, group: Path) -> None:
        """Remember a control group, likewise."""
        self._tell("group", group)

    def close(self) -> None:
        """Let the janitor do its work and wait for it; do it here should the janitor have been
        killed or stopped.
        """
        for lifeline in list(self._lifelines):  # an exception came before the worker was somebody's
            self.cut(lifeline)
        try:
            self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0:
            _clean(self._remembered)


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    """Return True if a process can still do anything. A zombie cannot, though it may stay until its
    new parent notices.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    except OSError:
        return False


def _clear_group(group: Path) -> None:
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1")
    for _ in range(200):
        if not group.exists():
            return
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.01)


def _note(remembered: list[list[str]], what: str, name: str) -> None:
    if what == "forget":
        remembered[:] = [
            [kind, known] for kind, known in remembered if kind not in _CHILDREN or known != name
        ]
    else:
        remembered.append([what, name])


def _remove_folder(name: str) -> None:
    """Remove a folder with the system's own tools."""
    # They climb down folders nested without end, where shutil.rmtree would exhaust its stack. A
    # worker may also have locked folders: those are unlocked first.
    for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        subprocess.run(
            [*command, "--", name],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _clean(remembered: list[list[str]]) -> None:
    """Remove groups and processes, and then, when nobody writes to them any more, folders."""
    for what, name in remembered:
        if what == "group":
            _clear_group(Path(name))
        elif what == "pid":
            _kill(int(name))
    for what, name in remembered:
        if what == "supervisor":
            # Its lifeline was cut when the verifier died, so it is ending its worker.
            end = time.monotonic() + SUPERVISOR_S
            while _runs(int(name)) and time.monotonic() < end:
                time.sleep(0.01)
            _kill(int(name))
    for what, name in remembered:
        if what == "folder":
            _remove_folder(name)


def main() -> None:
    """Read what to remember until the verifier is gone, then remove it: groups, processes,
    folders.
    """
    # Ctrl-C ends the whole foreground group; the janitor must outlive the verifier.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    remembered: list[list[str]] = []
    for line in sys.stdin:
        _note(remembered, *line.rstrip("\n").split(" ", 1))
    _clean(remembered)


if __name__ == "__main__":
    main()
