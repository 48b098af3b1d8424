"""Measure what a server sustains against the shipped one, both in the same check.

Both run in a sandbox. A closed loop finds the rate of each when it always has work. An open loop of
Poisson arrivals, at the rate that the lab asks for, finds how long requests take, counted from when
they were due. What differs from one kind of server to another is in its `Bench`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bottleneck_lab.analysis.statistics import Interval
from bottleneck_lab.grading.conclusion import Conditions
from bottleneck_lab.grading.criteria import (
    describe_criterion,
    format_figure,
    grade_check,
    grade_decision,
    left_open,
    not_held_against,
    not_measured,
    sequential_test,
)
from bottleneck_lab.grading.sequential import (
    BLOCKS,
    SELF_TEST_LIMIT,
    Decision,
    SequentialTest,
    State,
)
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.kinds.http_server import HttpServerSettings, figures
from bottleneck_lab.measure.kinds.http_server.bench import (
    MOST_WAITED,
    SLOWED,
    Bench,
    HttpBench,
    Plateau,
)
from bottleneck_lab.measure.kinds.http_server.load.level import OK, Array, Level
from bottleneck_lab.measure.kinds.http_server.session import ServerSession
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s

MOST_CLOSED_S = 20.0
AGAIN_S = 4.0
"""The shipped server's second closed loop, at least: it decides nothing alone, and only has to show
that the machine is as fast as before.
"""
OPEN_WINDOWS = (8, 4, 4)
"""Windows of the open loop: the first number, then more while nothing is decided."""
BAD_REQUESTS_S, DISCONNECTS = 3.0, 4
"""The closed loop with bad requests: its seconds, and how many clients disconnect."""
TRIES = 3
"""Open loops at most, if the generator's own delay may have caused a p99 to miss."""


@dataclass
class Observed:
    """Everything that a check observes.

    problems: by criterion. closed: the learner's closed loop. rates: requests/s of its blocks.
    windows_ms: the p99 of each window of the open loop. shipped: the shipped server, before and
    after. as_shipped: the learner's server is the shipped one. waited: the share (0–1) of its
    closed loop in which it waited for a core beside other programs. doubts: reasons, by criterion,
    why the generator and not the server may have set a figure; that of "throughput" holds for all
    figures of the closed loop. most_gain: times the shipped server's rate that any fix can reach.
    """

    problems: dict[str, str] = field(default_factory=dict)
    checked: int = 0
    refused: int = 0
    rates: list[float] = field(default_factory=list)
    closed: tuple[Level, list[Ran]] | None = None
    windows_ms: list[float] = field(default_factory=list)
    doubts: dict[str, str] = field(default_factory=dict)
    levels: list[Level] = field(default_factory=list)
    batches: list[Ran] = field(default_factory=list)
    other_cores: float = 0.0
    as_shipped: bool = False
    waited: float = MOST_WAITED
    shipped: tuple[Plateau, Plateau] = (Plateau(1.0), Plateau(1.0))
    most_gain: float = math.inf

    def note(
        self, bench: Bench[Any], level: Level, batches: list[Ran], *, all_of: Array | None = None
    ) -> None:
        """Check the answers of a level, and keep it."""
        self.levels.append(level)
        self.batches += batches
        self.checked += len(level.status)
        if problem := bench.wrong_answers(level, batches, all_of):
            self.problems.setdefault("right-answers", problem)


def measure(context: Context[HttpServerSettings]) -> Measured:
    """Run the whole check. Raises LearnerFault or VerifierFault if it ends early."""
    bench = HttpBench.prepare(context)
    context.progress("starting the shipped server", 0.04)
    with bench.start("reference", context.pristine()) as shipped:
        observed = measure_both(bench, shipped)
    results = grade_problems(context, observed, {"right-answers": (observed.checked, "answers")})
    if not observed.problems:
        results += grade_load(context, observed)
    return Measured(
        results,
        details=details(observed),
        notes=notes(observed),
        speedup=measured_speedup(context, observed),
        conditions=conditions(observed),
    )


