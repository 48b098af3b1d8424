"""The `http_server` kind: what a server sustains against the shipped one, measured in the same
check.

Both run in a sandbox. A closed loop finds the rate of each when it always has work. An open loop of
Poisson arrivals, at the rate that the lab asks for, finds how long requests take, counted from when
they were due. What a kind of server adds is in its `Bench`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from bottleneck_lab.grading.criteria import (
    Conditions,
    grade_check,
    grade_decision,
    not_held_against,
    sequential_test,
)
from bottleneck_lab.grading.sequential import BLOCKS, Decision, SequentialTest, State
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.channel.session import Role
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.http_server import HttpServerSettings, figures
from bottleneck_lab.measure.kinds.http_server.judging import Requests, check_answers
from bottleneck_lab.measure.kinds.http_server.load.level import Array, Level, Load
from bottleneck_lab.measure.kinds.http_server.session import ServerSession
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.settings import WorkerSettings
from bottleneck_lab.needs import require_packages

MOST_CLOSED_S, CLOSED_PATIENCE_S = 20.0, 10.0
DECIDING_ANSWERS = 200
OPEN_WINDOWS = (8, 4, 4)
"""Windows of the open loop: the first number, then more while nothing is decided."""
ROUGH_S, LEAVES = 3.0, 4
"""The closed loop with bad requests: its seconds, and how many clients disconnect."""
STEP, STEPS, STEP_S = 1.12, 4, 3.0
"""To find the highest rate that is sustained: the factor of each step, the most steps, and seconds
per step.
"""
TRIES = 3
"""Open loops at most, if the generator's own delay may have caused a p99 to miss."""

S = TypeVar("S", bound=WorkerSettings)


@dataclass
class Bench(ABC, Generic[S]):
    """What a check loads servers with, and how it judges their answers.

    clients, closed_s: of a closed loop. bad: how a sentence about a request that must be refused
    begins.
    """

    context: Context[S]
    rng: np.random.Generator
    load: Load
    clients: int
    closed_s: float
    bad: str = "A request that must be refused"

    @abstractmethod
    def session(self, role: Role, folder: Path) -> ServerSession:
        """A server whose code is loaded."""

    @abstractmethod
    def rates(self, level: Level, batches: Sequence[Ran]) -> list[float]:
        """Requests answered a second in each block of a closed loop."""

    @abstractmethod
    def wrong_answers(
        self,
        level: Level,
        batches: Sequence[Ran],
        all_of: Array | None,
    ) -> str | None:
        """What is wrong with the answers of a level. `all_of`: those that must have been answered."""

    @abstractmethod
    def bad_requests(self) -> list[bytes]:
        """Requests that must be refused, as they are sent."""

    def after_load(self, server: ServerSession) -> None:
        """Anything more to do with the learner's server after the load."""

    def deciding(self) -> float:
        """How many answers of a closed loop a decision needs."""
        return DECIDING_ANSWERS

    def start(self, role: Role, folder: Path) -> ServerSession:
        """A server that answers."""
        server = self.session(role, folder)
        server.wait_until_it_answers(self.load, self.context.settings.start_s)
        return server

    def closed(
        self, server: ServerSession, seconds: float, **options: Any
    ) -> tuple[Level, list[Ran]]:
        """A closed loop, and what a device ran in it. `options`: of a plan."""
        return server.batches_of(
            lambda: self.load.closed(
                server.address,
                self.clients,
                seconds,
                server.follow,
                patience_s=CLOSED_PATIENCE_S,
                **options,
            )
        )

    def plateau(self, server: ServerSession) -> float:
        """Requests/s that a server answers when it always has work. Raises VerifierFault if it
        hardly answers any.
        """
        rates = self.rates(*self.closed(server, self.closed_s))
        if not rates:
            raise VerifierFault(
                f"The shipped server hardly answered any request in {self.closed_s:.0f} s.",
                "Close other programs and try again.",
            )
        return median(rates)

    def open(self, server: ServerSession, rate: float, seconds: float) -> tuple[Level, list[Ran]]:
        """An open loop, and what a device ran in it."""
        return server.batches_of(
            lambda: self.load.open(server.address, rate, seconds, server.follow)
        )


