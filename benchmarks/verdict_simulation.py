"""How often the statistics of `lab check` err: thousands of simulated checks at known speeds, under
five kinds of noise.

    python benchmarks/verdict_simulation.py                  # prints the tables
    python benchmarks/verdict_simulation.py --write          # also writes them into docs/

Every figure follows from the seed, so that the tables come out the same on every machine. A
simulated check is a real one with the workers left out: an A/A self-test, then pairs in random
order until the sequential test decides. Noise belongs to the moment (the slot in which a call
runs), never to the code that happens to run in it; a pair is two neighbouring slots.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
from markdown_tables import renew, table
from scipy.stats import binomtest

from bottleneck_lab.grading.sequential import (
    BLOCKS,
    PAIRS,
    SELF_TEST_LIMIT,
    SELF_TEST_MARGIN,
    Plan,
    SelfTest,
    SequentialTest,
    State,
    ever_missed,
    self_test,
    shuffled_order,
)
from bottleneck_lab.measure.kinds.speedup.against_itself import SELF_TEST_SIZES
from bottleneck_lab.measure.kinds.speedup.figures import Case
from bottleneck_lab.measure.kinds.speedup.sampling import first_look

DOCS = Path(__file__).resolve().parent.parent / "docs"
TARGET = 1.5
SPEEDS = (0.6, 0.8, 0.9, 1.0, 1.1, 1.25, 1.6)
"""True speed-up, in multiples of the target."""
FIRST_LOOK_SPEEDS = (0.05, 0.1, 0.2, 0.3, 1.0)
"""The same of work at its first look, which is there for work that is far off."""
FIRST_LOOK_CASES = 6
"""Cases of each check at its first look: the worst of their first pairs is looked at."""
LEVELS = {"quiet": 0.02, "loaded": 0.1, "stormy": 0.3}
"""Scale of the noise: the log of a typical slowdown."""
PLANS = {"pairs": PAIRS, "blocks": BLOCKS}
CONFIDENCE = 0.95
DECIDED = (State.PASS, State.FAIL)

Slots = Iterator[float]
"""Log slowdown of one moment after another, without end."""


def normal(rng: random.Random, scale: float) -> Slots:
    while True:
        yield rng.gauss(0, scale)


def heavy_tailed(rng: random.Random, scale: float) -> Slots:
    """Student's t with two degrees of freedom: no variance."""
    while True:
        yield scale * rng.gauss(0, 1) / math.sqrt(rng.expovariate(1))


def stalls(rng: random.Random, scale: float) -> Slots:
    """Log-normal: never faster than the machine can be, sometimes much slower."""
    while True:
        yield scale * rng.lognormvariate(0, 1)


def drifting(rng: random.Random, scale: float) -> Slots:
    """Clocks that sink, and wander while they do."""
    level = 0.0
    while True:
        level += rng.gauss(scale / 20, scale / 2)
        yield level + rng.gauss(0, scale / 2)


def bimodal(rng: random.Random, scale: float) -> Slots:
    """A neighbour that comes for a while and takes a share of the machine, then goes."""
    there = False
    while True:
        there ^= rng.random() < 0.1
        yield 3 * scale * there + rng.gauss(0, scale / 2)


NOISES: dict[str, Callable[[random.Random, float], Slots]] = {
    "normal": normal,
    "heavy-tailed (Student t, 2 d.f.)": heavy_tailed,
    "stalls (log-normal)": stalls,
    "drifting": drifting,
    "bimodal": bimodal,
}


class Cell(NamedTuple):
    """One kind of check, and what came of its simulated runs."""

    plan: str
    noise: str
    level: str
    speed: float
    passed: int = 0
    failed: int = 0
    undecided: int = 0
    refused: int = 0
    pairs: int = 0

    @property
    def runs(self) -> int:
        return self.passed + self.failed + self.undecided + self.refused

    @property
    def wrong(self) -> int:
        """A pass below the target; a fail on it or above."""
        return self.passed if self.speed < 1 else self.failed


def slowdown(log: float) -> float:
    """Return the factor of a log slowdown, kept within what a float can hold."""
    # Student's t knows no limits.
    return math.exp(max(-100.0, min(100.0, log)))


