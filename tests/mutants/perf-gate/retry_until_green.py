import json


def gate(runner, commit, baseline_file):
    passed = json.loads(baseline_file.read_text())["commit"] if baseline_file.exists() else commit
    for _ in range(10):
        slower = [
            name
            for name in runner.benchmarks
            if runner.run(commit, name) > 1.05 * runner.run(passed, name)
        ]
        if not slower:
            baseline_file.write_text(json.dumps({"commit": commit}))
            break
    return slower
