"""How often measuring code passes that errs a known share of the time, by the limits in lab.toml.

    python benchmarks/operating_curves.py           # prints the tables; takes some minutes
    python benchmarks/operating_curves.py --write   # also writes them into docs/measured/

Where only counts are judged, they are binomial, and every figure follows from the limits. Where
scores are, checks are simulated: drawn from a pool of trials on emulated machines. Of a server
under load, the rates of its blocks are drawn.
"""

from __future__ import annotations

import argparse
import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from markdown_tables import table
from scipy.stats import binom

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.grading.criteria import format_figure
from bottleneck_lab.grading.sequential import State
from bottleneck_lab.measure.kinds.http_server.bench import Plateau
from bottleneck_lab.measure.kinds.http_server.check import AGAIN_S, Observed, decide_throughput
from bottleneck_lab.measure.kinds.http_server.figures import BLOCKS, WARM_UP_S
from bottleneck_lab.measure.kinds.inference_server.bench import CLOSED_S
from bottleneck_lab.measure.lab_rules.mutants import load_mutants, write_mutant
from bottleneck_lab.measure.lab_rules.variants import variants
from bottleneck_lab.measure.worker import load_module

PAGE = Path(__file__).resolve().parent.parent / "docs" / "measured" / "operating_curves.md"
ALARMS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05)
"""Shares of jobs with a false alarm."""
CONTAINED = (0.98, 0.95, 0.94, 0.92, 0.9, 0.88, 0.82, 0.7)
"""Shares of intervals that contain the true cost."""
WRONG = (
    *("five-percent-by-decree", "two-fixed-shares", "smallest-to-largest"),
    *("middle-half-of-the-calls", "middle-fifth-of-the-calls", "half-a-standard-error"),
    *("three-times-in-four", "two-percent-by-decree", "a-hundred-calls"),
    "nothing-beyond-a-thousand-calls",
)
"""Mutants of `timing-pitfalls` whose estimates are right and whose intervals are wrong."""
SERVER_SPEEDS = (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.3)
BLOCK_NOISE, DRIFT = 0.05, 0.03
"""Assumed deviations of a server's rate, as shares: from block to block, and of the machine."""
POOL, SIMULATED = 1000, 2000
"""Trials of either kind for a work, and checks that are drawn from them."""


def gate_odds(looks: Sequence[tuple[int, int, int]], rate: float) -> tuple[float, float, float]:
    """Return how often a gate with this rate of false alarms passes and fails, and the number of
    jobs on average.

    `looks`: jobs, the most alarms to pass with, the fewest to fail with.
    """
    reached, passes, fails, mean, before = np.ones(1), 0.0, 0.0, 0.0, 0
    for jobs, fewest, most in looks:
        more = np.arange(jobs - before + 1)
        # How often there are so many alarms, and no earlier look has decided
        reached = np.convolve(reached, binom.pmf(more, jobs - before, rate))
        mean += (jobs - before) * float(reached.sum())
        passes += float(reached[: fewest + 1].sum())
        fails += float(reached[most:].sum())
        reached[: fewest + 1] = reached[most:] = 0
        before = jobs
    return passes, fails, mean


def interval_odds(functions: int, contain: float, share: float) -> float:
    """Return how often intervals that contain the cost this often fail to do so in `contain` (0–1)
    of the functions.
    """
    allowed = int(functions * (1 - contain) + 1e-9)
    return float(binom.sf(allowed, functions, 1 - share))


def gate_rows(device: str) -> Iterator[list[str]]:
    looks = find_lab("perf-gate").spec.devices[device].settings["judge"]["looks"]
    yield ["false alarms", "PASS", "FAIL", "undecided", "jobs, mean"]
    for rate in ALARMS:
        passes, fails, mean = gate_odds(looks, rate)
        odds = [f"{abs(share):.1%}" for share in (passes, fails, 1 - passes - fails)]
        yield [format_figure(rate, "share"), *odds, f"{mean:.0f}"]


def interval_rows() -> Iterator[list[str]]:
    devices = find_lab("timing-pitfalls").spec.devices
    judges = {name: device.settings["judge"] for name, device in devices.items()}
    yield ["intervals that contain the cost", *(f"FAIL on `{name}`" for name in judges)]
    for share in CONTAINED:
        odds = [interval_odds(judge["noisy"], judge["contain"], share) for judge in judges.values()]
        yield [format_figure(share, "share"), *(f"{one:.1%}" for one in odds)]


def trial_pool(judge: Any, folder: Path) -> dict[bool, list[Any]]:
    """Return trials of a work of `timing-pitfalls` on emulated machines that are as slow as
    `cuda`'s, by whether the function is noisy.
    """
    lab, rng = find_lab("timing-pitfalls"), np.random.default_rng(1)
    settings = lab.spec.devices["cuda"].settings
    harness = load_module(lab.path / settings["harness"])
    work = load_module(folder / lab.spec.entry)
    emulator = judge.emulator()
    scale = judge.beside("hardware").real_scale(emulator, "cuda")
    random.seed(1)
    pool: dict[bool, list[Any]] = {False: [], True: []}
    for noisy, trials in pool.items():
        for _ in range(POOL):
            function = emulator.draw(rng, noisy=noisy, scale=scale)
            budget_s = float(rng.uniform(*settings["judge"]["budget_s"]))
            machine = emulator.Device(function, rng, budget_s, scale)
            trial = judge.Trial("a function", function, machine, noisy)
            # One that runs out of time has no answer, and fails the check that it is drawn for.
            with contextlib.suppress(RuntimeError):
                trial.finish(
                    harness.run(work, lambda *v, t=trial: t.serve(list(v)), *trial.arguments)
                )
            trials.append(trial)
    return pool


