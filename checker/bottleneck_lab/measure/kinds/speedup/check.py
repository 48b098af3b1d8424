"""The `speedup` kind: how much faster the learner's code answers than the reference, call by call,
each call a fresh secret input.

Reference and learner take turns in an order drawn at random, one frozen while the other runs; the
statistic is the ratio of each pair. Every timed answer is judged, after the clock has stopped, and
when the pairs are done so are answers that nobody times, until there are 100 in all: of code that
errs in one call out of twenty, 0.6% would not be caught. How fast the code is does not change their
number; code that will not pass gets those that fit in 15 seconds, far-off code those that fit in
one, which can only change the reason.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass, replace
from statistics import median

from bottleneck_lab.analysis.statistics import noise_share
from bottleneck_lab.grading.conclusion import Conditions
from bottleneck_lab.grading.sequential import SELF_TEST_LIMIT, SelfTest, SequentialTest, Side
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.session import HELD, CallSession, limits_of
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings
from bottleneck_lab.measure.kinds.speedup.against_itself import AgainstItself
from bottleneck_lab.measure.kinds.speedup.cuda import kernels
from bottleneck_lab.measure.kinds.speedup.figures import Case
from bottleneck_lab.measure.kinds.speedup.refusals import (
    Turns,
    refuse_counted_threads,
    refuse_kernels_left_running,
    refuse_more_threads,
    refuse_overhead,
)
from bottleneck_lab.measure.kinds.speedup.results import (
    answers_result,
    case_notes,
    misses_from_waiting,
    speedup_from_waiting,
    target_results,
)
from bottleneck_lab.measure.kinds.speedup.sampling import (
    first_look,
    judge_untimed,
    sample,
    sequential_tests,
)
from bottleneck_lab.measure.kinds.speedup.second_level import with_second_level
from bottleneck_lab.measure.kinds.speedup.session import Workers
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.sandbox.limits import Limits


def measure(context: Context[SpeedupSettings]) -> Measured:
    """Run the whole comparison. Raises LearnerFault or VerifierFault when it ends early."""
    judge, limits = context.judge(), limits_of(context.settings)
    kernels.refuse_forbidden(context)
    sanitizer = kernels.Sanitizer(context)
    context.progress("starting the reference", 0.05)
    reference_entry = context.settings.reference or context.lab.spec.entry
    with (
        _standards(context, limits) as standards,
        _shipped(context, reference_entry, limits) as shipped,
        CallSession.start(
            context, "reference", context.pristine(), reference_entry, limits, wait=False
        ) as reference,
    ):
        with CallSession.start(
            context,
            "learner",
            context.submission,
            context.lab.spec.entry,
            limits,
            options=_held(context),
            wait=False,
        ) as learner:
            workers = Workers(context, reference, judge)
            workers.draw_ahead()
            reference.wait_ready()
            sanitizer.finish_ahead()
            before_s = {}
            loading = [session for session in (learner, shipped) if session is not None]
            if _held(context):
                before_s = workers.reference_alone_s(warm=False)
                for session in loading:
                    session.release()
            context.progress("loading your code", 0.15)
            # Compiled side by side; the shipped code is frozen then until a PASS needs it.
            for session in loading:
                session.wait_ready()
            workers.learner = learner
            context.progress("checking answers", 0.25)
            # A first look goes on with these calls: all but the last come before it.
            for name in workers.names:
                workers.warm_up(name, context.settings.warmup_calls - _looks_first(context))
            adversarial = workers.adversarial()
            pairs = _time_pairs(workers, standards)
            refuse_overhead(pairs.cases, pairs.tests)
            refuse_more_threads(pairs.cases)
            workers.refuse_overall()
            judge_untimed(workers, pairs.cases)
            measured = _grade(workers, pairs, adversarial)
        if context.device == "cuda":
            _refuse_slowed(pairs, measured.results, before_s, workers.reference_alone_s(warm=True))
        measured = with_second_level(workers, measured, pairs.cases)
        if shipped is not None:
            speedup = None
            # It is only set beside the prediction, and a FAIL has nothing to set there.
            if all(result.holds for result in measured.results):
                context.progress("timing the shipped code", 0.97)
                speedup = _over_shipped(workers, shipped, pairs.cases)
            measured = replace(measured, speedup=speedup)
    notes = sanitizer.refuse_stray_accesses()
    return kernels.with_machine_code(context, replace(measured, notes=[*measured.notes, *notes]))


def _standards(
    context: Context[SpeedupSettings], limits: Limits
) -> contextlib.AbstractContextManager[CallSession | None]:
    """Start the worker that runs what the brief allows, and hold it: far-off work does without.
    None in a lab that has no `standards`.
    """
    entry = context.settings.standards
    if entry is None:
        return contextlib.nullcontext()
    return CallSession.start(
        context, "reference", context.pristine(), entry, limits, options=[HELD], wait=False
    )


def _shipped(
    context: Context[SpeedupSettings], reference_entry: str, limits: Limits
) -> contextlib.AbstractContextManager[CallSession | None]:
    """Start the worker that runs the shipped workload; none where that is the reference."""
    entry = context.lab.spec.entry
    if entry == reference_entry:
        return contextlib.nullcontext()
    return CallSession.start(
        context, "reference", context.pristine(), entry, limits, options=_held(context), wait=False
    )


def _held(context: Context[SpeedupSettings]) -> list[str]:
    """Return the option of a worker that may load its code only when told to: on a GPU, where the
    reference is timed alone first. Elsewhere all load at once.
    """
    return [HELD] if context.device == "cuda" else []


def _refuse_slowed(
    pairs: TimedPairs,
    results: list[CriterionResult],
    before_s: dict[str, list[float]],
    after_s: dict[str, list[float]],
) -> None:
    """Compare the reference's calls beside the learner's processes with those alone, case by
    case.
    """
    turns = {
        case.name: Turns(before_s[case.name], case.reference_s, after_s[case.name])
        for case in pairs.cases
    }
    refuse_kernels_left_running(turns, failed=any(result.holds is False for result in results))


@dataclass
class TimedPairs:
    """The pairs of all cases and the tests that have decided on them.

    `waited_s`: seconds in which each side's threads waited for a core in these pairs.
    `other_cores`: cores that other programs kept busy meanwhile. `itself`: the reference compared
    with itself; None for work that was far off at the first look.
    """

    cases: list[Case]
    tests: dict[str, SequentialTest]
    waited_s: dict[Side, float]
    other_cores: float
    itself: SelfTest | None


class Meters:
    """How long both sides' threads wait for a core, and how busy other programs keep the machine,
    from now on.
    """

    def __init__(self, workers: Workers) -> None:
        reference, learner = workers.reference.worker, workers.learner.worker
        self._load = LoadMeter(lambda: own_cpu_s() + reference.cpu_s() + learner.cpu_s())
        self._waiting = {"reference": reference.waiting(), "learner": learner.waiting()}

    def stop(
        self,
        cases: list[Case],
        tests: dict[str, SequentialTest],
        itself: AgainstItself | None = None,
    ) -> TimedPairs:
        """Return the pairs that were timed meanwhile."""
        waited_s: dict[Side, float] = {
            "reference": self._waiting["reference"].seconds()
            - (itself.waited_s if itself else 0.0),
            "learner": self._waiting["learner"].seconds(),
        }
        outcome = itself.outcome if itself else None
        return TimedPairs(cases, tests, waited_s, self._load.cores(), outcome)


def _time_pairs(workers: Workers, standards: CallSession | None) -> TimedPairs:
    """Take a first look, compare the reference with itself, and time pairs until the tests have
    decided. Work that the first look finds far off is left at that, without the `standards`; for
    other work its pairs were the last calls of the warm-up.

    Raises LearnerFault for more threads than allowed, BusyMachineError on an unfit machine.
    """
    context = workers.context
    if _looks_first(context):
        context.progress("taking a first look", 0.3)
        # As if this were the worst machine on which the check would go on.
        tests = sequential_tests(context, max(context.settings.self_test_margin, SELF_TEST_LIMIT))
        meters, cases = Meters(workers), _cases(workers)
        far_off = first_look(workers, cases, tests)
        # Before the self-test, which a busy machine fails: how many threads compute is counted.
        refuse_counted_threads(cases)
        if far_off:
            for case in cases:
                case.decide(tests, exhausted=True)
            return meters.stop(cases, tests)
    if standards is not None:
        workers.load_standards(standards)
    context.progress("comparing the reference with itself", 0.35)
    meters = Meters(workers)
    itself, cases = AgainstItself(workers), _cases(workers)
    tests = sample(workers, cases, itself)
    return meters.stop(cases, tests, itself)


def _grade(workers: Workers, pairs: TimedPairs, adversarial: int) -> Measured:
    """Grade the pairs; `adversarial` further answers were right."""
    context, cases, itself = workers.context, pairs.cases, pairs.itself
    # Of each side's calls, the share in which its threads waited for a core.
    spent_s: dict[Side, float] = {
        "reference": sum(sum(case.reference_s) for case in cases),
        "learner": sum(sum(case.learner_s) for case in cases),
    }
    shares = {
        side: waited_s / max(spent_s[side], 1e-9) for side, waited_s in pairs.waited_s.items()
    }
    ratios = [ratio for case in cases for ratio in case.ratios()]
    return Measured(
        [
            answers_result(context, cases, adversarial + workers.untimed_answers),
            *target_results(
                context,
                cases,
                misses_from_waiting(cases, pairs.tests, pairs.waited_s["learner"]),
                pairs.other_cores,
                reference_waited=speedup_from_waiting(cases, pairs.tests, shares),
            ),
        ],
        details={
            "cases": {case.name: case.times() for case in cases},
            "overhead_share": cases[0].overhead_share,
        },
        notes=[*([itself.sentence] if itself else []), *case_notes(cases)],
        speedup=min(case.speedup for case in cases)
        if all(case.learner_s for case in cases)
        else None,
        conditions=Conditions(
            noise=noise_share([math.log(ratio) for ratio in ratios]) if ratios else None,
            other_cores=pairs.other_cores,
            cores=os.cpu_count(),
            doubt=itself.doubt if itself else 0.0,
        ),
    )


def _looks_first(context: Context[SpeedupSettings]) -> bool:
    """Return True if a first look may end the check. On a GPU every case needs its pairs: they show
    if kernels are left running.
    """
    return context.device != "cuda"


def _cases(workers: Workers) -> list[Case]:
    """Return the cases, without pairs."""
    return [_case(workers, name) for name in workers.names]


def _case(workers: Workers, name: str) -> Case:
    """Return a case without pairs. Where the judge can have a call move its data and compute
    nothing (`idle`), that time holds the protocol's, too.
    """
    if workers.context.device == "cuda" and hasattr(workers.judge, "idle"):
        return Case(name, idle=True)
    threads = getattr(workers.judge, "threads", lambda _case: None)(name)
    return Case(name, workers.overhead_s(workers.inputs(name)), threads=threads)


def _over_shipped(workers: Workers, shipped: CallSession, cases: list[Case]) -> float:
    """Return the speed-up over the shipped workload, in the case where it is largest: a prediction
    is about that where the reference is another program. Two calls a case are enough for that.
    """
    gains = []
    for case in cases:
        # The first call of a shape may be a slow one.
        seconds = min(shipped.call(workers.inputs(case.name))[0] for _ in range(2))
        gains.append(seconds / median(case.learner_s))
    return float(max(gains))
