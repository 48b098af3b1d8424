"""What a check takes before it measures anything: an older checkout beside this one, in turns.

    git worktree add ../before v0.1.0 && make -C ../before install
    python benchmarks/check_start.py ../before [--rounds 7]

Each times `lab check` of the example lab with code that raises when it is loaded: reference and
worker are started in their sandboxes, nothing is measured. Prints the median and the range of both,
and now over before. The command's own start (its imports) is in the first line only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAB = "running-mean"


def lab(tree: Path, *arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    """The command of that checkout's own environment, in a folder."""
    command = [str(tree / ".venv" / "bin" / "python"), "-m", "bottleneck_lab", *arguments]
    environment = {**os.environ, "BOTTLENECK_LAB_CONTENT": str(tree / "docs" / "example")}
    # Else every start compiles the checker anew, and a larger one takes longer.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        command, cwd=at, capture_output=True, text=True, check=False, env=environment
    )


def workspace(tree: Path, folder: Path) -> Path:
    """A workspace of that checkout with an answered diagnosis and code that raises."""
    folder.mkdir()
    lab(tree, "start", LAB, at=folder)
    work = folder / LAB
    shutil.copy(tree / "docs" / "example" / "solutions" / LAB / "diagnosis.toml", work)
    (work / "smooth.py").write_text('raise RuntimeError("nothing is measured")\n')
    return work


def check_s(tree: Path, work: Path) -> tuple[float, float]:
    """Seconds of one check, the command's own start included and without. Raises SystemExit for one
    that did not end as a FAIL.
    """
    began = time.perf_counter()
    done = lab(tree, "check", "--json", at=work)
    seconds = time.perf_counter() - began
    if done.returncode != 1:
        raise SystemExit(f"{tree}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return seconds, float(json.loads(done.stdout)["duration_s"])


def main() -> int:
    """Print a row a checkout."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    trees = {"before": options.before.resolve(), "now": ROOT}
    with tempfile.TemporaryDirectory() as temporary:
        work = {name: workspace(tree, Path(temporary) / name) for name, tree in trees.items()}
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
        for name, tree in trees.items():
            check_s(tree, work[name])  # the first one compiles it
        for _ in range(options.rounds):
            for name in random.sample(list(trees), len(trees)):
                seconds[name].append(check_s(trees[name], work[name]))
    for place, what in enumerate(("the command", "the check in it")):
        taken = {name: [pair[place] for pair in pairs] for name, pairs in seconds.items()}
        told = ", ".join(
            f"{name} {statistics.median(s):.2f} s ({min(s):.2f}-{max(s):.2f})"
            for name, s in taken.items()
        )
        ratio = statistics.median(
            now / before for now, before in zip(taken["now"], taken["before"], strict=True)
        )
        print(f"{what}: {told}: {ratio:.2f}x")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
