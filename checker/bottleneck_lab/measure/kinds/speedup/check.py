"""The `speedup` kind: how much faster the learner's code answers than the reference, call by call,
each call a fresh secret input.

Reference and learner take turns in an order drawn at random, one frozen while the other runs; the
statistic is the ratio of each pair. Every timed answer is judged, after the clock has stopped, and
so are 100 further ones that nobody times, mixed with them: of code that errs in one call out of
twenty, 0.6% would not be caught. How fast the code is does not change their number; code that has
already failed gets those that fit in 15 seconds, which can only change the reason.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import replace
from statistics import median
from types import ModuleType

import numpy as np

from bottleneck_lab.analysis.statistics import noise_share
from bottleneck_lab.grading.criteria import Conditions
from bottleneck_lab.grading.sequential import SELF_TEST_LIMIT, Side
from bottleneck_lab.measure.channel.session import HELD, CallSession, limits_of
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings
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
    of_each,
    rests_on_waiting,
    spared,
    target_results,
)
from bottleneck_lab.measure.kinds.speedup.sampling import (
    FAR_OFF_S,
    Further,
    first_look,
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
    context.progress("starting the reference", 0.05)
    reference_entry = context.settings.reference or context.lab.spec.entry
    with (
        _standards(context, limits) as standards,
        CallSession.start(
            context, "reference", context.pristine(), reference_entry, limits, wait=False
        ) as reference,
    ):
        # Its process starts meanwhile and imports PyTorch; none of the learner's code is loaded
        # before the reference has been timed alone.
        with CallSession.start(
            context,
            "learner",
            context.submission,
            context.lab.spec.entry,
            limits,
            options=[HELD],
            wait=False,
        ) as learner:
            reference.wait_ready()
            if standards is not None:
                standards.wait_ready()
            workers = Workers(context, reference, judge, standards)
            before_s = workers.reference_alone_s() if context.device == "cuda" else {}
            context.progress("loading your code", 0.15)
            learner.begin()
            workers.learner = learner
            measured = _compare(workers)
        if context.device == "cuda":
            after_s = workers.reference_alone_s()
            _refuse_slowed(measured, before_s, after_s)
        measured = with_second_level(workers, measured)
    notes = kernels.refuse_stray_accesses(context)
    if reference_entry != context.lab.spec.entry:
        measured = replace(measured, speedup=_over_shipped(context, measured, judge, limits))
    return kernels.with_machine_code(context, replace(measured, notes=[*measured.notes, *notes]))


def _standards(
    context: Context[SpeedupSettings], limits: Limits
) -> contextlib.AbstractContextManager[CallSession | None]:
    """Start the worker that runs what the brief allows; none in a lab that has no `standards`."""
    entry = context.settings.standards
    if entry is None:
        return contextlib.nullcontext()
    return CallSession.start(context, "reference", context.pristine(), entry, limits, wait=False)


def _refuse_slowed(
    measured: Measured, before_s: dict[str, list[float]], after_s: dict[str, list[float]]
) -> None:
    """Compare the reference's calls beside the learner's processes with those alone, case by
    case.
    """
    beside_s = {case: times["reference_s"] for case, times in measured.details["cases"].items()}
    turns = {case: Turns(before_s[case], beside_s[case], after_s[case]) for case in before_s}
    refuse_kernels_left_running(
        turns, failed=any(result.holds is False for result in measured.results)
    )


def _compare(workers: Workers) -> Measured:
    """Warm up, take a first look, compare the reference with itself, time pairs until the tests
    have decided, and grade. Work that the first look finds far off is graded at once.
    """
    context, names = workers.context, workers.names
    context.progress("checking answers", 0.25)
    for name in names:
        workers.warm_up(name)
    hard = workers.adversarial()
    cases = [_case(workers, name) for name in names]
    worker = workers.learner.worker
    meter = LoadMeter(lambda: own_cpu_s() + workers.reference.worker.cpu_s() + worker.cpu_s())
    waiting, reference_waiting = worker.waiting(), workers.reference.worker.waiting()
    alone_s = 0.0
    # As if this were the worst machine on which the check would go on.
    worst = max(context.settings.self_test_margin, SELF_TEST_LIMIT)
    itself, tests = None, sequential_tests(context, worst)
    context.progress("taking a first look", 0.3)
    # On a GPU every case needs its pairs: they show if kernels are left running.
    far_off = context.device != "cuda" and first_look(workers, cases, tests)
    # Before the self-test, which a busy machine fails: how many threads compute is counted there.
    refuse_counted_threads(cases)
    if far_off:
        waited_s, other_cores = waiting.seconds(), meter.cores()
        for case in cases:
            case.decide(tests, exhausted=True)
        Further(workers, len(cases)).rest(beyond_s=FAR_OFF_S)
    else:
        context.progress("comparing the reference with itself", 0.35)
        before_s = reference_waiting.seconds()
        itself = workers.against_itself(names[0], context.settings.self_test_margin)
        alone_s = reference_waiting.seconds() - before_s
        tests = sequential_tests(context, itself.doubt)
        cases = sample(workers, cases, tests)
        waited_s, other_cores = waiting.seconds(), meter.cores()
    # The learner has no part in the reference's calls against itself.
    waited: dict[Side, float] = {
        "reference": reference_waiting.seconds() - alone_s,
        "learner": waited_s,
    }
    shares = {side: waited[side] / max(workers.spent_s[side], 1e-9) for side in waited}
    refuse_overhead(cases, tests)
    refuse_more_threads(cases)
    workers.refuse_overall()
    ratios = [ratio for case in cases for ratio in case.ratios()]
    medians = [median(case.charged().without_moving().ratios()) for case in cases if case.ratios()]
    return Measured(
        [
            answers_result(context, cases, hard + workers.further),
            *target_results(
                context,
                cases,
                spared(cases, tests, waited_s),
                other_cores,
                reference_waited=rests_on_waiting(cases, tests, shares),
            ),
        ],
        details={
            "cases": {case.name: case.times() for case in cases},
            "overhead_share": cases[0].overhead_share,
        },
        notes=[*([itself.sentence] if itself else []), *of_each(cases)],
        speedup=min(medians) if len(medians) == len(cases) else None,
        conditions=Conditions(
            noise=noise_share([math.log(ratio) for ratio in ratios]) if ratios else None,
            other_cores=other_cores,
            cores=os.cpu_count(),
            doubt=itself.doubt if itself else 0.0,
        ),
    )


def _case(workers: Workers, name: str) -> Case:
    """Return a case without pairs. Where the judge can have a call move its data and compute
    nothing (`idle`), that time holds the protocol's, too.
    """
    if workers.context.device == "cuda" and hasattr(workers.judge, "idle"):
        return Case(name, idle=True)
    threads = getattr(workers.judge, "threads", lambda _case: None)(name)
    return Case(name, workers.overhead_s(workers.inputs(name)), threads=threads)


def _over_shipped(
    context: Context[SpeedupSettings], measured: Measured, judge: ModuleType, limits: Limits
) -> float | None:
    """Return the speed-up over the shipped workload, in the case where it is largest: a prediction
    is about that where the reference is another program.

    None for work that does not pass: the figure is only set beside the prediction, and two calls a
    case are enough for that.
    """
    if not all(result.holds for result in measured.results):
        return None
    context.progress("timing the shipped code", 0.97)
    generator = np.random.default_rng(context.rng.getrandbits(128))
    with CallSession.start(
        context, "reference", context.pristine(), context.lab.spec.entry, limits
    ) as shipped:
        gains = []
        for case, times in measured.details["cases"].items():
            inputs = [
                list(judge.make_inputs(generator, case, context.data, context.settings.judge))
                for _ in range(2)
            ]
            # The first call of a shape may be a slow one.
            seconds = min(shipped.call(values)[0] for values in inputs)
            gains.append(seconds / median(times["learner_s"]))
    return float(max(gains))
