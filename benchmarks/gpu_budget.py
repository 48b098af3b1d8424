"""How long `lab check` takes on a GPU, by what can be known without one:

    python benchmarks/gpu_budget.py [LAB …]
    python benchmarks/gpu_budget.py fused-attention --checks 2000   # also its operating curve

Of labs that answer calls, drawing and judging a call are measured here. What the GPU takes for it
is calculated: from the rates that an H200 showed (docs/measured/h200.json), and from the
assumptions below. Whole checks are then simulated: cases, looks, tests and answers that nobody
times are those of a check, and only the calls are left out, which move a clock. Of the other labs
the parts of a PASS are added up: starts, the windows that the check waits for, and trainings at the
times that were measured, or that the virtual GPU models for that size.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import runpy
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import emulation_fidelity
import msgspec
import numpy as np
from markdown_tables import table

from bottleneck_lab.catalog import Lab, find_lab, load_labs
from bottleneck_lab.grading import sequential
from bottleneck_lab.grading.sequential import PAIRS, SequentialTest, State
from bottleneck_lab.measure.context import load_judge
from bottleneck_lab.measure.kinds.http_server.check import AGAIN_S, BAD_REQUESTS_S, OPEN_WINDOWS
from bottleneck_lab.measure.kinds.http_server.figures import WINDOW_S
from bottleneck_lab.measure.kinds.inference_server.bench import CLOSED_S
from bottleneck_lab.measure.kinds.inference_server.ensemble import SIZES
from bottleneck_lab.measure.kinds.inference_server.judging import MAX_COMPARED
from bottleneck_lab.measure.kinds.inference_server.sizing import PROBED_MEMBERS
from bottleneck_lab.measure.kinds.input_pipeline.check import MAX_EPOCHS
from bottleneck_lab.measure.kinds.input_pipeline.device_process import (
    CALIBRATION_SAMPLES,
    CALIBRATIONS,
)
from bottleneck_lab.measure.kinds.input_pipeline.records import WARM_UP_BATCHES
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.speedup import sampling
from bottleneck_lab.measure.kinds.speedup.against_itself import SELF_TEST_SIZES
from bottleneck_lab.measure.kinds.speedup.figures import FAR_PAIRS, MOVED_PAIRS, Case
from bottleneck_lab.measure.kinds.speedup.second_level import RIVAL_PAIRS

RECORD = Path(__file__).parents[1] / "docs" / "measured" / "h200.json"
LINK = 4e9
"""Assumed: bytes a second from one process to another and on to the GPU, and back. These are two
copies, of which the one over PCIe is the faster.
"""
IMPORT_S, CUDA_S, NVCC_S = 5.0, 3.0, 3.0
"""Assumed: seconds to import PyTorch, to start CUDA (8 s together were read on the H100), and for
nvcc. Both sides import at once; the learner's starts CUDA when the reference was timed alone.
"""
SANITIZED_S = 11.0
"""Assumed of the lab's program under compute-sanitizer, from the start of a check: the longest
capture with it on an H100 and an H200. Both of its runs start at once.
"""
JOB_RUNS, RUN_WORKS_S = 0.73, 1.01
"""Runs for each second of a job of `perf-gate`, and seconds of work of a run: of the reference's
gate in 152 jobs. The rest of a job's time are builds and starts, which cost none here.
"""
EXCHANGE_S = 1.5e-4
"""Assumed: seconds to ask for a run and be told how long it took, beside the run.
"""
CORES = 8
"""Assumed: cores of a GPU's host. Those that were measured on had 16; a judge uses 8 at most."""
LAUNCH_S = 37e-6
"""Seconds of the host for a kernel that Python launches, read on the H200 in trainings: launching
alone takes less.
"""
NETWORKS, KERNELS, PREPARED = 40, 180, 3
"""Assumed of an ensemble: its networks beside an H100; kernels of a ResNet-50; how often each
network is run before it is recorded: once to draw its weights, and twice to set its statistics.
"""
CODE_S = 0.7
"""Assumed: seconds to load a server's code in a process that has imported PyTorch; that of the
shipped one took 0.3 here.
"""
FASTEST, MISSED_CASES = 1.1, 2
"""Times as fast as the flash backend that the fastest one was on the H200 in all shapes but one;
and the cases until one has shown that a slower kernel misses the second level.
"""
GENERATOR_S, IN_FLIGHT_S = 0.35, 0.7
"""Seconds to start the load generator, as read on two cores; and those in which the shipped server
answers what is in flight at the end of a closed loop: 64 requests at 90 a second.
"""
PICTURES_S = 0.03
"""Seconds of a core to compare a picture's pixels, as read here."""
LOADER_S = 0.010
"""Assumed: seconds that one core of a GPU's host needs for a photograph."""
SHIPPED = 0.5
"""Times as fast as the reference that the shipped kernel is: the least that was read on the H200,
of shapes as long as a check's (solutions/fused-attention/README.md).
"""
SPEEDS = (0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15)
"""Of operating curves."""
LIMIT_S = 125.0
"""The limit of measuring to which the one in lab.toml is compared."""
WITHIN_S = 60.0
"""In which a verdict should be there."""
UNTIMED = 48
"""Calls that nobody times, of which the cost is measured where a judge has others for them."""
MEMORY = 4.0e12
"""Bytes a second of additions in place: five sixths of an H200's 4.8 TB/s."""
NOISE = 0.02
"""Of a pair's ratio, as the deviation of its logarithm."""


