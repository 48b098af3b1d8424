"""A trusted program that answers calls as a worker does. Nothing holds it, and what goes wrong with
it is no learner's fault.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.messages import (
    Answer,
    Call,
    Failed,
    Loading,
    MessageT,
    Ready,
    Value,
)
from bottleneck_lab.measure.channel.session import Role
from bottleneck_lab.measure.channel.wire import Channel, TimedOut, WireError
from bottleneck_lab.measure.clock import Phase, PhaseClock
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.sandbox.limits import Limits


class TrustedSession:
    """The shipped code in a process of the verifier's own. It is never frozen, so its times are not
    to be compared with a worker's. Whatever fails is a VerifierFault.
    """

    role: Role = "reference"

    def __init__(self, channel: Channel, limits: Limits, clock: PhaseClock) -> None:
        self._channel = channel
        self._limits = limits
        self._clock = clock

    def wait_ready(self) -> None:
        """Wait until its code is loaded."""
        ready = self._expect(Ready, self._limits.start_s, "workers")
        self._clock.move(ready.loading_s, "workers", "imports")

    def hand_over(self, inputs: list[Value]) -> float:
        """Send the inputs of a call and return when that was; `collect` takes the answer."""
        began = time.perf_counter()
        try:
            self._channel.send(Call(inputs))
        except WireError as error:
            raise self.fault("crashed", str(error)) from None
        return began

    def collect(self, began: float) -> tuple[float, list[Any]]:
        """Wait for the answer to a call; return the seconds since `began`, and a copy of it."""
        outputs = self._expect(Answer, self._limits.call_s, "reference").outputs
        answer = [np.array(value) if isinstance(value, np.ndarray) else value for value in outputs]
        return time.perf_counter() - began, answer

    def fault(self, reason: str, detail: str) -> VerifierFault:
        """Return the exception for what went wrong with it."""
        return VerifierFault(f"The shipped code failed in the check: {reason}: {detail}")

    def _expect(self, due: type[MessageT], timeout_s: float, phase: Phase) -> MessageT:
        with self._clock.phase(phase):
            try:
                message = self._channel.receive(timeout_s)
                while isinstance(message, Loading):
                    message = self._channel.receive(timeout_s)
            except TimedOut:
                raise self.fault("timed out", f"no answer within {timeout_s:.0f} s") from None
            except WireError as error:
                raise self.fault("crashed", str(error)) from None
        if isinstance(message, Failed):
            raise self.fault("crashed", message.text)
        if not isinstance(message, due):
            raise self.fault("crashed", f"{type(message).__name__} came instead of {due.__name__}")
        return message
