"""`lab check` of a training script: the shipped script and the learner's train on the same secret
data; then results and figures are compared.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.grading.criteria import (
    Conditions,
    grade_check,
    grade_decision,
    grade_value,
    sequential_test,
)
from bottleneck_lab.grading.sequential import Decision, SequentialTest, shuffled_order
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.session import CallSession, Role, limits_of
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.training import TrainingSettings, figures
from bottleneck_lab.measure.kinds.training.judging import Reports, wrong_parameters, wrong_reports
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.virtual_gpu.books import Figures
from bottleneck_lab.measure.virtual_gpu.owner import EngineOwner, engine_process
from bottleneck_lab.measure.virtual_gpu.spec import T4

PROGRAM = "bottleneck_lab.measure.kinds.training.child"

Arrays = dict[str, NDArray[np.floating]]


@dataclass(frozen=True)
class Training:
    """One training: what was reported, the parameters, and on the virtual GPU the engine's figures."""

    reports: Reports
    parameters: Arrays
    figures: Figures | None = None
    seconds: float = 0.0
    told: dict[str, Any] = field(default_factory=dict)
    """What the worker says of its own memory and waits."""


class WorkerReport(msgspec.Struct, frozen=True):
    """A worker's answer beside the parameters' arrays, which come in the order of `names`."""

    reports: Reports
    names: list[str]
    told: dict[str, Any]


def measure(context: Context[TrainingSettings]) -> Measured:
    """Runs the whole check. Raises LearnerFault or VerifierFault when it ends early."""
    return _measure_modelled(context) if context.device == "virtual" else _measure_timed(context)


def _measure_modelled(context: Context[TrainingSettings]) -> Measured:
    """On the virtual GPU: every figure is counted or modelled, so one run of each side decides, and
    no other program can disturb it.
    """
    seeds = [context.rng.getrandbits(31) for _ in range(context.settings.runs)]
    context.progress("training with the shipped script", 0.1)
    shipped = train_modelled(context, "reference", context.pristine(), seeds)
    context.progress("training with your script", 0.5)
    yours = train_modelled(context, "learner", context.submission, seeds)
    for mine, theirs in zip(yours, shipped, strict=True):
        _refuse_work_elsewhere(_books(mine), _books(theirs), context.settings.least_work)
    first, reference = _books(yours[0]), _books(shipped[0])
    values = {
        "step-speedup": figures.step_time_us(reference) / figures.step_time_us(first),
        "waits-per-interval": float(figures.waits_per_interval(first, context.settings.interval)),
        "launches-per-step": figures.launches_per_step(first),
        "peak-mib": figures.peak_mib(first),
        "growth-mib": figures.growth_mib(first.step_bytes),
    }
    targets = [
        spec for spec in context.lab.spec.devices[context.device].criteria if spec.id in values
    ]
    return Measured(
        [
            *_right(context, yours, shipped),
            *(grade_value(spec, values[spec.id]) for spec in targets),
        ],
        details={
            "figures": values,
            "shipped": {
                "step_us": figures.step_time_us(reference),
                "peak_mib": figures.peak_mib(reference),
            },
            "step_us": figures.step_time_us(first),
            "waits_by_step": first.step_waits,
            "bytes_by_step": first.step_bytes,
        },
        notes=[f"Times and memory are those of an emulated device: {T4.stands_for}. {T4.source}."],
        speedup=_gain(context.settings, reference, first),
    )


def _gain(settings: TrainingSettings, shipped: Figures, yours: Figures) -> float:
    """What a prediction is compared with."""
    if settings.gain == "memory":
        return shipped.peak_bytes / yours.peak_bytes
    return figures.step_time_us(shipped) / figures.step_time_us(yours)


def _books(training: Training) -> Figures:
    assert training.figures is not None
    return training.figures


def train_modelled(
    context: Context[TrainingSettings], role: Role, folder: Path, seeds: list[int]
) -> list[Training]:
    """Trains on the virtual GPU, once for each seed. Raises the fault of whoever is to blame."""
    with engine_process() as engine, _session(context, role, folder, engine) as session:
        trainings = []
        for seed in seeds:
            engine.begin(T4)
            engine.wait_started()
            seconds, (text, *_) = session.call([seed, 0])
            books = engine.end()
            parameters = {name: kept.array() for name, kept in books.kept.items()}
            trainings.append(
                Training(_said(session, text).reports, parameters, books.figures, seconds)
            )
        return trainings


@contextmanager
def _session(
    context: Context[TrainingSettings], role: Role, folder: Path, engine: EngineOwner | None = None
) -> Iterator[CallSession]:
    options = ["--engine", str(engine.program.fileno())] if engine else []
    fds = [engine.program.fileno()] if engine else []
    limits, entry = limits_of(context.settings), context.lab.spec.entry
    with CallSession.start(
        context, role, folder, entry, limits, program=PROGRAM, options=options, fds=fds
    ) as session:
        yield session


def _said(session: CallSession, text: Any) -> WorkerReport:
    """The text of an answer. Raises the fault of a worker that sent something else."""
    try:
        return msgspec.json.decode(str(text), type=WorkerReport)
    except msgspec.MsgspecError as error:
        raise session.fault(
            "tampered", f"training: the reports cannot be read ({error})."
        ) from None


def _refuse_work_elsewhere(yours: Figures, shipped: Figures, least_work: float) -> None:
    """Raises LearnerFault if the device did less than the training takes."""
    if yours.steps != shipped.steps:
        raise LearnerFault(
            "wrong output", f"{yours.steps} of the {shipped.steps} batches were used."
        )
    if yours.flops < least_work * shipped.flops:
        share = yours.flops / shipped.flops
        raise LearnerFault(
            "wrong output",
            f"The device did {share:.0%} of the arithmetic that this training needs: the rest was"
            " skipped or done elsewhere.",
        )
    timed = figures.timed_flops(yours) / figures.timed_flops(shipped)
    if timed < least_work:
        raise LearnerFault(
            "wrong output",
            f"From the third batch on, only {timed:.0%} of those steps' arithmetic was done: the"
            " rest was done earlier. A step begins when its batch is taken from `data.batches()`.",
        )


