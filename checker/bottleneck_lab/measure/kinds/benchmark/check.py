"""The check of a `benchmark` lab: one trial after another, in one worker, until the judge has seen
enough.
"""

from __future__ import annotations

import time
from typing import Any, cast

import msgspec
import numpy as np

from bottleneck_lab.grading.criteria import describe_criterion, grade_check, not_measured
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.channel.messages import Answer, Ask, Call, Ready, Told, Value
from bottleneck_lab.measure.channel.session import Session, limits_of, start_worker
from bottleneck_lab.measure.channel.wire import Channel, Closed, Malformed, TimedOut
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.benchmark import BenchmarkSettings
from bottleneck_lab.measure.kinds.benchmark.bench import judge_settings
from bottleneck_lab.measure.kinds.benchmark.trials import Found, Judge, Open, Trial
from bottleneck_lab.measure.rehearsal import rehearsing

PROGRAM = "bottleneck_lab.measure.kinds.benchmark.child"


class TrialSession(Session):
    """The learner's worker, which may ask the machine anything between the start of a trial and its
    answer.
    """

    @classmethod
    def start(cls, context: Context[BenchmarkSettings]) -> TrialSession:
        """Starts it and waits until the learner's code is loaded."""
        ours, theirs = Channel.pair()
        folder, entry, harness = (
            context.submission,
            context.lab.spec.entry,
            context.settings.harness,
        )
        places = [
            "--entry",
            str(folder / entry),
            "--harness",
            str(folder / harness),
            "--socket",
            str(theirs.fileno()),
        ]
        limits = limits_of(context.settings)
        worker = start_worker(
            context, PROGRAM, places, folder, limits, [theirs.fileno()], gpu=False
        )
        theirs.close()
        session = cls("learner", worker, Channel(ours))
        try:
            session.expect(Ready, limits.start_s, "starting up")
        except BaseException:
            session.close()
            raise
        session.channel.limit_sends(limits.call_s)
        return session

    def run(self, trial: Trial) -> None:
        """One trial from start to answer. Raises LearnerFault, except for code that ran out of the
        machine's time.
        """
        deadline, doing = time.monotonic() + self.worker.limits.call_s, trial.name
        self._tell(Call(list(trial.arguments)), doing)
        while True:
            try:
                message = self.receive(max(0.0, deadline - time.monotonic()), doing)
            except LearnerFault as fault:
                if fault.reason == "crashed" and trial.late:
                    return
                raise
            if isinstance(message, Answer):
                trial.finish(message.outputs)
                return
            question = self.require(message, Ask, doing).question
            self._tell(Told(self._answer(trial, question)), doing)

    def _tell(self, message: Call | Told, doing: str) -> None:
        try:
            self.channel.send(message)
        except TimedOut:
            raise self.fault(
                "timed out", f"{doing}: your code did not read the machine's answer."
            ) from None
        except Closed:
            raise self.closed(doing) from None

    def _answer(self, trial: Trial, values: list[Value]) -> list[Value]:
        try:
            return list(trial.serve(values))
        except (ValueError, Malformed) as error:
            raise self.fault(
                "tampered",
                f"{trial.name}: the machine received a question that the harness never asks"
                f" ({error}).",
            ) from None


def measure(context: Context[BenchmarkSettings]) -> Measured:
    """Runs the judge's trials and grades the answers; in a rehearsal, whose times mean nothing,
    every criterion stays unmeasured.
    """
    judge = cast(Judge, context.judge())
    context.progress("loading your code", 0.05)
    with judge_settings(context) as settings, TrialSession.start(context) as session:
        done = _trials(context, judge, settings, session)
        found = judge.judge(done, settings)
    specs = context.lab.spec.devices[context.device].criteria
    if context.device == "cuda" and rehearsing():
        return Measured([not_measured(spec, "since this was a rehearsal") for spec in specs])
    results = [_result(context, spec.id, found[spec.id]) for spec in specs if spec.id in found]
    return Measured(results, details={"trials": len(done)})


def _trials(
    context: Context[BenchmarkSettings],
    judge: Judge,
    settings: dict[str, Any],
    session: TrialSession,
) -> list[Trial]:
    """All of them, or those up to the first that ran out of time."""
    rng = np.random.default_rng(context.rng.getrandbits(128))
    done: list[Trial] = []
    for trial in judge.trials(rng, settings):
        # How many trials there will be is not known in advance.
        context.progress("running trials", 0.95 - 0.85 * 0.99 ** len(done))
        session.run(trial)
        done.append(trial)
        if trial.late:
            break
    return done


def _result(context: Context[BenchmarkSettings], id_: str, found: Found) -> CriterionResult:
    spec, (problem, judged, figure) = context.required(id_), found
    graded = grade_check(spec, problem, judged, "trials")
    if isinstance(problem, Open):
        sentence = f"{describe_criterion(spec)}: undecided. {problem}"
        graded = msgspec.structs.replace(graded, holds=None, sentence=sentence)
    known: dict[str, Any] = {"target": spec.target, "direction": spec.direction, "unit": spec.unit}
    return msgspec.structs.replace(graded, value=None if figure is None else float(figure), **known)
