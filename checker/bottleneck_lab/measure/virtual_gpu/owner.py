"""The verifier's hold on an engine: starts its process, opens and closes the books of a run."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import torch

from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.virtual_gpu.clock import Span
from bottleneck_lab.measure.virtual_gpu.codec import Malformed, encode, receive
from bottleneck_lab.measure.virtual_gpu.engine import Figures
from bottleneck_lab.measure.virtual_gpu.memory import MemoryChange
from bottleneck_lab.measure.virtual_gpu.spec import GpuSpec


class Books(msgspec.Struct, frozen=True):
    """What the engine wrote down of one run. `kept` are the parameters that the program handed over at its end; empty when it did not come so far."""

    figures: Figures
    kept: dict[str, torch.Tensor]
    spans: list[Span]
    changes: list[MemoryChange]


class EngineOwner:
    """An engine process. `program` is the end of the socket that the program is to have."""

    def __init__(self, process: subprocess.Popen[bytes], owner: socket.socket, program: socket.socket) -> None:
        self.process = process
        self.program = program
        self._owner = owner

    def begin(self, spec: GpuSpec, *, recording: bool = False) -> None:
        """Opens the books of a new run; tensors of the last one are gone. Raises VerifierFault when the engine is."""
        self._ask({"begin": True, "spec": msgspec.to_builtins(spec), "recording": recording})

    def end(self) -> Books:
        """Closes the books. Raises VerifierFault when the engine is gone."""
        answer = self._ask({"end": True})
        return Books(
            figures=msgspec.convert(answer["figures"], Figures),
            kept=answer["kept"],
            spans=[Span(**span) for span in answer["spans"]],
            changes=msgspec.convert(answer["changes"], list[MemoryChange]),
        )

    def _ask(self, question: dict[str, Any]) -> Any:
        try:
            self._owner.sendall(encode(question))
            return receive(self._owner)
        except (OSError, EOFError, Malformed) as error:
            raise VerifierFault(f"The virtual GPU's process is gone: {error}") from None


@contextmanager
def engine_process() -> Iterator[EngineOwner]:
    """A running engine; it ends with this context, or with the process that opened it."""
    program, theirs = socket.socketpair()
    owner, owners = socket.socketpair()
    command = [sys.executable, "-I", "-m", "bottleneck_lab.measure.virtual_gpu.engine"]
    command += ["--program", str(theirs.fileno()), "--owner", str(owners.fileno())]
    with program, owner:
        with theirs, owners:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), owners.fileno()],
                start_new_session=True,
            )
        try:
            yield EngineOwner(process, owner, program)
        finally:
            owner.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(2)
            process.kill()
            process.wait()
