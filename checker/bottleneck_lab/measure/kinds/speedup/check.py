"""The `speedup` kind: how much faster the learner's code answers than the reference, call by call, each call a fresh secret input.

Reference and learner take turns in an order drawn at random, one frozen while the other runs; the statistic is the ratio of each pair.
Every timed answer is judged, after the clock has stopped.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from bottleneck_lab.analysis.statistics import bounds_at, log_ratios, noise_share
from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.errors import BusyMachineError
from bottleneck_lab.grading.criteria import (
    Conditions,
    grade_check,
    grade_decision,
    not_held_against,
    sequential_test,
    worst_case,
)
from bottleneck_lab.grading.sequential import (
    PAIRS,
    SELF_TEST_PAIRS,
    Decision,
    SelfTest,
    SequentialTest,
    State,
    self_test,
    shuffled_order,
)
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.messages import Value
from bottleneck_lab.measure.channel.session import CallSession, limits_of
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.speedup import SpeedupSettings, kernels
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.sandbox.limits import Limits

MAX_OVERHEAD_SHARE = 0.02
"""Largest share of a timed call that the protocol itself may take (VERDICT.md)."""
FAR_PAIRS, FAR = 7, 2.0
"""Code so slow that the time is up before the first look: this many pairs of a case, each of them this many times beyond the target, decide all the same.

By the coin alone, code that meets the target comes out so once in 2⁷ times; that noise moves it by a factor of two each time has to come on top.
"""
MAX_SLOWED = 1.3
"""How much longer the reference's calls on a GPU may take beside the learner's stopped processes than alone.

Clocks that fall under load are to stay within it; never measured.
"""
MAX_CORES_SHARE = 1.1
"""Cores kept busy over the threads that a case allows: CPU time is counted in hundredths of a second where there is no control group."""


@dataclass
class Case:
    """The timed pairs of one case: seconds of the reference and of the learner, in the order measured. `overhead_s` of each is the protocol's.

    `cpu_s`: CPU seconds of the learner's calls, added up. `out_of_time`: the learner's calls have used up the time of the whole comparison.
    """

    name: str
    overhead_s: float = 0.0
    reference_s: list[float] = field(default_factory=list)
    learner_s: list[float] = field(default_factory=list)
    decisions: dict[str, Decision] = field(default_factory=dict)
    cpu_s: float = 0.0
    out_of_time: bool = False

    def decide(self, tests: dict[str, SequentialTest], *, exhausted: bool) -> bool:
        """Asks every test about the pairs so far; True while one of them wants more."""
        without = self.without_overhead()
        self.decisions = {
            id_: _agreed(test, _SAMPLES[id_](self), _SAMPLES[id_](without), exhausted=exhausted)
            for id_, test in tests.items()
        }
        if self.out_of_time and self.is_far(tests) and len(self.learner_s) >= FAR_PAIRS:
            seen = bounds_at(self.ratios(), rank=1)
            self.decisions["speedup"] = Decision(State.FAIL, seen, len(self.learner_s), wanted=0)
        return any(decision.wanted for decision in self.decisions.values())

    def without_overhead(self) -> Case:
        """The same without the protocol's time; of an answer faster than that, nothing is left."""
        reference_s, learner_s = (
            [max(second - self.overhead_s, 1e-9) for second in side] for side in (self.reference_s, self.learner_s)
        )
        return replace(self, overhead_s=0.0, reference_s=reference_s, learner_s=learner_s)

    def without_waiting(self, share: float) -> Case:
        """The same without the share (0–1) of the learner's time in which its threads waited for a core."""
        learner_s = [max(second * (1 - share), 1e-9) for second in self.learner_s]
        return replace(self, learner_s=learner_s)

    def is_far(self, tests: dict[str, SequentialTest]) -> bool:
        """Whether there are too few pairs for a look, and the speed-up misses its target by far in every one of them, with the protocol's time and without."""
        test, pairs = tests.get("speedup"), [*self.ratios(), *self.without_overhead().ratios()]
        if test is None or not 0 < len(self.learner_s) < test.plan.looks[0]:
            return False
        return max(pairs) * FAR * (1 + test.doubt) < test.bar

    def states(self) -> dict[str, State]:
        """What each test said."""
        return {id_: decision.state for id_, decision in self.decisions.items()}

    def failed(self) -> bool:
        """Whether some test says that a target is surely not met."""
        return State.FAIL in self.states().values()

    def ratios(self) -> list[float]:
        """Reference over learner, pair by pair."""
        return [reference / learner for reference, learner in zip(self.reference_s, self.learner_s, strict=True)]