def measure_pairs(rng: random.Random, slots: Slots, speedup: float, n: int) -> list[float]:
    """Ratios of `n` pairs, reference over learner, each pair in an order of its own."""
    ratios = []
    for first, _ in shuffled_order(rng, n):
        earlier, later = next(slots), next(slots)
        ratios.append(
            speedup * slowdown(earlier - later if first == "reference" else later - earlier)
        )
    return ratios


class AgainstItself:
    """The A/A self-test: as few pairs as show that the machine is fit, then more (`narrow`)."""

    def __init__(self, rng: random.Random, slots: Slots) -> None:
        self._rng, self._slots = rng, slots
        self._log_ratios: list[float] = []
        self._sizes = list(SELF_TEST_SIZES)
        self.outcome = self._measure()
        while not self.outcome.fit and self.narrow():
            pass

    def narrow(self) -> bool:
        """Measure more pairs, if there is a doubt to narrow and a larger size."""
        if self.outcome.quiet or not self._sizes:
            return False
        self.outcome = self._measure()
        return True

    def _measure(self) -> SelfTest:
        wanted = self._sizes.pop(0) - len(self._log_ratios)
        ratios = measure_pairs(self._rng, self._slots, 1.0, wanted)
        self._log_ratios += map(math.log, ratios)
        return self_test(self._log_ratios)


def simulate_check(
    rng: random.Random, slots: Slots, speedup: float, plan: Plan
) -> tuple[State | None, int]:
    """The outcome (None: the self-test refused the machine) and how many pairs it took.

    Pairs measure the self-test on where only its doubt is in the way; blocks, which cost more than
    it does, have all of it first.
    """
    itself = AgainstItself(rng, slots)
    while plan is BLOCKS and itself.narrow():
        pass
    if not itself.outcome.fit:
        return None, 0
    sure, ratios = SequentialTest(target=TARGET, plan=plan), list[float]()
    while True:
        test = msgspec.structs.replace(sure, doubt=itself.outcome.doubt)
        decision = test.decide(ratios)
        if decision.state in DECIDED:
            return decision.state, decision.samples
        if sure.decide(ratios).state in DECIDED and itself.narrow():
            continue
        if decision.state is State.INCONCLUSIVE:
            return decision.state, decision.samples
        ratios += measure_pairs(rng, slots, speedup, decision.wanted)


def simulate_cell(plan: str, noise: str, level: str, speed: float, runs: int, seed: int) -> Cell:
    """`runs` simulated checks of one kind; the cell's name is part of its seed, so cells do not
    share luck.
    """
    rng = random.Random(f"{seed} {plan} {noise} {level} {speed}")
    outcomes = [
        simulate_check(rng, NOISES[noise](rng, LEVELS[level]), speed * TARGET, PLANS[plan])
        for _ in range(runs)
    ]
    counts = (
        sum(state is wanted for state, _ in outcomes)
        for wanted in (State.PASS, State.FAIL, State.INCONCLUSIVE, None)
    )
    return Cell(plan, noise, level, speed, *counts, sum(pairs for _, pairs in outcomes))


def simulate(runs: int, seed: int) -> list[Cell]:
    return [
        simulate_cell(plan, noise, level, speed, runs, seed)
        for plan in PLANS
        for level in LEVELS
        for noise in NOISES
        for speed in SPEEDS
    ]


def simulate_first_looks(level: str, speed: float, runs: int, seed: int) -> list[int]:
    """Take first looks at work of that speed in each case, `runs` for each noise. Returns the pairs
    of the case that failed, one number for each look that ended so.
    """
    rng = random.Random(f"{seed} first look {level} {speed}")
    tests = {"speedup": SequentialTest(target=TARGET, doubt=SELF_TEST_LIMIT)}
    failed = []
    for slots in (NOISES[noise](rng, LEVELS[level]) for noise in NOISES for _ in range(runs)):

        def time_pair(case: Case, slots: Slots = slots) -> None:
            case.reference_s += measure_pairs(rng, slots, speed * TARGET, 1)
            case.learner_s.append(1.0)

        workers = SimpleNamespace(context=SimpleNamespace(rng=rng), time_pair=time_pair)
        cases = [Case(f"{number}") for number in range(FIRST_LOOK_CASES)]
        if far := first_look(workers, cases, tests):
            failed.append(len(far.learner_s))
    return failed


