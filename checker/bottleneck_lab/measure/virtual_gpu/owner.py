"""The verifier's hold on an engine: starts its process, opens and closes the books of a run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.virtual_gpu.books import Begin, Books, End
from bottleneck_lab.measure.virtual_gpu.frames import Frames, Malformed
from bottleneck_lab.measure.virtual_gpu.spec import GpuSpec


@dataclass(frozen=True)
class Companion:
    """A trusted program on the first of several engines, which needs PyTorch as they do and starts
    with them: a module with its arguments, to which `--engine` and a descriptor are added.

    `fds`: its other descriptors.
    """

    module: str
    arguments: list[str]
    fds: list[int]
    environment: dict[str, str]
    folder: Path


class EngineOwner:
    """An engine process. `program` is the end of the socket that the program is to have."""

    def __init__(
        self, process: subprocess.Popen[bytes], owner: socket.socket, program: socket.socket
    ) -> None:
        self.process = process
        self.program = program
        self._owner = Frames(owner)
        self._started = False

    def begin(self, spec: GpuSpec, *, recording: bool = False, secret: int = 0) -> None:
        """Open the books of a new run; tensors of the last one are gone. Does not wait for a
        process that is still starting.

        Raises VerifierFault when the engine is gone.
        """
        self._send(Begin(spec, recording, secret))

    def wait_started(self) -> None:
        """Raise VerifierFault if the engine could not start."""
        if not self._started:
            self._receive()
            self._started = True

    def end(self) -> Books:
        """Close the books. Raises VerifierFault when the engine is gone, or a program had it write
        down what no book can hold.
        """
        self.wait_started()
        self._send(End())
        try:
            return msgspec.msgpack.decode(self._receive(), type=Books)
        except msgspec.MsgspecError as error:
            raise VerifierFault(f"The virtual GPU's records cannot be read: {error}") from None

    def _send(self, question: Begin | End) -> None:
        try:
            self._owner.send(msgspec.msgpack.encode(question))
        except OSError as error:
            raise _gone(error) from None

    def _receive(self) -> bytes:
        try:
            return self._owner.receive()
        except (OSError, EOFError, Malformed) as error:
            raise _gone(error) from None


def _gone(error: Exception) -> VerifierFault:
    return VerifierFault(f"The virtual GPU's process is gone: {error}")


@contextmanager
def engine_process() -> Iterator[EngineOwner]:
    """Yield a running engine; it ends with this context, or with the process that opened it."""
    with engine_processes(1) as (engine,):
        yield engine


@contextmanager
def engine_processes(count: int, companion: Companion | None = None) -> Iterator[list[EngineOwner]]:
    """Yield `count` engines, each a process of its own that knows nothing of the others. They end
    with this context, or with the process that opened it, and so does the `companion`.
    """
    command = [sys.executable, "-I", "-m", "bottleneck_lab.measure.virtual_gpu.engine"]
    with ExitStack() as ours:
        ends = []
        with ExitStack() as theirs:
            passed = []
            for _ in range(count):
                program, programs = socket.socketpair()
                owner, owners = socket.socketpair()
                ends.append((ours.enter_context(owner), ours.enter_context(program)))
                fds = [theirs.enter_context(end).fileno() for end in (programs, owners)]
                command += ["--channels", *map(str, fds)]
                passed += fds
            if companion:
                fds = [*companion.fds, ends[0][1].fileno()]
                command += ["--fds", *map(str, fds), "--companion", companion.module]
                command += [*companion.arguments, "--engine", str(fds[-1])]
                passed += fds
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
                env=companion.environment if companion else None,
                cwd=companion.folder if companion else None,
            )
        try:
            yield [EngineOwner(process, owner, program) for owner, program in ends]
        finally:
            # They hold nothing that is worth an orderly end, which takes PyTorch a second.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
