"""The modelled figures of the distributed lab: the shipped script, the solution and every variant on 4 and 8 emulated ranks.

    python benchmarks/ddp_emulation.py [--only solution] [--repeat 2]

Modelled times repeat exactly, on any machine and under any load: with --repeat the spread is printed and must be 0. Wall time and memory (the
sum of the processes' proportional set sizes, sampled) are this machine's.
"""

import argparse
import shutil
import threading
import time
from pathlib import Path

import psutil

from bottleneck_lab.measure.janitor import Janitor
from bottleneck_lab.measure.ranks.costs import load_costs
from bottleneck_lab.measure.ranks.emulation import Run, Secret, crew
from bottleneck_lab.measure.ranks.virtual import same_training

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
    """Largest sum, in GiB, of what this process' children hold; shared pages are counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(1.0):
            self.peak = max(self.peak, sum(map(_pss_gib, psutil.Process().children(recursive=True))))


def _pss_gib(process: psutil.Process) -> float:
    """A process' proportional share of memory; 0 for one that is gone."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 2**20


def run(script: Path, secret: Secret) -> tuple[dict[int, Run], float, float]:
    """The runs on 8 and 4 ranks, their wall seconds and peak memory."""
    memory, start = PeakMemory(), time.monotonic()
    memory.start()
    with Janitor() as janitor:
        folder = janitor.folder / "code"
        folder.mkdir()
        shutil.copy(LAB / "recipe.py", folder)
        shutil.copy(script, folder / "train.py")
        with crew(folder, "train.py", load_costs(LAB), [8, 4], janitor.folder / "scratch", janitor) as ranks:
            found = {world: ranks.run(secret) for world in (8, 4)}
    memory.done.set()
    return found, time.monotonic() - start, memory.peak


def spread(runs: list[dict[int, Run]]) -> float:
    """The largest relative difference of a modelled step time between two of the runs."""
    times = [[found[world].step_ms for found in runs] for world in (4, 8)]
    return max(max(some) / min(some) - 1 for some in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one script's name")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    secret = Secret(3, 7)
    reference = run(LAB / "train.py", secret)[0]
    print(
        f"{'script':14} {'step at 4':>10} {'step at 8':>10} {'4 to 8':>7} {'overlap':>8} {'apart':>9} {'spread':>7} {'wall s':>7} {'GiB':>5}"
    )
    for name, script in scripts().items():
        if options.only in (None, name):
            seen = [run(script, secret) for _ in range(options.repeat)]
            found, wall_s, gib = seen[0]
            few, many = found[4], found[8]
            problem = same_training(many, reference[8]) or same_training(few, reference[4])
            print(
                f"{name:14} {few.step_ms:10.3f} {many.step_ms:10.3f} {many.images_per_s / few.images_per_s:7.3f} {many.overlap_share:8.1%} "
                f"{max(found[world].difference(reference[world]) for world in found):9.2e} "
                f"{spread([one for one, _, _ in seen]):7.2%} {wall_s:7.1f} {gib:5.2f} {problem or 'same training'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
