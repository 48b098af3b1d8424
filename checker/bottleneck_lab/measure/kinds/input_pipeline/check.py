"""The `input_pipeline` kind: how well a training script keeps a device fed.

The script's batches go to a device process that the verifier owns. Useful utilisation is the device
time that the checked work needs, over the wall time on the verifier's clock. What to train is
handed out epoch by epoch, so nothing can be prepared before the clock runs; rows drawn in secret
are shown to the lab's judge afterwards.
"""

from __future__ import annotations

import os
import time
from statistics import median
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.criteria import (
    Conditions,
    grade_check,
    grade_decision,
    grade_value,
    lies_on_one_side,
    not_held_against,
    sequential_test,
)
from bottleneck_lab.grading.sequential import BLOCKS, Decision, State
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.messages import Done, EpochAsked, Trained
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.input_pipeline import InputPipelineSettings
from bottleneck_lab.measure.kinds.input_pipeline.device_process import calibrate, wanted_step_s
from bottleneck_lab.measure.kinds.input_pipeline.records import (
    WARM_UP_BATCHES,
    PipelineRun,
    plan_epoch,
)
from bottleneck_lab.measure.kinds.input_pipeline.session import PipelineSession
from bottleneck_lab.measure.machine import LoadMeter, loading_cores, own_cpu_s

MAX_EPOCHS = 3
SHARED = 1.05
"""How much longer a step takes beside a script that uses the GPU itself, where that is worth a
note.
"""
MAX_CORES_SHARE = 1.1
"""CPU time a second that the script may seem to use over its cores: it is counted in hundredths of
a second where there is no control group.
"""


def measure(context: Context[InputPipelineSettings]) -> Measured:
    """Runs the whole check. Raises LearnerFault or VerifierFault when it ends early."""
    judge, called = context.judge(), context.settings.samples.called
    context.progress("calibrating this machine with the shipped loader", 0.02)
    count = judge.count(context.data)
    before_s = calibrate(context, count)
    context.progress("starting your script", 0.1)
    with PipelineSession.start(context, wanted_step_s(context.settings, before_s)) as session:
        worker, device = session.script.worker, session.device
        meter = LoadMeter(lambda: own_cpu_s() + worker.cpu_s() + device.cpu_s())
        step_s, began_s, cpu_s = device.step_s, time.monotonic(), worker.cpu_s()
        run = train(session, context, judge)
        refuse_more_cores((worker.cpu_s() - cpu_s) / (time.monotonic() - began_s))
        foreign_cores = meter.cores()
        after_s = session.step_after_s()
    context.progress(f"checking {called}", 0.9)
    problem, checked = check_kept(run, judge, context)
    # A real device's step does not follow the host's speed, but its own clocks may change.
    drift = after_s / step_s if context.device == "cuda" else calibrate(context, count) / before_s
    results = grade(context, run, step_s, drift, foreign_cores)
    results.insert(0, grade_check(context.required("right-samples"), problem, checked, called))
    results.insert(
        0,
        grade_check(
            context.required("every-sample-once"), *check_batches(run, judge, context), called
        ),
    )
    return Measured(
        results,
        details=_details(run, step_s, before_s, drift),
        notes=[*_notes(context, step_s, before_s), *_shared(run, max(step_s, after_s))],
        speedup=run.samples_per_s() * before_s if run.timed() else None,
        conditions=Conditions(
            other_cores=foreign_cores, cores=os.cpu_count(), noise=abs(drift - 1)
        ),
    )


def refuse_more_cores(busy: float) -> None:
    """Raises LearnerFault if a script kept more cores busy than loading is pinned to: a process may
    move itself to others.
    """
    allowed = len(loading_cores())
    if busy > MAX_CORES_SHARE * allowed:
        raise LearnerFault(
            "tampered",
            f"The script may use {allowed} cores for loading, but it moved to others and kept"
            f" {busy:.1f} busy.",
        )


