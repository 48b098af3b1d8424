"""The device that a script is fed to: calibrated, started beside the script, and ended. The same
for a check, a profile and a plain run.
"""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Self

import numpy as np
import psutil

from bottleneck_lab.measure.channel.messages import DeviceReady, MeasureStep
from bottleneck_lab.measure.channel.session import CallSession, limits_of
from bottleneck_lab.measure.channel.wire import Arena, Channel, WireError
from bottleneck_lab.measure.context import Context, WorkerContext
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.input_pipeline import InputPipelineSettings
from bottleneck_lab.measure.kinds.input_pipeline.learner_api import SLOTS
from bottleneck_lab.measure.sandbox.janitor import Janitor

CALIBRATIONS = 3
CALIBRATION_SAMPLES = 16
PROGRAM = "bottleneck_lab.measure.kinds.input_pipeline.device"


def calibrate(context: Context[InputPipelineSettings], count: int) -> float:
    """CPU seconds that the shipped loader needs for a sample in one of its workers, measured by the
    reference worker. `count`: samples there are.
    """
    limits = limits_of(context.settings)
    with CallSession.start(context, "reference", context.pristine(), "judge.py", limits) as session:
        return median(_loader_s(session, context, count) for _ in range(CALIBRATIONS))


def _loader_s(session: CallSession, context: Context[InputPipelineSettings], count: int) -> float:
    indices = np.array(context.rng.sample(range(count), min(count, CALIBRATION_SAMPLES)))
    _, (seconds,) = session.call([str(context.data), indices, context.rng.getrandbits(31)])
    return float(seconds)


def wanted_step_s(settings: InputPipelineSettings, loader_s: float) -> float:
    """How long a step of the device should take on a machine whose shipped loader needs `loader_s`
    for a sample.
    """
    return settings.device_share * loader_s * settings.batch


class DeviceProcess:
    """The device, ready to train. `channel` is the verifier's to it; `script_socket` and `arena`
    are what the script gets.

    `step_s` is what a step takes, as the device says: a real one comes as near as it can to what it
    was asked for.
    """

    name = "the device process"

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: Channel,
        script_socket: socket.socket,
        arena: Arena,
        step_s: float,
        end: Callable[[], None],
    ) -> None:
        self.process = process
        self.channel = channel
        self.script_socket = script_socket
        self.arena = arena
        self.step_s = step_s
        self._end = end

    @classmethod
    def start(cls, context: Context[InputPipelineSettings], wanted_s: float) -> Self:
        """Starts a device that is to take `wanted_s` seconds for a step, and waits until it is
        ready. Raises VerifierFault when it does not come.

        A real one measures its step now, while there is no script that could make it longer.
        """
        batch, form = context.settings.batch, context.settings.samples
        engine = "cuda" if context.device == "cuda" else "emulated"
        options = ["--engine", engine, "--wanted-s", repr(wanted_s), "--batch", str(batch)]
        options += ["--samples", form.option, "--judge", str(context.lab.path / "judge.py")]
        return cls.launch(context, PROGRAM, options, SLOTS * batch * form.largest_bytes)

    @classmethod
    def launch(
        cls, context: WorkerContext, program: str, options: list[str], arena_bytes: int
    ) -> Self:
        """Starts a device process of any kind with its own `options`, and waits until it is ready."""
        arena = Arena.create(arena_bytes)
        process, channel, script_socket = start_device(context, program, options, arena)
        device = cls(
            process,
            channel,
            script_socket,
            arena,
            math.nan,
            partial(_end, process, context.janitor),
        )
        try:
            device.step_s = _step_s(channel, context.settings.start_s, "start")
        except BaseException:
            device.close()
            raise
        return device

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the device, and closes what leads to it."""
        self.end()
        self.channel.close()
        self.script_socket.close()
        self.arena.close()

    def end(self) -> None:
        """Ends the process; whoever waits at the channel hears that it is closed."""
        self._end()

    def step_again_s(self, timeout_s: float) -> float:
        """Seconds that a step takes now, when the script has ended. Raises VerifierFault when the
        device does not say.
        """
        self.channel.send(MeasureStep())
        return _step_s(self.channel, timeout_s, "measure its step again")

    def stopped(self) -> bool:
        """Whether somebody has stopped the process, or it is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)
        return True

    def ended(self) -> int | None:
        """The exit status; None while it lives, a second after the channel has closed."""
        try:
            return self.process.wait(1)
        except subprocess.TimeoutExpired:
            return None

    def cpu_s(self) -> float:
        """CPU seconds that the device has used so far; 0 when it is gone."""
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)


def start_device(
    context: WorkerContext, program: str, options: list[str], arena: Arena
) -> tuple[subprocess.Popen[bytes], Channel, socket.socket]:
    """The device process, the verifier's channel to it, and the script's socket."""
    ours, verifiers = Channel.pair()
    host, theirs = Channel.pair()
    command = [sys.executable, "-I", "-m", program, *options]
    command += [
        "--host",
        str(host.fileno()),
        "--verifier",
        str(verifiers.fileno()),
        "--arena",
        str(arena.fd),
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=[host.fileno(), verifiers.fileno(), arena.fd],
        start_new_session=True,
    )
    context.janitor.follow(process.pid)
    host.close()
    verifiers.close()
    return process, Channel(ours), theirs


def _end(process: subprocess.Popen[bytes], janitor: Janitor) -> None:
    process.kill()
    process.wait()
    janitor.forget(process.pid)


def _step_s(channel: Channel, timeout_s: float, doing: str) -> float:
    """What the device says that a step takes; what a script that has ended still had it say is no
    news. Raises VerifierFault when it does not come.
    """
    try:
        while not isinstance(message := channel.receive(timeout_s), DeviceReady):
            pass
    except WireError as error:
        raise VerifierFault(f"The device process did not {doing}: {error}") from None
    return message.step_s
