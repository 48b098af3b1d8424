"""The CI job: gates one commit of a git repository. Exit status 0 lets it pass, 1 stops it.

python ci.py HEAD --baseline baseline.json --benchmark "sort=python bench_sort.py" --benchmark
"parse=python bench_parse.py"
"""

import argparse
import subprocess
import sys
from pathlib import Path

from gate import gate
from runner import Here


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit")
    parser.add_argument("--repository", default=".")
    parser.add_argument("--baseline", type=Path, default=Path("baseline.json"))
    parser.add_argument("--benchmark", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--seconds", type=float, default=900, help="time limit of the job")
    options = parser.parse_args()
    commands = dict(benchmark.split("=", 1) for benchmark in options.benchmark)
    name = ["git", "-C", options.repository, "rev-parse", "--verify", options.commit + "^{commit}"]
    commit = subprocess.run(name, check=True, capture_output=True, text=True).stdout.strip()
    runner = Here(options.repository, commands, options.seconds)
    try:
        slower = gate(runner, commit, options.baseline)
    finally:
        runner.close()
    for benchmark in slower:
        print(f"{benchmark} is slower than before")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
