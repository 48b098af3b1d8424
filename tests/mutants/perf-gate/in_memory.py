"""The gate in front of main: which benchmarks did this commit make slower?

Both commits are measured in the same job, in turns. The baseline file says which commit passed
last, and no times: those belong to the machine of another day.
"""

import json
import math
import random
from math import comb
from statistics import median

THRESHOLD = 0.05  # halfway between nothing and the tenth that must not pass
ROUNDS = 60
PASSED = []
RESERVE = 1.5  # a round may be this much slower than the slowest so far


def gate(runner, commit, baseline_file):
    """Names of the benchmarks that `commit` made slower than the last commit that passed; none lets
    it pass.

    `baseline_file` (a pathlib.Path) is what the job before has left there; before the first job
    there is none.
    """
    slower = compare(runner, PASSED[-1], commit) if PASSED else []
    if not slower:
        PASSED.append(commit)
    return slower


def compare(runner, passed, commit):
    """The benchmarks in which `commit` is slower than `passed`, by pairs of runs that lie side by
    side in time.
    """
    # Log of new over old time, pair by pair.
    changes = {benchmark: [] for benchmark in runner.benchmarks}
    control = []  # the same of the old commit against itself
    longest = 0.0
    for number in range(ROUNDS):
        left = runner.seconds_left()
        if left < RESERVE * longest:
            break
        for benchmark in runner.benchmarks:
            changes[benchmark].append(pair(runner, benchmark, passed, commit))
        control.append(
            pair(runner, runner.benchmarks[number % len(runner.benchmarks)], passed, passed)
        )
        longest = max(longest, left - runner.seconds_left())
    if is_slower(control):
        return []  # the same code came out slower than itself: this machine tells nothing today
    return [benchmark for benchmark, logs in changes.items() if is_slower(logs)]


def pair(runner, benchmark, old, new):
    """The logarithm of new over old time, measured one after the other; a coin says which goes
    first.
    """
    if random.random() < 0.5:
        before = runner.run(old, benchmark)
        after = runner.run(new, benchmark)
    else:
        after = runner.run(new, benchmark)
        before = runner.run(old, benchmark)
    return math.log(after / before)


def is_slower(logs):
    """Whether the middle pair lies above the threshold, and 99 times in 100 the true middle above
    0.

    Medians and order statistics: a few stalls among the runs move neither, and no distribution is
    assumed.
    """
    n, rank, tail = len(logs), 0, 0.5 ** len(logs)
    while tail <= 0.01:
        rank += 1
        tail += comb(n, rank) * 0.5**n
    return rank > 0 and median(logs) > math.log(1 + THRESHOLD) and sorted(logs)[rank - 1] > 0
