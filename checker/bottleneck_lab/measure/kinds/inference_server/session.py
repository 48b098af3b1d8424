"""Start an inference server and its device in a check, and talk to both."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil

from bottleneck_lab.measure.channel.messages import (
    Begin,
    Broken,
    Gone,
    Message,
    Ran,
    Ready,
    Score,
    Scored,
)
from bottleneck_lab.measure.channel.session import HELD, Role, Session
from bottleneck_lab.measure.channel.wire import Closed, WireError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.http_server.session import ServerSession, listen, start_server
from bottleneck_lab.measure.kinds.inference_server import InferenceServerSettings
from bottleneck_lab.measure.kinds.inference_server.sizing import ModelDevice
from bottleneck_lab.measure.sandbox.waiting import Waiting

PROGRAM = "bottleneck_lab.measure.kinds.inference_server.child"
Array = np.ndarray[Any, Any]
SCORING_S = 30.0
"""Longest wait for scores that the verifier asks for itself."""


class DeviceSession(ServerSession):
    """A server in a sandbox with the verifier's device process. `batches`: those that the device
    has run, in order.
    """

    device: ModelDevice
    _held = _closed = False

    @classmethod
    def open(
        cls,
        context: Context[InferenceServerSettings],
        role: Role,
        folder: Path,
        triton: Path | None = None,
    ) -> Self:
        """Start the device, and the process of the server (Triton, if there is an environment for
        it), and wait for neither. A learner's code is not loaded before `begin`.
        """
        # Triton starts, for seconds, when its process has said that it is ready.
        held = role == "learner" or triton is not None
        address = context.janitor.folder / f"{role}.sock"
        device = ModelDevice.open(context)
        try:
            with listen(address) as listener, device.script_socket as script:
                fds = {
                    "--socket": script.fileno(),
                    "--arena": device.arena.fd,
                    "--listener": listener.fileno(),
                }
                options = ["--device", context.device, *([HELD] if held else [])]
                worker = start_server(context, PROGRAM, folder, fds, triton, options)
        except BaseException:
            device.close()
            raise
        session = cls(
            Session(role, worker, device.channel, device, clock=context.clock), str(address)
        )
        session.device, session._held = device, held
        return session

    def wait_until_open(self) -> None:
        """Wait until both processes are up and do nothing, and a server that is not held has loaded
        its code. Raises the fault of one that has not.
        """
        with self.session.clock.phase("workers"):
            self.device.wait_until_open()
        self.session.expect(Ready, self.device.start_s, "starting up")

    def begin(self) -> None:
        """Let the code of a server that is held be loaded, and wait until it is. If it cannot be,
        close everything and raise its fault.
        """
        if not self._held:
            return
        try:
            self.device.channel.send(Begin())
            loaded = self.session.expect(Ready, self.device.start_s, "starting up")
        except Closed:
            fault = self.session.closed("starting up")
            self.close()
            raise fault from None
        except BaseException:
            self.close()
            raise
        # The clock has counted it as the server's work.
        self.session.clock.move(loaded.loading_s, self.session.role, "imports")

    def close(self) -> None:
        # A fault closes what the check closes at its end.
        if not self._closed:
            self._closed = True
            super().close()
            self.device.close()

    def cpu_s(self) -> float:
        return super().cpu_s() + self.device.cpu_s()

    def waiting(self) -> Waiting:
        # What the device is late with, the server loses as well.
        device = psutil.Process(self.device.process.pid)
        return Waiting(lambda: [*self.session.worker.tree(), device])

    def scores_alone(self, images: Array) -> Array:
        """Return the scores of images, each run by itself, while the server is not under load."""
        # A device whose reports nobody takes stops at the first that its socket cannot hold, and
        # then reads nothing itself: they are taken while the pictures are sent.
        threading.Thread(target=self._send, args=(Score(images),), daemon=True).start()
        while True:
            message = self.session.receive(SCORING_S, "scoring pictures again")
            if isinstance(message, Scored):
                return message.scores
            self.note(message)

    def _send(self, message: Message) -> None:
        # What the end of the device means is decided where its reports are read.
        with contextlib.suppress(WireError):
            self.device.channel.send(message)

    def note(self, message: Message) -> None:
        if isinstance(message, Ran):
            self.batches.append(message)
        elif isinstance(message, Gone):
            raise self.session.gone("serving")
        elif isinstance(message, Broken):
            raise self.session.fault(
                "tampered", f"serving: the model was sent an invalid batch ({message.why})."
            )
        else:
            super().note(message)
