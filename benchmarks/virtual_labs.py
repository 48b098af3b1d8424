"""The figures of the labs on the virtual GPU: the shipped script, the solution and every variant,
as `lab check` reads them.

    python benchmarks/virtual_labs.py [--lab sync-points …] [--repeat 2] [--write]

All of them are modelled or counted and repeat on any machine and under any load, but for what waits
for Python's garbage collector; --repeat tells the spread. --write renews the tables in
docs/measured/virtual_labs.md and in the solutions' write-ups.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from bottleneck_lab.catalog import Lab, find_lab, load_labs
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.training import figures
from bottleneck_lab.measure.kinds.training.session import train_modelled
from bottleneck_lab.measure.lab_rules import variants
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.submission import collect_pristine
from bottleneck_lab.measure.virtual_gpu.books import Figures

SEED = 7
PAGE = Path(__file__).resolve().parents[1] / "docs" / "measured" / "virtual_labs.md"
HEAD = (
    (
        "| script | ms per step | against the shipped | launches per step | waits per interval |"
        " peak MiB | growth MiB |"
    ),
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def scripts(lab: Lab) -> Iterator[tuple[str, Path | None]]:
    """Name and folder of everything that has a known answer; the shipped script has no folder of
    its own.
    """
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
            lab,
            "virtual",
            settings,
            folder,
            folder,
            folder,
            folder,
            janitor,
            lambda _doing, _share: None,
        )
        (training,) = train_modelled(context, "reference", folder, [SEED])
        assert training.figures is not None
        return training.figures


def row(name: str, shipped: Figures, seen: Figures, interval: int) -> str:
    cells = [
        f"{figures.step_time_us(seen) / 1000:.3f}",
        f"{figures.step_time_us(shipped) / figures.step_time_us(seen):.2f}x",
        f"{figures.launches_per_step(seen):.0f}",
        f"{figures.waits_per_interval(seen, interval)}",
        f"{figures.peak_mib(seen):.2f}",
        f"{round(figures.growth_mib(seen.step_bytes), 2) + 0.0:.2f}",
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def rows(lab: Lab, repeat: int) -> Iterator[str]:
    """The table of one lab, a line at a time; how far runs of a script lie apart goes to the
    standard error.
    """
    interval = kind_of(lab).settings(lab, "virtual").interval
    yield from HEAD
    shipped = None
    for label, folder in scripts(lab):
        runs = [measure(lab, folder) for _ in range(repeat)]
        if repeat > 1:
            spread = max(run.total_us for run in runs) - min(run.total_us for run in runs)
            print(f"{label}: spread of {repeat} runs {spread} us", file=sys.stderr)
        shipped = shipped or runs[0]
        yield row(label, shipped, runs[0], interval)


def renew(page: Path, name: str, table: list[str]) -> None:
    """Puts a table between the marks that name its lab."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    page.write_text("\n".join([before + begin, *table, end + after]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lab", nargs="+")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    names = options.lab or [
        name for name, lab in load_labs().items() if lab.spec.measure == "training"
    ]
    for name in names:
        lab = find_lab(name)
        table: list[str] = []
        print(f"\n{name}\n")
        for line in rows(lab, options.repeat):
            print(line, flush=True)
            table.append(line)
        if options.write:
            renew(PAGE, name, table)
            renew(lab.solution / "README.md", name, table)


if __name__ == "__main__":
    main()
