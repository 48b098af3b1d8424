"""The criteria's results from the measured pairs."""

from __future__ import annotations

from statistics import median

import msgspec

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.criteria import (
    BUSY_CORES,
    format_range,
    grade_check,
    grade_decision,
    not_held_against,
    worst_case,
)
from bottleneck_lab.grading.sequential import SequentialTest, Side, State
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings
from bottleneck_lab.measure.kinds.speedup.figures import SAMPLES, Case


def answers_result(
    context: Context[SpeedupSettings], cases: list[Case], hard: int
) -> CriterionResult:
    """Return the result of `right-answers`: how many were checked, `hard` of them untimed."""
    # Every answer was right, or the check would have ended.
    checked = sum(len(case.learner_s) for case in cases) + hard
    return grade_check(context.required("right-answers"), None, checked)


def case_notes(cases: list[Case]) -> list[str]:
    """Return a line with the speed-up of each case, where there are several: a criterion's figure
    is the worst one's alone.
    """
    return [
        f"{case.name}: {case.speedup:.2f}x in {len(case.learner_s)} pairs"
        for case in cases
        if case.learner_s and len(cases) > 1
    ]


def misses_from_waiting(
    cases: list[Case], tests: dict[str, SequentialTest], waited_s: float
) -> dict[str, str]:
    """Return the ids of the tests whose miss may come from the `waited_s` seconds in which the
    learner's threads waited for a core, each with what is known of that ("" for nothing).

    A test of the learner's times alone is always one: no reference waited beside it.
    """
    # A neighbour on the same cores hurts a program of many threads far more than the reference
    # beside it: where one thread waits for a core, the others wait for that thread.
    share = min(1.0, max(0.0, waited_s / max(sum(sum(case.learner_s) for case in cases), 1e-9)))
    failed = [case.without_waiting(share) for case in cases if case.failed()]
    for case in failed:
        case.decide(tests, exhausted=True)
    if any(case.states().get("speedup") is State.FAIL for case in failed):
        return {id_: "" for id_ in tests if id_ != "speedup"}
    return {id_: _without_waiting(failed, waited_s) if id_ == "speedup" else "" for id_ in tests}


def speedup_from_waiting(
    cases: list[Case], tests: dict[str, SequentialTest], shares: dict[Side, float]
) -> bool:
    """Return True if the speed-up is only reached because the reference's threads waited for a core
    for longer than the learner's; `shares` (0–1) of their calls' time.
    """
    if shares["reference"] <= shares["learner"]:
        return False
    fair = [case.beside_waiting(shares["learner"], shares["reference"]) for case in cases]
    for case in fair:
        case.decide(tests, exhausted=True)
    return any(case.states().get("speedup") is not State.PASS for case in fair)


def _without_waiting(failed: list[Case], waited_s: float) -> str:
    """Say what the speed-up would be without the waiting, in the case where it is least; empty if
    none missed it.
    """
    # Pairs too few for a look bound nothing: then from the least of them to the largest.
    spans = [
        decision.interval if decision.samples else case.as_judged().span()
        for case in failed
        if (decision := case.decisions.get("speedup"))
    ]
    if not spans:
        return ""
    worst = min(spans, key=lambda interval: interval.median)
    return (
        f"without the {waited_s:.1f} s in which its threads waited for a core, it would be"
        f" {format_range(worst.low, worst.high, 'x')}"
    )


def target_results(
    context: Context[SpeedupSettings],
    cases: list[Case],
    not_charged: dict[str, str],
    other_cores: float,
    *,
    reference_waited: bool = False,
) -> list[CriterionResult]:
    """Return one result per target, which every case must meet on its own. A miss among
    `not_charged` only counts on an idle machine, and so does a speed-up if `reference_waited`
    explains it.
    """
    results = []
    for spec in context.lab.spec.devices[context.device].criteria:
        if spec.id not in SAMPLES:
            continue
        result = worst_case({case.name: _result(spec, case) for case in cases})
        if result.id in not_charged:
            result = not_held_against(result, other_cores, not_charged[result.id])
        in_doubt = reference_waited and other_cores > BUSY_CORES
        if result.id == "speedup" and result.holds and in_doubt:
            sentence = (
                f"{result.sentence.rstrip('.')}. That does not count yet: other programs kept"
                f" {other_cores:.1f} cores busy meanwhile, and the reference's threads waited for a"
                " core for longer than yours, which may explain it."
            )
            result = msgspec.structs.replace(result, holds=None, sentence=sentence)
        results.append(result)
    return results


def _result(spec: CriterionSpec, case: Case) -> CriterionResult:
    """Return a case's result; its sentence says so where the calls left time for few pairs."""
    result = grade_decision(spec, case.decisions[spec.id])
    if not (case.out_of_time and result.holds is False):
        return result
    sentence = (
        f"{result.sentence.rstrip('.')}. Time ran out after these pairs; each call took"
        f" {median(case.learner_s):.3g} s."
    )
    return msgspec.structs.replace(result, sentence=sentence)