@dataclass
class Found:
    """What a check found. `problems` by criterion; `closed`: the learner's closed loop;
    `windows_ms`: the p99 of each window of the open loop; `shipped`: requests/s of the shipped
    server, measured twice.

    `doubts`: why the generator may have set a figure, by criterion; those of "throughput" hold for
    all figures of the closed loop.
    """

    problems: dict[str, str] = field(default_factory=dict)
    checked: int = 0
    refused: int = 0
    rates: list[float] = field(default_factory=list)
    closed: tuple[Level, list[Ran]] | None = None
    windows_ms: list[float] = field(default_factory=list)
    sustained: float | None = None
    doubts: dict[str, str] = field(default_factory=dict)
    levels: list[Level] = field(default_factory=list)
    batches: list[Ran] = field(default_factory=list)
    other_cores: float = 0.0
    shipped: tuple[float, float] = (1.0, 1.0)

    def note(
        self, bench: Bench[Any], level: Level, batches: list[Ran], *, all_of: Array | None = None
    ) -> None:
        """Checks the answers of a level, and keeps it."""
        self.levels.append(level)
        self.batches += batches
        self.checked += len(level.status)
        if problem := bench.wrong_answers(level, batches, all_of):
            self.problems.setdefault("right-answers", problem)


@dataclass(kw_only=True)
class HttpBench(Bench[HttpServerSettings]):
    """Loads servers with the requests of the lab's judge."""

    requests: Requests

    @classmethod
    def prepare(cls, context: Context[HttpServerSettings]) -> HttpBench:
        """Raises MachineError if the load generator's packages are not installed."""
        require_packages("labs", httptools="httptools")
        settings, rng = context.settings, np.random.default_rng(context.rng.getrandbits(128))
        requests = Requests(context)
        load = Load(
            context.janitor.folder / "load", requests, context.janitor, rng, settings.most_a_second
        )
        return cls(context, rng, load, settings.clients, settings.closed_s, requests=requests)

    def session(self, role: Role, folder: Path) -> ServerSession:
        return ServerSession.start(self.context, role, folder)

    def rates(self, level: Level, batches: Sequence[Ran]) -> list[float]:  # noqa: ARG002 - there is no device
        return figures.rates(level)

    def wrong_answers(
        self,
        level: Level,
        batches: Sequence[Ran],  # noqa: ARG002 - there is no device
        all_of: Array | None,
    ) -> str | None:
        return check_answers(level, self.requests, self.context.settings.judged, self.rng, all_of)

    def bad_requests(self) -> list[bytes]:
        return self.requests.bad(self.rng)


def measure(context: Context[HttpServerSettings]) -> Measured:
    """Runs the whole check. Raises LearnerFault or VerifierFault when it ends early."""
    bench = HttpBench.prepare(context)
    context.progress("starting the shipped server", 0.04)
    with bench.start("reference", context.pristine()) as shipped:
        found = measure_both(bench, shipped)
    return Measured(
        grade(context, found),
        details=details(found),
        notes=notes(found),
        speedup=gain(found),
        conditions=conditions(found),
    )


def measure_both(bench: Bench[Any], shipped: ServerSession) -> Found:
    """The plateau of the shipped server, of the learner's, and of the shipped one again; then the
    learner's at a fixed rate. Stops at the first problem. One server rests while the other is
    loaded.
    """
    context, found = bench.context, Found()
    context.progress("loading the shipped server", 0.12)
    before = bench.plateau(shipped)
    found.shipped = before, before
    shipped.freeze()
    context.progress("starting your server", 0.22)
    with bench.start("learner", context.submission) as server:
        meter = LoadMeter(lambda: own_cpu_s() + server.cpu_s() + shipped.cpu_s())
        context.progress("loading your server to its limit", 0.3)
        found.closed = level, batches = bench.closed(server, long_enough_s(bench, before))
        found.note(bench, level, batches, all_of=np.arange(len(level.status)))
        found.rates = bench.rates(level, batches)
        if doubt := figures.bottleneck_of_its_own(level):
            found.doubts["throughput"] = doubt
        if context.criterion("bad-requests"):
            context.progress("sending bad requests among good ones", 0.4)
            _send_bad_requests(bench, server, before, found)
        if not found.problems:
            context.progress("loading the shipped server again", 0.45)
            server.freeze()
            shipped.thaw()
            found.shipped = before, bench.plateau(shipped)
            shipped.freeze()
            server.thaw()
            # a server that is too slow cannot sustain the rate: its p99 would add nothing
            if context.criterion("p99-ms") and speed(context, found).state is not State.FAIL:
                context.progress("loading your server in an open loop", 0.55)
                _load_openly(bench, server, max(found.shipped), found)
        found.other_cores = meter.cores()
        if not found.problems:
            bench.after_load(server)
    return found


