"""The second level of a lab: as fast as the fastest way in which the library can answer.

It is reported, and a PASS never depends on it. The judge's `rivals(inputs)` gives each way a name
and the call by which the reference answers so. These calls are timed against the reference's own
when the learner's process is gone, so that nothing can slow them down; the learner's speed over the
reference is that of the check's own pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import msgspec

from bottleneck_lab.analysis.statistics import Interval, bounds_at, median_interval
from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.criteria import grade_decision, sequential_test, worst_case
from bottleneck_lab.grading.sequential import PAIRS, Decision, State
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.context import Measured
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.speedup.figures import Case
from bottleneck_lab.measure.kinds.speedup.judging import complaint
from bottleneck_lab.measure.kinds.speedup.session import Workers

RIVAL_PAIRS = 7
"""Pairs of reference and fastest rival in each case: their smallest and largest ratio bound the
median with 98% confidence (1 - 2 ** -6).
"""
_WORDS = {True: "reached", False: "not reached", None: "undecided"}


class Rival(NamedTuple):
    """The fastest way in a case, and its speed over the reference, a ratio a pair."""

    name: str
    ratios: list[float]


def with_second_level(workers: Workers, measured: Measured, cases: list[Case]) -> Measured:
    """Add a note that says if the lab's second level is reached in all `cases`, and its result to
    the details. Unchanged where the lab has none, or where the work does not pass.
    """
    spec = workers.context.settings.second_level
    if spec is None or not all(result.holds for result in measured.results):
        return measured
    workers.context.progress("timing the second level", 0.95)
    try:
        result = _measure(workers, spec, cases, measured.conditions.doubt)
    except VerifierFault as fault:
        note = f"Second level, not needed for a PASS: not measured. {fault.message}"
        return replace(measured, notes=[*measured.notes, note])
    note = f"Second level, not needed for a PASS: {_WORDS[result.holds]}. {result.sentence}"
    details = {**measured.details, "second_level": msgspec.to_builtins(result)}
    return replace(measured, details=details, notes=[*measured.notes, note])


def _measure(
    workers: Workers, spec: CriterionSpec, cases: list[Case], doubt: float
) -> CriterionResult:
    """Grade all cases, or those up to the first that misses the level, which decides. Raises
    VerifierFault as `_fastest` does.
    """
    graded = {}
    # The slowest first: it is the likeliest to miss, and a learner waits.
    for case in sorted(cases, key=lambda case: case.speedup):
        rival = _fastest(workers, case)
        named, result = (
            f"{case.name}; the fastest is {rival.name}",
            _grade(spec, case, rival, doubt),
        )
        if result.holds is False:
            sentence = f"{result.sentence.rstrip('.')}, in one of {len(cases)} cases ({named})."
            return msgspec.structs.replace(result, sentence=sentence)
        graded[named] = result
    return worst_case(graded)


def _fastest(workers: Workers, case: Case) -> Rival:
    """Time every rival that answers a case right, then the fastest in pairs with the reference.
    Raises VerifierFault when the reference's worker ends.
    """
    inputs = workers.inputs(case.name)
    rivals = workers.judge.rivals(inputs)
    right = workers.reference.call(inputs)[1]
    seconds = {}
    for name, call in rivals.items():
        # The first call of a shape may be a slow one, and is the one that is judged: a way that
        # this machine's library does not have answers with nothing.
        answer = workers.reference.call(call)[1]
        settings = workers.context.settings.judge
        if complaint(workers.judge, case.name, inputs, answer, right, settings) is None:
            seconds[name] = workers.reference.call(call)[0]
    if not seconds:
        raise VerifierFault(f"The library answered {case.name} in none of its other ways.")
    name = min(seconds, key=lambda rival: seconds[rival])
    # Moving the data takes both as long as it took the reference beside the learner.
    paired = Case(case.name, moved_s=case.moved_s)
    for _ in range(RIVAL_PAIRS):
        sides = [(paired.reference_s, inputs), (paired.learner_s, rivals[name])]
        for times, call in workers.context.rng.sample(sides, 2):
            times.append(workers.reference.call(call)[0])
    return Rival(name, paired.without_moving().ratios())


def _grade(spec: CriterionSpec, case: Case, rival: Rival, doubt: float) -> CriterionResult:
    """Grade the learner's speed over a case's fastest rival: both speeds over the reference,
    divided, each at the end of its interval that favours neither PASS nor FAIL.
    """
    own = median_interval(case.as_judged().ratios(), PAIRS.confidence)
    theirs = bounds_at(rival.ratios, rank=1)
    interval = Interval(own.low / theirs.high, own.median / theirs.median, own.high / theirs.low)
    test = msgspec.structs.replace(sequential_test(spec), doubt=doubt)
    state = test.judge(interval)
    if state is State.CONTINUE:
        state = State.INCONCLUSIVE
    return grade_decision(spec, Decision(state, interval, len(case.learner_s), wanted=0))
