"""The `inference_server` kind: what an inference server sustains against the shipped one, on a
device that the verifier owns.

It is loaded like any server. In addition the device reports how long it was idle between batches,
and every answer is traced to the batch that gave its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np

from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.channel.session import CallSession, Role, limits_of
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.http_server import check
from bottleneck_lab.measure.kinds.http_server.check import Found
from bottleneck_lab.measure.kinds.http_server.load.level import Array, Level, Load
from bottleneck_lab.measure.kinds.http_server.load.messages import message
from bottleneck_lab.measure.kinds.http_server.session import ServerSession
from bottleneck_lab.measure.kinds.inference_server import InferenceServerSettings, figures
from bottleneck_lab.measure.kinds.inference_server.judging import (
    SCORES_WITHIN,
    check_answers,
    check_pixels,
    scores_apart,
)
from bottleneck_lab.measure.kinds.inference_server.pictures import HEAD, Strips, make_strips
from bottleneck_lab.measure.kinds.inference_server.session import DeviceSession
from bottleneck_lab.measure.kinds.inference_server.sizing import UNSIZED, Sizing, size_model
from bottleneck_lab.measure.kinds.inference_server.triton.server import CHOICES, environment_for
from bottleneck_lab.needs import require_packages

CALIBRATIONS, CALIBRATION_PICTURES = 3, 12
CLOSED_S = 7.0
DECIDING_BATCHES = 12
BROKEN = 6
"""Bodies that are not JPEG files, in the loop with bad requests."""
FIRST_BYTES = (2, 3, 20)
"""How much of a JPEG file they begin with: its marker, with the next one's beginning, with the
segment that names the format.
"""
HUGE_BYTES = 12 << 20
"""The size of one of them."""


@dataclass(kw_only=True)
class Bench(check.Bench[InferenceServerSettings]):
    """Sends pictures. `triton`: the environment of a Triton Inference Server, where the learner's
    code asks for one: both servers then run on it.

    sizing: the model, once it is known how fast this machine is. device_s: what a full batch took
    on the device when it started. apart: how far the model's scores of a picture differ from one
    batch to another.
    """

    strips: Strips
    triton: Path | None = None
    sizing: Sizing = UNSIZED
    device_s: float = 0.0
    apart: float = 0.0

    @classmethod
    def prepare(cls, context: Context[InferenceServerSettings], code: Path) -> Bench:
        """Cuts pictures from photographs drawn in secret, for the server in the folder `code`.
        Raises MachineError if what it runs on is not installed.
        """
        triton = environment_for(code / context.lab.spec.entry)
        require_packages("labs", starlette="Starlette", uvicorn="uvicorn", httptools="httptools")
        rng = np.random.default_rng(context.rng.getrandbits(128))
        strips = make_strips(context.data, rng)
        load = Load(context.janitor.folder / "load", strips, context.janitor, rng)
        bad = "A body that is not a JPEG file"
        return cls(
            context,
            rng,
            load,
            context.settings.clients,
            CLOSED_S,
            bad,
            strips=strips,
            triton=triton,
        )

    def session(self, role: Role, folder: Path) -> DeviceSession:
        session = DeviceSession.start_with(self.context, role, folder, self.sizing, self.triton)
        self.device_s = session.device.step_s
        return session

    def after_load(self, server: ServerSession) -> None:
        """Has the model score some pictures again. Raises VerifierFault if the scores differ: no
        answer could be judged by them.
        """
        self.apart = scores_apart(server.batches, cast("DeviceSession", server).scores_alone)
        if self.apart > SCORES_WITHIN:
            raise VerifierFault(
                f"The model's scores of one picture differ by {self.apart:.2g} from one batch to"
                f" another; {SCORES_WITHIN:g} is allowed."
            )

    def rates(self, level: Level, batches: Sequence[Ran]) -> list[float]:
        return figures.rates(level, batches)

    def wrong_answers(
        self, level: Level, batches: Sequence[Ran], all_of: Array | None
    ) -> str | None:
        return check_answers(level, batches, self.strips, all_of=all_of)

    def bad_requests(self) -> list[bytes]:
        return [message(HEAD, self._no_jpeg(number)) for number in range(BROKEN)]

    def deciding(self) -> float:
        return DECIDING_BATCHES * self.context.settings.batch

    def _no_jpeg(self, number: int) -> bytes:
        """Nothing at all, or noise behind the first bytes of a JPEG file, or behind its whole first
        segment: of one, more than any picture has.
        """
        sizes, first = {0: 0, 1: HUGE_BYTES}, FIRST_BYTES[number % len(FIRST_BYTES)]
        size = sizes.get(number, 2000)
        return self.strips.header[:first] + self.rng.bytes(size) if size else b""


def measure(context: Context[InferenceServerSettings]) -> Measured:
    """Runs the whole check. Raises LearnerFault or VerifierFault when it ends early."""
    context.progress("calibrating this machine with the shipped pre-processing", 0.02)
    bench = Bench.prepare(context, context.submission)
    bench.sizing = size_model(context, preprocess_s(context, bench))
    context.progress("starting the shipped server", 0.08)
    with bench.start("reference", context.pristine()) as shipped:
        found = check.measure_both(bench, shipped)
    context.progress("checking pictures", 0.95)
    problem, compared = check_pixels(found.levels, found.batches, bench.strips, context.judge())
    if problem:
        found.problems["right-pixels"] = problem
    return Measured(
        grade(context, found, compared),
        details=_details(found, bench),
        notes=[*_served(bench), _on_device(bench), *check.notes(found)],
        speedup=check.gain(found),
        conditions=check.conditions(found),
    )


def preprocess_s(context: Context[InferenceServerSettings], bench: Bench) -> float:
    """CPU seconds that the shipped pre-processing needs for a picture, measured by the reference
    worker.
    """
    with CallSession.start(
        context, "reference", context.pristine(), "judge.py", limits_of(context.settings)
    ) as session:
        times, server = [], CHOICES[bench.triton is not None]
        for _ in range(CALIBRATIONS):
            files = [
                bench.strips.file(picture)
                for picture in bench.strips.draw(CALIBRATION_PICTURES, bench.rng)
            ]
            times.append(float(session.call([server, *files])[1][0]))
        return median(times)


def grade(
    context: Context[InferenceServerSettings], found: Found, compared: int
) -> list[CriterionResult]:
    """All criteria; `compared`: pictures whose pixels were compared."""
    checked = {"right-answers": (found.checked, "answers"), "right-pixels": (compared, "pictures")}
    results = check.grade_problems(context, found, checked)
    return (
        results
        if found.problems
        else results + check.grade_load(context, found, [("idle", _idle(found))])
    )


def _idle(found: Found) -> list[float]:
    return figures.idle(*found.closed) if found.closed else []


def _details(found: Found, bench: Bench) -> dict[str, object]:
    return {
        **bench.sizing.details(),
        "measured_device_s_a_batch": bench.device_s,
        "device_ms_by_images": figures.device_ms(found.batches),
        "scores_apart": bench.apart,
        "block_idle": _idle(found),
        **check.details(found),
    }


def _served(bench: Bench) -> list[str]:
    return ["Both servers ran on a Triton Inference Server."] if bench.triton else []


def _on_device(bench: Bench) -> str:
    """A note on what the model is, and how long it takes."""
    batch, share = bench.context.settings.batch, bench.context.settings.device_share
    took = f"{1000 * bench.device_s:.0f} ms for a batch of {batch} images"
    set_by = (
        f"set to {share:g} of the CPU time that the shipped pre-processing takes for them on this"
        " machine"
    )
    if bench.sizing.members:
        networks = "1 network" if bench.sizing.members == 1 else f"{bench.sizing.members} networks"
        return (
            f"The model is an ensemble of {networks} on the GPU, which took {took} when nothing"
            f" else ran. The number of networks is {set_by}."
        )
    return f"The device is emulated: it takes {took}, {set_by}."
