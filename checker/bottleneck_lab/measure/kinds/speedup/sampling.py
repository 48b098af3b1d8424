"""Sampling of pairs: of which case the next one is, and when to stop."""

from __future__ import annotations

import contextlib
import math
import random
import time
from dataclasses import replace
from statistics import median

import msgspec

from bottleneck_lab.grading.criteria import sequential_test
from bottleneck_lab.grading.sequential import SequentialTest
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings
from bottleneck_lab.measure.kinds.speedup.against_itself import AgainstItself
from bottleneck_lab.measure.kinds.speedup.figures import FAR_PAIRS, SAMPLES, Case
from bottleneck_lab.measure.kinds.speedup.session import Workers

FAILED_S = 15.0
"""Seconds for untimed answers of code that will not pass: they can only change the reason, and a
learner waits.
"""
FAR_OFF_S = 1.0
"""The same for code that the first look found far too slow."""

FIRST_LOOKS_S = 120.0
"""Seconds in which every case may have its first look, also where `max_s` is less: that was sized
for a machine, and without a look no work could pass on one that is several times slower.
"""
HARDLY = 0.01
"""Chance (0–1) below which a PASS or a FAIL isn't worth measuring for."""


def sequential_tests(context: Context[SpeedupSettings], doubt: float) -> dict[str, SequentialTest]:
    """Return the tests of the lab's criteria that pairs can decide, by id. `doubt` (0–1): by how
    much two runs of the same code differed here.
    """
    specs = {id_: spec for id_ in SAMPLES if (spec := context.criterion(id_)) is not None}
    return {
        id_: msgspec.structs.replace(sequential_test(spec), doubt=doubt)
        for id_, spec in specs.items()
    }


def sample(workers: Workers, cases: list[Case], itself: AgainstItself) -> dict[str, SequentialTest]:
    """Measure pairs until every test of every case has decided, or one has failed, which no other
    can make good, or the time is up, or what is left of it can hardly decide. Returns the tests:
    they allow for what is left in doubt by the reference `itself`, which is measured on where
    nothing else keeps a case open.
    """
    tests = sequential_tests(workers.context, itself.outcome.doubt)
    # The reference's pairs with itself have no part in `max_s`.
    max_s, begin = workers.context.settings.max_s, time.monotonic() - itself.spent_s
    open_ = list(cases)
    while open_ and not any(case.failed() for case in cases):
        spent_s = time.monotonic() - begin - itself.spent_s
        if spent_s >= (max_s if _looked_at(open_, tests) else max(max_s, FIRST_LOOKS_S)):
            break
        workers.time_pair(_next_case(workers.context.rng, open_, tests))
        workers.context.progress("measuring", 0.4 + 0.4 * min(1.0, spent_s / max_s))
        open_ = [case for case in cases if case.decide(tests, exhausted=False)]
        spent_s = time.monotonic() - begin - itself.spent_s
        pair_s = spent_s / sum(len(case.learner_s) for case in cases)
        left = int((max_s - spent_s) / pair_s)
        while (
            _hopeless(open_, tests, left) or any(_doubtful(case, tests) for case in cases)
        ) and itself.narrow():
            tests = sequential_tests(workers.context, itself.outcome.doubt)
            open_ = [case for case in cases if case.decide(tests, exhausted=False)]
        if _hopeless(open_, tests, left):
            break
    for case in cases:
        case.decide(tests, exhausted=True)
    if open_ and not any(case.failed() for case in cases):
        _settle_slowest(workers, cases, tests, time.monotonic() - begin - itself.spent_s)
    return tests


def _doubtful(case: Case, tests: dict[str, SequentialTest]) -> bool:
    """Return True if a case is undecided, and its pairs would decide it were there no doubt."""
    if case.decided() or not any(test.doubt for test in tests.values()):
        return False
    sure = replace(case)
    sure.decide(
        {id_: msgspec.structs.replace(test, doubt=0.0) for id_, test in tests.items()},
        exhausted=False,
    )
    return sure.decided()


