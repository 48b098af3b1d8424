"""Runs of both in one shuffled order; the ratio of their medians."""

import json
import random
from statistics import median


def gate(runner, commit, baseline_file):
    known = baseline_file.exists()
    slower = []
    if known:
        last = json.loads(baseline_file.read_text())
        for position, name in enumerate(runner.benchmarks):
            share = (runner.seconds_left() - 40 * (position == 0) - 30) / (
                len(runner.benchmarks) - position
            )
            slower += [name] if ratio(runner, last, commit, name, share) > 1.055 else []
    if not slower:
        baseline_file.write_text(json.dumps(commit))
    return slower


def ratio(runner, old, new, name, share):
    runner.run(old, name)
    runner.run(new, name)
    until = runner.seconds_left() - share + 12
    ratios = []
    while len(ratios) < 50 and runner.seconds_left() > until:
        four = [old, old, new, new]
        random.shuffle(four)
        took = {old: [], new: []}
        for which in four:
            took[which].append(runner.run(which, name))
        ratios.append(min(took[new]) / min(took[old]))
        ratios.append(max(took[new]) / max(took[old]))
    return median(ratios)
