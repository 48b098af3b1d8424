"""The `server` kind: what an inference server sustains against the shipped one, measured in the same check.

Both run in a sandbox on a device of the verifier's own. A closed loop finds what each answers a second when it always has work, and how long the device idles
between batches. An open loop of Poisson arrivals, at the rate that is asked for, finds how long requests take, from when they were due. Every answer is
checked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from bottleneck_lab.grading.criteria import (
    Conditions,
    grade_check,
    grade_decision,
    not_held_against,
    sequential_test,
)
from bottleneck_lab.grading.sequential import BLOCKS, Decision, State
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.channel.session import CallSession, Role, limits_of
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.server import ServerSettings, figures
from bottleneck_lab.measure.kinds.server.judging import check_answers, check_pixels
from bottleneck_lab.measure.kinds.server.level import Array, Level, Load
from bottleneck_lab.measure.kinds.server.pictures import Strips, make_strips
from bottleneck_lab.measure.kinds.server.session import ServerSession, device_times_s
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.needs import require_packages

CALIBRATIONS, CALIBRATION_PICTURES = 3, 12
CLOSED_S, MOST_CLOSED_S, CLOSED_PATIENCE_S = 7.0, 20.0, 10.0
DECIDING_BATCHES = 12
OPEN_WINDOWS = (8, 4, 4)
"""Windows of the open loop: so many at first, and so many more while they decide nothing."""
ROUGH_S, ROUGH_SHARE, BROKEN, LEAVES = 3.0, 0.5, 6, 4
"""The loop with bad requests: its seconds, its rate as a share of the shipped plateau, bodies that are no JPEG, and clients that go away."""
STEP, STEPS, STEP_S = 1.12, 4, 3.0
"""What the rate is raised by to find the highest that is sustained, how often at most, and for how long each."""


@dataclass
class Bench:
    """What a check loads servers with."""

    context: Context[ServerSettings]
    rng: np.random.Generator
    strips: Strips
    load: Load

    @classmethod
    def prepare(cls, context: Context[ServerSettings]) -> Bench:
        """Cuts pictures from photographs that are drawn in secret. Raises MachineError where what servers run on is not installed."""
        require_packages("labs", starlette="Starlette", uvicorn="uvicorn", httptools="httptools")
        rng = np.random.default_rng(context.rng.getrandbits(128))
        strips = make_strips(context.data, rng)
        return cls(context, rng, strips, Load(context.janitor.folder / "load", strips, context.janitor, rng))

    def start(self, role: Role, folder: Path, times_s: tuple[float, float]) -> ServerSession:
        """A server that answers."""
        session = ServerSession.start(self.context, role, folder, times_s)
        try:
            session.wait_until_it_answers(self.load, self.context.settings.start_s)
        except BaseException:
            session.close()
            raise
        return session

    def closed(self, server: ServerSession, seconds: float = CLOSED_S) -> tuple[Level, list[Ran]]:
        """A closed loop, and what the device ran in it."""
        clients = self.context.settings.clients
        return server.batches_of(
            lambda: self.load.closed(server.address, clients, seconds, server.follow, patience_s=CLOSED_PATIENCE_S)
        )

    def plateau(self, server: ServerSession) -> float:
        """Requests a second that a server answers when it always has work. Raises VerifierFault where that is next to nothing."""
        rates = figures.rates(*self.closed(server))
        if not rates:
            raise VerifierFault(
                f"The shipped server ran fewer than two batches in {CLOSED_S:.0f} s.",
                "Close what else is running, then try again.",
            )
        return median(rates)

    def open(self, server: ServerSession, rate: float, seconds: float) -> tuple[Level, list[Ran]]:
        """An open loop, and what the device ran in it."""
        return server.batches_of(lambda: self.load.open(server.address, rate, seconds, server.follow))


@dataclass
class Found:
    """What a check found. `problems` by criterion; `windows_ms`: the p99 of each window of the open loop; `shipped`: requests/s of the shipped server, first
    and again.
    """

    problems: dict[str, str] = field(default_factory=dict)
    checked: int = 0
    rates: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    windows_ms: list[float] = field(default_factory=list)
    sustained: float | None = None
    doubts: list[str] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    batches: list[Ran] = field(default_factory=list)
    other_cores: float = 0.0
    shipped: tuple[float, float] = (1.0, 1.0)

    def note(self, bench: Bench, level: Level, batches: list[Ran], *, all_of: Array | None = None) -> None:
        """Checks the answers of a level, and keeps what its pixels are checked by."""
        self.levels.append(level)
        self.batches += batches
        self.checked += len(level.status)
        if problem := check_answers(level, batches, bench.strips, all_of=all_of):
            self.problems.setdefault("right-answers", problem)
        if doubt := figures.bottleneck_of_its_own(level):
            self.doubts.append(doubt)


def measure(context: Context[ServerSettings]) -> Measured:
    """Runs the whole check. Raises LearnerFault or VerifierFault when it ends early."""
    context.progress("calibrating this machine with the shipped pre-processing", 0.02)
    bench = Bench.prepare(context)
    image_s = preprocess_s(context, bench)
    times_s = device_times_s(context.settings, image_s)
    context.progress("starting the shipped server", 0.08)
    with bench.start("reference", context.pristine(), times_s) as shipped:
        found = measure_both(bench, shipped, times_s)
    context.progress("checking pictures", 0.95)
    problem, compared = check_pixels(found.levels, found.batches, bench.strips, context.judge())
    if problem:
        found.problems["right-pixels"] = problem
    before, after = found.shipped
    return Measured(
        grade(context, found, compared),
        details=_details(found, image_s, times_s),
        notes=_notes(found, times_s, context.settings.batch),
        speedup=median(found.rates) / before if found.rates else None,
        conditions=Conditions(other_cores=found.other_cores, cores=os.cpu_count(), noise=abs(after / before - 1)),
    )


def preprocess_s(context: Context[ServerSettings], bench: Bench) -> float:
    """CPU seconds that the shipped pre-processing needs for a picture, measured by the reference worker."""
    with CallSession.start(
        context, "reference", context.pristine(), "judge.py", limits_of(context.settings)
    ) as session:
        times = []
        for _ in range(CALIBRATIONS):
            files = [bench.strips.file(picture) for picture in bench.strips.draw(CALIBRATION_PICTURES, bench.rng)]
            times.append(float(session.call([*files])[1][0]))
        return median(times)


def measure_both(bench: Bench, shipped: ServerSession, times_s: tuple[float, float]) -> Found:
    """The shipped server's plateau, the learner's, the shipped one's again; then the learner's at a rate, until something is wrong. One rests while the other
    is loaded.
    """
    context, found = bench.context, Found()
    context.progress("loading the shipped server", 0.12)
    before = bench.plateau(shipped)
    found.shipped = before, before
    shipped.freeze()
    context.progress("starting your server", 0.22)
    with bench.start("learner", context.submission, times_s) as server:
        meter = LoadMeter(lambda: own_cpu_s() + server.cpu_s() + shipped.cpu_s())
        context.progress("loading your server with as much as it takes", 0.3)
        level, batches = bench.closed(server, _long_enough_s(context.settings.batch, before))
        found.note(bench, level, batches, all_of=np.arange(len(level.status)))
        found.rates, found.idle = figures.rates(level, batches), figures.idle(level, batches)
        context.progress("sending bad requests among good ones", 0.4)
        _send_bad_requests(bench, server, before, found)
        if not found.problems:
            context.progress("loading the shipped server again", 0.45)
            server.freeze()
            shipped.thaw()
            after = bench.plateau(shipped)
            shipped.freeze()
            server.thaw()
            found.shipped = before, after
            if (
                _speed(context, found).state is not State.FAIL
            ):  # else a rate that it cannot keep up would tell nothing more
                context.progress("loading your server with requests that do not wait for each other", 0.55)
                _load_openly(bench, server, max(before, after), found)
        found.other_cores = meter.cores()
    return found


def _long_enough_s(batch: int, shipped: float) -> float:
    """Seconds in which a server no faster than the shipped one runs as many batches as a decision needs."""
    return min(MOST_CLOSED_S, max(CLOSED_S, figures.WARM_UP_S + DECIDING_BATCHES * batch / shipped))


def _send_bad_requests(bench: Bench, server: ServerSession, shipped: float, found: Found) -> None:
    """Some bodies are no JPEG file, some clients go away: all other requests have to be answered."""
    count = int(shipped * ROUGH_SHARE * ROUGH_S * 0.7)
    odd = bench.rng.permutation(np.arange(2, max(count, BROKEN + LEAVES + 3)))[: BROKEN + LEAVES].tolist()
    broken = {number: _no_jpeg(bench, at) for at, number in enumerate(odd[:BROKEN])}
    level, batches = server.batches_of(
        lambda: bench.load.open(
            server.address,
            shipped * ROUGH_SHARE,
            ROUGH_S,
            server.follow,
            broken=broken,
            leaves=odd[BROKEN:],
        )
    )
    good = np.setdiff1d(np.arange(len(level.status)), odd)
    accepted = [number for number in broken if number < len(level.status) and not 400 <= level.status[number] < 500]
    if accepted:
        status = level.status[accepted[0]]
        words = f"got status {status}" if status > 0 else "got no answer"
        found.problems["bad-requests"] = f"A body that is not a JPEG file {words}, not 400."
    elif (level.status[good] != 200).any():
        found.problems["bad-requests"] = (
            f"{(level.status[good] != 200).sum()} good requests beside bad ones were not answered."
        )
    found.note(bench, level, batches)


def _no_jpeg(bench: Bench, number: int) -> bytes:
    """Nothing at all, or what begins like a JPEG file and goes on as noise."""
    return bench.strips.header[:2] + bench.rng.bytes(2000) if number else b""


def _load_openly(bench: Bench, server: ServerSession, shipped: float, found: Found) -> None:
    """Load at the rate that is asked for until its p99 is decided; then, where it holds, more and more of it."""
    spec, limit = bench.context.required("throughput"), bench.context.required("p99-ms")
    rate = sequential_test(spec).bar * shipped
    test = sequential_test(limit, BLOCKS)
    decision = test.decide([])
    for windows in OPEN_WINDOWS:
        seconds = windows * figures.WINDOW_S
        level, batches = bench.open(server, rate, seconds)
        found.note(bench, level, batches)
        found.windows_ms += figures.window_p99s_ms(level, seconds)
        decision = test.decide(found.windows_ms)
        if decision.state is not State.CONTINUE:
            break
    if decision.state is State.PASS:
        found.sustained = _highest(bench, server, rate, test.bar, found)


def _highest(bench: Bench, server: ServerSession, rate: float, limit_ms: float, found: Found) -> float:
    """The highest rate (requests/s) that was sustained, from one that is: raised step by step until the p99 does not hold."""
    for _ in range(STEPS):
        bench.context.progress("raising the rate", 0.75)
        level, batches = bench.open(server, rate * STEP, STEP_S)
        found.note(bench, level, batches)
        if figures.p99_ms(level.latencies_s()) > limit_ms:
            break
        rate *= STEP
    return rate


def grade(context: Context[ServerSettings], found: Found, compared: int) -> list[CriterionResult]:
    """All criteria. What the generator or other programs may have spoilt is not held against the learner."""
    checks = [
        ("right-answers", found.checked, "answers"),
        ("right-pixels", compared, "pictures"),
        ("bad-requests", BROKEN + LEAVES, "bad requests"),
    ]
    results = [
        grade_check(context.required(id_), found.problems.get(id_), count, things) for id_, count, things in checks
    ]
    if found.problems:
        return results
    waits = sequential_test(context.required("p99-ms"), BLOCKS).decide(found.windows_ms, exhausted=True)
    idle = sequential_test(context.required("idle"), BLOCKS).decide(found.idle, exhausted=True)
    graded = [
        grade_decision(context.required("throughput"), _speed(context, found), "blocks"),
        grade_decision(context.required("p99-ms"), waits, "windows"),
        grade_decision(context.required("idle"), idle, "blocks"),
    ]
    return results + [_excused(not_held_against(result, found.other_cores), found.doubts) for result in graded]


def _speed(context: Context[ServerSettings], found: Found) -> Decision:
    """How much the server answers over the shipped one, as measured first; undecided where the shipped one, measured again, would make another answer of it."""
    test = sequential_test(context.required("throughput"), BLOCKS)
    first, again = (test.decide([rate / shipped for rate in found.rates], exhausted=True) for shipped in found.shipped)
    return first if again.state is first.state else msgspec.structs.replace(first, state=State.INCONCLUSIVE)


def _excused(result: CriterionResult, doubts: list[str]) -> CriterionResult:
    """A miss that the load generator may have caused is no miss of the learner's."""
    if result.holds is False and doubts:
        sentence = f"{result.sentence.rstrip('.')}; not held against you, because {doubts[0]}."
        return msgspec.structs.replace(result, holds=None, sentence=sentence)
    return result