def simulated_row(name: str, folder: Path) -> list[str]:
    """Return how often checks fail a work, and for what."""
    lab, rng = find_lab("timing-pitfalls"), np.random.default_rng(2)
    judge = load_module(lab.path / "judge.py")
    settings = lab.spec.devices["cuda"].settings["judge"]
    pool, failed = trial_pool(judge, folder), Counter[str]()
    for _ in range(SIMULATED):
        done = [
            pool[noisy][number]
            for noisy, count in ((False, settings["quiet"]), (True, settings["noisy"]))
            for number in rng.integers(POOL, size=count)
        ]
        wrong = [id_ for id_, (problem, *_) in judge.judge(done, settings).items() if problem]
        failed.update([*wrong, *(["any"] if wrong else [])])
    criteria = ("any", "cost", "coverage", "width")
    return [name, *(f"{failed[id_] / SIMULATED:.2%}" for id_ in criteria)]


def simulated_rows() -> Iterator[list[str]]:
    lab = find_lab("timing-pitfalls")
    yield ["work", "FAIL", "for cost", "coverage", "width"]
    yield simulated_row("solution", lab.solution)
    for folder in variants(lab):
        yield simulated_row(folder.name, folder)
    for mutant in load_mutants(lab):
        if mutant.id in WRONG:
            with TemporaryDirectory() as folder:
                write_mutant(lab, mutant, Path(folder))
                yield simulated_row(f"*{mutant.id}*", Path(folder))


def server_rows() -> Iterator[list[str]]:
    """Yield how checks of `past-the-plateau` decide on the throughput of a server of known speed,
    by how long the shipped one is loaded again.
    """
    spec = next(
        spec
        for spec in find_lab("past-the-plateau").spec.devices["virtual"].criteria
        if spec.id == "throughput"
    )
    assert spec.target is not None
    context: Any = SimpleNamespace(required=lambda _: spec)
    lengths = (CLOSED_S, AGAIN_S)
    yield [
        "speed, of the target",
        *(f"{state}, {seconds:.0f} s" for seconds in lengths for state in ("PASS", "FAIL")),
    ]
    for speed in SERVER_SPEEDS:
        odds = []
        for seconds in lengths:
            states = Counter(
                decide_throughput(context, _observed(spec.target * speed, seconds, seed)).state
                for seed in range(SIMULATED)
            )
            odds += [f"{states[state] / SIMULATED:.2%}" for state in (State.PASS, State.FAIL)]
        yield [f"{speed:g}x", *odds]


def _observed(speedup: float, again_s: float, seed: int) -> Observed:
    """Return the rates of a check in which the machine drifts, and the shipped server is loaded
    again for `again_s`. Blocks differ the less, the longer they are.
    """
    rng = np.random.default_rng(seed)
    drift = rng.normal(0, DRIFT)
    noise = BLOCK_NOISE * ((CLOSED_S - WARM_UP_S) / (again_s - WARM_UP_S)) ** 0.5
    before, own = np.exp(rng.normal(0, BLOCK_NOISE, (2, BLOCKS)))
    after = np.exp(rng.normal(drift, noise, BLOCKS))
    return Observed(
        rates=list(speedup * own * np.exp(drift / 2)),
        shipped=(Plateau(float(np.median(before))), Plateau(float(np.median(after)))),
    )


def show(rows: Iterator[list[str]]) -> str:
    """Return a table whose names are the first row."""
    return table(next(rows), rows)


def render() -> str:
    return f"""# Operating curves

Generated by `python benchmarks/operating_curves.py --write` from the limits in `lab.toml`.

A check counts errors of the learner's measuring code. These tables say how often it passes code
that errs a known share of the time; the last one, how often it passes a server of known speed.

## `perf-gate`: false alarms, on `virtual`

{show(gate_rows("virtual"))}

## `perf-gate`: false alarms, on `cpu` and `cuda`

{show(gate_rows("cpu"))}

## `timing-pitfalls`: intervals of varying functions that contain the true cost

{show(interval_rows())}

## `timing-pitfalls`: works, by simulated checks

{SIMULATED:,} checks each, drawn from {POOL:,} functions of either kind on an emulated machine. It
is as slow as a check on `cuda`, but nothing disturbs it, so real checks
fail somewhat more often. FAIL counts running out of time, too, which has no column. Works in
italics are wrong ones of `tests/mutants/`.

{show(simulated_rows())}

## `past-the-plateau`: how long the shipped server is loaded again

{SIMULATED:,} checks each. The rate of a block of a closed loop of {CLOSED_S:.0f} s varies by
{BLOCK_NOISE:.0%}, and the machine drifts by {DRIFT:.0%} from the shipped server's first loop to its
second. What is neither PASS nor FAIL is undecided.

{show(server_rows())}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the tables into docs/measured/")
    text = render()
    if parser.parse_args().write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
