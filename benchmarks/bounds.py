"""Check that the gains of reports are bounds: drawn programs, each run again without a cause.

    python benchmarks/bounds.py [--programs 400] [--seed 1] [--worst 10]

A drawn program has a switch for each cause of lost time: input, Python, waits, copies, launches,
named stretches, collectives, a slow rank. It is stepped by hand (datasets/captures/make.py), so
that switching a cause off brings exactly what it brings, with nothing measured in between. Its
shape is drawn too: loaders that work ahead, pinned copies beside computation, accumulated
gradients, validation between steps, graphs, two models, waits inside a step, generation of tokens;
with several ranks, a late one that changes, a collective in the middle of the backward.

Prints, for one rank and for several, in how many cases the gain is not below what the switch
brought (but for half a percent), and in how many it is within 20% of it, with 95% intervals
(Wilson). Exits with 1 where fewer than 99% hold or fewer than 80% are within 20%.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import binomtest

from bottleneck_lab import load, summarise
from bottleneck_lab.measure.worker import load_module

make = load_module(Path(__file__).resolve().parents[1] / "datasets" / "captures" / "make.py")

LEAST_HOLDING, LEAST_NEAR = 0.99, 0.80
TOLERANCE = 1.005
"""A bound may be short by this factor: the profiler's clocks are no finer."""
NEAR = 1.2
START = 1_000_000.0
"""The host's clock when a `Program` of make.py begins, µs."""
PAUSE_US = 0.9
NAMED = {
    "sleep": ("python_function", "<built-in function sleep>"),
    "files": ("python_function", "torch/serialization.py(800): save"),
    "compilation": ("cpu_op", "backend_compile (dynamo_timed)"),
    "host": ("cpu_op", "aten::randperm"),
}
"""Stretches of the host that a row gives away, by cause."""
PART = {
    "input": "idle-input",
    "python": "idle-python",
    "waits": "idle-synchronisation",
    "copies": "copy",
    "launches": "idle-launch",
    "allocation": "idle-allocation",
    "communication": "communication",
    **{cause: f"idle-{cause}" for cause in NAMED},
}
"""The part of the time that the report gives a gain for, by switch."""


class Plan(NamedTuple):
    """A drawn program. `costs` are µs a step, by switch, of those that have a size; the others are
    in `switches` alone.
    """

    seed: int
    steps: int
    layers: int
    kernel_us: float
    host_us: float
    costs: dict[str, float]
    switches: frozenset[str]
    shape: frozenset[str]
    every: int
    """A step of so many has the optimizer and the value that the host asks for."""


def draw(seed: int) -> Plan:
    """Return a program on one rank."""
    at = random.Random(f"one {seed}")
    sized = {"input": 0.4, "python": 0.5, "copies": 0.4, "allocation": 0.15}
    sized |= dict.fromkeys(NAMED, 0.12)
    costs = {name: 20 * 250 ** at.random() for name, often in sized.items() if at.random() < often}
    switches = {*costs, "launches"} | ({"waits"} if at.random() < 0.7 else set())
    shape = {"ahead", "pinned", "beside", "graph", "two models", "validation", "marked"}
    shape |= {"inner waits", "tokens"}
    return Plan(
        seed,
        steps=at.choice([6, 12, 25]),
        layers=at.choice([3, 10, 40]),
        kernel_us=4 * 150 ** at.random(),
        host_us=5 * 12 ** at.random(),
        costs=costs,
        switches=frozenset(switches),
        shape=frozenset(name for name in sorted(shape) if at.random() < 0.35),
        every=at.choice([1, 1, 1, 4]),
    )


