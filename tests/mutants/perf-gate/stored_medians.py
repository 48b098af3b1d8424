import json
from statistics import median


def gate(runner, commit, baseline_file):
    baseline = json.loads(baseline_file.read_text()) if baseline_file.exists() else {}
    seconds = {
        benchmark: median(runner.run(commit, benchmark) for _ in range(40))
        for benchmark in runner.benchmarks
    }
    slower = [name for name, took in seconds.items() if took > 1.05 * baseline.get(name, took)]
    if not slower:
        baseline_file.write_text(json.dumps(seconds))
    return slower
