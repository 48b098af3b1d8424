"""A server with its device, and the verifier's word to both: started, waited for, loaded, watched."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from bottleneck_lab.measure.channel.messages import Broken, Done, Gone, Message, Ran, Ready
from bottleneck_lab.measure.channel.session import Role, Session, limits_of, start_worker
from bottleneck_lab.measure.channel.wire import Closed, TimedOut
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.feed.device_process import DeviceProcess
from bottleneck_lab.measure.kinds.feed.learner_api import BYTES_PER_IMAGE, SLOTS
from bottleneck_lab.measure.kinds.server import ServerSettings
from bottleneck_lab.measure.kinds.server.learner_api import MAX_BATCH
from bottleneck_lab.measure.kinds.server.level import OK, Level, Load
from bottleneck_lab.measure.machine import loading_cores
from bottleneck_lab.measure.sandbox.process import Worker

PROGRAM = "bottleneck_lab.measure.kinds.server.script"
DEVICE = "bottleneck_lab.measure.kinds.server.device"
BACKLOG = 1024
ANSWER_S = 5.0
"""Longest wait for the answer to a first request, which is then sent again."""
SETTLE_S = 0.2
"""After a level, for what the device has still to say of it."""


def device_times_s(settings: ServerSettings, preprocess_s: float) -> tuple[float, float]:
    """Seconds that the device takes for any batch, and for each image in it, where the shipped pre-processing needs `preprocess_s` for one."""
    whole_s = settings.device_share * preprocess_s * settings.batch
    return settings.fixed_share * whole_s, (1 - settings.fixed_share) * whole_s / settings.batch


def start_device(context: Context[ServerSettings], times_s: tuple[float, float]) -> DeviceProcess:
    """A device that takes these times: for any batch, and for each image in it."""
    options = ["--fixed-s", repr(times_s[0]), "--image-s", repr(times_s[1])]
    return DeviceProcess.launch(context, DEVICE, options, SLOTS * MAX_BATCH * BYTES_PER_IMAGE)


def listen(path: Path) -> socket.socket:
    """A Unix socket that listens at `path`: a server in a sandbox gets its descriptor, and needs no network."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(BACKLOG)
    return listener


class ServerSession:
    """A server in a sandbox at one end, the verifier's device process at the other. `batches`: what the device has run, in order."""

    def __init__(self, role: Role, worker: Worker, device: DeviceProcess, address: str) -> None:
        self.session = Session(role, worker, device.channel, device)
        self.device = device
        self.address = address
        self.batches: list[Ran] = []

    @classmethod
    def start(cls, context: Context[ServerSettings], role: Role, folder: Path, times_s: tuple[float, float]) -> Self:
        """Starts the device, then the server, and waits until its code is loaded."""
        address = context.janitor.folder / f"{role}.sock"
        device = start_device(context, times_s)
        try:
            with listen(address) as listener, device.script_socket:
                session = cls(role, _start_server(context, folder, device, listener), device, str(address))
        except BaseException:
            device.close()
            raise
        try:
            session.session.expect(Ready, context.settings.start_s, "starting up")
        except BaseException:
            session.close()
            raise
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server with everything it started, and the device."""
        self.session.close()
        self.device.close()

    def freeze(self) -> None:
        """Stops the server while another is loaded."""
        self.session.freeze("while it was not under load")

    def thaw(self) -> None:
        """Lets it go on."""
        self.session.worker.thaw()

    def cpu_s(self) -> float:
        """CPU seconds that the server and its device have used so far."""
        return self.session.worker.cpu_s() + self.device.cpu_s()

    def wait_until_it_answers(self, load: Load, start_s: float) -> None:
        """Sends one request after another until one is answered. Raises the server's fault when none is within `start_s`."""
        deadline = time.monotonic() + start_s
        while time.monotonic() < deadline:
            level = load.open(self.address, 20.0, 0.2, self.follow, patience_s=ANSWER_S)
            if (level.status == OK).any():
                return
        raise self.session.fault("timed out", f"starting up: no request was answered within {start_s:.0f} s.")

    def follow(self, seconds: float) -> None:
        """Notes for so long what the device runs. Raises the server's fault where it ends, or breaks a limit."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self.session.watch("serving")
            try:
                self._note(self.session.channel.receive(left_s))
            except TimedOut:
                continue
            except Closed:
                raise self.session.closed("serving") from None

    def batches_of(self, level: Callable[[], Level]) -> tuple[Level, list[Ran]]:
        """A level of load, and the batches that the device ran meanwhile."""
        before = len(self.batches)
        result = level()
        self.follow(SETTLE_S)
        return result, self.batches[before:]

    def _note(self, message: Message) -> None:
        if isinstance(message, Ran):
            self.batches.append(message)
        elif isinstance(message, Gone):
            raise self.session.gone("serving")
        elif isinstance(message, Broken):
            raise self.session.fault("tampered", f"serving: the model was sent an invalid batch ({message.why}).")
        elif isinstance(message, Done):
            raise self.session.fault("crashed", "serving: `serve` returned; it must serve until it is stopped.")
        else:
            self.session.require(message, Ran, "serving")


def _start_server(
    context: Context[ServerSettings], folder: Path, device: DeviceProcess, listener: socket.socket
) -> Worker:
    fds = [device.script_socket.fileno(), device.arena.fd, listener.fileno()]
    arguments = ["--entry", str(folder / context.lab.spec.entry)]
    arguments += ["--socket", str(fds[0]), "--arena", str(fds[1]), "--listener", str(fds[2])]
    return start_worker(context, PROGRAM, arguments, folder, limits_of(context.settings), fds, cores=loading_cores())