class Run(make.Program):
    """A program that is stepped by hand, with the cost of nothing but what a `Plan` says."""

    def __init__(self, rank: int = 0) -> None:
        super().__init__(rank=rank, jitter=0.0)

    def launch(self, name: str, us: float, *, after: float = 0.0, **options: Any) -> float:
        """Queue a kernel; the device pauses before it, as an H200 does."""
        stream = options.get("stream", make.COMPUTE_STREAM)
        free = self.tail.get(stream, 0.0) + PAUSE_US
        return super().launch(name, us, after=max(after, free), **options)

    @property
    def elapsed(self) -> float:
        """Return how long the host took, µs."""
        return self.host - START

    def graph(self, lengths: list[float], call_us: float) -> None:
        """Launch kernels with one call."""
        self._correlation += 1
        numbers = {"correlation": self._correlation}
        self.add("cuda_runtime", "cudaGraphLaunch", self.host, call_us, **numbers)
        start = max(self.host + 3.0, self.tail.get(make.COMPUTE_STREAM, 0.0) + PAUSE_US)
        for node, us in enumerate(lengths):
            where = {"device": 0, "stream": make.COMPUTE_STREAM, "graph node id": node}
            self.add("kernel", f"gemm_{node % 4}", start, us, **where, **numbers)
            start += us + PAUSE_US
        self.tail[make.COMPUTE_STREAM] = round(start - PAUSE_US, 3)
        self.host = round(self.host + call_us, 3)

    def allocate(self, us: float) -> None:
        """Ask the driver for memory, which waits for the device."""
        start = self.host
        self.host = round(max(self.host, *self.tail.values()) + us, 3)
        self.add("cuda_runtime", "cudaMalloc", start, self.host - start)

    def send(self, us: float, plan: Plan) -> None:
        """Copy a batch: blocking, or pinned, on the model's stream or on one of its own."""
        if "pinned" not in plan.shape:
            self.copy(int(us * 6e3), pinned=False)
        elif "beside" not in plan.shape:
            self.copy(int(us * 24e3), pinned=True)
        else:
            done = self.copy(int(us * 24e3), pinned=True, stream=make.COPY_STREAM)
            # The model's stream waits for an event of the copy's.
            own = self.tail.get(make.COMPUTE_STREAM, 0.0)
            self.tail[make.COMPUTE_STREAM] = max(own, done)

    def layers(self, lengths: list[float], plan: Plan, without: str) -> None:
        """Run a model's layers, launched in one graph or each by itself."""
        if "graph" in plan.shape:
            self.graph(lengths, 0.0 if without == "launches" else 15.0)
            return
        for number, us in enumerate(lengths):
            if without == "launches":
                self.launch(f"gemm_{number % 4}", us, call_us=0.0)
            else:
                self.operator("aten::mm", f"gemm_{number % 4}", us, host_us=plan.host_us)
            if "inner waits" in plan.shape and number % 5 == 4:
                self.ask(plan, without)

    def ask(self, plan: Plan, without: str) -> None:
        """Ask the device for a value, where the plan has such waits."""
        if "waits" in plan.switches:
            self.item(waits=without != "waits")


def run(plan: Plan, without: str = "") -> Run:
    """Step through a plan without one of its causes."""
    one = Run()
    marked = "marked" in plan.shape
    if not marked:  # the report leaves out what lies before the first work, and after the last
        one.launch("first", 1.0)
    batches = {"ready": one.host, "taken": one.host}
    for number in range(plan.steps):
        # A step has the same lengths, whatever is switched off.
        at = random.Random(f"{plan.seed} {number}")
        cost = {name: us * at.uniform(0.85, 1.15) for name, us in plan.costs.items()}
        cost.pop(without, None)
        begin = one.host
        if "input" in plan.costs:
            take_batch(one, cost.get("input", 0.0), batches if "ahead" in plan.shape else None)
        if "copies" in cost:
            one.send(cost["copies"], plan)
        work(one, plan, cost, at, without, last=number % plan.every == plan.every - 1)
        if "allocation" in cost:
            one.allocate(cost["allocation"])
        for cause in sorted(NAMED.keys() & cost.keys()):
            start = one.host
            one.python(cost[cause])
            one.add(*NAMED[cause], start, one.host - start)
        if "tokens" not in plan.shape:
            one.python(cost.get("python", 0.0))
        if marked:
            one.range(f"ProfilerStep#{number}", begin)
        for _ in range(3 if "validation" in plan.shape and number % 5 == 2 else 0):
            one.layers(draw_lengths(plan, at, plan.layers), plan, without)
            one.ask(plan, without)
    if not marked:
        one.launch("last", 1.0)
    one.wait()
    return one