def _details(found: Found, image_s: float, times_s: tuple[float, float]) -> dict[str, object]:
    late = [float(np.quantile(level.lateness_s(), 0.99)) * 1000 for level in found.levels if len(level.lateness_s())]
    return {
        "preprocess_s_a_picture": image_s,
        "device_s_a_batch": times_s[0],
        "device_s_an_image": times_s[1],
        "shipped_rates": list(found.shipped),
        "block_rates": found.rates,
        "block_idle": found.idle,
        "window_p99s_ms": found.windows_ms,
        "sustained_rate": found.sustained,
        "generator_late_p99_ms": late,
        "generator_cores": [level.cores for level in found.levels],
        "doubts": found.doubts,
    }


def _notes(found: Found, times_s: tuple[float, float], batch: int) -> list[str]:
    before = found.shipped[0]
    batch_ms = 1000 * (times_s[0] + batch * times_s[1])
    notes = [
        f"The device is emulated: it takes {batch_ms:.0f} ms for a batch of {batch} images, which is set by what the shipped pre-processing takes on this "
        f"machine. The shipped server answers {before:.0f} requests/s here."
    ]
    if found.sustained:
        notes.append(
            f"In an open loop your server sustains {found.sustained:.0f} requests/s within the bound, {found.sustained / before:.1f} times the plateau."
        )
    return notes
