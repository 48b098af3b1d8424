"""Measure how well a training script keeps a device fed.

The script's batches go to a device process that the verifier owns. Useful utilisation is the device
time that the checked work needs, over the wall time on the verifier's clock. What to train is
handed out epoch by epoch, so nothing can be prepared before the clock runs; rows drawn in secret
are shown to the lab's judge afterwards.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from statistics import median
from types import ModuleType

import msgspec
import numpy as np

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.conclusion import Conditions
from bottleneck_lab.grading.criteria import (
    BUSY_CORES,
    grade_check,
    grade_decision,
    grade_value,
    lies_on_one_side,
    not_held_against,
    not_measured,
    sequential_test,
)
from bottleneck_lab.grading.sequential import BLOCKS, SELF_TEST_LIMIT, Decision, State
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.messages import Done, EpochAsked, Trained
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.input_pipeline import InputPipelineSettings
from bottleneck_lab.measure.kinds.input_pipeline.device_process import calibrate, wanted_step_s
from bottleneck_lab.measure.kinds.input_pipeline.judging import (
    check_batches,
    check_kept,
    expect_steps,
    refuse_more_cores,
)
from bottleneck_lab.measure.kinds.input_pipeline.records import (
    WARM_UP_BATCHES,
    PipelineRun,
    plan_epoch,
)
from bottleneck_lab.measure.kinds.input_pipeline.session import PipelineSession
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s

ATTEMPTS = 3
"""How often a script is measured where only the machine's changing speed leaves it open."""
MAX_EPOCHS = 3
NOTED_SLOWDOWN = 1.05
"""A note is worth it if a step took this many times as long beside the script as alone: then the
script uses the GPU itself.
"""


@dataclass(frozen=True)
class Attempt:
    """A run of the script. Before it and after it, in seconds: the CPU time that the shipped loader
    needs for a sample, and the device's step. `foreign_cores`: cores that other programs used.
    """

    run: PipelineRun
    loader_s: float
    loader_after_s: float
    step_s: float
    step_after_s: float
    foreign_cores: float

    @property
    def drift(self) -> float:
        """How many times as long as before things took afterwards: a GPU's step, or the shipped
        loader, which an emulated step follows.
        """
        return (self.step_after_s / self.step_s) * (self.loader_after_s / self.loader_s)

    def grade(self, context: Context[InputPipelineSettings], drift: float) -> list[CriterionResult]:
        """Grade utilisation and data wait on a machine of that drift."""
        return grade(context, self.run, self.step_s, drift, self.foreign_cores)

    def open_for_drift(self, context: Context[InputPipelineSettings]) -> bool:
        """Return True if more would be decided, had the machine kept its speed."""
        drifted, steady = (
            [result.holds for result in self.grade(context, drift)] for drift in (self.drift, 1.0)
        )
        return drifted != steady


def measure(context: Context[InputPipelineSettings]) -> Measured:
    """Run the whole check. Raises LearnerFault or VerifierFault if it ends early."""
    judge, called = context.judge(), context.settings.samples.called
    context.progress("calibrating this machine with the shipped loader", 0.02)
    attempt = measure_at(context, judge, calibrate(context, judge.count(context.data)))
    for _ in range(ATTEMPTS - 1):
        if not attempt.open_for_drift(context):
            break
        # Its step is as fast as the machine is now.
        attempt = measure_at(context, judge, attempt.loader_after_s)
    run = attempt.run
    context.progress(f"checking {called}", 0.9)
    problem, checked = check_kept(run, judge, context)
    wrong_batch, looked_at = check_batches(run, judge, context)
    correctness = [
        grade_check(context.required("every-sample-once"), wrong_batch, looked_at, called),
        grade_check(context.required("right-samples"), problem, checked, called),
    ]
    return Measured(
        [*correctness, *attempt.grade(context, attempt.drift)],
        details={
            "step_s": attempt.step_s,
            "shipped_loader_s_a_sample": attempt.loader_s,
            "calibration_drift": attempt.drift,
            "block_utilisation": run.utilisation(attempt.step_s),
            "block_idle": run.idle(),
            "samples_per_s": run.samples_per_s(),
            "steps_ms": [
                [
                    (moment - run.began_ns()) / 1e6
                    for moment in (step.arrived_ns, step.started_ns, step.ended_ns)
                ]
                for step in run.timed()
            ],
        },
        notes=[
            *gain_notes(context, run, attempt.loader_s, attempt.foreign_cores),
            device_note(context, attempt.step_s, attempt.loader_s),
            *sharing_notes(run, max(attempt.step_s, attempt.step_after_s)),
        ],
        speedup=run.samples_per_s() * attempt.loader_s if run.timed() else None,
        conditions=Conditions(
            other_cores=attempt.foreign_cores,
            cores=os.cpu_count(),
            noise=abs(attempt.drift - 1),
        ),
    )