def take_batch(one: Run, us: float, batches: dict[str, float] | None) -> None:
    """Make the next batch, or wait for the worker that makes one once the last has been taken."""
    begin = one.host
    if batches is not None:
        batches["ready"] = max(batches["ready"], batches["taken"]) + us
        us = max(batches["ready"] - one.host, 0.0)
    one.python(us)
    if batches is not None:
        batches["taken"] = one.host
    one.range("next batch", begin)


def work(
    one: Run, plan: Plan, cost: dict[str, float], at: random.Random, without: str, *, last: bool
) -> None:
    """Run the models, generate tokens, and, in the last of the accumulated steps, optimize."""
    for model in range(2 if "two models" in plan.shape else 1):
        if model:
            one.ask(plan, without)
        one.layers(draw_lengths(plan, at, plan.layers), plan, without)
    for _ in range(8 if "tokens" in plan.shape else 0):
        one.layers(draw_lengths(plan, at, 3), plan, without)
        one.ask(plan, without)
        one.python(cost.get("python", 0.0) / 8)
    if last:
        one.layers(draw_lengths(plan, at, 2), plan, without)
        one.ask(plan, without)


def draw_lengths(plan: Plan, at: random.Random, count: int) -> list[float]:
    """Return lengths of kernels, µs."""
    return [round(plan.kernel_us * at.uniform(0.5, 1.5), 3) for _ in range(count)]


class JobPlan(NamedTuple):
    """A drawn program on several ranks. `costs` are µs a step; `turns`: another rank has them in
    every step; `early`: a collective begins in the middle of the backward.
    """

    seed: int
    ranks: int
    steps: int
    layers: int
    kernel_us: float
    host_us: float
    costs: dict[str, float]
    turns: bool
    early: bool
    waits: bool


def draw_job(seed: int) -> JobPlan:
    """Return a program on several ranks."""
    at = random.Random(f"several {seed}")
    often = {"input": 0.6, "python": 0.3, "straggler": 0.4, "communication": 1.0}
    costs = {name: 100 * 50 ** at.random() for name, share in often.items() if at.random() < share}
    return JobPlan(
        seed,
        ranks=at.choice([2, 3, 4]),
        steps=at.choice([6, 12]),
        layers=at.choice([6, 20]),
        kernel_us=20 * 20 ** at.random(),
        host_us=5 * 6 ** at.random(),
        costs=costs,
        turns=at.random() < 0.5,
        early=at.random() < 0.5,
        waits=at.random() < 0.5,
    )


