"""Old, new, new, old for each benchmark; the mean of the middle half of the ratios."""

import json
import math


def gate(runner, commit, baseline_file):
    if not baseline_file.exists():
        baseline_file.write_text(json.dumps({"reference": commit}))
        return []
    reference = json.loads(baseline_file.read_text())["reference"]
    logs = {name: [] for name in runner.benchmarks}
    start = runner.seconds_left()
    rounds = 0
    while (
        runner.seconds_left() > 60 + 1.6 * (start - runner.seconds_left()) / max(rounds, 1)
        and rounds < 30
    ):
        for name in runner.benchmarks:
            a = runner.run(reference, name)
            b = runner.run(commit, name)
            c = runner.run(commit, name)
            d = runner.run(reference, name)
            logs[name] += [math.log(b / a), math.log(c / d)]
        rounds += 1
    slower = [name for name in logs if middle(logs[name]) > math.log(1.055)]
    if not slower:
        baseline_file.write_text(json.dumps({"reference": commit}))
    return slower


def middle(values):
    values = sorted(values)
    cut = len(values) // 4
    kept = values[cut : len(values) - cut]
    return sum(kept) / len(kept)