def measure_at(
    context: Context[InputPipelineSettings], judge: ModuleType, loader_s: float
) -> Attempt:
    """Run the script on a machine whose shipped loader needs `loader_s` for a sample, and measure
    the machine's speed again afterwards. Raises LearnerFault or VerifierFault if it ends early.
    """
    context.progress("starting your script", 0.1)
    with PipelineSession.start(context, wanted_step_s(context.settings, loader_s)) as session:
        worker, device = session.script.worker, session.device
        meter = LoadMeter(lambda: own_cpu_s() + worker.cpu_s() + device.cpu_s())
        step_s, began_s, cpu_s = device.step_s, time.monotonic(), worker.cpu_s()
        run = train(session, context, judge, meter)
        refuse_more_cores((worker.cpu_s() - cpu_s) / (time.monotonic() - began_s))
        foreign_cores = meter.cores()
        step_after_s = session.step_after_s()
    loader_after_s = loader_s
    # A GPU has measured its own step again. What is far off is so at any speed.
    if context.device != "cuda" and not far_off(context, run, step_s, foreign_cores):
        context.progress("calibrating this machine again", 0.8)
        loader_after_s = calibrate(context, judge.count(context.data))
    return Attempt(run, loader_s, loader_after_s, step_s, step_after_s, foreign_cores)


def train(
    session: PipelineSession,
    context: Context[InputPipelineSettings],
    judge: ModuleType,
    meter: LoadMeter,
) -> PipelineRun:
    """Hand out epochs until the utilisation is decided, and collect what the device saw. A script
    that is far off is left in the middle of an epoch.

    Raises LearnerFault for a script that ends early, hangs or cheats.
    """
    settings, run = context.settings, PipelineRun(context.settings.batch)
    test = sequential_test(context.required("useful-utilisation"), BLOCKS)
    count, enough = judge.count(context.data), False
    while True:
        message = session.receive(settings.call_s, f"training (step {len(run.steps) + 1})")
        if isinstance(message, Trained):
            run.steps.append(message)
            if far_off(context, run, session.device.step_s, meter.cores()):
                return run
        elif isinstance(message, EpochAsked):
            expect_steps(run, message.steps)
            if len(run.assignments) > MAX_EPOCHS:
                enough = True
            elif run.timed():
                decision = test.decide(run.utilisation(session.device.step_s))
                enough = decision.state is not State.CONTINUE
            # An epoch is drawn only when it is asked for: nothing can be loaded ahead of the clock.
            rng = np.random.default_rng(context.rng.getrandbits(128))
            sizes = [] if enough else [WARM_UP_BATCHES] + [settings.epoch_batches] * MAX_EPOCHS
            session.device.channel.send(plan_epoch(rng, run, count, sizes).message())
            context.progress("measuring", 0.2 + 0.2 * min(3, len(run.assignments) - 1))
        elif isinstance(message, Done):
            expect_steps(run, len(run.steps))
            if not enough:
                raise LearnerFault("wrong output", "training ended before the last epoch.")
            return run


def far_off(
    context: Context[InputPipelineSettings], run: PipelineRun, step_s: float, foreign_cores: float
) -> CriterionResult | None:
    """Return the miss of a script whose first batches are all far from the target; None otherwise,
    or if other programs may have caused it.

    Whatever follows, such an epoch misses: 8 of 32 batches at a third of the target take as long as
    24 at the target.
    """
    if not run.timed():
        return None
    spec = context.required("useful-utilisation")
    # The doubt is that of the worst machine on which anything is judged: the speed is not measured
    # again afterwards.
    test = msgspec.structs.replace(sequential_test(spec, BLOCKS), doubt=SELF_TEST_LIMIT)
    if (look := test.first_look(run.batch_utilisation(step_s))) is None:
        return None
    miss = not_held_against(grade_decision(spec, look, "batches"), foreign_cores, rate=True)
    return miss if miss.holds is False else None


def grade(
    context: Context[InputPipelineSettings],
    run: PipelineRun,
    step_s: float,
    drift: float,
    foreign_cores: float,
) -> list[CriterionResult]:
    """Grade utilisation and, in a lab that asks for it, data wait.

    `drift`: how much more time the calibration took after the check than before. If the machine
    changed speed, only what holds at both speeds is decided. The data wait of a script that is far
    off is not measured.
    """
    spec, wait = context.required("useful-utilisation"), context.criterion("data-wait")
    if miss := far_off(context, run, step_s, foreign_cores):
        waits = [not_measured(wait, "because the device is used far too little")] if wait else []
        return [miss, *waits]
    results = [_grade_utilisation(spec, run, step_s, drift)]
    if wait:
        # How long a real device was busy was measured; of an emulated one it follows from its step.
        paces = [1.0] if context.device == "cuda" else [1.0, drift]
        idle = _decide_at_all(
            wait, [[max(0.0, 1 - (1 - block) * pace) for block in run.idle()] for pace in paces]
        )
        results.append(grade_decision(wait, idle, "blocks"))
    return [
        not_held_against(_explained(result, drift), foreign_cores, rate=result.id == spec.id)
        for result in results
    ]