def measure_both(bench: Bench[Any], shipped: ServerSession) -> Observed:
    """Find the plateau of the shipped server, of the learner's, and of the shipped one again; then
    load the learner's at a fixed rate. Stops at the first problem, and once the learner's server is
    found far too slow.
    """
    context = bench.context
    observed = Observed(most_gain=bench.most_gain(), as_shipped=bench.as_shipped())
    context.progress("loading the shipped server", 0.12)
    before = bench.plateau(shipped, bench.closed_s)
    observed.shipped = before, before
    # One server rests while the other is loaded: together they would share the cores.
    shipped.freeze()
    context.progress("starting your server", 0.22)
    with bench.start("learner", context.submission) as server:
        meter = LoadMeter(lambda: own_cpu_s() + server.cpu_s() + shipped.cpu_s())
        context.progress("loading your server to its limit", 0.3)
        # A server that answers too little for a decision gets one longer loop.
        for seconds in (long_enough_s(bench, before.rate, bench.closed_s), MOST_CLOSED_S):
            # Every answer of this loop is judged: it is the one that counts.
            level, batches, others = bench.closed_beside(server, seconds)
            observed.closed, observed.waited = (level, batches), others.waited
            observed.note(bench, level, batches, all_of=np.arange(len(level.status)))
            observed.rates = bench.rates(level, batches)
            if observed.problems or len(observed.rates) >= BLOCKS.looks[0]:
                break
        if doubt := figures.generator_doubt(level):
            observed.doubts["throughput"] = doubt
        far = is_far_off(context, observed, meter.cores())
        if context.criterion("bad-requests") and not far:
            context.progress("sending bad requests among good ones", 0.4)
            _send_bad_requests(bench, server, before.rate, observed)
        if not observed.problems and not far:
            context.progress("loading the shipped server again", 0.45)
            server.freeze()
            shipped.thaw()
            seconds = min(bench.closed_s, long_enough_s(bench, before.rate, AGAIN_S))
            observed.shipped = before, bench.plateau(shipped, seconds)
            shipped.freeze()
            server.thaw()
            # A server that is too slow cannot sustain the rate: its p99 would add nothing.
            too_slow = decide_throughput(context, observed).state is State.FAIL
            if context.criterion("p99-ms") and not too_slow:
                context.progress("loading your server in an open loop", 0.55)
                rate = max(plateau.rate for plateau in observed.shipped)
                _load_openly(bench, server, rate, observed)
        observed.other_cores = meter.cores()
        if not observed.problems:
            bench.after_load(server)
    return observed


def is_far_off(context: Context[Any], observed: Observed, other_cores: float) -> bool:
    """Return True if every block of the first look misses the throughput by far, and neither the
    generator nor other programs may have caused it.
    """
    spec = context.required("throughput")
    # The doubt is that of the worst machine on which anything is judged: the shipped server is not
    # loaded again.
    test = msgspec.structs.replace(sequential_test(spec, BLOCKS), doubt=SELF_TEST_LIMIT)
    look = test.first_look([rate / observed.shipped[0].rate for rate in observed.rates])
    if look is None or "throughput" in observed.doubts:
        return False
    return _held_rate(grade_decision(spec, look), observed, other_cores).holds is False


def long_enough_s(bench: Bench[Any], shipped: float, least_s: float) -> float:
    """Return the seconds, at least `least_s`, in which a server as slow as the shipped one
    (requests/s) gives enough answers for a decision.
    """
    return min(MOST_CLOSED_S, max(least_s, figures.WARM_UP_S + bench.deciding() / shipped))