fewer_than = cache(sequential._fewer_than)
"""The same chances are needed in every check."""
OUTCOMES = (State.PASS, State.FAIL, State.INCONCLUSIVE)


class Call(NamedTuple):
    """Seconds of one call of the reference: to move its arrays, and to compute."""

    moves_s: float
    computes_s: float


class Cost(NamedTuple):
    """Seconds that the verifier takes for a call of a case: to draw its first inputs, to draw
    further ones, and to judge an answer.
    """

    first_s: float
    draw_s: float
    judge_s: float


class Check(NamedTuple):
    """A simulated check: how long it took, how many pairs were timed, and whether every case passed
    or some case failed.
    """

    seconds: float
    pairs: int
    state: State


@dataclass
class DecidedOnce(Case):
    """A case that asks its tests again only after another pair: the same, and sooner."""

    seen: tuple[int, bool, bool] | None = None
    open: bool = True

    def decide(self, tests: dict[str, SequentialTest], *, exhausted: bool) -> bool:
        """Ask every test about the pairs so far, unless they are those of the last time."""
        now = (len(self.learner_s), exhausted, self.out_of_time)
        if now != self.seen:
            self.seen, self.open = now, super().decide(tests, exhausted=exhausted)
        return self.open


def attention_call(inputs: list[Any]) -> Call:
    """Return the times of PyTorch's flash backend, at the rate measured nearest to the length."""
    q, _, _, causal, weights, _ = inputs
    seq, dim = q.shape[-2:]
    # 16-bit q, k and v go there, a float32 answer comes back.
    flop = 4.0 * q.size * seq * len(weights) / (2 if causal else 1)
    measured = [
        row
        for row in json.loads(RECORD.read_text())["attention"]
        if (row["dim"], row["causal"]) == (dim, bool(causal))
    ]
    nearest = min(measured, key=lambda row: abs(math.log(row["length"] / seq)))
    tflops = nearest["solution_tflops"] / nearest["solution_over_flash"]
    return Call(10 * q.size / LINK, flop / (1e12 * tflops))


def additions_call(inputs: list[Any]) -> Call:
    """Return the times of `roofline`'s additions: nine arrays are moved in each step."""
    p, m, v, ema, gradients, rates, _ = inputs
    sent = sum(array.nbytes for array in (p, m, v, ema, gradients))
    returned = sum(array.nbytes for array in (p, m, v, ema))
    return Call((sent + returned) / LINK, 9 * p.nbytes * len(rates) / MEMORY)


CALLS: dict[str, Callable[[list[Any]], Call]] = {
    "fused-attention": attention_call,
    "roofline": additions_call,
}


