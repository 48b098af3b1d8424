"""Looks after 15, 25 and 35 pairs; a benchmark that is decided is measured no more."""

import json
import math
import random
from statistics import median


def gate(runner, commit, baseline_file):
    state = json.loads(baseline_file.read_text()) if baseline_file.exists() else {"accepted": []}
    slower = compare(runner, state["accepted"][-1], commit) if state["accepted"] else []
    if not slower:
        state["accepted"] = [*state["accepted"][-20:], commit]
        baseline_file.write_text(json.dumps(state, indent=1))
    return slower


def compare(runner, old, new):
    logs = {name: [] for name in runner.benchmarks}
    open_, slower = list(runner.benchmarks), []
    for look, low_at, high_at in ((15, 2, 12), (25, 6, 18), (42, 13, 28)):
        for name in list(open_):
            while len(logs[name]) < look and runner.seconds_left() > 30:
                order = [old, new]
                random.shuffle(order)
                took = {which: runner.run(which, name) for which in order}
                logs[name].append(math.log(took[new] / took[old]))
            ordered = sorted(logs[name])
            if len(ordered) < look:
                continue
            if ordered[low_at] > 0.05:
                slower.append(name)
                open_.remove(name)
            elif ordered[high_at] < 0.05:
                open_.remove(name)
    return slower + [name for name in open_ if median(logs[name]) > 0.053]