def _send_bad_requests(
    bench: Bench[Any], server: ServerSession, shipped: float, observed: Observed
) -> None:
    """Send requests that must be refused among good ones, and have some clients disconnect; all the
    others must be answered.
    """
    bad = bench.bad_requests()
    observed.refused = len(bad) + DISCONNECTS
    # Fewer than the shipped server answers in that time, so that all are sent while it lasts.
    count = max(int(shipped * BAD_REQUESTS_S * 0.7), observed.refused + 3)
    # In a closed loop a server's batches are full, so bad requests share one with good ones.
    odd = bench.rng.permutation(np.arange(2, count))[: observed.refused].tolist()
    broken = dict(zip(odd, bad, strict=False))
    level, batches = bench.closed(
        server, BAD_REQUESTS_S, broken=broken, disconnects=odd[len(bad) :]
    )
    for number, request in broken.items():
        if number < len(level.status) and not bench.refuses(request, int(level.status[number])):
            status = level.status[number]
            reply = f"got status {status}" if status > 0 else "got no answer"
            observed.problems["bad-requests"] = f"{bench.bad} {reply}, not 400."
            return
    good = np.setdiff1d(np.arange(len(level.status)), odd)
    missed = (level.status[good] != OK).sum()
    if missed:
        observed.problems["bad-requests"] = (
            f"{missed} good requests sent among bad ones were not answered."
        )
    observed.note(bench, level, batches)


def _load_openly(
    bench: Bench[Any], server: ServerSession, shipped: float, observed: Observed
) -> None:
    """Load at the rate that the lab asks for until the p99 is decided."""
    spec, limit = bench.context.required("throughput"), bench.context.required("p99-ms")
    # The rate that a server has to sustain is the one that its closed loop had to reach.
    rate = sequential_test(spec).bar * shipped
    test = sequential_test(limit, BLOCKS)
    # A miss that the generator may have caused by being late is measured again. A p99 that holds
    # stands, since lateness only adds to it.
    for _ in range(TRIES):
        state, doubt = _decide_p99(bench, server, rate, test, observed)
        observed.doubts.pop("p99-ms", None)
        if state is State.PASS or not doubt:
            break
        observed.doubts["p99-ms"] = doubt


def _decide_p99(
    bench: Bench[Any], server: ServerSession, rate: float, test: SequentialTest, observed: Observed
) -> tuple[State, str | None]:
    """Decide on the p99s of the windows of an open loop. Returns the decision, and why the
    generator may have caused it, if it may.
    """
    levels, observed.windows_ms = list[Level](), []
    decision = test.decide([])
    for windows in OPEN_WINDOWS:
        seconds = windows * figures.WINDOW_S
        level, batches = bench.open(server, rate, seconds)
        observed.note(bench, level, batches)
        levels.append(level)
        observed.windows_ms += figures.window_p99s_ms(level, seconds)
        decision = test.decide(observed.windows_ms)
        if decision.state is not State.CONTINUE:
            break
    # Being late is no reason for doubt if even the generator's greatest delay changes nothing: a
    # server that takes requests in turn answers none earlier by more than it gets it earlier.
    most_ms = 1000 * max(float(level.lateness_s().max(initial=0.0)) for level in levels)
    in_time = test.decide([p99_ms - most_ms for p99_ms in observed.windows_ms])
    doubt_of = figures.generator_doubt
    if in_time.state is decision.state:
        doubt_of = figures.cores_doubt
    doubts = [doubt for level in levels if (doubt := doubt_of(level))]
    return decision.state, doubts[0] if doubts else None


def grade_problems(
    context: Context[Any], observed: Observed, checked: dict[str, tuple[int, str]]
) -> list[CriterionResult]:
    """Grade the criteria of correctness. `checked`: for each, how many of what were looked at."""
    results = [
        grade_check(spec, observed.problems.get(id_), count, things)
        for id_, (count, things) in checked.items()
        if (spec := context.criterion(id_))
    ]
    if spec := context.criterion("bad-requests"):
        problem = observed.problems.get("bad-requests")
        if observed.refused:
            results.append(grade_check(spec, problem, observed.refused, "bad requests"))
        else:
            results.append(not_measured(spec, "because the server is far too slow"))
    return results


