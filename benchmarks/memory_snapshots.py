"""How long, and in how much memory, `lab report` reads a memory snapshot, beside what plain
`pickle.load` takes for the same file (and would execute).

    python benchmarks/memory_snapshots.py [--megabytes 100 1000] [--depth 60] [--repeats 3]
        [--peer-megabytes 200] [--keep FOLDER]

The snapshot is made up (datasets/snapshots.py) and written by pickle as
`torch.cuda.memory._dump_snapshot` does, with stacks of --depth lines of Python. Wall time of the
whole command, start of the interpreter included, and its peak resident memory as the system counts
it: the median of --repeats. `pickle.load` alone builds the objects and looks at none; it is left
out above --peer-megabytes, where it takes many gigabytes. --keep leaves the snapshots in a folder,
where the next run finds them: making one of 1 GB takes longer than reading it, and 7 GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from markdown_tables import head, row

ROOT = Path(__file__).resolve().parents[1]
OURS = [sys.executable, "-m", "bottleneck_lab", "report", "--json"]
THEIRS = [sys.executable, "-c", "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"]
SAMPLE_EVENTS = 60_000


def make(folder: Path, events: int, depth: int) -> Path:
    """A snapshot of so many events."""
    path = folder / f"{events}-{depth}.pickle"
    if not path.exists():
        script = [sys.executable, str(ROOT / "datasets" / "snapshots.py"), "--out", str(path)]
        subprocess.run(
            [*script, "--events", str(events), "--depth", str(depth), "--layers", "400"], check=True
        )
    return path


def run(command: list[str], path: Path) -> tuple[float, float]:
    """Seconds and peak resident MB of one run."""
    begin = time.perf_counter()
    child = subprocess.Popen([*command, str(path)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{command} ended with {child.returncode}")
    return seconds, usage.ru_maxrss / 1024


def figures(name: str, runs: list[tuple[float, float]], megabytes: float, events: int) -> str:
    seconds, peak = median(run[0] for run in runs), median(run[1] for run in runs)
    spread = f"{seconds:.2f} ({min(run[0] for run in runs):.2f}-{max(run[0] for run in runs):.2f})"
    return row([name, f"{megabytes:.0f}", f"{events:,}", spread, f"{peak:.0f}"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--depth", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-megabytes", type=int, default=200)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    print(head(["reader", "MB", "events", "seconds (range)", "peak MB"]))
    with tempfile.TemporaryDirectory() as folder:
        kept = options.keep or Path(folder)
        event_bytes = make(kept, SAMPLE_EVENTS, options.depth).stat().st_size / SAMPLE_EVENTS
        for megabytes in options.megabytes:
            events = int(megabytes * 1e6 / event_bytes)
            path = make(kept, events, options.depth)
            size = path.stat().st_size / 1e6
            ours = [run(OURS, path) for _ in range(options.repeats)]
            print(figures("lab report", ours, size, events), flush=True)
            if megabytes <= options.peer_megabytes:
                theirs = [run(THEIRS, path) for _ in range(options.repeats)]
                print(figures("pickle.load, nothing analysed", theirs, size, events), flush=True)


if __name__ == "__main__":
    main()