def long_enough_s(bench: Bench[Any], shipped: float) -> float:
    """Seconds in which a server as slow as the shipped one gives enough answers for a decision."""
    return min(MOST_CLOSED_S, max(bench.closed_s, figures.WARM_UP_S + bench.deciding() / shipped))


def _send_bad_requests(
    bench: Bench[Any], server: ServerSession, shipped: float, found: Found
) -> None:
    """Some requests must be refused and some clients disconnect; all others must be answered, those
    of the same batch as well: a closed loop fills batches.
    """
    bad = bench.bad_requests()
    count, found.refused = int(shipped * ROUGH_S * 0.7), len(bad) + LEAVES
    odd = bench.rng.permutation(np.arange(2, max(count, found.refused + 3)))[
        : found.refused
    ].tolist()
    broken = dict(zip(odd, bad, strict=False))
    level, batches = bench.closed(server, ROUGH_S, broken=broken, leaves=odd[len(bad) :])
    good = np.setdiff1d(np.arange(len(level.status)), odd)
    accepted = [
        number
        for number in broken
        if number < len(level.status) and not 400 <= level.status[number] < 500
    ]
    if accepted:
        status = level.status[accepted[0]]
        words = f"got status {status}" if status > 0 else "got no answer"
        found.problems["bad-requests"] = f"{bench.bad} {words}, not 400."
        return
    if (level.status[good] != 200).any():
        found.problems["bad-requests"] = (
            f"{(level.status[good] != 200).sum()} good requests sent among bad ones were not"
            " answered."
        )
    found.note(bench, level, batches)


def _load_openly(bench: Bench[Any], server: ServerSession, shipped: float, found: Found) -> None:
    """Load at the rate that the lab asks for until the p99 is decided; if it holds, at higher and
    higher rates.

    A miss that the generator may have caused by being late is measured again. A p99 that holds
    stands, since lateness only adds to it.
    """
    spec, limit = bench.context.required("throughput"), bench.context.required("p99-ms")
    rate = sequential_test(spec).bar * shipped
    test = sequential_test(limit, BLOCKS)
    for _ in range(TRIES):
        state, doubt = _decide_p99(bench, server, rate, test, found)
        found.doubts.pop("p99-ms", None)
        if state is State.PASS or not doubt:
            break
        found.doubts["p99-ms"] = doubt
    if state is State.PASS:
        found.sustained = _highest(bench, server, rate, test.bar, found)


def _decide_p99(
    bench: Bench[Any], server: ServerSession, rate: float, test: SequentialTest, found: Found
) -> tuple[State, str | None]:
    """What the p99s of the windows of an open loop decide, and why the generator may have caused
    it, if it may.
    """
    levels, found.windows_ms = list[Level](), []
    decision = test.decide([])
    for windows in OPEN_WINDOWS:
        seconds = windows * figures.WINDOW_S
        level, batches = bench.open(server, rate, seconds)
        found.note(bench, level, batches)
        levels.append(level)
        found.windows_ms += figures.window_p99s_ms(level, seconds)
        decision = test.decide(found.windows_ms)
        if decision.state is not State.CONTINUE:
            break
    return decision.state, _doubt(test, found.windows_ms, levels)


def _doubt(test: SequentialTest, windows_ms: list[float], levels: list[Level]) -> str | None:
    """Why the generator may have decided these p99s. Being late is not a reason if its greatest
    delay decides nothing: a server that takes requests in turn answers none earlier by more than it
    gets them earlier.
    """
    most_ms = 1000 * max(float(level.lateness_s().max(initial=0.0)) for level in levels)
    if test.decide([each - most_ms for each in windows_ms]).state is test.decide(windows_ms).state:
        return next(filter(None, map(figures.greedy, levels)), None)
    return next(filter(None, map(figures.bottleneck_of_its_own, levels)), None)


