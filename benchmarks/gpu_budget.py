"""How long `lab check fused-attention` takes on a GPU, by what can be known without one: `python
benchmarks/gpu_budget.py`.

Drawing and judging a call are measured here. What a GPU takes for it is assumed: RATE and LINK.
Whole checks are then simulated: cases, looks, tests and answers that nobody times are those of a
check, and only the calls are left out, which move a clock.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from bottleneck_lab.catalog import Lab, find_lab
from bottleneck_lab.grading.sequential import SELF_TEST_PAIRS, State
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.speedup import sampling
from bottleneck_lab.measure.kinds.speedup.figures import FAR_PAIRS, Case

RATE = 400e12
"""Floating-point operations a second of attention at these lengths: what an H100 does with
FlashAttention-2, nearly.
"""
LINK = 4e9
"""Bytes a second from one process to another and on to the GPU, and back: two copies, of which the
one over PCIe is the faster.
"""
START_S = 40.0
"""Until both sides are loaded: PyTorch twice, and nvcc."""
NOISE = 0.02
"""Of a pair's ratio, as the deviation of its logarithm."""


class Cost(NamedTuple):
    """Seconds that the verifier takes for a number of q: to draw it once for all calls, and to
    judge it in each.
    """

    draw_s: float
    judge_s: float


class Check(NamedTuple):
    """A simulated check: how long it took, how many pairs were timed, and whether every case
    passed.
    """

    seconds: float
    pairs: int
    passed: bool


def load_judge(lab: Lab) -> ModuleType:
    """The lab's judge."""
    spec = importlib.util.spec_from_file_location("budget_judge", lab.path / "judge.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(shape: Any) -> int:
    """In q."""
    return int(shape.batch * shape.heads * shape.seq * shape.dim)


def call_s(shape: Any, *, idle: bool = False) -> float:
    """Seconds of a call: 16-bit q, k and v go there, a float32 answer comes back. `idle`: it
    computes nothing.
    """
    flop = 4.0 * numbers(shape) * shape.seq * shape.launches / (2 if shape.causal else 1)
    return 10 * numbers(shape) / LINK + (0.0 if idle else flop / RATE)


def simulate(
    lab: Lab, judge: ModuleType, cost: Cost, *, speed: float = 1.05, seed: int = 0
) -> Check:
    """A check of a kernel that is `speed` times as fast as the reference."""
    rng, settings = random.Random(seed), kind_of(lab).settings(lab, "cuda")
    shapes = {
        name: judge.parse(name) for name in judge.cases(np.random.default_rng(seed), settings.judge)
    }
    clock = START_S + sum(3 * cost.draw_s * numbers(shape) for shape in shapes.values())
    for shape in shapes.values():
        alone = 2 * (settings.warmup_calls + FAR_PAIRS)
        clock += (alone + 2 * settings.warmup_calls) * call_s(shape)
        clock += settings.warmup_calls * cost.judge_s * numbers(shape)
    clock += 2 * SELF_TEST_PAIRS[0] * call_s(next(iter(shapes.values())))

    def time_pair(case: Case) -> None:
        nonlocal clock
        shape = shapes[case.name]
        copies_s, whole_s = call_s(shape, idle=True), call_s(shape)
        case.reference_s.append(whole_s)
        case.learner_s.append(
            copies_s + (whole_s - copies_s) / speed * rng.lognormvariate(0.0, NOISE)
        )
        case.moved_s.append(copies_s)
        clock += 2 * whole_s + copies_s + cost.judge_s * numbers(shape)

    context: Any = SimpleNamespace(
        settings=settings, rng=rng, progress=lambda *_: None, criterion=_criteria(lab).get
    )
    workers: Any = SimpleNamespace(
        context=context,
        time_pair=time_pair,
        untimed=lambda: time_pair(Case(rng.choice(list(shapes)))),
    )
    with patch.object(time, "monotonic", lambda: clock):
        cases = sampling.sample(
            workers,
            [Case(name, idle=True) for name in shapes],
            sampling.sequential_tests(context, 0.0),
        )
    passed = all(state is State.PASS for case in cases for state in case.states().values())
    return Check(clock, sum(len(case.learner_s) for case in cases), passed)


def _criteria(lab: Lab) -> dict[str, Any]:
    return {spec.id: spec for spec in lab.spec.devices["cuda"].criteria}


def measured(lab: Lab, judge: ModuleType, seed: int = 0) -> Cost:
    """What drawing and judging cost on this machine, in the case that costs most."""
    settings, rng = kind_of(lab).settings(lab, "cuda").judge, np.random.default_rng(seed)

    def cost_of(case: str) -> Cost:
        shape = judge.parse(case)
        draw_s = seconds(lambda: judge.make_inputs(rng, case, Path(), settings)) / 3
        inputs = judge.make_inputs(rng, case, Path(), settings)
        answer = rng.standard_normal(
            (shape.batch * shape.heads, shape.seq, shape.dim), dtype=np.float32
        )
        judge_s = seconds(lambda: judge.judge(case, inputs, [answer], [answer], settings))
        return Cost(draw_s / numbers(shape), judge_s / numbers(shape))

    found = [cost_of(case) for case in judge.cases(rng, settings)]
    return Cost(max(cost.draw_s for cost in found), max(cost.judge_s for cost in found))


def seconds(work: Callable[[], object]) -> float:
    """That it takes once."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    """Prints what was measured, and simulated checks at a few speeds."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    lab = find_lab("fused-attention")
    judge = load_judge(lab)
    cost = measured(lab, judge)
    print(f"drawing {1e9 * cost.draw_s:.0f} ns, judging {1e9 * cost.judge_s:.0f} ns a number")
    for speed in (0.85, 0.95, 1.0, 1.05, 1.2):
        checks = [simulate(lab, judge, cost, speed=speed, seed=seed) for seed in range(20)]
        longest, passed = (
            max(check.seconds for check in checks),
            sum(check.passed for check in checks),
        )
        print(
            f"{speed:.2f}x: {passed} of 20 pass, at most {longest:.0f} s and"
            f" {max(c.pairs for c in checks)} pairs"
        )


if __name__ == "__main__":
    main()
