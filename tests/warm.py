"""`lab` in processes that need not import it first: one that has, forks them.

A short command then takes 0.02 CPU seconds instead of 0.4. It is for tests of what a command prints
and returns; what signals, terminals and closed pipes do to one needs a program of its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

READ_AT_START = ("BOTTLENECK_LAB_PLUGIN", "LC_ALL", "PYTHONIOENCODING", "PYTHONPATH")
"""Variables that only a new interpreter obeys."""
MOST_BYTES = 1 << 17
"""Of a request: its arguments and its environment."""


def lab(
    *arguments: str, at: Path, environment: Mapping[str, str], timeout_s: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run a command with this environment and no input; return its status and output.

    Raises TimeoutError if it takes longer than `timeout_s`.
    """
    command = [sys.executable, "-m", "bottleneck_lab", *arguments]
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with theirs:
            request = json.dumps([str(at), dict(environment), arguments]).encode()
            # One packet: threads may ask at the same time.
            files = [theirs.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(_parent(), [request], files)
        ours.settimeout(timeout_s)
        status = int(ours.recv(16))
        shown = []
        for file in (out, err):
            file.seek(0)
            shown.append(file.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(command, status, *shown)


@cache
def _parent() -> socket.socket:
    """Return the socket of the process that has imported `lab`, started when first needed.

    It ends when this process closes the socket, however that ends.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", __file__, str(theirs.fileno())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


def _serve(requests: socket.socket) -> None:
    """Fork a process for every request, until nobody is left who could send one."""
    import numpy  # noqa: F401 - for the commands that are forked
    import pydantic  # noqa: F401 - Typer imports it once a command has arguments

    from bottleneck_lab import cli

    for name in ("where", *(name for section in cli.SECTIONS.values() for name in section)):
        cli.module_of(name)
    gc.freeze()  # a collection in a child would copy every page of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who answer
    while True:
        request, files, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _answer(*json.loads(request), *files)
        for file in files:
            os.close(file)


def _answer(
    folder: str, environment: dict[str, str], arguments: list[str], reply: int, out: int, err: int
) -> None:
    """Run the command in a process of its own and reply with its exit status, as subprocess has
    it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os.write(reply, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    from bottleneck_lab.cli import main

    os.close(reply)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(file, stream)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        open(stream, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - they stay open
        for stream, mode in enumerate("rww")
    )
    sys.argv = ["lab", *arguments]
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        # An interpreter that takes itself apart would copy every page, too.
        os._exit(int(end.code or 0))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