class Budget:
    """The cost of the calls of a lab's cases. `slower`: how many times as long as measured here
    drawing and judging take.
    """

    def __init__(self, name: str, *, seed: int = 0, slower: float = 1.0) -> None:
        self.lab = find_lab(name)
        self.judge = load_judge(self.lab)
        self.settings = kind_of(self.lab).settings(self.lab, "cuda")
        self.calls: dict[str, Call] = {}
        self.costs: dict[str, Cost] = {}
        self.untimed: list[tuple[Call, Cost]] = []
        # The reference's process starts beside the sanitizer's, and the first inputs are drawn.
        self.ready_s = max(IMPORT_S + CUDA_S, SANITIZED_S if self.settings.sanitize else 0.0)
        self.loading_s = CUDA_S + (NVCC_S if "nvcc" in self.settings.tools else 0.0)
        rng = np.random.default_rng(seed)
        for case in self.judge.cases(rng, self.settings.judge):
            drawn: list[float] = []
            for _ in range(3):
                begin = time.process_time()
                inputs = self.judge.make_inputs(rng, case, Path(), self.settings.judge)
                drawn.append(slower * (time.process_time() - begin))
            self.calls[case] = CALLS[name](inputs)
            judged_s = slower * self._judging_s(case, inputs)
            self.costs[case] = Cost(drawn[0], min(drawn[1:]), judged_s)
        make_untimed = getattr(self.judge, "untimed_inputs", None)
        for _ in range(UNTIMED if make_untimed else 0):
            begin = time.process_time()
            inputs = make_untimed(rng, case, Path(), self.settings.judge)
            draw_s = slower * (time.process_time() - begin)
            judged_s = slower * self._judging_s(case, inputs)
            self.untimed.append((CALLS[name](inputs), Cost(draw_s, draw_s, judged_s)))

    def _judging_s(self, case: str, inputs: list[Any]) -> float:
        """Return the seconds to judge an answer on the cores of a GPU's host: what other threads
        than this one compute, they share out.
        """
        answer = _answer(self.judge, case, inputs)
        begin_s, own_s = time.process_time(), time.thread_time()
        self.judge.judge(case, inputs, answer, answer, self.settings.judge)
        own_s = time.thread_time() - own_s
        return own_s + (time.process_time() - begin_s - own_s) / CORES

    def simulate(self, *, speed: float = 1.05, seed: int = 0, noise: float = NOISE) -> Check:
        """Simulate the check of code that computes `speed` times as fast as the reference."""
        rng, settings = random.Random(seed), self.settings
        drawn_s = sum(cost.first_s for cost in self.costs.values())
        clock = max(self.ready_s, drawn_s) + self.loading_s
        for case, call in self.calls.items():
            # Calls of the reference alone, before and after, then both sides' warm-up.
            calls = 2 * FAR_PAIRS + 3 * settings.warmup_calls
            cost = self.costs[case]
            clock += calls * sum(call) + (2 * 2 + settings.warmup_calls) * cost.draw_s
            clock += settings.warmup_calls * cost.judge_s
        first = next(iter(self.calls))
        clock += SELF_TEST_SIZES[0] * (2 * sum(self.calls[first]) + self.costs[first].draw_s)
        idle = hasattr(self.judge, "idle")

        def time_pair(case: Case) -> None:
            nonlocal clock
            moves_s, computes_s = self.calls[case.name]
            mine_s = moves_s + computes_s / speed * rng.lognormvariate(0.0, noise)
            case.reference_s.append(moves_s + computes_s)
            case.learner_s.append(mine_s)
            cost = self.costs[case.name]
            clock += moves_s + computes_s + mine_s + cost.draw_s + cost.judge_s
            if case.idle and len(case.moved_s) < MOVED_PAIRS:
                case.moved_s.append(moves_s)
                clock += moves_s

        criteria = {spec.id: spec for spec in self.lab.spec.devices["cuda"].criteria}
        context: Any = SimpleNamespace(
            settings=settings, rng=rng, progress=lambda *_: None, criterion=criteria.get
        )

        as_timed = [(self.calls[name], self.costs[name]) for name in self.calls]

        def untimed() -> Generator[tuple[Call, Cost], None, None]:
            while True:
                yield rng.choice(self.untimed or as_timed)

        def judge_untimed(call: tuple[Call, Cost]) -> None:
            nonlocal clock
            (moves_s, computes_s), cost = call
            # The next one is drawn meanwhile.
            clock += max(cost.draw_s, 2 * moves_s + computes_s * (1 + 1 / speed) + cost.judge_s)

        workers: Any = SimpleNamespace(
            context=context, time_pair=time_pair, untimed=untimed, judge_untimed=judge_untimed
        )
        quiet: Any = SimpleNamespace(
            outcome=SimpleNamespace(doubt=0.0), spent_s=0.0, narrow=lambda: False
        )
        with (
            patch.object(time, "monotonic", lambda: clock),
            patch.object(sequential, "_fewer_than", fewer_than),
        ):
            cases = [DecidedOnce(name, idle=idle) for name in self.calls]
            sampling.sample(workers, cases, quiet)
            sampling.judge_untimed(workers, cases)
        states = {state for case in cases for state in case.states().values()}
        state = State.FAIL if State.FAIL in states else State.INCONCLUSIVE
        if states == {State.PASS}:
            state = State.PASS
        if state is State.PASS and settings.second_level:
            # Of each case the reference once, each rival twice, and pairs with the fastest.
            rivals = len(self.judge.RIVALS)
            second_s = (1 + 2 * rivals + 2 * RIVAL_PAIRS) * sum(map(sum, self.calls.values()))
            second_s += rivals * sum(cost.judge_s for cost in self.costs.values())
            missed = speed < FASTEST
            clock += second_s * (MISSED_CASES / len(self.calls) if missed else 1)
        if state is State.PASS and settings.reference:
            clock += sum(
                2 * (call.moves_s + call.computes_s / SHIPPED) for call in self.calls.values()
            )
        return Check(clock, sum(len(case.learner_s) for case in cases), state)