def _grade_utilisation(
    spec: CriterionSpec, run: PipelineRun, step_s: float, drift: float
) -> CriterionResult:
    """Grade the utilisation at both speeds of the machine. Where it holds, its figure is that over
    all blocks, which is also what the gain follows from.
    """
    speeds = [1.0, drift]
    decision = _decide_at_all(
        spec, [[block * speed for block in run.utilisation(step_s)] for speed in speeds]
    )
    overall = run.samples_per_s() * step_s / run.batch
    missed = [overall * speed < sequential_test(spec).bar for speed in speeds]
    if decision.state is State.PASS and any(missed) and not all(missed):
        decision = msgspec.structs.replace(decision, state=State.INCONCLUSIVE)
    if decision.state is not State.PASS:
        return grade_decision(spec, decision, "blocks", overall if run.timed() else None)
    # Blocks leave out what lies between them; a script may be slow there alone.
    return grade_value(spec, overall, decision.samples, "blocks")


def _explained(result: CriterionResult, drift: float) -> CriterionResult:
    """Return an open result, with the reason where its interval alone would have decided."""
    if result.holds is not None or not lies_on_one_side(result):
        return result
    faster = "faster" if drift < 1 else "slower"
    sentence = (
        f"{result.sentence} The machine was {abs(1 - drift):.0%} {faster} afterwards, and"
        " at that speed the result would be different."
    )
    return msgspec.structs.replace(result, sentence=sentence)


def _decide_at_all(spec: CriterionSpec, samples: list[list[float]]) -> Decision:
    """Decide on the samples at each speed of the machine; undecided unless all agree. The figures
    are those of the first.
    """
    test = sequential_test(spec, BLOCKS)
    first, *others = [test.decide(each, exhausted=True) for each in samples]
    if all(other.state is first.state for other in others):
        return first
    return msgspec.structs.replace(first, state=State.INCONCLUSIVE)


def gain_notes(
    context: Context[InputPipelineSettings],
    run: PipelineRun,
    loader_s: float,
    foreign_cores: float = 0.0,
) -> list[str]:
    """Note the two rates whose ratio is the gain, if the script was timed. `loader_s`: seconds that
    the shipped loader takes for a sample. Other programs slow the script alone, since that time is
    CPU time.
    """
    if not run.timed():
        return []
    rate, called = run.samples_per_s(), context.settings.samples.called
    beside = " beside other programs" if foreign_cores > BUSY_CORES else ""
    return [
        f"Your script trained {rate:.3g} {called}/s{beside}, {rate * loader_s:.2f}x the"
        f" {1 / loader_s:.3g} that the shipped loader makes with a core to itself."
    ]


def sharing_notes(run: PipelineRun, alone_s: float) -> list[str]:
    """Note that steps took longer beside the script than alone, if they did. On an emulated device
    none does.
    """
    times_ns = [step.ended_ns - step.started_ns for step in run.timed()]
    if not times_ns:
        return []
    beside_s = median(times_ns) / 1e9
    if beside_s <= NOTED_SLOWDOWN * alone_s:
        return []
    return [
        f"A step took {1000 * beside_s:.0f} ms alongside your script and {1000 * alone_s:.0f} ms"
        " alone: the script's own GPU work takes time from training, which can be useful for at"
        f" most {alone_s / beside_s:.0%} of the time."
    ]


def device_note(context: Context[InputPipelineSettings], step_s: float, loader_s: float) -> str:
    """Describe the device and its speed on this machine. `loader_s`: seconds that the shipped
    loader takes for a sample.
    """
    batch, called = context.settings.batch, context.settings.samples.called
    if context.device == "cuda":
        wanted_s = wanted_step_s(context.settings, loader_s)
        return (
            f"The GPU repeats every batch of {batch} {called} to take about {1000 * wanted_s:.0f}"
            f" ms, and {1000 * step_s:.0f} ms in practice, so that two cores can feed it."
        )
    device, stands_for = "The device is emulated", context.settings.stands_for
    if stands_for:
        device += f": {stands_for.name}, slowed {step_s / stands_for.step_s(batch):.0f}x"
    return (
        f"{device}. It takes {1000 * step_s:.0f} ms for {batch} {called},"
        f" {batch * loader_s / step_s:.2g}x as fast as the shipped loader makes them."
    )