def _highest(
    bench: Bench[Any], server: ServerSession, rate: float, limit_ms: float, found: Found
) -> float:
    """The highest sustained rate (requests/s), starting from one that is: raised step by step until
    the p99 no longer holds.
    """
    for _ in range(STEPS):
        bench.context.progress("raising the rate", 0.75)
        level, batches = bench.open(server, rate * STEP, STEP_S)
        found.note(bench, level, batches)
        if figures.p99_ms(level.latencies_s()) > limit_ms:
            break
        rate *= STEP
    return rate


def grade(context: Context[HttpServerSettings], found: Found) -> list[CriterionResult]:
    """All criteria. What the generator or other programs may have disturbed is not held against the
    learner.
    """
    results = grade_problems(context, found, {"right-answers": (found.checked, "answers")})
    return results if found.problems else results + grade_load(context, found)


def grade_problems(
    context: Context[Any], found: Found, checked: dict[str, tuple[int, str]]
) -> list[CriterionResult]:
    """The criteria of correctness; `checked`: for each, how many of what were looked at."""
    counts = checked | {"bad-requests": (found.refused, "bad requests")}
    return [
        grade_check(spec, found.problems.get(id_), count, things)
        for id_, (count, things) in counts.items()
        if (spec := context.criterion(id_))
    ]


def grade_load(
    context: Context[Any], found: Found, others: Sequence[tuple[str, list[float]]] = ()
) -> list[CriterionResult]:
    """The criteria of load, and those that a kind measured in blocks of the closed loop."""
    graded = [grade_decision(context.required("throughput"), speed(context, found), "blocks")]
    for id_, samples, things in [
        ("p99-ms", found.windows_ms, "windows"),
        *((*other, "blocks") for other in others),
    ]:
        if spec := context.criterion(id_):
            decision = sequential_test(spec, BLOCKS).decide(samples, exhausted=True)
            graded.append(grade_decision(spec, decision, things))
    fair = [
        not_held_against(result, found.other_cores, rate=result.id == "throughput")
        for result in graded
    ]
    closed = found.doubts.get("throughput")
    return [
        _excused(result, found.doubts.get("p99-ms") if result.id == "p99-ms" else closed)
        for result in fair
    ]


def speed(context: Context[Any], found: Found) -> Decision:
    """The server's rate over the shipped one's, as measured first; undecided if the shipped one's
    second rate would decide otherwise.
    """
    test = sequential_test(context.required("throughput"), BLOCKS)
    first, again = (
        test.decide([rate / shipped for rate in found.rates], exhausted=True)
        for shipped in found.shipped
    )
    return (
        first
        if again.state is first.state
        else msgspec.structs.replace(first, state=State.INCONCLUSIVE)
    )


def _excused(result: CriterionResult, doubt: str | None) -> CriterionResult:
    """A miss that the load generator may have caused does not count against the learner."""
    if result.holds is False and doubt:
        sentence = f"{result.sentence.rstrip('.')}; this is not held against you, because {doubt}."
        return msgspec.structs.replace(result, holds=None, sentence=sentence)
    return result


def gain(found: Found) -> float | None:
    """The learner's rate over the shipped server's."""
    return median(found.rates) / found.shipped[0] if found.rates else None


def conditions(found: Found) -> Conditions:
    """How busy the machine was, and how far apart the shipped server's two rates are."""
    before, after = found.shipped
    return Conditions(
        other_cores=found.other_cores, cores=os.cpu_count(), noise=abs(after / before - 1)
    )


def details(found: Found) -> dict[str, object]:
    """Every figure that a verdict file keeps."""
    return {
        "shipped_rates": list(found.shipped),
        "block_rates": found.rates,
        "window_p99s_ms": found.windows_ms,
        "sustained_rate": found.sustained,
        "generator_late_p99_ms": [
            1000 * figures.p99_s(level.lateness_s()) for level in found.levels
        ],
        "generator_own_late_p99_ms": [
            1000 * figures.p99_s(level.own_lateness_s()) for level in found.levels
        ],
        "generator_cores": [level.cores for level in found.levels],
        "doubts": found.doubts,
    }


def notes(found: Found) -> list[str]:
    """What else a learner is told."""
    before = found.shipped[0]
    told = [f"The shipped server answers {before:.0f} requests/s here."]
    if found.sustained:
        told.append(
            f"In an open loop your server sustains {found.sustained:.0f} requests/s within the"
            f" bound, {found.sustained / before:.1f} times the plateau."
        )
    return [*told, figures.audit(found.levels)] if found.levels else told
