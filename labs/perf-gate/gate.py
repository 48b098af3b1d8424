"""The gate in front of main: which benchmarks did this commit make slower?"""

import json

THRESHOLD = 0.05


def gate(runner, commit, baseline_file):
    """Names the benchmarks that `commit` made slower than the last commit that passed; an empty
    list lets it pass.

    `baseline_file` (a pathlib.Path) holds what the previous job of the history wrote, as text of up
    to 64 kB; before the first job it does not exist. Nothing else is kept.
    """
    baseline = json.loads(baseline_file.read_text()) if baseline_file.exists() else {}

    seconds, slower = {}, []
    for benchmark in runner.benchmarks:
        seconds[benchmark] = runner.run(commit, benchmark)
        if benchmark in baseline and seconds[benchmark] > baseline[benchmark] * (1 + THRESHOLD):
            slower.append(benchmark)

    if not slower:
        baseline_file.write_text(json.dumps(seconds))
    return slower