def run_job(plan: JobPlan, without: str = "") -> list[Run]:
    """Step through a plan for several ranks without one of its causes."""
    ranks = [Run(rank) for rank in range(plan.ranks)]
    cost = {name: us for name, us in plan.costs.items() if name != without}
    for number in range(plan.steps):
        at = random.Random(f"{plan.seed} {number}")
        late = at.randrange(plan.ranks) if plan.turns else 0
        begins = [one.host for one in ranks]
        for one in ranks:
            begin = one.host
            one.python(cost.get("input", 0.0) if one.rank == late else 20.0)
            one.range("next batch", begin)
            if one.rank == (late + 1) % plan.ranks:
                one.python(cost.get("python", 0.0))
        parts = (plan.layers // 2, plan.layers - plan.layers // 2) if plan.early else (plan.layers,)
        slower = 1 + cost.get("straggler", 0.0) / (plan.layers * plan.kernel_us)
        for part in parts:
            for one in ranks:
                for _ in range(part):
                    us = plan.kernel_us * at.uniform(0.9, 1.1)
                    us *= slower if one.rank == plan.ranks - 1 else 1.0
                    one.operator("aten::mm", "gemm", us, host_us=plan.host_us)
            ready = [max(one.tail.values()) for one in ranks]
            end = max(ready) + max(cost.get("communication", 0.0) / len(parts), 1.0)
            for one, since in zip(ranks, ready, strict=True):
                name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
                one.launch(name, end - since, stream=make.COMMUNICATION_STREAM, after=since)
        for one, begin in zip(ranks, begins, strict=True):
            done = one.tail[make.COMMUNICATION_STREAM]
            one.tail[make.COMPUTE_STREAM] = max(one.tail[make.COMPUTE_STREAM], done)
            if plan.waits:
                one.wait()
            one.range(f"ProfilerStep#{number}", begin)
    for one in ranks:
        one.wait()
    return ranks


class Case(NamedTuple):
    """One gain: what the report says, and what the switch brought."""

    label: str
    stated: float
    brought: float

    @property
    def off(self) -> float:
        """Return the stated gain over the one that was brought."""
        return self.stated / self.brought


def one_rank(folder: Path, seeds: range) -> Iterator[Case]:
    """Yield the gains of drawn programs on one rank."""
    for seed in seeds:
        plan = draw(seed)
        whole = run(plan)
        path = folder / "one.json"
        path.write_text(json.dumps(whole.trace()))
        gains = summarise(load(path)).gains
        for switch in sorted(plan.switches):
            if PART[switch] in gains:
                brought = whole.elapsed / run(plan, switch).elapsed
                yield Case(f"{seed} {switch}", gains[PART[switch]], brought)


def several_ranks(folder: Path, seeds: range) -> Iterator[Case]:
    """Yield the gains of drawn programs on several ranks."""
    for seed in seeds:
        plan = draw_job(seed)
        whole = run_job(plan)
        job = folder / str(seed)
        job.mkdir()
        for one in whole:
            trace = json.dumps(one.trace(world_size=plan.ranks))
            (job / f"rank{one.rank}.json").write_text(trace)
        summary = summarise(load(job))
        gains = {**summary.gains, **{f.id: f.expected_gain_ratio for f in summary.findings}}
        for switch in plan.costs:
            if PART.get(switch, switch) in gains:
                brought = slowest(whole) / slowest(run_job(plan, switch))
                yield Case(f"{seed} {switch}", gains[PART.get(switch, switch)], brought)


def slowest(ranks: list[Run]) -> float:
    """Return how long the slowest rank took, µs."""
    return max(one.elapsed for one in ranks)


def interval(count: int, of: int) -> str:
    """Return a share with its 95% interval (Wilson), in words."""
    bounds = binomtest(count, of).proportion_ci(method="wilson")
    return f"{count} of {of} ({count / of:.1%}; {bounds.low:.1%}-{bounds.high:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=400, help="so many on one rank")
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    parser.add_argument("--worst", type=int, default=10, help="list so many broken bounds")
    options = parser.parse_args()
    good = True
    sets = {"one rank": (one_rank, 1), "several ranks": (several_ranks, 4)}
    for title, (gains_of, fewer) in sets.items():
        seeds = range(options.seed, options.seed + options.programs // fewer)
        with tempfile.TemporaryDirectory() as name:
            cases = list(gains_of(Path(name), seeds))
        holds = [case for case in cases if case.off >= 1 / TOLERANCE]
        near = [case for case in cases if 1 / NEAR <= case.off <= NEAR]
        print(f"{title}, {len(seeds)} programs")
        print(f"  the bound holds in {interval(len(holds), len(cases))}")
        print(f"  within 20% of what the switch brought: {interval(len(near), len(cases))}")
        for case in sorted(cases, key=lambda case: case.off)[: options.worst]:
            if case not in holds:
                print(f"  broken: {case.label}: {case.stated:.3f}x stated, {case.brought:.3f}x")
        good &= len(holds) >= LEAST_HOLDING * len(cases) and len(near) >= LEAST_NEAR * len(cases)
    sys.exit(not good)


if __name__ == "__main__":
    main()
