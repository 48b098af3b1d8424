"""The modelled figures of the distributed lab: the shipped script, the solution and every variant
on 4 and 8 emulated ranks.

    python benchmarks/ddp_emulation.py [--only NAME …] [--repeat 2]
    python benchmarks/ddp_emulation.py --checks [--only NAME …]   # whole checks of what passes

Modelled times repeat exactly, on any machine and under any load: with --repeat the spread is
printed and must be 0. Wall time and memory (the sum of the proportional set sizes of all processes,
the verifier's own included, sampled) are this machine's.
"""

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path

import psutil

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import load_costs
from bottleneck_lab.measure.kinds.data_parallel.figures import EmulatedRun
from bottleneck_lab.measure.kinds.data_parallel.judging import same_training
from bottleneck_lab.measure.kinds.data_parallel.session import Secret, crew
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.verifier import check_lab

ROOT = Path(__file__).parents[1]
LAB = ROOT / "labs" / "ddp-scaling"


def scripts() -> dict[str, Path]:
    """Name and script of everything that has a known answer."""
    variants = sorted((ROOT / "tests" / "variants" / "ddp-scaling").iterdir())
    return {
        "shipped": LAB / "train.py",
        "solution": ROOT / "solutions" / "ddp-scaling" / "train.py",
        **{folder.name: folder / "train.py" for folder in variants},
    }


class PeakMemory(threading.Thread):
    """Largest sum, in GiB, of what this process and its children hold while this is entered; shared
    pages are counted once.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self.done = threading.Event()

    def run(self) -> None:
        this = psutil.Process()
        while not self.done.wait(0.5):
            self.peak = max(self.peak, sum(map(_pss_gib, [this, *this.children(recursive=True)])))

    def __enter__(self) -> "PeakMemory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()


def _pss_gib(process: psutil.Process) -> float:
    """A process' proportional share of memory; 0 for one that is gone."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 2**20


def run(script: Path, secret: Secret) -> tuple[dict[int, EmulatedRun], float, float]:
    """The runs on 8 and 4 ranks, their wall seconds and peak memory."""
    start = time.monotonic()
    with PeakMemory() as memory, Janitor() as janitor:
        folder = janitor.folder / "code"
        folder.mkdir()
        shutil.copy(LAB / "recipe.py", folder)
        shutil.copy(script, folder / "train.py")
        with crew(
            folder, "train.py", load_costs(LAB), [8, 4], janitor.folder / "scratch", janitor
        ) as ranks:
            runs = {world: ranks.run(secret) for world in (8, 4)}
    return runs, time.monotonic() - start, memory.peak


def check(script: Path) -> str:
    """A row of what a learner's check of this script comes to."""
    lab, start = find_lab("ddp-scaling"), time.monotonic()
    with PeakMemory() as memory, tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        shutil.copy(LAB / "recipe.py", workspace)
        shutil.copy(script, workspace / "train.py")
        verdict = check_lab(lab, workspace, "virtual", data=workspace)
    measured = verdict.measurement
    figures = (
        f"{measured['scaling']:7.3f} {measured['overlap_share']:8.1%} {measured['difference']:9.2e}"
    )
    return f"{verdict.outcome:8} {figures} {time.monotonic() - start:7.1f} {memory.peak:5.2f}"


def spread(runs: list[dict[int, EmulatedRun]]) -> float:
    """The largest relative difference of a modelled step time between two of the runs."""
    times = [[by_world[world].step_ms for by_world in runs] for world in (4, 8)]
    return max(max(some) / min(some) - 1 for some in times)


def compare(names: dict[str, Path], repeat: int) -> None:
    """A row a script: the modelled figures, against the shipped script's run on the same secret
    batches.
    """
    secret = Secret(3, 7)
    reference = run(LAB / "train.py", secret)[0]
    print(
        f"{'script':14} {'step at 4':>10} {'step at 8':>10} {'4 to 8':>7} {'overlap':>8}"
        f" {'apart':>9} {'spread':>7} {'wall s':>7} {'GiB':>5}"
    )
    for name, script in names.items():
        seen = [run(script, secret) for _ in range(repeat)]
        runs, wall_s, gib = seen[0]
        few, many = runs[4], runs[8]
        problem = same_training(many, reference[8]) or same_training(few, reference[4])
        print(
            f"{name:14} {few.step_ms:10.3f} {many.step_ms:10.3f}"
            f" {many.samples_per_s / few.samples_per_s:7.3f} {many.overlap_share:8.1%}"
            f" {max(runs[world].difference(reference[world]) for world in runs):9.2e}"
            f" {spread([one for one, _, _ in seen]):7.2%} {wall_s:7.1f} {gib:5.2f}"
            f" {problem or 'same training'}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="names of scripts")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--checks", action="store_true", help="whole checks in place of runs")
    options = parser.parse_args()
    names = {
        name: script
        for name, script in scripts().items()
        if options.only is None or name in options.only
    }
    if not options.checks:
        compare(names, options.repeat)
        return
    print(
        f"{'script':14} {'outcome':8} {'4 to 8':>7} {'overlap':>8} {'apart':>9} {'wall s':>7}"
        f" {'GiB':>5}"
    )
    for name, script in names.items():
        print(f"{name:14} {check(script)}", flush=True)


if __name__ == "__main__":
    main()
