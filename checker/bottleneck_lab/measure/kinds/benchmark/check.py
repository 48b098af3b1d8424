"""`lab check` of measuring code: one trial after another, in one worker, until the judge has seen
enough.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.criteria import as_sentence, describe_criterion, grade_check
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.kinds.benchmark import BenchmarkSettings
from bottleneck_lab.measure.kinds.benchmark.bench import judge_settings
from bottleneck_lab.measure.kinds.benchmark.session import TrialSession
from bottleneck_lab.measure.kinds.benchmark.trials import Counted, Judge, Judged, Open, Trial


def measure(context: Context[BenchmarkSettings]) -> Measured:
    """Run the judge's trials and grade the answers."""
    judge = cast(Judge, context.judge())
    context.progress("loading your code", 0.05)
    with judge_settings(context) as settings, TrialSession.start(context) as session:
        done = _run_trials(context, judge, settings, session)
        judged = judge.judge(done, settings)
    specs = context.lab.spec.devices[context.device].criteria
    results = [grade(spec, judged[spec.id]) for spec in specs if spec.id in judged]
    return Measured(results, details={"trials": len(done)})


def _run_trials(
    context: Context[BenchmarkSettings],
    judge: Judge,
    settings: dict[str, Any],
    session: TrialSession,
) -> list[Trial]:
    """Run all trials, or those up to the first that ran out of time. Returns those that ran."""
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


def grade(spec: CriterionSpec, judged: Judged) -> CriterionResult:
    """Return a criterion's result, with the figure that the judge gives it."""
    problem, count, figure = judged
    result = grade_check(spec, problem, count, "trials")
    if isinstance(problem, Open):
        sentence = f"{describe_criterion(spec)}: undecided. {problem}"
        result = msgspec.structs.replace(result, holds=None, sentence=sentence)
    if isinstance(figure, Counted):
        sentence = result.sentence
        if result.holds:
            sentence = f"{describe_criterion(spec)}: yes. {as_sentence(figure.words)}"
        result = msgspec.structs.replace(result, sentence=sentence, counted=figure.words)
    return msgspec.structs.replace(
        result,
        value=None if figure is None else float(figure),
        target=spec.target,
        direction=spec.direction,
        unit=spec.unit,
    )