class Comparison:
    """The two workers of a check, the learner's from when it is there; the judge, the names of the cases, and the inputs."""

    learner: CallSession

    def __init__(self, context: Context[SpeedupSettings], reference: CallSession, judge: ModuleType) -> None:
        self.context = context
        self.reference = reference
        self.judge = judge
        self.generator = np.random.default_rng(context.rng.getrandbits(128))
        self.names = list(judge.cases(self.generator, context.settings.judge))

    def inputs(self, case: str) -> list[Value]:
        """Fresh inputs for one call of a case."""
        return list(self.judge.make_inputs(self.generator, case, self.context.data, self.context.settings.judge))

    def check(self, case: str, inputs: list[Value], answer: list[Any], reference: list[Any]) -> None:
        """Raises LearnerFault when the judge does not accept the answer."""
        if complaint := self.judge.judge(case, inputs, answer, reference, self.context.settings.judge):
            raise LearnerFault("wrong output", complaint)

    def warm_up(self, case: str) -> None:
        """Lets both sides meet a case's shapes before it is timed; the answers are judged."""
        for _ in range(self.context.settings.warmup_calls):
            inputs = self.inputs(case)
            reference = self.reference.call(inputs)[1]
            self.check(case, inputs, self.learner.call(inputs)[1], reference)

    def pair(self, case: Case) -> None:
        """Times one pair on one fresh input, in random order, and judges the answer."""
        inputs, answers = self.inputs(case.name), {}
        for side in shuffled_order(self.context.rng, 1)[0]:
            session = self.learner if side == "learner" else self.reference
            before_s = session.worker.cpu_s()
            seconds, answers[side] = session.call(inputs)
            (case.learner_s if side == "learner" else case.reference_s).append(seconds)
            case.cpu_s += session.worker.cpu_s() - before_s if side == "learner" else 0.0
        self.check(case.name, inputs, answers["learner"], answers["reference"])

    def adversarial(self) -> int:
        """Untimed inputs that the judge holds in store; returns how many. Raises LearnerFault on a wrong answer."""
        hard = (
            self.judge.adversarial(self.generator, self.context.settings.judge)
            if hasattr(self.judge, "adversarial")
            else []
        )
        for case, inputs in hard:
            reference = self.reference.call(list(inputs))[1]
            self.check(case, list(inputs), self.learner.call(list(inputs))[1], reference)
        return len(hard)

    def against_itself(self, case: str, margin: float) -> SelfTest:
        """The A/A test, with more pairs where few do not do. Raises VerifierFault when the machine is unfit."""
        times: dict[str, list[float]] = {"reference": [], "learner": []}
        for wanted in SELF_TEST_PAIRS:
            while len(times["reference"]) < wanted:
                inputs = self.inputs(case)
                # The second call finds this input warm: a coin, as in the pairs that count, says which side has that.
                for side in shuffled_order(self.context.rng, 1)[0]:
                    times[side].append(self.reference.call(inputs)[0])
            verdict = self_test(log_ratios(times["reference"], times["learner"]), margin)
            if verdict.quiet:
                break
        if verdict.fit:
            return verdict
        raise BusyMachineError(
            verdict.sentence, "Close other programs, wait for background jobs to end, and check again."
        )

    def reference_alone_s(self) -> float:
        """Seconds of a call of the first case by the reference, as long as there is nobody to take turns with."""
        for _ in range(self.context.settings.warmup_calls):
            self.reference.call(self.inputs(self.names[0]))
        return median(self.reference.call(self.inputs(self.names[0]))[0] for _ in range(FAR_PAIRS))

    def overhead_s(self, inputs: list[Value]) -> float:
        """Seconds that the protocol takes for inputs and answers of this size, with nothing computed."""
        return median(self.reference.echo(inputs) for _ in range(5))


def measure(context: Context[SpeedupSettings]) -> Measured:
    """Runs the whole comparison. Raises LearnerFault or VerifierFault when it ends early."""
    judge, limits = context.judge(), limits_of(context.settings)
    kernels.refuse_forbidden(context)
    context.progress("starting the reference", 0.05)
    reference_entry = context.settings.reference or context.lab.spec.entry
    with CallSession.start(context, "reference", context.pristine(), reference_entry, limits) as reference:
        comparison, on_gpu = Comparison(context, reference, judge), context.device == "cuda"
        before_s = comparison.reference_alone_s() if on_gpu else 0.0
        context.progress("loading your code", 0.15)
        with CallSession.start(context, "learner", context.submission, context.lab.spec.entry, limits) as learner:
            comparison.learner = learner
            measured = _compare(comparison)
        if on_gpu:
            beside_s = measured.details["cases"][comparison.names[0]]["reference_s"]
            _refuse_kernels_left_running(before_s, beside_s, comparison.reference_alone_s())
    notes = kernels.refuse_stray_accesses(context)
    if reference_entry != context.lab.spec.entry:
        measured = replace(measured, speedup=_over_shipped(context, measured, judge, limits))
    return kernels.with_machine_code(context, replace(measured, notes=[*measured.notes, *notes]))


