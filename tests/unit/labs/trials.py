"""A learner's answers to the trials of a benchmark, judged as a check judges them."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np


def judge_answers(
    judge: ModuleType,
    harness: ModuleType,
    load: Callable[[], ModuleType],
    settings: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Return the results by criterion. `load` returns the learner's module for each trial."""
    done = []
    random.seed(seed)
    for trial in judge.trials(np.random.default_rng(seed), settings):
        learners = load()
        try:
            trial.finish(
                list(harness.run(learners, lambda *v, t=trial: t.serve(list(v)), *trial.arguments))
            )
        except RuntimeError:
            assert trial.late
        done.append(trial)
        if trial.late:
            break
    return judge.judge(done, settings)


def failed(results: dict[str, Any]) -> set[str]:
    """Return the criteria that did not hold."""
    return {id_ for id_, (problem, _, _) in results.items() if problem}