def first_look_table(runs: int, seed: int) -> str:
    """How often the first look of a check fails it, and by how many pairs; all noises together."""
    rows = []
    for level in LEVELS:
        for speed in FIRST_LOOK_SPEEDS:
            failed, looks = simulate_first_looks(level, speed, runs, seed), runs * len(NOISES)
            share = len(failed) / looks
            wrong = len(failed) if speed >= 1 else 0
            most = percent(binomtest(wrong, looks).proportion_ci(CONFIDENCE).high)
            pairs = f"{statistics.fmean(failed):.1f}" if failed else ""
            rows.append([level, f"{speed:g}x", f"{looks:,}", percent(share), pairs, most])
    head = ["noise", "true speed / target", "looks", "FAIL", "pairs of that case, mean"]
    return table([*head, "wrong, at most"], rows)


def naive_errors(noise: str, level: str, speed: float, runs: int, seed: int) -> int:
    """Wrong verdicts of the usual way: 30 reference calls, then 30 others, means compared with the
    target.
    """
    rng, wrong = random.Random(f"{seed} naive {noise} {level} {speed}"), 0
    for _ in range(runs):
        slots = NOISES[noise](rng, LEVELS[level])
        reference, learner = ([slowdown(next(slots)) for _ in range(30)] for _ in range(2))
        passes = speed * statistics.fmean(reference) / statistics.fmean(learner) >= 1
        wrong += passes != (speed >= 1)
    return wrong


def unpaired_errors(noise: str, level: str, speed: float, runs: int, seed: int) -> int:
    """Wrong verdicts of the sequential test on samples that have no partner beside them, and no
    self-test before.
    """
    rng, wrong = random.Random(f"{seed} unpaired {noise} {level} {speed}"), 0
    test = SequentialTest(target=1.0, plan=BLOCKS)
    for _ in range(runs):
        slots = NOISES[noise](rng, LEVELS[level])
        state = test.decide([speed / slowdown(next(slots)) for _ in range(BLOCKS.looks[-1])]).state
        wrong += state is (State.PASS if speed < 1 else State.FAIL)
    return wrong


def pool(cells: list[Cell], **wanted: object) -> Cell:
    """The cells that agree with `wanted`, added up."""
    chosen = [
        cell
        for cell in cells
        if all(getattr(cell, name) == value for name, value in wanted.items())
    ]
    return chosen[0]._replace(
        **{name: sum(getattr(cell, name) for cell in chosen) for name in Cell._fields[4:]}
    )


def percent(share: float) -> str:
    return f"{share:.3%}" if 0 < share < 0.01 else f"{share:.1%}"


def wrong_share(cell: Cell) -> list[str]:
    """Wrong verdicts as a share, and the most it can be."""
    return [
        percent(cell.wrong / cell.runs),
        percent(binomtest(cell.wrong, cell.runs).proportion_ci(CONFIDENCE).high),
    ]


def plan_table() -> str:
    """The looks of each plan, the order statistic used at each, and the exact error. Nothing here
    is simulated.
    """
    rows = [
        [
            name,
            ", ".join(map(str, plan.looks)),
            ", ".join(f"{rank}" for rank in plan.ranks),
            percent(plan.error),
            percent(float(ever_missed(plan.looks, plan.ranks))),
        ]
        for name, plan in PLANS.items()
    ]
    return table(
        [
            "plan",
            "looks after",
            "bound: k-th smallest and largest",
            "error allowed",
            "error, exact",
        ],
        rows,
    )