def _over_shipped(
    context: Context[SpeedupSettings], measured: Measured, judge: ModuleType, limits: Limits
) -> float | None:
    """How many times faster than the shipped workload, in the case where that is most: what a prediction is about where the reference is another program.

    None for work that does not pass: it is only set beside the prediction, and two calls a case are enough for that.
    """
    if not all(result.holds for result in measured.results):
        return None
    context.progress("timing the shipped code", 0.97)
    generator = np.random.default_rng(context.rng.getrandbits(128))
    with CallSession.start(context, "reference", context.pristine(), context.lab.spec.entry, limits) as shipped:
        gains = []
        for case, times in measured.details["cases"].items():
            inputs = [list(judge.make_inputs(generator, case, context.data, context.settings.judge)) for _ in range(2)]
            seconds = min(shipped.call(values)[0] for values in inputs)  # the first call of a shape may be a slow one
            gains.append(seconds / median(times["learner_s"]))
    return float(max(gains))


def _compare(comparison: Comparison) -> Measured:
    context, names = comparison.context, comparison.names
    context.progress("checking answers", 0.25)
    for name in names:
        comparison.warm_up(name)
    hard = comparison.adversarial()
    context.progress("comparing the reference with itself", 0.35)
    itself = comparison.against_itself(names[0], context.settings.self_test_margin)
    overhead_s = comparison.overhead_s(comparison.inputs(names[0]))
    worker = comparison.learner.worker
    meter = LoadMeter(lambda: own_cpu_s() + comparison.reference.worker.cpu_s() + worker.cpu_s())
    waited_s = worker.waited_s()
    tests = _tests(context, itself.doubt)
    cases = _sample(comparison, [Case(name, overhead_s) for name in names], tests)
    waited_s, other_cores = worker.waited_s() - waited_s, meter.cores()
    _refuse_overhead(cases, tests)
    _refuse_more_threads(cases, comparison.judge)
    ratios = [ratio for case in cases for ratio in case.ratios()]
    medians = [median(case.ratios()) for case in cases if case.ratios()]
    timings = {case.name: {"reference_s": case.reference_s, "learner_s": case.learner_s} for case in cases}
    return Measured(
        [
            _answers_result(context, cases, hard),
            *_target_results(context, cases, _spared(cases, tests, waited_s), other_cores),
        ],
        details={"cases": timings, "overhead_share": overhead_s / median(cases[0].learner_s or [math.inf])},
        notes=[itself.sentence],
        speedup=min(medians) if len(medians) == len(cases) else None,
        conditions=Conditions(
            noise=noise_share([math.log(ratio) for ratio in ratios]) if ratios else None,
            other_cores=other_cores,
            cores=os.cpu_count(),
            doubt=itself.doubt,
        ),
    )


def _refuse_overhead(cases: list[Case], tests: dict[str, SequentialTest]) -> None:
    """Raises VerifierFault where the protocol's own time is all that stands between the pairs and a decision.

    A target that one case has missed for sure is missed, whatever the others would have needed.
    """
    for case in [] if any(case.failed() for case in cases) else cases:
        share = case.overhead_s / median(case.learner_s or [math.inf])
        plain = {id_: test.decide(_SAMPLES[id_](case), exhausted=True).state for id_, test in tests.items()}
        if share > MAX_OVERHEAD_SHARE and plain != case.states() and not case.out_of_time:
            raise VerifierFault(
                f"The protocol itself takes {share:.0%} of a call: this lab's calls are too short to be judged here."
            )


def _refuse_kernels_left_running(before_s: float, beside_s: list[float], after_s: float) -> None:
    """Raises LearnerFault where the reference was slowed while all of the learner's processes were stopped, and neither before nor after they lived.

    A kernel on a GPU goes on when its process is stopped, and takes turns with the reference's.
    """
    slowed = median(beside_s or [0.0]) / max(before_s, after_s, 1e-9)
    if slowed > MAX_SLOWED:
        raise LearnerFault(
            "tampered",
            f"The reference took {slowed:.1f} times as long as before your code was loaded and after it ended: your kernels kept running during its turns.",
        )


def _refuse_more_threads(cases: list[Case], judge: ModuleType) -> None:
    """Raises LearnerFault where a case says how many threads it allows (`judge.threads`), and more cores were busy with it: the reference keeps to it."""
    for case in cases:
        allowed = judge.threads(case.name) if hasattr(judge, "threads") else None
        cores = case.cpu_s / max(sum(case.learner_s), 1e-9)
        if allowed and len(case.learner_s) >= PAIRS.looks[0] and cores > MAX_CORES_SHARE * allowed:
            asked = "one thread" if allowed == 1 else f"{allowed} threads"
            raise LearnerFault("tampered", f"It may use {asked} but kept {cores:.1f} cores busy ({case.name}).")


