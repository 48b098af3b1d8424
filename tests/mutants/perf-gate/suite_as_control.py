import json
import math
import random
from statistics import median


def gate(runner, commit, baseline_file):
    slower = []
    if baseline_file.exists():
        old = json.loads(baseline_file.read_text())["sha"]
        rounds, used = [], 0.0
        while len(rounds) < 45 and runner.seconds_left() > 1.6 * used + 5:
            before = runner.seconds_left()
            changes = {}
            for name in random.sample(runner.benchmarks, len(runner.benchmarks)):
                sides = [old, commit] if random.random() < 0.5 else [commit, old]
                took = {side: runner.run(side, name) for side in sides}
                changes[name] = math.log(took[commit] / took[old])
            rounds.append(changes)
            if len(rounds) > 1:
                used = max(used, before - runner.seconds_left())
            else:
                used = max(0.0, before - runner.seconds_left() - 40)
        slower = [name for name in runner.benchmarks if beyond(rounds, name) > 0.052]
    if not slower:
        baseline_file.write_text(json.dumps({"sha": commit}))
    return slower


def beyond(rounds, name):
    """How much slower, once what the untouched half of the suite did is taken off."""
    totals = {other: median(changes[other] for changes in rounds) for other in rounds[0]}
    return totals[name] - median(totals.values())
