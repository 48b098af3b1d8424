import json


def gate(runner, commit, baseline_file):
    best = json.loads(baseline_file.read_text()) if baseline_file.exists() else {}
    slower = []
    for benchmark in runner.benchmarks:
        seconds = sorted(runner.run(commit, benchmark) for _ in range(20))[10]
        if seconds > 1.05 * best.get(benchmark, seconds):
            slower.append(benchmark)
        best[benchmark] = min(seconds, best.get(benchmark, seconds))
    baseline_file.write_text(json.dumps(best))
    return slower