def _next_case(rng: random.Random, open_: list[Case], tests: dict[str, SequentialTest]) -> Case:
    """Choose the case of the next pair: half the time the slowest so far, else one by lot, of those
    before their first look if there are any.
    """
    # One case that misses its target decides the whole check, and the slowest is the likeliest to.
    # Each case's test holds for whichever number of pairs it gets, so the choice favours nobody.
    if rng.random() < 0.5:
        return min(open_, key=lambda case: median(case.ratios() or [0.0]))
    return rng.choice([case for case in open_ if not _looked_at([case], tests)] or open_)


def _looked_at(cases: list[Case], tests: dict[str, SequentialTest]) -> bool:
    """Return True if all these cases have had their first look."""
    return all(
        len(case.learner_s) >= test.plan.looks[0] for case in cases for test in tests.values()
    )


def _hopeless(open_: list[Case], tests: dict[str, SequentialTest], pairs: int) -> bool:
    """Return True if all cases have had their first look, and with so many more pairs for each one
    can hardly pass and none can fail.
    """
    # Without a first look a case has no figure: as the worst it would speak for the one that is
    # too close to the target.
    if not open_ or not _looked_at(open_, tests):
        return False
    outlooks = [
        test.outlook(samples, len(samples) + pairs)
        for case in open_
        for id_, test in tests.items()
        if case.decisions[id_].wanted
        for samples in [SAMPLES[id_](case.as_judged())]
    ]
    return (
        min(outlook.passes for outlook in outlooks)
        < HARDLY
        > max(outlook.fails for outlook in outlooks)
    )


def first_look(
    workers: Workers, cases: list[Case], tests: dict[str, SequentialTest]
) -> Case | None:
    """Time one pair of each case, then more of the one that misses the target by most, as long as
    every pair misses it by far. Returns that case once these suffice for a FAIL, else None.

    `tests` must allow for the worst machine on which a check goes on: this comes before the
    reference is compared with itself, so that far-off work fails within seconds.
    """
    for case in workers.context.rng.sample(cases, len(cases)):
        workers.time_pair(case)
    worst = min(cases, key=lambda case: case.ratios()[0])
    while worst.is_far(tests):
        if worst.fails_at_first_look(tests):
            worst.far_off = True
            return worst
        workers.time_pair(worst)
    return None


def judge_untimed(workers: Workers, cases: list[Case]) -> None:
    """Judge answers that nobody times, until with the pairs' there are as many as the lab's
    settings say, or code that will not pass has had its seconds.

    They come after the pairs. Code that can tell them from timed ones gains nothing by it: what
    decides is a median, so most of the timed answers would have to be wrong, and each is judged.
    """
    within_s = FAR_OFF_S if any(case.far_off for case in cases) else FAILED_S
    if all(case.passed() for case in cases):
        within_s = math.inf
    count, begin = workers.context.settings.judged, time.monotonic()
    numbers = range(sum(len(case.learner_s) for case in cases), count)
    # A call of many seconds that nobody times is worth no wait.
    call_s = min((median(case.learner_s) for case in cases if case.learner_s), default=0.0)
    with contextlib.closing(workers.untimed()) as calls:
        for number, call in zip(numbers, calls, strict=False):
            if time.monotonic() - begin + call_s >= within_s:
                return
            share = 0.8 + 0.15 * number / count
            workers.context.progress("checking answers that nobody times", share)
            workers.judge_untimed(call)


def _settle_slowest(
    workers: Workers, cases: list[Case], tests: dict[str, SequentialTest], spent_s: float
) -> None:
    """Give the slowest case the pairs that show it to be far too slow, now that the time is up;
    only where the learner's calls took most of it.
    """
    slowest = max(cases, key=lambda case: sum(case.learner_s))
    if sum(sum(case.learner_s) for case in cases) <= spent_s / 2:
        return
    while slowest.is_far(tests) and len(slowest.learner_s) < FAR_PAIRS:
        workers.time_pair(slowest)
    slowest.out_of_time = True
    slowest.decide(tests, exhausted=True)
