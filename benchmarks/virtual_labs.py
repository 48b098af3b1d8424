"""The figures of the labs on the virtual GPU: the shipped script, the solution and every variant, as `lab check` reads them.

    python benchmarks/virtual_labs.py [--lab sync-points …] [--repeat 2]

All of them are modelled or counted and repeat exactly, on any machine and under any load: with --repeat the spread is printed and must be 0.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from bottleneck_lab.catalog import Lab, find_lab, load_labs
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.training import figures
from bottleneck_lab.measure.kinds.training.check import train_modelled
from bottleneck_lab.measure.lab_rules import variants
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.submission import collect_pristine
from bottleneck_lab.measure.virtual_gpu.engine import Figures

SEED = 7


def scripts(lab: Lab) -> Iterator[tuple[str, Path | None]]:
    """Name and folder of everything that has a known answer; the shipped script has no folder of its own."""
    yield "as shipped", None
    yield "solution", lab.solution
    yield from ((folder.name.replace("_", " "), folder) for folder in variants(lab, "virtual"))


def measure(lab: Lab, overlay: Path | None) -> Figures:
    """One training on the virtual GPU, in the sandbox that a check has."""
    with Janitor() as janitor:
        folder = janitor.folder / "script"
        collect_pristine(lab, folder, overlay)
        settings = kind_of(lab).settings(lab, "virtual")
        context = Context(
            lab, "virtual", settings, folder, folder, folder, folder, janitor, lambda _doing, _share: None
        )
        (training,) = train_modelled(context, "reference", folder, [SEED])
        assert training.figures is not None
        return training.figures


def row(name: str, shipped: Figures, seen: Figures, interval: int) -> str:
    faster = figures.step_time_us(shipped) / figures.step_time_us(seen)
    cells = [
        f"{figures.step_time_us(seen) / 1000:.3f}",
        f"{faster:.2f}x",
        f"{figures.launches_per_step(seen):.0f}",
        f"{figures.waits_per_interval(seen, interval)}",
        f"{figures.peak_mib(seen):.2f}",
        f"{figures.growth_mib(seen):.2f}",
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lab", nargs="+")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    names = options.lab or [name for name, lab in load_labs().items() if lab.spec.measure == "training"]
    for name in names:
        lab = find_lab(name)
        interval = kind_of(lab).settings(lab, "virtual").interval
        print(
            f"\n{name}\n\n| script | ms a step | against the shipped | launches a step | waits an interval | peak MiB | growth MiB |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        shipped = None
        for label, folder in scripts(lab):
            runs = [measure(lab, folder) for _ in range(options.repeat)]
            shipped = shipped or runs[0]
            print(row(label, shipped, runs[0], interval), flush=True)
            spread = max(run.total_us for run in runs) - min(run.total_us for run in runs)
            if options.repeat > 1:
                print(f"  spread of {options.repeat} runs: {spread} us")


if __name__ == "__main__":
    main()
