"""`lab`, and other programs, in processes that need not import them first: one that has, forks
them.

A short command then takes 0.02 CPU seconds instead of 0.4, the start of a server 0.2 instead of
1.2. It is for tests of what a command prints and returns, at a terminal too; what signals and
closed pipes do to one needs a program of its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from contextlib import suppress
from fcntl import ioctl
from functools import cache
from importlib import import_module
from os import fork  # some places of elsewhere.py lack it
from pathlib import Path
from runpy import run_path
from typing import BinaryIO

READ_AT_START = ("BOTTLENECK_LAB_PLUGIN", "LC_ALL", "PYTHONIOENCODING", "PYTHONPATH")
"""Variables that only a new interpreter obeys."""
MOST_BYTES = 1 << 17
"""Of a request: its arguments and its environment."""


def lab(
    *arguments: str,
    at: Path,
    environment: Mapping[str, str],
    timeout_s: float = 200,
    place: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command with this environment and no input; return its status and output. `place`: one
    of elsewhere.py, if it is to run there.

    Raises TimeoutError if it takes longer than `timeout_s`.
    """
    command = [sys.executable, "-m", "bottleneck_lab", *arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        request = [str(at), dict(environment), arguments, ""]
        with _ask(_parent(place=place), request, out.fileno(), err.fileno()) as replies:
            replies.settimeout(timeout_s)
            replies.recv(16)  # its process id
            status = int(replies.recv(16))
        shown = []
        for file in (out, err):
            file.seek(0)
            shown.append(file.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(command, status, *shown)


def lab_at_terminal(
    *arguments: str,
    at: Path,
    environment: Mapping[str, str],
    columns: int = 80,
    answers: str = "",
    timeout_s: float = 100,
) -> tuple[int, str]:
    """Run a command at a terminal of so many columns and type `answers`; return its status and
    everything that was shown.

    Raises TimeoutError if it shows nothing for `timeout_s`.
    """
    main, side = pty.openpty()
    ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    request = [str(at), dict(environment), arguments, ""]
    with os.fdopen(main, "rb+", 0) as terminal, _ask(_parent(), request, *[side] * 3) as replies:
        os.close(side)
        terminal.write(answers.encode())
        shown = b"".join(iter(lambda: _read(terminal, timeout_s), b""))
        replies.recv(16)  # its process id
        return int(replies.recv(16)), shown.decode()


def _read(terminal: BinaryIO, timeout_s: float) -> bytes:
    """Return the next output; empty once the program has ended."""
    if not select.select([terminal], [], [], timeout_s)[0]:
        raise TimeoutError
    try:
        return terminal.read(65536)
    except OSError:  # Linux answers EIO once the other side is closed
        return b""


class Program:
    """`python -c script`, forked from a process that has imported the modules that it `needs`; used
    as a Popen is. Its output goes to the end of a file.
    """

    def __init__(self, script: str, *arguments: str, needs: tuple[str, ...], log: Path) -> None:
        request = [str(Path.cwd()), dict(os.environ), arguments, script]
        with log.open("ab") as out:
            self._replies = _ask(_parent(*needs), request, out.fileno(), out.fileno())
        self.pid = int(self._replies.recv(16))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        if self.returncode is None and select.select([self._replies], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Return its exit status. Raises TimeoutError if it does not end in time."""
        if self.returncode is None:
            self._replies.settimeout(timeout_s)
            self.returncode = int(self._replies.recv(16))
            self._replies.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Do nothing if it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _ask(
    parent: socket.socket, request: list[object], out: int, err: int, stdin: int | None = None
) -> socket.socket:
    """Have a process forked, with no input unless it has a `stdin`; return where its id and later
    its exit status are to be read.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, Path(os.devnull).open("rb") as nothing:
        streams = [nothing.fileno() if stdin is None else stdin, out, err]
        # One packet: threads may ask at the same time.
        socket.send_fds(parent, [json.dumps(request).encode()], [theirs.fileno(), *streams])
    return ours


@cache
def _parent(*needs: str, place: str = "") -> socket.socket:
    """Return the socket of the process that has imported what a program needs, or else `lab`, in
    that place; started when first needed.

    It ends when this process closes the socket, however that ends.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", __file__, str(theirs.fileno()), place, *needs]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


def _import_lab() -> None:
    """Import what `lab` and its commands need."""
    import numpy  # noqa: F401 - for the commands that are forked
    import pydantic  # noqa: F401 - Typer imports it once a command has arguments

    from bottleneck_lab import cli

    for name in ("where", *(name for section in cli.SECTIONS.values() for name in section)):
        cli.module_of(name)


def _serve(requests: socket.socket, place: str, needs: list[str]) -> None:
    """Fork a process for every request, until nobody is left who could send one."""
    for name in needs:
        import_module(name)
    if place:  # where a command may lack what its module needs: it imports that itself
        run_path(str(Path(__file__).with_name("elsewhere.py")))["become"](place)
        import_module("bottleneck_lab.cli")
    elif not needs:
        _import_lab()
    gc.freeze()  # a collection in a child would copy every page of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who answer
    while True:
        request, files, _, _ = socket.recv_fds(requests, MOST_BYTES, 4)
        if not request:
            return
        if fork() == 0:
            requests.close()
            _answer(*json.loads(request), *files)
        for file in files:
            os.close(file)


def _answer(
    folder: str,
    environment: dict[str, str],
    arguments: list[str],
    script: str,
    reply: int,
    *streams: int,
) -> None:
    """Run the script, or else `lab`, in a process of its own; reply with its id, then its exit
    status as subprocess has it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = fork()
    if child:
        with suppress(BrokenPipeError):  # nobody may want to know
            os.write(reply, str(child).encode())
            _, status = os.waitpid(child, 0)
            os.write(reply, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    os.close(reply)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream, file in enumerate(streams):
        os.dup2(file, stream)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        open(stream, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - they stay open
        for stream, mode in enumerate("rww")
    )
    status = 0
    try:
        if script:
            sys.argv = ["-c", *arguments]
            exec(script, {"__name__": "__main__"})
        else:
            from bottleneck_lab.cli import main

            sys.argv = ["lab", *arguments]
            main()
    except SystemExit as end:
        status = int(end.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    # An interpreter that takes itself apart would copy every page, too.
    os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:])
