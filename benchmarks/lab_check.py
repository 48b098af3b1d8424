"""How long a whole `lab check` takes, as a learner waits for it: starter and solution of each lab
named, in one run.

    python benchmarks/lab_check.py [--labs dataloader] [--rounds 1]

Prints seconds, outcome, and the ratio to the goal of 60 s. Uses the data set of
BOTTLENECK_LAB_HOME; makes it first when it is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bottleneck_lab.catalog import find_lab

GOAL_S = 60.0


def lab(*arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    """The real command in a folder."""
    command = [sys.executable, "-m", "bottleneck_lab", *arguments]
    return subprocess.run(
        command, cwd=at, capture_output=True, text=True, check=False, env=os.environ
    )


def check_s(folder: Path) -> tuple[float, str]:
    """Seconds that `lab check` takes, from typing it to the verdict, and the verdict's outcome."""
    began = time.perf_counter()
    done = lab("check", "--json", at=folder)
    seconds = time.perf_counter() - began
    verdict = json.loads(done.stdout)
    return seconds, f"{verdict['outcome']} {verdict['reason'] or ''}".strip()


def main() -> int:
    """Print a row a check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labs", nargs="+", default=["idle-gpu"])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory() as place:
        for slug in options.labs * options.rounds:
            folder = Path(tempfile.mkdtemp(dir=place)) / slug
            started = lab("start", slug, str(folder), at=Path(place))
            if started.returncode:
                sys.exit(started.stderr)
            lab(
                "solution", "--show", "--yes", at=folder
            )  # after it a check asks for no evidence of one's own capture
            (folder / "diagnosis.toml").write_bytes(
                (find_lab(slug).solution / "diagnosis.toml").read_bytes()
            )
            for which in ("starter", "solution"):
                if which == "solution":
                    lab("solution", "--yes", at=folder)
                seconds, outcome = check_s(folder)
                worst = max(worst, seconds)
                print(
                    f"{slug:16} {which:9} {seconds:6.1f} s  {seconds / GOAL_S:5.2f} of the goal "
                    f" {outcome}",
                    flush=True,
                )
    return int(worst > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
