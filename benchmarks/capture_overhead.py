"""Measure what torch.profiler costs the workload that it captures: step time with and without it,
in turns, in one run.

    python benchmarks/capture_overhead.py [--photos DIR] [--pairs 12]

Runs the shipped `idle-gpu` script on the emulated device, with the same device time on both sides.
Prints the median step of each side in ms and the ratio; goal: at most 1.10.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from bottleneck_lab.analysis.statistics import median_interval
from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.input_pipeline import KIND
from bottleneck_lab.measure.kinds.input_pipeline.records import PipelineRun
from bottleneck_lab.measure.kinds.input_pipeline.run import PROFILED_BATCHES, run_script
from bottleneck_lab.measure.kinds.profiling import SCHEDULE
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.workspace.home import dataset_root

GOAL = 1.10
CONFIDENCE = 0.95


def steps_ms(run: PipelineRun) -> list[float]:
    """Intervals between the arrivals of the timed batches, in ms, the first few left out."""
    arrived = [step.arrived_ns / 1e6 for step in run.timed()][
        SCHEDULE["wait"] + SCHEDULE["warmup"] :
    ]
    return [later - earlier for earlier, later in pairwise(arrived)]


def measure(photos: Path, pairs: int) -> tuple[list[float], list[float]]:
    """Median step in ms of each run, plain and profiled."""
    plain: list[float] = []
    profiled: list[float] = []
    lab, step_s = find_lab("idle-gpu"), None
    settings = KIND.settings(lab, "virtual")
    for pair in range(pairs):
        for side in (plain, profiled) if pair % 2 == 0 else (profiled, plain):
            with Janitor() as janitor, tempfile.TemporaryDirectory() as out:
                context = Context(
                    lab, "virtual", settings, lab.path, lab.path, photos, janitor, lambda *_: None
                )
                trace = Path(out, "trace.json.gz") if side is profiled else None
                status, run, step_s = run_script(
                    context, lambda _: None, PROFILED_BATCHES, trace, step_s
                )
                if status:
                    sys.exit(f"the workload ended with status {status}")
                side.append(statistics.median(steps_ms(run)))
    return plain, profiled


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--photos", type=Path, default=dataset_root("photos"), help="what `lab data` made"
    )
    parser.add_argument("--pairs", type=int, default=12)
    options = parser.parse_args()
    plain, profiled = measure(options.photos, options.pairs)
    ratios = [b / a for a, b in zip(plain, profiled, strict=True)]
    ratio, interval = statistics.median(ratios), median_interval(ratios, CONFIDENCE)
    print(
        f"plain     {statistics.median(plain):7.1f} ms per step  "
        f" ({min(plain):.1f}-{max(plain):.1f}, {len(plain)} runs)"
    )
    print(
        f"profiled  {statistics.median(profiled):7.1f} ms per step  "
        f" ({min(profiled):.1f}-{max(profiled):.1f})"
    )
    print(f"ratio     {ratio:7.3f} (median of pairs; goal at most {GOAL})")
    print(
        f"          {CONFIDENCE:.0%} interval {interval.low:.3f}-{interval.high:.3f}, from ranks of"
        " the pairs"
    )
    return int(ratio > GOAL)


if __name__ == "__main__":
    sys.exit(main())
