"""Calibrate the device, start its process beside a script, and end it: the same for a check, a
profile and a plain run. device.py is what runs in that process.
"""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
import sys
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
from bottleneck_lab.programs import as_options

CALIBRATIONS = 3
CALIBRATION_SAMPLES = 16
PROGRAM = "bottleneck_lab.measure.kinds.input_pipeline.device"


def calibrate(context: Context[InputPipelineSettings], count: int) -> float:
    """Measure the CPU seconds that one worker of the shipped loader needs for a sample.

    The reference worker measures it on samples drawn in secret from the `count` there are; the
    median of three tries counts.
    """
    limits = limits_of(context.settings)
    with CallSession.start(context, "reference", context.pristine(), "judge.py", limits) as session:
        tries_s = []
        for _ in range(CALIBRATIONS):
            indices = np.array(context.rng.sample(range(count), min(count, CALIBRATION_SAMPLES)))
            _, (seconds,) = session.call([str(context.data), indices, context.rng.getrandbits(31)])
            tries_s.append(float(seconds))
        return median(tries_s)


def wanted_step_s(settings: InputPipelineSettings, loader_s: float) -> float:
    """Return the seconds that a step should take on a machine whose shipped loader needs `loader_s`
    for a sample.
    """
    return settings.device_share * loader_s * settings.batch


class DeviceProcess:
    """A device that is ready to train. `channel` is the verifier's end; the script gets
    `script_socket` and `arena`.

    `step_s`: seconds that a step takes by the device's own measurement. A real one comes only as
    near as it can to what was wanted.
    """

    name = "the device process"

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: Channel,
        script_socket: socket.socket,
        arena: Arena,
        step_s: float,
        janitor: Janitor,
    ) -> None:
        self.process = process
        self.channel = channel
        self.script_socket = script_socket
        self.arena = arena
        self.step_s = step_s
        self._janitor = janitor

    @classmethod
    def start(cls, context: Context[InputPipelineSettings], wanted_s: float) -> Self:
        """Start a device that should take `wanted_s` seconds for a step, and wait until it is
        ready.

        Raises VerifierFault if it does not get ready. A real one measures its step now, while no
        script is there that could make it longer.
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
        """Start a device process of any kind and wait until it is ready."""
        with context.clock.phase("workers"):
            arena = Arena.create(arena_bytes)
            process, channel, script_socket = start_device(context, program, options, arena)
            # Its step is not known until it is ready; but whatever fails before has to end it.
            device = cls(process, channel, script_socket, arena, math.nan, context.janitor)
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
        """End the process, and close its channel, socket and arena."""
        self.end()
        self.channel.close()
        self.script_socket.close()
        self.arena.close()

    def end(self) -> None:
        """End the process: whoever waits at its channels finds them closed."""
        self.process.kill()
        self.process.wait()
        self._janitor.forget(self.process.pid)

    def step_again_s(self, timeout_s: float) -> float:
        """Have the device measure its step again, once the script has ended: seconds.

        Raises VerifierFault if no answer comes within `timeout_s`.
        """
        self.channel.send(MeasureStep())
        return _step_s(self.channel, timeout_s, "measure its step again")

    def stopped(self) -> bool:
        """Return True if the process is stopped (SIGSTOP) or gone."""
        # Its silence is then not the script's fault.
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)
        return True

    def ended(self) -> int | None:
        """Return the exit status, or None if it still lives after a second."""
        try:
            return self.process.wait(1)
        except subprocess.TimeoutExpired:
            return None

    def cpu_s(self) -> float:
        """Return the CPU seconds that the device has used so far; 0 if it is gone."""
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)


def start_device(
    context: WorkerContext, program: str, options: list[str], arena: Arena
) -> tuple[subprocess.Popen[bytes], Channel, socket.socket]:
    """Start `program` as a device process. Returns it, the verifier's channel and the script's
    socket.
    """
    ours, verifiers = Channel.pair()
    host, theirs = Channel.pair()
    fds = {"--host": host.fileno(), "--verifier": verifiers.fileno(), "--arena": arena.fd}
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", program, *options, *as_options(fds)],
        stdin=subprocess.DEVNULL,
        pass_fds=list(fds.values()),
        start_new_session=True,
    )
    context.janitor.follow(process.pid)
    # Only the device may hold these ends now, or its end would never be noticed.
    host.close()
    verifiers.close()
    return process, Channel(ours), theirs


def script_options(context: Context[InputPipelineSettings], device: DeviceProcess) -> list[str]:
    """Return the options by which a script's process reaches its device and its data."""
    fds = {"--socket": device.script_socket.fileno(), "--arena": device.arena.fd}
    return as_options({**fds, "--data": context.data, "--samples": context.settings.samples.option})


def _step_s(channel: Channel, timeout_s: float, doing: str) -> float:
    """Wait for the device's word on how long its step takes, in seconds."""
    try:
        # Steps of a script that has ended may still be reported before it.
        while not isinstance(message := channel.receive(timeout_s), DeviceReady):
            pass
    except WireError as error:
        raise VerifierFault(f"The device process did not {doing}: {error}") from None
    return message.step_s
