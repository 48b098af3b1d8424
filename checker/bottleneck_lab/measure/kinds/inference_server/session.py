"""Start an inference server and its device in a check, and talk to both."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil

from bottleneck_lab.measure.channel.messages import Broken, Gone, Message, Ran, Score, Scored
from bottleneck_lab.measure.channel.session import Role, Session
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.http_server.session import ServerSession, listen, start_server
from bottleneck_lab.measure.kinds.inference_server import InferenceServerSettings
from bottleneck_lab.measure.kinds.inference_server.sizing import Sizing, start_device
from bottleneck_lab.measure.kinds.input_pipeline.device_process import DeviceProcess
from bottleneck_lab.measure.sandbox.waiting import Waiting

PROGRAM = "bottleneck_lab.measure.kinds.inference_server.child"
Array = np.ndarray[Any, Any]
SCORING_S = 30.0
"""Longest wait for scores that the verifier asks for itself."""


class DeviceSession(ServerSession):
    """A server in a sandbox with the verifier's device process. `batches`: those that the device
    has run, in order.
    """

    device: DeviceProcess

    @classmethod
    def start_with(
        cls,
        context: Context[InferenceServerSettings],
        role: Role,
        folder: Path,
        sizing: Sizing,
        triton: Path | None = None,
    ) -> Self:
        """Start the device, then the server (Triton, if there is an environment for it), and wait
        until its code is loaded.
        """
        address = context.janitor.folder / f"{role}.sock"
        device = start_device(context, sizing)
        try:
            with listen(address) as listener, device.script_socket as script:
                fds = {
                    "--socket": script.fileno(),
                    "--arena": device.arena.fd,
                    "--listener": listener.fileno(),
                }
                worker = start_server(context, PROGRAM, folder, fds, triton)
        except BaseException:
            device.close()
            raise
        session = cls(
            Session(role, worker, device.channel, device, clock=context.clock), str(address)
        )
        session.device = device
        session.wait_until_loaded(context.settings.start_s)
        return session

    def close(self) -> None:
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
        self.device.channel.send(Score(images))
        while True:
            message = self.session.receive(SCORING_S, "scoring pictures again")
            if isinstance(message, Scored):
                return message.scores
            self.note(message)

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
