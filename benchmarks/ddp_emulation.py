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
from bottleneck_lab.measure.ranks.emulation import Run, Secret, emulate
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
        while not self.done.wait(0.5):
            total = 0
            for child in psutil.Process().children(recursive=True):
                try:
                    total += child.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak = max(self.peak, total / 2**30)


def run(script: Path, world: int, secret: Secret) -> tuple[Run, float, float]:
    """The run, its wall seconds and its peak memory."""
    memory, start = PeakMemory(), time.monotonic()
    memory.start()
    with Janitor() as janitor:
        folder = janitor.folder / "code"
        folder.mkdir()
        shutil.copy(LAB / "recipe.py", folder)
        shutil.copy(script, folder / "train.py")
        found = emulate(folder, "train.py", load_costs(LAB), world, secret, janitor.folder / "scratch", janitor)
    memory.done.set()
    return found, time.monotonic() - start, memory.peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one script's name")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    secret = Secret(3, 7)
    reference = run(LAB / "train.py", 8, secret)[0] if options.only != "shipped" else None
    print(
        f"{'script':14} {'step at 4':>10} {'step at 8':>10} {'4 to 8':>7} {'overlap':>8} {'apart':>9} {'spread':>7} {'wall s':>12} {'GiB':>5}"
    )
    for name, script in scripts().items():
        if options.only in (None, name):
            seen = [(run(script, 4, secret), run(script, 8, secret)) for _ in range(options.repeat)]
            (few, few_s, _), (many, many_s, gib) = seen[0]
            ratios = {two[0].images_per_s / one[0].images_per_s for one, two in seen}
            apart = many.difference(reference) if reference else 0.0
            problem = same_training(many, reference) if reference else None
            print(
                f"{name:14} {few.step_ms:10.3f} {many.step_ms:10.3f} {max(ratios):7.3f} {many.overlap_share:8.1%} {apart:9.2e} "
                f"{max(ratios) / min(ratios) - 1:7.2%} {few_s:5.1f} {many_s:5.1f}  {gib:5.2f} {problem or ''}",
                flush=True,
            )


if __name__ == "__main__":
    main()