def train(
    session: PipelineSession, context: Context[InputPipelineSettings], judge: ModuleType
) -> PipelineRun:
    """Hands out epochs until the utilisation is decided, and collects what the device saw.

    Raises LearnerFault for a script that ends early, hangs or cheats.
    """
    run = PipelineRun(context.settings.batch)
    test = sequential_test(context.required("useful-utilisation"), BLOCKS)
    silence_s, enough = context.settings.call_s, False
    while True:
        message = session.receive(silence_s, f"training (step {len(run.steps) + 1})")
        if isinstance(message, Trained):
            run.steps.append(message)
        elif isinstance(message, EpochAsked):
            _expect_steps(run, message.steps)
            enough = len(run.assignments) > MAX_EPOCHS or (
                bool(run.timed())
                and test.decide(run.utilisation(session.device.step_s)).state is not State.CONTINUE
            )
            give(session, run, context, judge.count(context.data), last=enough)
            context.progress("measuring", 0.2 + 0.2 * min(3, len(run.assignments) - 1))
        elif isinstance(message, Done):
            _expect_steps(run, len(run.steps))
            if not enough:
                raise LearnerFault("wrong output", "training ended before the last epoch.")
            return run


def _expect_steps(run: PipelineRun, steps: int) -> None:
    due = sum(assignment.batches for assignment in run.assignments)
    if steps != due:
        raise LearnerFault(
            "wrong output",
            f"{steps} batches were trained, not {due}: train every sample exactly once, in batches"
            f" of {run.batch}.",
        )


def give(
    session: PipelineSession,
    run: PipelineRun,
    context: Context[InputPipelineSettings],
    count: int,
    *,
    last: bool,
) -> None:
    """Hands out the next epoch, or none when the device has seen enough."""
    rng = np.random.default_rng(context.rng.getrandbits(128))
    sizes = [] if last else [WARM_UP_BATCHES] + [context.settings.epoch_batches] * MAX_EPOCHS
    session.device.channel.send(plan_epoch(rng, run, count, sizes).message())


def check_batches(
    run: PipelineRun, judge: ModuleType, context: Context[InputPipelineSettings]
) -> tuple[str | None, int]:
    """What is wrong with the batches' sizes or labels, if anything, and how many samples were
    looked at.
    """
    at = 0
    for assignment in run.assignments:
        for order in assignment.order.reshape(-1, run.batch):
            labels, at = run.steps[at].labels, at + 1
            want = [judge.label(context.data, int(index)) for index in order]
            if labels.tolist() != want:
                size = (
                    f"{len(labels)} {context.settings.samples.called} instead of {run.batch}"
                    if len(labels) != run.batch
                    else "labels that do not match its samples"
                )
                return (
                    f"Batch {at} has {size}: train every sample exactly once, in the given order.",
                    at * run.batch,
                )
    return None, at * run.batch


def check_kept(
    run: PipelineRun, judge: ModuleType, context: Context[InputPipelineSettings]
) -> tuple[str | None, int]:
    """What is wrong with the samples that were kept, if anything, and how many were compared."""
    steps, checked = iter(run.steps), 0
    for assignment in run.assignments:
        for order, rows, step in zip(
            assignment.order.reshape(-1, run.batch), assignment.rows, steps, strict=False
        ):
            for row, sample in zip(rows, step.kept, strict=False):
                checked += 1
                want = judge.reference_sample(
                    context.data, int(order[row]), assignment.seed, assignment.number
                )
                if complaint := judge.compare(sample, want):
                    return f"Sample {order[row]} of epoch {assignment.number}: {complaint}", checked
    return None, checked


