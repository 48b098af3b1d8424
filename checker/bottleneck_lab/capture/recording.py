"""Running a program under a tool: the request, how the program ended, and cleaning up what it left
running.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.measure.sandbox.children import signals_held

# Environment variable that marks our processes: nsys leaves agents behind that are in no process
# group of ours.
MARK = "BOTTLENECK_LAB_CAPTURE"

# Seconds that a tool has to write its report once asked to stop.
WRITE_S = 60

_TAIL_BYTES = 32 << 10


@dataclass(frozen=True)
class Options:
    """A learner's choices. Each tool reads those that it knows.

    `schedule` counts optimizer steps: wait, warm-up, active. `kernel` is ncu's regular expression
    for kernel names, `launches` how many of them are measured after `skip`. `metrics` are ncu's own
    names; none means its full set.
    """

    shapes: bool = True
    memory: bool = False
    stack: bool = False
    schedule: tuple[int, int, int] | None = None
    tensorboard: bool = False
    kernel: str = ""
    launches: int = 5
    skip: int = 0
    metrics: tuple[str, ...] = ()
    lock_clocks: bool = False
    check: str = "memcheck"


@dataclass(frozen=True)
class Request:
    """One capture: the program as it would be typed, the folder it runs in, and the empty folder
    for what comes out of it.
    """

    program: tuple[str, ...]
    folder: Path
    out: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float | None = None
    options: Options = field(default_factory=Options)
    sink: Callable[[bytes], object] = lambda _output: None
    announce: Callable[[str], object] = lambda _command: None


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended. `tail` is the last of what it and the program printed."""

    status: int
    timed_out: bool
    interrupted: bool
    seconds: float
    tail: str

    def why(self) -> str:
        """State in words, for a message, how the command ended."""
        if self.interrupted:
            return "was interrupted"
        if self.timed_out:
            return f"was stopped after {self.seconds:.0f} s, its time limit"
        if self.status < 0:
            return f"was killed by signal {-self.status} ({signal.Signals(-self.status).name})"
        return f"exited with status {self.status}"

    def last_lines(self, count: int = 12) -> str:
        """Return the last lines that it printed."""
        return "\n".join(self.tail.rstrip().splitlines()[-count:])


@dataclass(frozen=True)
class Captured:
    """A tool's results: the files of the capture that hold a timeline or a table, the command as it
    can be typed, and remarks.

    `frames` are the traces of a second run, with Python's frames. `costs_ns` is what each setting
    costs per operator, ns.
    """

    files: list[str]
    command: str
    ended: CommandEnd
    version: str = ""
    extra: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    costs_ns: dict[str, float] = field(default_factory=dict)

    def facts(self) -> dict[str, object]:
        """Return what `capture.json` says of it besides its files."""
        return {
            "version": self.version,
            "command": self.command,
            "frames": self.frames,
            "extra": self.extra,
            "costs_ns": self.costs_ns,
            "status": self.ended.status,
            "seconds": round(self.ended.seconds, 3),
            "notes": self.notes,
        }


def typed(command: list[str], request: Request) -> str:
    """Return the command as a line to be pasted into a shell in the program's folder; there it
    leaves its files beside the program.
    """
    given = [f"{name}={shlex.quote(value)}" for name, value in request.environment.items()]
    return " ".join([*given, shlex.join(word.replace(f"{request.out}/", "") for word in command)])


def run(
    request: Request, command: list[str], environment: Mapping[str, str] | None = None
) -> CommandEnd:
    """Run a command to its end, its time limit or Ctrl-C. A second Ctrl-C ends it at once and comes
    through as KeyboardInterrupt.

    At the limit and at Ctrl-C it is asked to stop (SIGINT) and has `WRITE_S` to write what it
    recorded. Nothing of it outlives this call. Raises UsageError for a program that does not exist,
    MachineError for one that cannot be run.
    """
    mark, began = secrets.token_hex(8), time.monotonic()
    tail = bytearray()
    timed_out = interrupted = False
    # A signal between the start of the program and `try` would leave it running.
    with signals_held() as release:
        process = _start(
            request, command, {**request.environment, **(environment or {}), MARK: mark}
        )
        reader = threading.Thread(
            target=_forward, args=(process.stdout, request.sink, tail), daemon=True
        )
        try:
            reader.start()
            try:
                release()
                process.wait(request.limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
                _stop(process)
            except KeyboardInterrupt:
                interrupted = True
                _stop(process)
        finally:
            end_ours(process, mark)
    # The pipe ends when nobody holds it: a process that left the session may still do so.
    reader.join(5)
    seconds = time.monotonic() - began
    return CommandEnd(
        process.returncode, timed_out, interrupted, seconds, tail.decode("utf-8", "replace")
    )


def _start(
    request: Request, command: list[str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            cwd=request.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_hear_ctrl_c,  # noqa: PLW1509 - it calls nothing that another thread could hold
        )
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no program '{command[0]}'.", "Check its name and its path."
        ) from error
    except OSError as error:
        raise MachineError(
            f"'{command[0]}' cannot be run: {error.strerror}.",
            "Check that it is a program and that you may run it.",
        ) from error


def _hear_ctrl_c() -> None:
    """Restore Ctrl-C in a child.

    A shell that starts `lab` in the background has it and its children ignore SIGINT, by which a
    recording is stopped.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _forward(pipe: IO[bytes] | None, sink: Callable[[bytes], object], tail: bytearray) -> None:
    """Pass output on as it comes, a progress bar's unfinished lines too; keep the last of it."""
    if pipe is None:
        return
    # Straight from the descriptor: a buffered reader would wait for a whole line or block.
    with pipe:
        while output := os.read(pipe.fileno(), 1 << 16):
            sink(output)
            tail += output
            del tail[:-_TAIL_BYTES]


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(WRITE_S)


def end_ours(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill what is left of a command: its process group, and every process that carries its mark in
    the environment.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Agents that left the process group still carry the mark in their environment.
    for other in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if other.pid != os.getpid() and other.environ().get(MARK) == mark:
                other.kill()
    process.wait()
