"""Data rates on the photographs: the shipped loader of lab idle-gpu beside its solution and
variants, all in one run.

    python benchmarks/data_rates.py [--photos DIR] [--batches 12] [--rounds 3]

Every script feeds a device that takes no time, on two cores. A round runs them all once, in a new
random order, each in a fresh process: 4 batches to warm up, then `--batches` on the clock. CPU time
is that of the whole process tree. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from markdown_tables import head, row

from bottleneck_lab.workspace.home import dataset_root

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "labs" / "idle-gpu"
WAYS = {
    "PIL, as shipped (1 worker)": LAB,
    "PIL, draft, uint8 (2 workers)": ROOT / "solutions" / "idle-gpu",
    "torchvision v2 (4 workers)": ROOT / "tests" / "variants" / "idle-gpu" / "v2-transforms",
    "DALI on the CPU (2 threads)": ROOT / "tests" / "variants" / "idle-gpu" / "dali",
    "packed uint8 (1 worker)": ROOT / "tests" / "variants" / "idle-gpu" / "packed",
}
WARM_UP_BATCHES = 4


class Sink:
    """A device that takes no time: it copies each batch, as any device must, and counts images,
    wall and CPU seconds.
    """

    def __init__(self, count: int, batches: int) -> None:
        self.count, self.batches = count, batches
        self.images, self.wall_s, self.cpu_s = 0, 0.0, 0.0

    def epochs(self):
        """A warm-up, then the timed epoch."""
        import recipe

        rng = random.Random(1)
        for number, batches in enumerate((WARM_UP_BATCHES, self.batches)):
            order = rng.sample(range(self.count), batches * recipe.BATCH_SIZE)
            self.images, self.wall_s, self.cpu_s = 0, -_wall_s(), -_tree_cpu_s()
            yield recipe.Epoch(number, number, order)

    def step(self, images, labels) -> None:
        """Take a copy."""
        import numpy as np

        self.images += len(np.asarray(labels))
        np.asarray(images).copy()

    def synchronize(self) -> None:
        """The clock stops."""
        self.wall_s += _wall_s()
        self.cpu_s += _tree_cpu_s()


def _wall_s() -> float:
    import time

    return time.perf_counter()


def _tree_cpu_s() -> float:
    """CPU seconds of this process and of all it has started, those already gone included."""
    import psutil

    this = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (this, *this.children(recursive=True)))


def feed_once(folder: Path, photos: Path, cache: Path, batches: int) -> None:
    """Run one script and print its figures as JSON. The process has nothing else to do."""
    sys.path += [str(folder), str(LAB)]
    import recipe
    import train

    if hasattr(train, "prepare") and not any(cache.iterdir()):
        train.prepare(photos, cache)
    sink = Sink(len(recipe.photographs(photos)), batches)
    train.train(sink, photos, cache)
    print(
        json.dumps(
            {"images_per_s": sink.images / sink.wall_s, "cpu_ms": 1000 * sink.cpu_s / sink.images}
        )
    )


def measure(photos: Path, batches: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Figures of every way in every round."""
    figures: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(rounds):
            for way in random.sample(list(WAYS), len(WAYS)):
                command = [
                    sys.executable,
                    __file__,
                    "--photos",
                    str(photos),
                    "--batches",
                    str(batches),
                ]
                command += ["--way", str(WAYS[way]), "--cache", cache]
                output = subprocess.run(
                    command, check=True, stdout=subprocess.PIPE, text=True
                ).stdout
                figures[way].append(json.loads(output.splitlines()[-1]))
    return figures


def print_table(figures: dict[str, list[dict[str, float]]]) -> None:
    """Medians and ratios to the shipped script, as Markdown."""
    middle = {
        way: {key: median(run[key] for run in runs) for key in runs[0]}
        for way, runs in figures.items()
    }
    shipped = middle[next(iter(WAYS))]
    print(head(["way", "images/s", "of the shipped", "CPU ms an image", "of the shipped"]))
    for way, known in middle.items():
        rate, cost = known["images_per_s"], known["cpu_ms"]
        ratios = rate / shipped["images_per_s"], cost / shipped["cpu_ms"]
        print(row([way, f"{rate:.0f}", f"{ratios[0]:.2f}x", f"{cost:.1f}", f"{ratios[1]:.2f}"]))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--photos", type=Path, default=dataset_root("photos"), help="what `lab data` made"
    )
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    if options.way:
        feed_once(options.way, options.photos, options.cache, options.batches)
    else:
        print_table(measure(options.photos, options.batches, options.rounds))


if __name__ == "__main__":
    main()
