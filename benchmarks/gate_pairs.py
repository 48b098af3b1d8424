"""How many pairs a gate needs: both of its errors, by the number of pairs, on the emulated machines
of `perf-gate`.

    python benchmarks/gate_pairs.py [--write]

The solution's own `pair` and `is_slower` measure and judge clean commits and regressions that the
lab draws. A gate that stops after n rounds has seen the first n of a longer job, so each job is
played once. Every figure repeats on any machine.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from markdown_tables import renew, table

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.context import load_judge
from bottleneck_lab.measure.worker import load_module

LAB = find_lab("perf-gate")
PAIRS = (3, 5, 7, 10, 15, 20, 30, 40)
CLEAN, BAD = 4000, 2000
"""Clean commits, and commits that make something slower by 10% or more."""


class Job(NamedTuple):
    """The logarithms of new over old time by benchmark, in the order of the pairs; those of the
    control; and what is true: log of the change by benchmark, and which are slower.
    """

    changes: dict[str, list[float]]
    control: list[float]
    true: dict[str, float]
    slower: set[str]


def play(
    emulator: Any, gate: Any, runner_class: Any, rng: np.random.Generator, *, bad: bool
) -> Job:
    """Return one job with as many rounds as the longest row of the table needs."""
    history = emulator.History(rng)
    old = history.first()
    new, slower = history.regression() if bad else (history.clean(), set())
    machine = emulator.Job(history, rng, math.inf)
    names = list(emulator.BENCHMARKS)
    runner = runner_class(lambda _run, commit, name: machine.run(commit, name), names)
    changes: dict[str, list[float]] = {name: [] for name in names}
    control = []
    for number in range(max(PAIRS)):
        for name in names:
            changes[name].append(gate.pair(runner, name, old, new))
        control.append(gate.pair(runner, names[number % len(names)], old, old))
    before, after = history.seconds[old], history.seconds[new]
    return Job(changes, control, {n: math.log(after[n] / before[n]) for n in names}, slower)


def rows() -> Iterator[list[str]]:
    """Yield the head of the table, then one row for each number of pairs."""
    yield [
        "pairs",
        "median off by",
        "median alone: false alarms",
        "missed",
        "with bound and control: false alarms",
        "missed",
        "control off",
    ]
    emulator = load_judge(LAB).emulator()
    gate = load_module(LAB.solution / LAB.spec.entry)
    runner_class = load_module(LAB.path / "runner.py").Runner
    rng = np.random.default_rng(1)
    random.seed(1)
    jobs = [
        play(emulator, gate, runner_class, rng, bad=number >= CLEAN)
        for number in range(CLEAN + BAD)
    ]
    for pairs in PAIRS:
        misses = [
            abs(median(logs[:pairs]) - job.true[name])
            for job in jobs
            for name, logs in job.changes.items()
        ]
        errors = {"alone": [0, 0], "bound": [0, 0]}
        off = 0
        for job in jobs:
            silent = gate.is_slower(job.control[:pairs])
            off += silent
            seen = {name: logs[:pairs] for name, logs in job.changes.items()}
            alone = {n for n, logs in seen.items() if median(logs) > math.log(1 + gate.THRESHOLD)}
            bound = {n for n, logs in seen.items() if not silent and gate.is_slower(logs)}
            for rule, named in (("alone", alone), ("bound", bound)):
                wrong = job.slower - named if job.slower else named
                errors[rule][bool(job.slower)] += bool(wrong)
        yield [
            str(pairs),
            f"{math.expm1(float(np.quantile(misses, 0.95))):.1%}",
            *(
                f"{count / jobs_:.2%}"
                for counts in errors.values()
                for count, jobs_ in zip(counts, (CLEAN, BAD), strict=True)
            ),
            f"{off / len(jobs):.2%}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="renew the solution's write-up")
    options = parser.parse_args()
    head, *body = rows()
    text = table(head, body)
    print(text)
    if options.write:
        page = LAB.solution / "README.md"
        page.write_text(renew(page.read_text("utf-8"), "pairs", text), "utf-8")


if __name__ == "__main__":
    main()
