"""The `server` kind: what an inference server sustains against the shipped one, on a device of the verifier's own.

Loaded as any server is; besides, the device says how long it idled between batches, and every answer is traced to the batch that gave its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.channel.session import CallSession, Role, limits_of
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.kinds.requests import check
from bottleneck_lab.measure.kinds.requests.check import Found
from bottleneck_lab.measure.kinds.requests.level import Array, Level, Load
from bottleneck_lab.measure.kinds.requests.messages import message
from bottleneck_lab.measure.kinds.server import ServerSettings, figures
from bottleneck_lab.measure.kinds.server.judging import check_answers, check_pixels
from bottleneck_lab.measure.kinds.server.pictures import HEAD, Strips, make_strips
from bottleneck_lab.measure.kinds.server.session import DeviceSession, device_times_s
from bottleneck_lab.measure.kinds.server.tritonserver import CHOICES, environment_for
from bottleneck_lab.needs import require_packages

CALIBRATIONS, CALIBRATION_PICTURES = 3, 12
CLOSED_S = 7.0
DECIDING_BATCHES = 12
BROKEN = 6
"""Bodies that are no JPEG file, in the loop with bad requests."""


@dataclass(kw_only=True)
class Bench(check.Bench[ServerSettings]):
    """Sends pictures. `times_s`: what the device takes for any batch, and for each image in it, once the machine is calibrated.

    `triton`: the environment of a Triton Inference Server, where the learner's code asks for one: both servers then run on it.
    """

    strips: Strips
    triton: Path | None = None
    times_s: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def prepare(cls, context: Context[ServerSettings], code: Path) -> Bench:
        """Cuts pictures from photographs that are drawn in secret, for the server in the folder `code`. Raises MachineError where what it runs on is not
        installed.
        """
        triton = environment_for(code / context.lab.spec.entry)
        require_packages("labs", starlette="Starlette", uvicorn="uvicorn", httptools="httptools")
        rng = np.random.default_rng(context.rng.getrandbits(128))
        strips = make_strips(context.data, rng)
        load = Load(context.janitor.folder / "load", strips, context.janitor, rng)
        bad = "A body that is not a JPEG file"
        return cls(context, rng, load, context.settings.clients, CLOSED_S, bad, strips=strips, triton=triton)

    def session(self, role: Role, folder: Path) -> DeviceSession:
        return DeviceSession.start_with(self.context, role, folder, self.times_s, self.triton)

    def rates(self, level: Level, batches: Sequence[Ran]) -> list[float]:
        return figures.rates(level, batches)

    def wrong_answers(self, level: Level, batches: Sequence[Ran], all_of: Array | None) -> str | None:
        return check_answers(level, batches, self.strips, all_of=all_of)

    def bad_requests(self) -> list[bytes]:
        return [message(HEAD, self._no_jpeg(number)) for number in range(BROKEN)]

    def deciding(self) -> float:
        return DECIDING_BATCHES * self.context.settings.batch

    def _no_jpeg(self, number: int) -> bytes:
        """Nothing at all, or what begins like a JPEG file and goes on as noise."""
        return self.strips.header[:2] + self.rng.bytes(2000) if number else b""


def measure(context: Context[ServerSettings]) -> Measured:
    """Runs the whole check. Raises LearnerFault or VerifierFault when it ends early."""
    context.progress("calibrating this machine with the shipped pre-processing", 0.02)
    bench = Bench.prepare(context, context.submission)
    image_s = preprocess_s(context, bench)
    bench.times_s = device_times_s(context.settings, image_s)
    context.progress("starting the shipped server", 0.08)
    with bench.start("reference", context.pristine()) as shipped:
        found = check.measure_both(bench, shipped)
    context.progress("checking pictures", 0.95)
    problem, compared = check_pixels(found.levels, found.batches, bench.strips, context.judge())
    if problem:
        found.problems["right-pixels"] = problem
    return Measured(
        grade(context, found, compared),
        details=_details(found, image_s, bench.times_s),
        notes=[*_served(bench), _emulated(bench.times_s, context.settings.batch), *check.notes(found)],
        speedup=check.gain(found),
        conditions=check.conditions(found),
    )


def preprocess_s(context: Context[ServerSettings], bench: Bench) -> float:
    """CPU seconds that the shipped pre-processing needs for a picture, measured by the reference worker."""
    with CallSession.start(
        context, "reference", context.pristine(), "judge.py", limits_of(context.settings)
    ) as session:
        times, server = [], CHOICES[bench.triton is not None]
        for _ in range(CALIBRATIONS):
            files = [bench.strips.file(picture) for picture in bench.strips.draw(CALIBRATION_PICTURES, bench.rng)]
            times.append(float(session.call([server, *files])[1][0]))
        return median(times)


def grade(context: Context[ServerSettings], found: Found, compared: int) -> list[CriterionResult]:
    """All criteria; `compared`: pictures whose pixels were looked at."""
    checked = {"right-answers": (found.checked, "answers"), "right-pixels": (compared, "pictures")}
    results = check.grade_problems(context, found, checked)
    return results if found.problems else results + check.grade_load(context, found, [("idle", _idle(found))])


def _idle(found: Found) -> list[float]:
    return figures.idle(*found.closed) if found.closed else []


def _details(found: Found, image_s: float, times_s: tuple[float, float]) -> dict[str, object]:
    return {
        "preprocess_s_a_picture": image_s,
        "device_s_a_batch": times_s[0],
        "device_s_an_image": times_s[1],
        "block_idle": _idle(found),
        **check.details(found),
    }


def _served(bench: Bench) -> list[str]:
    return ["Both servers ran on a Triton Inference Server."] if bench.triton else []


def _emulated(times_s: tuple[float, float], batch: int) -> str:
    batch_ms = 1000 * (times_s[0] + batch * times_s[1])
    return (
        f"The device is emulated: it takes {batch_ms:.0f} ms for a batch of {batch} images, which is set by what the shipped pre-processing takes on this "
        "machine."
    )