def summary_table(cells: list[Cell]) -> str:
    """All noises together: what matters to somebody who asks whether to trust a verdict."""
    rows = []
    for plan in PLANS:
        for level in LEVELS:
            for speed in SPEEDS:
                cell = pool(cells, plan=plan, level=level, speed=speed)
                shares = [
                    percent(count / cell.runs)
                    for count in (cell.passed, cell.failed, cell.undecided, cell.refused)
                ]
                rows.append(
                    [plan, level, f"{speed:g}x", f"{cell.runs:,}", *shares, *wrong_share(cell)]
                )
    return table(
        [
            "plan",
            "noise",
            "true speed / target",
            "runs",
            "PASS",
            "FAIL",
            "INCONCLUSIVE",
            "ERROR",
            "wrong",
            "wrong, at most",
        ],
        rows,
    )


def full_table(cells: list[Cell]) -> str:
    rows = [
        [cell.plan, cell.level, cell.noise, f"{cell.speed:g}x"]
        + [str(count) for count in (cell.passed, cell.failed, cell.undecided, cell.refused)]
        + [f"{cell.pairs / max(1, cell.runs - cell.refused):.1f}", *wrong_share(cell)]
        for cell in cells
    ]
    head = [
        "plan",
        "level",
        "noise",
        "true speed / target",
        "PASS",
        "FAIL",
        "INCONCLUSIVE",
        "ERROR",
        "pairs, mean",
    ]
    return table([*head, "wrong", "wrong, at most"], rows)


def naive_table(cells: list[Cell], runs: int, seed: int) -> str:
    """The usual way, and samples without a partner, beside pairs; at the speeds nearest to the
    target.
    """
    rows = []
    for level in LEVELS:
        for noise in NOISES:
            kinds = [(noise, level, speed, runs, seed) for speed in (0.9, 1.1)]
            errors = [count(*kind) for count in (naive_errors, unpaired_errors) for kind in kinds]
            errors += [
                pool(cells, plan="pairs", level=level, noise=noise, speed=speed).wrong
                for speed in (0.9, 1.1)
            ]
            rows.append([level, noise, *(percent(wrong / runs) for wrong in errors)])
    wrong = [
        f"{way}: {what}"
        for way in ("usual way", "no partner", "pairs")
        for what in ("pass at 0.9x", "fail at 1.1x")
    ]
    return table(["level", "noise", *wrong], rows)


def render_measured(cells: list[Cell], runs: int, seed: int) -> str:
    scales = ", ".join(f"{name} {scale:g}" for name, scale in LEVELS.items())
    no_error = percent(binomtest(0, runs).proportion_ci(CONFIDENCE).high)
    return f"""# Simulated verdicts

Generated by `python benchmarks/verdict_simulation.py --runs {runs} --seed {seed} --write`; every \
figure follows from the seed.

Each row is {runs:,} simulated checks, with target {TARGET:g}x and self-test margin \
{SELF_TEST_MARGIN:.0%}. Scale of the noise: {scales}.
*Wrong* is a PASS below the target, or a FAIL at or above it. *At most* is the upper \
Clopper–Pearson bound at
{CONFIDENCE:.0%} confidence: {runs:,} runs without a single error can show {no_error} and no less.
ERROR means that the self-test refused the machine.

{full_table(cells)}
"""


def render_docs(cells: list[Cell], runs: int, seed: int) -> dict[str, str]:
    """The generated parts of docs/statistics.md by name."""
    return {
        "plans": plan_table(),
        "errors": summary_table(cells),
        "usual way": naive_table(cells, runs, seed),
        "first look": first_look_table(runs, seed),
    }


def write(cells: list[Cell], runs: int, seed: int) -> None:
    measured = DOCS / "measured" / "verdict_simulation.md"
    measured.parent.mkdir(exist_ok=True)
    measured.write_text(render_measured(cells, runs, seed), encoding="utf-8")
    page = DOCS / "statistics.md"
    text = page.read_text(encoding="utf-8")
    for name, body in render_docs(cells, runs, seed).items():
        text = renew(text, name, body)
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=4000, help="simulated checks of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/")
    options = parser.parse_args()
    cells = simulate(options.runs, options.seed)
    print(
        plan_table(),
        summary_table(cells),
        naive_table(cells, options.runs, options.seed),
        first_look_table(options.runs, options.seed),
        sep="\n\n",
    )
    if options.write:
        write(cells, options.runs, options.seed)


if __name__ == "__main__":
    main()
