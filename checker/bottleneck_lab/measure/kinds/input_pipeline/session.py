"""Start a check's training script and the device that it feeds, and talk to both."""

from __future__ import annotations

from typing import Self

from bottleneck_lab.measure.channel.messages import Broken, EpochAsked, Gone, Message, Ready
from bottleneck_lab.measure.channel.session import Session, limits_of, start_worker
from bottleneck_lab.measure.clock import PhaseClock
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.input_pipeline import InputPipelineSettings
from bottleneck_lab.measure.kinds.input_pipeline.device_process import DeviceProcess, script_options
from bottleneck_lab.measure.machine import loading_cores
from bottleneck_lab.measure.sandbox.process import Worker

PROGRAM = "bottleneck_lab.measure.kinds.input_pipeline.child"


class PipelineSession:
    """The learner's training script at one end, the verifier's device process in the middle."""

    def __init__(
        self,
        worker: Worker,
        device: DeviceProcess,
        patience_s: float,
        clock: PhaseClock | None = None,
    ) -> None:
        self.script = Session("learner", worker, device.channel, device, clock=clock)
        self.device = device
        self._patience_s = patience_s
        self._script_ended = False

    @classmethod
    def start(cls, context: Context[InputPipelineSettings], wanted_s: float) -> Self:
        """Start a device that should take `wanted_s` seconds for a step, then the script, and wait
        until it is ready to train.
        """
        device = DeviceProcess.start(context, wanted_s)
        try:
            script = _start_script(context, device)
            session = cls(script, device, context.settings.start_s, context.clock)
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
        """Return the next message. Raises the fault of the script, or of a device that has ended or
        was stopped.
        """
        # `receive` watches the limits only while it waits, which a busy script can prevent.
        self.script.watch(doing)
        message = self.script.receive(timeout_s, doing)
        if isinstance(message, Gone):
            raise self.script.gone(doing)
        if isinstance(message, EpochAsked) and self.script.worker.process.poll() is not None:
            raise self.script.gone(doing)  # something that outlived the script speaks in its name
        if isinstance(message, Broken):
            raise LearnerFault(
                "tampered", f"{doing}: the script sent an invalid training step ({message.why})."
            )
        return message

    def step_after_s(self) -> float:
        """End the script with everything it started, and have the device measure its step again."""
        self._end_script()
        return self.device.step_again_s(self._patience_s)

    def close(self) -> None:
        """End the script with everything it started, and the device."""
        self._end_script()
        self.device.close()

    def _end_script(self) -> None:
        if not self._script_ended:  # `step_after_s` may have ended it already
            self._script_ended = True
            with self.script.clock.phase("waiting"):
                self.script.worker.end()


def _start_script(context: Context[InputPipelineSettings], device: DeviceProcess) -> Worker:
    """Start the script's worker."""
    folder, limits = context.submission, limits_of(context.settings)
    arguments = ["--entry", str(folder / context.lab.spec.entry), *script_options(context, device)]
    # Closed here once the worker has it: the end of the script must end the channel.
    with device.script_socket as script:
        fds = [script.fileno(), device.arena.fd]
        return start_worker(context, PROGRAM, arguments, folder, limits, fds, cores=loading_cores())
