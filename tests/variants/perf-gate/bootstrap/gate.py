"""The median ratio of interleaved pairs, with a bootstrap interval."""

import json

import numpy as np


def gate(runner, commit, baseline_file):
    rng = np.random.default_rng()
    slower = []
    if baseline_file.exists():
        old = baseline_file.read_text().strip()
        ratios = {name: [] for name in runner.benchmarks}
        first = runner.seconds_left()
        name = runner.benchmarks[0]
        while (
            len(ratios[name]) < 40
            and runner.seconds_left()
            > 1.8 * (first - runner.seconds_left()) / max(1, len(ratios[name])) + 45
        ):
            for name in runner.benchmarks:
                if rng.random() < 0.5:
                    a, b = runner.run(old, name), runner.run(commit, name)
                else:
                    b, a = runner.run(commit, name), runner.run(old, name)
                ratios[name].append(b / a)
        for name, values in ratios.items():
            again = np.median(rng.choice(values, (1000, len(values))), axis=1)
            if np.quantile(again, 0.02) > 1.01 and np.median(values) > 1.05:
                slower.append(name)
    if not slower:
        baseline_file.write_text(commit)
    return slower
