"""The load that inference servers get: a different picture with every request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.channel.session import CallSession, Role, limits_of
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.http_server.bench import SLOWED, Bench
from bottleneck_lab.measure.kinds.http_server.load.level import Array, Level, Load
from bottleneck_lab.measure.kinds.http_server.load.messages import message
from bottleneck_lab.measure.kinds.http_server.session import ServerSession
from bottleneck_lab.measure.kinds.inference_server import InferenceServerSettings, figures
from bottleneck_lab.measure.kinds.inference_server.judging import (
    SCORES_WITHIN,
    answers_of_batches,
    check_answers,
    scores_apart,
)
from bottleneck_lab.measure.kinds.inference_server.pictures import HEAD, Strips, make_strips
from bottleneck_lab.measure.kinds.inference_server.session import DeviceSession
from bottleneck_lab.measure.kinds.inference_server.sizing import UNSIZED, Sizing
from bottleneck_lab.measure.kinds.inference_server.triton.server import CHOICES
from bottleneck_lab.needs import require_packages

CALIBRATION_PICTURES = 36
CLOSED_S = 7.0
DECIDING_BATCHES = 12
DEVICE_ERROR = 1.1
"""The time of a batch on a GPU may be overstated by this factor, since its clocks change; that of
an emulated device is exact.
"""
BROKEN = 6
"""Bodies that are not JPEG files, in the loop with bad requests."""
FIRST_BYTES = (2, 3, 20)
"""How much of a JPEG file they begin with: its marker, with the next one's beginning, with the
segment that names the format.
"""
HUGE_BYTES = 12 << 20
"""The size of one of them."""


@dataclass(kw_only=True)
class InferenceBench(Bench[InferenceServerSettings]):
    """Loads servers with pictures. triton: the environment of a Triton Inference Server, if the
    learner's code asks for one; both servers then run on it.

    sizing: the model, once the speed of this machine is known. device_s: seconds that a full batch
    then took on the device. shortest_picture_s: the shortest calibration of the shipped
    pre-processing, in CPU seconds for a picture. servers: those that wait to be begun. apart: the
    largest difference between the model's scores of a picture in one batch and in another.
    """

    strips: Strips
    triton: Path | None = None
    sizing: Sizing = UNSIZED
    device_s: float = 0.0
    shortest_picture_s: float = 0.0
    servers: Mapping[Role, DeviceSession] = field(default_factory=dict)
    apart: float = 0.0

    @classmethod
    def prepare(
        cls, context: Context[InferenceServerSettings], triton: Path | None
    ) -> InferenceBench:
        """Cut pictures from photographs drawn in secret, for a server on Triton if there is an
        environment for it. Raises MachineError if something that the load needs is not installed.
        """
        require_packages("labs", starlette="Starlette", uvicorn="uvicorn", httptools="httptools")
        rng = np.random.default_rng(context.rng.getrandbits(128))
        strips = make_strips(context.data, rng)
        load = Load(context.janitor.folder / "load", strips, context.janitor, rng)
        return cls(
            context,
            rng,
            load,
            context.settings.clients,
            CLOSED_S,
            bad="A body that is not a JPEG file",
            strips=strips,
            triton=triton,
        )

    def session(self, role: Role, folder: Path) -> DeviceSession:  # noqa: ARG002 - opened on it
        session = self.servers[role]
        session.begin()
        return session

    def after_load(self, server: ServerSession) -> None:
        """Have the model score some pictures again. Raises VerifierFault if the scores differ: no
        answer could be judged by them.
        """
        self.apart = scores_apart(server.batches, cast("DeviceSession", server).scores_alone)
        if self.apart > SCORES_WITHIN:
            raise VerifierFault(
                f"The model's scores of one picture differ by {self.apart:.2g} from one batch to"
                f" another; {SCORES_WITHIN:g} is allowed."
            )

    def rates(self, level: Level, batches: Sequence[Ran]) -> list[float]:
        return figures.rates(level, batches, self.answers(level, batches))

    def idle(self, level: Level, batches: Sequence[Ran]) -> list[float]:
        """Return the share (0–1) of each block in which the device did nothing for an answer."""
        return figures.idle(level, batches, self.answers(level, batches))

    def answers(self, level: Level, batches: Sequence[Ran]) -> dict[int, int]:
        """Return how many answers rest on each batch, by when it ended (ns)."""
        return answers_of_batches(level, batches, self.strips)

    def wrong_answers(
        self, level: Level, batches: Sequence[Ran], all_of: Array | None
    ) -> str | None:
        return check_answers(level, batches, self.strips, all_of=all_of)

    def bad_requests(self) -> list[bytes]:
        """Return bodies that are not JPEG files: an empty one, one larger than any picture, and
        noise behind the beginning of a JPEG file.
        """
        bodies = []
        for number in range(BROKEN):
            size = {0: 0, 1: HUGE_BYTES}.get(number, 2000)
            beginning = self.strips.header[: FIRST_BYTES[number % len(FIRST_BYTES)]]
            bodies.append(beginning + self.rng.bytes(size) if size else b"")
        return [message(HEAD, body) for body in bodies]

    def refuses(self, request: bytes, status: int) -> bool:
        return status == 400 or (status == 413 and len(request) > HUGE_BYTES)

    def limit(self) -> float:
        """Return the images/s that the shipped server cannot exceed: those of a full batch over the
        least time that preparing it and running it take.

        One after the other where the lab says that it works `in_turns`; else the device's time,
        beside which anything may be prepared. Either is a bound from above, since both times are
        taken as short as their errors allow, batches as full as they get, and everything else that
        the server does (HTTP, waiting for requests, copies) as free.
        """
        settings = self.context.settings
        if not self.device_s:
            return math.inf
        error = DEVICE_ERROR if self.sizing.members else 1.0
        turn_s = self.device_s / error
        if settings.in_turns:
            turn_s += settings.batch * self.shortest_picture_s / SLOWED
        return settings.batch / turn_s

    def most_gain(self) -> float:
        """Return how many times as fast a server is that never lets the device pause as one that
        prepares a batch and runs it in turns.
        """
        settings = self.context.settings
        if not (settings.in_turns and self.device_s):
            return math.inf
        return 1 + settings.batch * self.sizing.picture_s / self.device_s

    def deciding(self) -> float:
        return DECIDING_BATCHES * self.context.settings.batch


def start_calibrator(context: Context[InferenceServerSettings]) -> CallSession:
    """Start the reference worker that prepares pictures as shipped, and do not wait for it."""
    limits = limits_of(context.settings)
    return CallSession.start(
        context, "reference", context.pristine(), "judge.py", limits, wait=False
    )


def preprocess_s(calibrator: CallSession, bench: InferenceBench) -> list[float]:
    """Measure the CPU seconds that the shipped pre-processing needs for each of some pictures."""
    calibrator.wait_ready()
    server = CHOICES[bench.triton is not None]
    pictures = bench.strips.draw(CALIBRATION_PICTURES, bench.rng)
    # One at a time: the shortest of many shows what the work takes while others pause.
    return [
        float(calibrator.call([server, bench.strips.file(picture)])[1][0]) for picture in pictures
    ]
