"""An inference server with its device, and the verifier's word to both."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from bottleneck_lab.measure.channel.messages import Broken, Gone, Message, Ran
from bottleneck_lab.measure.channel.session import Role, Session
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.feed.device_process import DeviceProcess
from bottleneck_lab.measure.kinds.feed.learner_api import SLOTS
from bottleneck_lab.measure.kinds.requests.session import ServerSession, listen, start_server
from bottleneck_lab.measure.kinds.server import ServerSettings
from bottleneck_lab.measure.kinds.server.learner_api import MAX_BATCH
from bottleneck_lab.measure.kinds.server.pixels import IMAGES

PROGRAM = "bottleneck_lab.measure.kinds.server.script"
DEVICE = "bottleneck_lab.measure.kinds.server.device"


def device_times_s(settings: ServerSettings, preprocess_s: float) -> tuple[float, float]:
    """Seconds that the device takes for any batch, and for each image in it, where the shipped pre-processing needs `preprocess_s` for one."""
    whole_s = settings.device_share * preprocess_s * settings.batch
    return settings.fixed_share * whole_s, (1 - settings.fixed_share) * whole_s / settings.batch


def start_device(context: Context[ServerSettings], times_s: tuple[float, float]) -> DeviceProcess:
    """A device that takes these times: for any batch, and for each image in it."""
    options = ["--fixed-s", repr(times_s[0]), "--image-s", repr(times_s[1])]
    return DeviceProcess.launch(context, DEVICE, options, SLOTS * MAX_BATCH * IMAGES.largest_bytes)


class DeviceSession(ServerSession):
    """A server in a sandbox at one end, the verifier's device process at the other. `batches`: what the device has run, in order."""

    device: DeviceProcess

    @classmethod
    def start_with(
        cls,
        context: Context[ServerSettings],
        role: Role,
        folder: Path,
        times_s: tuple[float, float],
        triton: Path | None = None,
    ) -> Self:
        """Starts the device, then the server (Triton, where there is an environment for it), and waits until its code is loaded."""
        address = context.janitor.folder / f"{role}.sock"
        device = start_device(context, times_s)
        try:
            with listen(address) as listener, device.script_socket as script:
                places = {"--socket": script.fileno(), "--arena": device.arena.fd, "--listener": listener.fileno()}
                worker = start_server(context, PROGRAM, folder, places, triton)
        except BaseException:
            device.close()
            raise
        session = cls(Session(role, worker, device.channel, device), str(address))
        session.device = device
        session.wait_until_loaded(context.settings.start_s)
        return session

    def close(self) -> None:
        super().close()
        self.device.close()

    def cpu_s(self) -> float:
        return super().cpu_s() + self.device.cpu_s()

    def note(self, message: Message) -> None:
        if isinstance(message, Ran):
            self.batches.append(message)
        elif isinstance(message, Gone):
            raise self.session.gone("serving")
        elif isinstance(message, Broken):
            raise self.session.fault("tampered", f"serving: the model was sent an invalid batch ({message.why}).")
        else:
            super().note(message)
