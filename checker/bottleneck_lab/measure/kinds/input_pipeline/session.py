"""A check's training script, the device that it feeds, and the verifier's word to both."""

from __future__ import annotations

from typing import Self

from bottleneck_lab.measure.channel.messages import Broken, EpochAsked, Gone, Message, Ready
from bottleneck_lab.measure.channel.session import Session, limits_of, start_worker
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.input_pipeline import InputPipelineSettings
from bottleneck_lab.measure.kinds.input_pipeline.device_process import DeviceProcess
from bottleneck_lab.measure.machine import loading_cores
from bottleneck_lab.measure.sandbox.process import Worker

PROGRAM = "bottleneck_lab.measure.kinds.input_pipeline.child"


class PipelineSession:
    """The learner's training script at one end, the verifier's device process in the middle."""

    def __init__(self, worker: Worker, device: DeviceProcess, patience_s: float) -> None:
        self.script = Session("learner", worker, device.channel, device)
        self.device = device
        self._patience_s = patience_s
        self._script_ended = False

    @classmethod
    def start(cls, context: Context[InputPipelineSettings], wanted_s: float) -> Self:
        """Starts a device that is to take `wanted_s` seconds for a step, then the script, and waits
        until it is ready to train.
        """
        device = DeviceProcess.start(context, wanted_s)
        try:
            session = cls(_start_script(context, device), device, context.settings.start_s)
        except BaseException:
            device.close()
            raise
        try:
            message = session.receive(context.settings.start_s, "starting up and preparing")
            session.script.require(message, Ready, "starting up and preparing")
        except BaseException:
            session.close()
            raise
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def receive(self, timeout_s: float, doing: str) -> Message:
        """The next message. Raises the fault of the script, or of the device where it has ended or
        was stopped.
        """
        self.script.watch(doing)  # a script that never lets us wait is watched all the same
        message = self.script.receive(timeout_s, doing)
        asked_dead = (
            isinstance(message, EpochAsked) and self.script.worker.process.poll() is not None
        )
        if isinstance(message, Gone) or asked_dead:
            raise self.script.gone(doing)
        if isinstance(message, Broken):
            raise LearnerFault(
                "tampered", f"{doing}: the script sent an invalid training step ({message.why})."
            )
        return message

    def step_after_s(self) -> float:
        """Ends the script with everything it started; seconds that a step of the device takes then."""
        self._end_script()
        return self.device.step_again_s(self._patience_s)

    def close(self) -> None:
        """Ends the script with everything it started, and the device."""
        self._end_script()
        self.device.close()

    def _end_script(self) -> None:
        if not self._script_ended:
            self._script_ended = True
            self.script.worker.end()


def _start_script(context: Context[InputPipelineSettings], device: DeviceProcess) -> Worker:
    """The script's worker, which alone holds its end of the channel from now on."""
    fds = [device.script_socket.fileno(), device.arena.fd]
    arguments = [
        "--entry",
        str(context.submission / context.lab.spec.entry),
        "--data",
        str(context.data),
    ]
    arguments += [
        "--socket",
        str(fds[0]),
        "--arena",
        str(fds[1]),
        "--samples",
        context.settings.samples.option,
    ]
    limits = limits_of(context.settings)
    with device.script_socket:
        return start_worker(
            context, PROGRAM, arguments, context.submission, limits, fds, cores=loading_cores()
        )