def grade_load(
    context: Context[Any], observed: Observed, others: Sequence[tuple[str, list[float]]] = ()
) -> list[CriterionResult]:
    """Grade the criteria of load, and `others` that a kind measured in blocks of the closed loop.

    What the generator or other programs may have disturbed is not held against the learner.
    """
    graded = [_grade_throughput(context, observed)]
    samples = [("p99-ms", observed.windows_ms, "windows")]
    samples += [(id_, blocks, "blocks") for id_, blocks in others]
    for id_, values, things in samples:
        if not (spec := context.criterion(id_)):
            continue
        if id_ == "p99-ms" and not values:
            graded.append(not_measured(spec, "because the server is too slow for that rate"))
            continue
        decision = sequential_test(spec, BLOCKS).decide(values, exhausted=True)
        graded.append(grade_decision(spec, decision, things))
    results = []
    for result in graded:
        rate = result.id == "throughput"
        fair = (
            _held_rate(result, observed, observed.other_cores)
            if rate
            else not_held_against(result, observed.other_cores)
        )
        doubt = observed.doubts.get("p99-ms" if result.id == "p99-ms" else "throughput")
        if fair.holds is False and doubt:
            fair = left_open(fair, doubt)
        elif rate and fair.holds is None and (base := doubtful_baseline(context, observed)):
            fair = _reaching_down(fair, base)
        results.append(fair)
    return results


def _held_rate(result: CriterionResult, observed: Observed, other_cores: float) -> CriterionResult:
    """Return the server's rate, left open where it is a miss that other programs may have caused by
    using `other_cores` cores meanwhile.

    No server is faster than itself. From any other they took at most the time in which its threads
    waited for a core, and made what it computed longer by SLOWED: if it would miss with both given
    back, it misses.
    """
    if result.holds is False and result.high is not None and result.target is not None:
        alone = result.high * SLOWED / (1 - observed.waited)
        if observed.as_shipped or alone < result.target:
            return result
    return not_held_against(result, other_cores, rate=True)


def _grade_throughput(context: Context[Any], observed: Observed) -> CriterionResult:
    """Grade the server's rate over the shipped one's. A gain that no fix can reach is given against
    the rate that the shipped server might have with nothing else running.
    """
    spec, decision = context.required("throughput"), decide_throughput(context, observed)
    if decision.state is not State.PASS or not impossible_gain(observed):
        return grade_decision(spec, decision, "blocks")
    alone = observed.shipped[0].alone
    result = grade_decision(spec, _decide_against(context, observed, alone), "blocks")
    figure = format_figure(result.value or 0.0, spec.unit, spec.target)
    counted = f"at least {figure}, against the {alone:.0f}/s that it might answer alone"
    sentence = f"{describe_criterion(spec)}: {counted}."
    return msgspec.structs.replace(result, counted=counted, sentence=sentence)


def _reaching_down(result: CriterionResult, doubt: Doubt) -> CriterionResult:
    """Return an undecided gain with its doubt told, and with bounds that hold what that leaves."""
    assert result.low is not None
    assert result.high is not None
    low, high = min(result.low, doubt.interval.low), max(result.high, doubt.interval.high)
    return left_open(msgspec.structs.replace(result, low=low, high=high), doubt.reason)


def decide_throughput(context: Context[Any], observed: Observed) -> Decision:
    """Decide on the server's rate over the shipped one's, as that was measured first; undecided if
    `doubtful_baseline` is.
    """
    decision = _decide_against(context, observed, observed.shipped[0].rate)
    if doubtful_baseline(context, observed):
        return msgspec.structs.replace(decision, state=State.INCONCLUSIVE)
    return decision


def _decide_against(context: Context[Any], observed: Observed, shipped: float) -> Decision:
    """Decide on the server's rate over a rate of the shipped one, in requests/s."""
    test = sequential_test(context.required("throughput"), BLOCKS)
    return test.decide([rate / shipped for rate in observed.rates], exhausted=True)