def _answer(judge: ModuleType, case: str, inputs: list[Any]) -> list[Any]:
    """Return some answer of the right shape: judging it takes as long as judging a right one."""
    if not hasattr(judge, "parse"):
        exact: list[Any] = list(inputs[:4])
        return exact
    shape = judge.parse(case)
    size = (shape.batch * shape.heads, shape.seq, shape.dim)
    return [np.random.default_rng(0).standard_normal(size, dtype=np.float32)]


def training_parts(lab: Lab) -> dict[str, float]:
    """Return the seconds of a training lab's PASS on `cuda`: two trainings a pair."""
    settings = kind_of(lab).settings(lab, "cuda")
    with patch.dict(os.environ, LAB_DEVICE="cuda"):
        recipe = runpy.run_path(str(lab.path / "recipe.py"))
    size = {name: recipe[name] for name in ("WIDTH", "BATCH", "LONGEST") if name in recipe}
    measured = [
        row
        for row in json.loads(RECORD.read_text())["trainings"]
        if row["lab"] == lab.slug and "starter_ms" in row
    ]
    row = next((row for row in measured if size.items() <= row["size"].items()), None)
    if row is None:
        modelled = emulation_fidelity.model({"lab": lab.slug, "size": {}})
        row = {"starter_ms": modelled.starter_ms, "solution_ms": modelled.solution_ms}
    steps, starter_ms, solution_ms = recipe["STEPS"], row["starter_ms"], row["solution_ms"]
    pair_s = steps * (starter_ms + solution_ms) / 1000
    # A profiler, and a count of all operators (20 µs each, as much as a launch), double a training.
    # The shipped script's work is counted beside both of the solution's.
    counted_s = 2 * steps * max(starter_ms, 2 * solution_ms) / 1000
    return {
        "both start at once": IMPORT_S + CUDA_S,
        "pairs to warm up": settings.warm_up_rounds * pair_s,
        "pairs to the first look": PAIRS.looks[0] * pair_s,
        "waits and work counted": counted_s,
    }


def pipeline_parts(lab: Lab) -> dict[str, float]:
    """Return the seconds of an input pipeline's PASS: a fed device, epoch by epoch."""
    settings = kind_of(lab).settings(lab, "cuda")
    step_s = settings.device_share * LOADER_S * settings.batch
    batches = WARM_UP_BATCHES + MAX_EPOCHS * settings.epoch_batches
    return {
        "calibration": IMPORT_S + CALIBRATIONS * CALIBRATION_SAMPLES * LOADER_S,
        "device and script start": 2 * IMPORT_S + CUDA_S,
        "epochs": batches * step_s / lab_target(lab, "useful-utilisation"),
        "the step measured again": 1.0,
    }


def server_parts(_lab: Lab) -> dict[str, float]:
    """Return the seconds of an inference server's PASS; the windows are the check's own.

    Processes start at once, but learners' code is loaded only when the shipped server has been
    measured, and nothing starts beside a measurement.
    """
    # Each network is made, then recorded once for each size of a batch.
    networks_s = NETWORKS * KERNELS * (PREPARED + len(SIZES)) * LAUNCH_S
    return {
        "devices, shipped server, your process and calibration start": IMPORT_S + CUDA_S,
        "calibration, and some networks timed": 1.0 + networks_s * PROBED_MEMBERS / NETWORKS,
        "both ensembles are made, at once": networks_s,
        "your server loads its code": CODE_S,
        "closed loops": 2 * CLOSED_S + AGAIN_S,
        "bad requests": BAD_REQUESTS_S,
        "open loop": OPEN_WINDOWS[0] * WINDOW_S,
        "the generator starts, requests in flight": 7 * GENERATOR_S + 3 * IN_FLIGHT_S,
        "pictures are compared, on all cores": MAX_COMPARED * PICTURES_S / CORES,
    }


