import json
from statistics import mean


def gate(runner, commit, baseline_file):
    slower = []
    if baseline_file.exists():
        passed = json.loads(baseline_file.read_text())
        for benchmark in runner.benchmarks:
            before = mean(runner.run(passed, benchmark) for _ in range(20))
            after = mean(runner.run(commit, benchmark) for _ in range(20))
            if after > 1.05 * before:
                slower.append(benchmark)
    if not slower:
        baseline_file.write_text(json.dumps(commit))
    return slower