def _agreed(test: SequentialTest, samples: list[float], without: list[float], *, exhausted: bool) -> Decision:
    """The decision that holds with the protocol's time, which is in both sides' and pulls every ratio towards 1, and without it."""
    first, second = (test.decide(each, exhausted=exhausted) for each in (samples, without))
    if first.state is second.state:
        return first
    wanted = max(first.wanted, second.wanted)
    return msgspec.structs.replace(first, state=State.CONTINUE if wanted else State.INCONCLUSIVE, wanted=wanted)


Samples = Callable[[Case], list[float]]
_SAMPLES: dict[str, Samples] = {
    "speedup": Case.ratios,
    "p50-ms": lambda case: [1000 * second for second in case.learner_s],
}
"""What a pair contributes to each criterion that this kind can measure."""


def _tests(context: Context[SpeedupSettings], doubt: float) -> dict[str, SequentialTest]:
    specs = {id_: spec for id_ in _SAMPLES if (spec := context.criterion(id_)) is not None}
    return {id_: msgspec.structs.replace(sequential_test(spec), doubt=doubt) for id_, spec in specs.items()}


def _sample(comparison: Comparison, cases: list[Case], tests: dict[str, SequentialTest]) -> list[Case]:
    """Measures pairs until every test of every case has decided, or one has failed, which no other can make good, or the time is up."""
    begin, max_s = time.monotonic(), comparison.context.settings.max_s
    open_ = list(cases)
    while open_ and not any(case.failed() for case in cases) and (spent_s := time.monotonic() - begin) < max_s:
        comparison.pair(comparison.context.rng.choice(open_))
        comparison.context.progress("measuring", 0.4 + 0.55 * spent_s / max_s)
        open_ = [case for case in cases if case.decide(tests, exhausted=False)]
    for case in cases:
        case.decide(tests, exhausted=True)
    if open_ and not any(case.failed() for case in cases):
        _settle_slowest(comparison, cases, tests, time.monotonic() - begin)
    return cases


def _settle_slowest(
    comparison: Comparison, cases: list[Case], tests: dict[str, SequentialTest], spent_s: float
) -> None:
    """The time is up. Where the learner's calls took most of it, the slowest case gets the pairs that show it to be far too slow, as long as it does."""
    slowest = max(cases, key=lambda case: sum(case.learner_s))
    if sum(sum(case.learner_s) for case in cases) <= spent_s / 2:
        return
    while slowest.is_far(tests) and len(slowest.learner_s) < FAR_PAIRS:
        comparison.pair(slowest)
    slowest.out_of_time = True
    slowest.decide(tests, exhausted=True)


def _answers_result(context: Context[SpeedupSettings], cases: list[Case], hard: int) -> CriterionResult:
    checked = sum(len(case.learner_s) for case in cases) + hard
    return grade_check(context.required("right-answers"), None, checked)


def _spared(cases: list[Case], tests: dict[str, SequentialTest], waited_s: float) -> set[str]:
    """The tests whose miss hangs on the time in which the learner's threads waited for a core, or that have no partner to share it with.

    A neighbour on the same cores hurts a program of many threads more than the reference beside it, and by far: where one
    thread waits for a core, the others wait for that thread.
    """
    share = min(1.0, max(0.0, waited_s / max(sum(sum(case.learner_s) for case in cases), 1e-9)))
    failed = [case.without_waiting(share) for case in cases if case.failed()]
    for case in failed:
        case.decide(tests, exhausted=True)
    return {id_ for id_ in tests if id_ != "speedup" or not any(case.states()[id_] is State.FAIL for case in failed)}


def _target_results(
    context: Context[SpeedupSettings], cases: list[Case], spared: set[str], other_cores: float
) -> list[CriterionResult]:
    """One result a target, which every case has to meet on its own. A miss that is `spared` needs the machine for itself."""
    results = [
        worst_case({case.name: _result(spec, case) for case in cases})
        for spec in context.lab.spec.devices[context.device].criteria
        if spec.id in _SAMPLES
    ]
    return [not_held_against(result, other_cores) if result.id in spared else result for result in results]


def _result(spec: CriterionSpec, case: Case) -> CriterionResult:
    """What a case's pairs say of a criterion, and that they are few where its calls left time for no more."""
    result = grade_decision(spec, case.decisions[spec.id])
    if not (case.out_of_time and result.holds is False):
        return result
    said = f"{result.sentence.rstrip('.')}. Time ran out after so few pairs: its calls took {median(case.learner_s):.3g} s each."
    return msgspec.structs.replace(result, sentence=said)