def benchmark_parts(lab: Lab) -> dict[str, float]:
    """Return the seconds of a measuring lab's PASS, whose code uses all the time it may."""
    judge = kind_of(lab).settings(lab, "cuda").judge
    if "looks" in judge:
        run_s = judge["second_s"] * RUN_WORKS_S + EXCHANGE_S
        trials = {"jobs": judge["looks"][0][0] * judge["budget_s"] * JOB_RUNS * run_s}
    else:
        functions = judge["quiet"] + judge["noisy"]
        trials = {"functions": functions * sum(judge["budget_s"]) / 2}
    return {"device starts": IMPORT_S + CUDA_S, **trials}


def lab_target(lab: Lab, criterion: str) -> float:
    """Return the target of a criterion on `cuda`."""
    specs = lab.spec.devices["cuda"].criteria
    return float(next(spec.target for spec in specs if spec.id == criterion and spec.target))


PARTS: dict[str, Callable[[Lab], dict[str, float]]] = {
    "training": training_parts,
    "input_pipeline": pipeline_parts,
    "inference_server": server_parts,
    "benchmark": benchmark_parts,
}


def show_parts(lab: Lab) -> float:
    """Print the parts of a PASS, and return their sum."""
    parts = PARTS[lab.spec.measure](lab)
    total_s = sum(parts.values())
    print(f"{lab.slug}: {total_s:.0f} s{' (too long)' if total_s > WITHIN_S else ''}")
    for part, seconds in parts.items():
        print(f"  {seconds:5.1f} s  {part}")
    return total_s


def show_checks(name: str) -> Budget:
    """Print what drawing and judging cost, and simulated checks at a few speeds. Return that
    cost.
    """
    budget = Budget(name)
    print(name)
    for case, call in budget.calls.items():
        cost = budget.costs[case]
        print(
            f"  {case}: moves {1000 * call.moves_s:.0f} ms, computes"
            f" {1000 * call.computes_s:.0f}, drawn in {1000 * cost.draw_s:.0f}, judged in"
            f" {1000 * cost.judge_s:.0f}"
        )
    for speed in (0.5, 0.85, 0.95, 0.97, 1.0, 1.05, 1.2):
        checks = [budget.simulate(speed=speed, seed=seed) for seed in range(20)]
        print(
            f"  {speed:.2f}x: {sum(check.state is State.PASS for check in checks)} of 20 pass, half"
            f" within {median(check.seconds for check in checks):.0f} s, all within"
            f" {max(check.seconds for check in checks):.0f} s and"
            f" {max(check.pairs for check in checks)} pairs"
        )
    return budget


def show_curve(budget: Budget, speeds: Sequence[float], checks: int, noise: float) -> None:
    """Print what becomes of so many checks at each speed, and their seconds: measured for LIMIT_S
    whatever can be decided in that time, and as they are.
    """
    hopeless = sampling._hopeless
    print(f"\nPairs vary by {noise:.0%}; a median's seconds, and those of 95% and of all:\n")
    lab_s = budget.settings.max_s
    rows = []
    for speed in speeds:
        for limit_s, rule in ((LIMIT_S, lambda *_: False), (lab_s, hopeless)):
            budget.settings = msgspec.structs.replace(budget.settings, max_s=limit_s)
            with patch.object(sampling, "_hopeless", rule):
                simulated = [
                    budget.simulate(speed=speed, seed=seed, noise=noise) for seed in range(checks)
                ]
            states = Counter(check.state for check in simulated)
            seconds = np.array([check.seconds for check in simulated])
            rows.append(
                [
                    f"{speed:g}x",
                    f"{limit_s:g} s" + ", while it can decide" * (rule is hopeless),
                    *(f"{states[state] / checks:.2%}" for state in OUTCOMES),
                    *(f"{np.quantile(seconds, share):.0f}" for share in (0.5, 0.95, 1.0)),
                ]
            )
    names = ["speed", "measured for", "PASS", "FAIL", "undecided", "half", "95%", "all"]
    print(table(names, rows))


def main() -> None:
    """Print the budgets of the labs that one GPU can check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labs", nargs="*", metavar="LAB")
    parser.add_argument("--checks", type=int, default=0, help="checks at each speed of a curve")
    parser.add_argument("--noise", type=float, default=NOISE, help="of pairs in a curve, a share")
    parser.add_argument("--speeds", type=float, nargs="+", default=SPEEDS, help="of a curve")
    options = parser.parse_args()
    for name in options.labs or sorted(load_labs()):
        lab = find_lab(name)
        if name in CALLS:
            budget = show_checks(name)
            if options.checks:
                show_curve(budget, options.speeds, options.checks, options.noise)
        elif lab.spec.measure in PARTS:
            show_parts(lab)
        else:
            print(f"{name}: not calculated")


if __name__ == "__main__":
    main()
