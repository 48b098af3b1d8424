"""The gate in front of main: which benchmarks did this commit make slower?

Both commits are measured in the same job, alternately. The baseline file names the commit that
passed last and holds no times: those belong to another day's machine.
"""

import json
import math
import random
from math import comb
from statistics import median

THRESHOLD = 0.05  # halfway between nothing and the tenth that must not pass
ROUNDS = 60
RESERVE = 1.5  # a round may be this many times as long as the longest so far


def gate(runner, commit, baseline_file):
    """Names the benchmarks that `commit` made slower than the last commit that passed; an empty
    list lets it pass.

    `baseline_file` (a pathlib.Path) holds what the previous job wrote; before the first job it does
    not exist.
    """
    slower = []
    if baseline_file.exists():
        passed = json.loads(baseline_file.read_text())["commit"]
        slower = compare(runner, passed, commit)
    if not slower:
        baseline_file.write_text(json.dumps({"commit": commit}))
    return slower


def compare(runner, passed, commit):
    """The benchmarks in which `commit` is slower than `passed`, judged by pairs of runs next to
    each other in time.
    """
    # Log of new over old time, pair by pair.
    changes = {benchmark: [] for benchmark in runner.benchmarks}
    control = []  # the same for the old commit against itself
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
        # The same code came out slower than itself: this machine can tell us nothing today
        return []
    return [benchmark for benchmark, logs in changes.items() if is_slower(logs)]


def pair(runner, benchmark, old, new):
    """The logarithm of new over old time, measured back to back; a coin toss decides which goes
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
    """Whether the median lies above the threshold, and the true median above 0 with 99% confidence.

    A few stalled runs hardly move medians and order statistics, which assume no distribution.
    """
    n, rank, tail = len(logs), 0, 0.5 ** len(logs)
    while tail <= 0.01:
        rank += 1
        tail += comb(n, rank) * 0.5**n
    return rank > 0 and median(logs) > math.log(1 + THRESHOLD) and sorted(logs)[rank - 1] > 0