class Doubt(NamedTuple):
    """A gain over another rate of the shipped server that decides otherwise, and the reason, a
    clause, why that rate may be the right one.
    """

    interval: Interval
    reason: str


def doubtful_baseline(context: Context[Any], observed: Observed) -> Doubt | None:
    """Return why the shipped server's rate decides nothing; None if it does.

    Its second rate, or the one that it might have had with nothing else running, would decide
    otherwise.
    """
    before, after = observed.shipped
    state = _decide_against(context, observed, before.rate).state
    # Whoever is first and last on a machine that drifts must not decide.
    decision = _decide_against(context, observed, after.rate)
    if decision.state is not state:
        rates = f"{before.rate:.0f} requests/s before and {after.rate:.0f} after"
        return Doubt(decision.interval, f"the shipped server answered {rates}")
    # What the shipped server loses is as suspect as what the learner's does.
    for plateau in observed.shipped:
        decision = _decide_against(context, observed, plateau.alone)
        if decision.state is not state:
            reason = (
                f"other programs kept {plateau.other_cores:.1f} cores busy and slowed the shipped"
                f" server, to {plateau.rate:.0f} of up to {plateau.alone:.0f} requests/s"
            )
            return Doubt(decision.interval, reason)
    return None


def impossible_gain(observed: Observed) -> str | None:
    """Return that other programs slowed the shipped server, as a sentence, where the gain over it
    is more than any fix can reach; None where it is not.
    """
    before = observed.shipped[0]
    if not observed.rates or not before.lost:
        return None
    gain = median(observed.rates) / before.rate
    if gain <= observed.most_gain:
        return None
    return (
        f"No fix can gain more than {observed.most_gain:.1f}x here. Other programs slowed the"
        f" shipped server to"
        f" {before.rate:.0f} requests/s; alone it might answer up to {before.alone:.0f}."
    )


def measured_speedup(context: Context[Any], observed: Observed) -> float | None:
    """Return the learner's rate over the shipped server's; None where that decides nothing, or is
    more than any fix can gain.
    """
    if not observed.rates or doubtful_baseline(context, observed) or impossible_gain(observed):
        return None
    return decide_throughput(context, observed).interval.median


def conditions(observed: Observed) -> Conditions:
    """Return how busy the machine was, and how far apart the shipped server's two rates are."""
    before, after = observed.shipped
    others = (observed.other_cores, before.other_cores, after.other_cores)
    return Conditions(
        other_cores=max(others), cores=os.cpu_count(), noise=abs(after.rate / before.rate - 1)
    )


def details(observed: Observed) -> dict[str, object]:
    """Return every figure that a verdict file keeps."""
    levels = observed.levels
    late_s = [figures.p99_s(level.lateness_s()) for level in levels]
    own_late_s = [figures.p99_s(level.own_lateness_s()) for level in levels]
    return {
        "shipped_rates": [plateau.rate for plateau in observed.shipped],
        "shipped_lost": [plateau.lost for plateau in observed.shipped],
        "shipped_alone": [plateau.alone for plateau in observed.shipped],
        "block_rates": observed.rates,
        "waited": observed.waited,
        "window_p99s_ms": observed.windows_ms,
        "generator_late_p99_ms": [1000 * seconds for seconds in late_s],
        "generator_own_late_p99_ms": [1000 * seconds for seconds in own_late_s],
        "generator_cores": [level.cores for level in levels],
        "doubts": observed.doubts,
    }


def notes(observed: Observed) -> list[str]:
    """Return the sentences that a learner gets besides the results."""
    before = observed.shipped[0].rate
    sentences = [f"The shipped server answers {before:.0f} requests/s here."]
    if reason := impossible_gain(observed):
        sentences = [reason]
    if observed.levels:
        sentences.append(figures.audit(observed.levels))
    return sentences