def grade(
    context: Context[InputPipelineSettings],
    run: PipelineRun,
    step_s: float,
    drift: float,
    foreign_cores: float,
) -> list[CriterionResult]:
    """Utilisation and data wait. If the machine changed speed during the check, only what holds at
    both speeds is decided.
    """
    spec, wait = context.required("useful-utilisation"), context.required("data-wait")
    speeds = [1.0, drift]
    decision = _at_either(
        spec, [[block * speed for block in run.utilisation(step_s)] for speed in speeds]
    )
    overall = run.samples_per_s() * step_s / run.batch
    missed = [overall * speed < sequential_test(spec).bar for speed in speeds]
    if decision.state is State.PASS and any(missed) and not all(missed):
        decision = _undecided(decision)
    busy = (
        grade_value(spec, overall)
        if decision.state is State.PASS and all(missed)
        else grade_decision(spec, decision, "blocks", overall if run.timed() else None)
    )
    # How long a real device was busy was measured; of an emulated one it follows from its step.
    paces = [1.0] if context.device == "cuda" else speeds
    idle = _at_either(
        wait, [[max(0.0, 1 - (1 - block) * pace) for block in run.idle()] for pace in paces]
    )
    found = [_with_drift(result, drift) for result in (busy, grade_decision(wait, idle, "blocks"))]
    return [not_held_against(result, foreign_cores, rate=result.id == spec.id) for result in found]


def _with_drift(result: CriterionResult, drift: float) -> CriterionResult:
    """Why a figure whose interval lies on one side of its target is undecided all the same."""
    if result.holds is not None or not lies_on_one_side(result):
        return result
    faster = "faster" if drift < 1 else "slower"
    sentence = (
        f"{result.sentence} The machine was {abs(1 - drift):.0%} {faster} afterwards, and at that"
        " speed the result would be different."
    )
    return msgspec.structs.replace(result, sentence=sentence)


def _at_either(spec: CriterionSpec, samples: list[list[float]]) -> Decision:
    """What the samples say at each speed of the machine, with the figures of the first; undecided
    where that is not the same.
    """
    first, *others = [
        sequential_test(spec, BLOCKS).decide(each, exhausted=True) for each in samples
    ]
    return first if all(other.state is first.state for other in others) else _undecided(first)


def _undecided(decision: Decision) -> Decision:
    return msgspec.structs.replace(decision, state=State.INCONCLUSIVE)


def _shared(run: PipelineRun, alone_s: float) -> list[str]:
    """A note where steps took longer beside the script than alone. On an emulated device none does."""
    if not (took := [step.ended_ns - step.started_ns for step in run.timed()]):
        return []
    beside_s = median(took) / 1e9
    if beside_s <= SHARED * alone_s:
        return []
    return [
        f"A step took {1000 * beside_s:.0f} ms alongside your script and {1000 * alone_s:.0f} ms"
        " alone: the script's own GPU work takes time from training, which can be useful for at"
        f" most {alone_s / beside_s:.0%} of the time."
    ]


def _details(run: PipelineRun, step_s: float, loader_s: float, drift: float) -> dict[str, Any]:
    return {
        "step_s": step_s,
        "shipped_loader_s_a_sample": loader_s,
        "calibration_drift": drift,
        "block_utilisation": run.utilisation(step_s),
        "block_idle": run.idle(),
        "samples_per_s": run.samples_per_s(),
        "steps_ms": [
            [(t - run.began_ns()) / 1e6 for t in (step.arrived_ns, step.started_ns, step.ended_ns)]
            for step in run.timed()
        ],
    }


def _notes(context: Context[InputPipelineSettings], step_s: float, loader_s: float) -> list[str]:
    batch, called = context.settings.batch, context.settings.samples.called
    rate = f"{1 / loader_s:.0f} shipped {called}/s"
    if context.device == "cuda":
        wanted_s = wanted_step_s(context.settings, loader_s)
        return [
            f"The GPU repeats every batch of {batch} {called} to take about {1000 * wanted_s:.0f}"
            f" ms, and {1000 * step_s:.0f} ms in practice: it outruns one core of this machine"
            f" ({rate}) as the emulated device does, and two cores can feed it."
        ]
    stands_for = context.settings.stands_for
    slowed = (
        f": {stands_for.name}, slowed {step_s / stands_for.step_s(batch):.0f}x"
        if stands_for
        else ", and set"
    )
    return [
        f"The device is emulated{slowed} so that it outruns one core of this machine ({rate}) as a"
        f" real one outruns its host. Its step of {batch} {called} takes {1000 * step_s:.0f} ms."
    ]