def _right(
    context: Context[TrainingSettings], yours: list[Training], shipped: list[Training]
) -> list[CriterionResult]:
    tolerance = context.settings.tolerance
    pairs = list(zip(yours, shipped, strict=True))
    reports = [
        wrong_reports(mine.reports, theirs.reports, tolerance)
        or _late(mine, context.settings.interval)
        for mine, theirs in pairs
    ]
    parameters = [
        wrong_parameters(mine.parameters, theirs.parameters, tolerance) for mine, theirs in pairs
    ]
    numbers = sum(len(values) for mine in yours for _, values in mine.reports)
    return [
        grade_check(
            context.required("right-reports"), next(filter(None, reports), None), numbers, "numbers"
        ),
        grade_check(
            context.required("right-parameters"),
            next(filter(None, parameters), None),
            sum(len(theirs.parameters) for theirs in shipped),
            "arrays",
        ),
    ]


def _late(training: Training, interval: int) -> str | None:
    """Which report came too late, as a sentence; None on a real device, where no arithmetic is
    counted.
    """
    found = training.figures and figures.late_report(training.figures, interval)
    if not found:
        return None
    step, done = found
    return (
        f"The report of step {step} came when {done:.0%} of the training was done; a report may"
        f" come up to {interval} steps late."
    )


def _measure_timed(context: Context[TrainingSettings]) -> Measured:
    """On a real device: whole trainings alternately on the verifier's clock, each pair on data of
    its own, every result compared.

    Memory and waits are the worker's own word: they can fail a script, and only speed and results,
    which are not, can pass it.
    """
    context.progress("starting both scripts", 0.1)
    with (
        _session(context, "reference", context.pristine()) as reference,
        _session(context, "learner", context.submission) as learner,
    ):
        meter = LoadMeter(lambda: own_cpu_s() + reference.worker.cpu_s() + learner.worker.cpu_s())
        rounds = Rounds(context, reference, learner)
        for _ in range(context.settings.warm_up_rounds):
            rounds.play(timed=False)
        decision = rounds.decide(sequential_test(context.required("step-speedup")))
        counted = rounds.train(learner, context.rng.getrandbits(31), counting=True)
        cores = meter.cores()
    values = _told(counted.told, context.settings.interval)
    criteria = context.lab.spec.devices[context.device].criteria
    return Measured(
        [
            *_right(context, rounds.yours, rounds.shipped),
            grade_decision(context.required("step-speedup"), decision),
            *(grade_value(spec, values[spec.id]) for spec in criteria if spec.id in values),
        ],
        details={
            "reference_s": rounds.times["reference"],
            "learner_s": rounds.times["learner"],
            "told": counted.told,
        },
        speedup=median(rounds.ratios()) if context.settings.gain == "time" else None,
        conditions=Conditions(other_cores=cores, cores=os.cpu_count()),
    )


def _told(told: dict[str, Any], interval: int) -> dict[str, float]:
    """The criteria that a worker's own figures speak to; one that does not say them meets none."""
    levels = [float(level) for level in told.get("step_bytes", [])]
    intervals = max(1, len(levels) // interval)
    return {
        "waits-per-interval": float(told.get("waits", math.nan)) / intervals,
        "peak-mib": float(told.get("peak_bytes", math.nan)) / figures.MIB,
        "growth-mib": figures.growth_mib(levels),
    }


class Rounds:
    """Trainings of both sides alternately, in an order drawn at random: seconds of each, and all
    that came out.
    """

    def __init__(
        self, context: Context[TrainingSettings], reference: CallSession, learner: CallSession
    ) -> None:
        self._context = context
        self._sessions: dict[Role, CallSession] = {"reference": reference, "learner": learner}
        self.times: dict[str, list[float]] = {"reference": [], "learner": []}
        self.yours: list[Training] = []
        self.shipped: list[Training] = []

    def play(self, *, timed: bool = True) -> None:
        """Both sides train on the data of one fresh seed."""
        seed = self._context.rng.getrandbits(31)
        for role in shuffled_order(self._context.rng, 1)[0]:
            done = self.train(self._sessions[role], seed)
            (self.yours if role == "learner" else self.shipped).append(done)
            if timed:
                self.times[role].append(done.seconds)

    def train(self, session: CallSession, seed: int, *, counting: bool = False) -> Training:
        """One training; `counting` records its waits, and is not to be timed."""
        seconds, (text, *arrays) = session.call([seed, int(counting)])
        said = _said(session, text)
        parameters = (
            dict(zip(said.names, arrays, strict=True)) if len(said.names) == len(arrays) else {}
        )
        return Training(said.reports, parameters, None, seconds, said.told)

    def ratios(self) -> list[float]:
        """Reference over learner, pair by pair."""
        return [a / b for a, b in zip(self.times["reference"], self.times["learner"], strict=True)]

    def decide(self, test: SequentialTest) -> Decision:
        """Plays until the test has decided or the time is up."""
        begin, decision = time.monotonic(), test.decide(self.ratios())
        while decision.wanted:
            spent_s = time.monotonic() - begin
            if spent_s > self._context.settings.max_s:
                return test.decide(self.ratios(), exhausted=True)
            self._context.progress("measuring", 0.2 + 0.75 * spent_s / self._context.settings.max_s)
            self.play()
            decision = test.decide(self.ratios())
        return decision
