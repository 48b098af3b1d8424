"""Tables of the solutions' write-ups that need no clock: the shipped files, the solution and every
variant of the labs whose figures are modelled.

    python benchmarks/modelled_labs.py [--lab stuttering-tagger …] [--write]

Training labs run on the virtual GPU in the sandbox of a check, and are read as a check reads them.
Labs on measuring code run here, three times with fixed seeds, in the emulated machine's own time.
Every figure repeats on any machine and under any load.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from markdown_tables import head, renew, row

from bottleneck_lab.catalog import CriterionSpec, Lab, load_labs
from bottleneck_lab.grading.criteria import format_figure, format_limit
from bottleneck_lab.measure.context import Context, load_judge
from bottleneck_lab.measure.kinds.registry import kind_of
from bottleneck_lab.measure.kinds.training import figures
from bottleneck_lab.measure.kinds.training.session import train_trusted
from bottleneck_lab.measure.lab_rules.variants import variants
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.submission import collect_pristine
from bottleneck_lab.measure.virtual_gpu.books import Figures
from bottleneck_lab.measure.worker import load_module

TRAINING_SEED = 7
MEASURING_SEEDS = range(3)


def works(lab: Lab) -> Iterator[tuple[str, Path | None]]:
    """Yield name and folder of all right work; the shipped files have no folder of their own."""
    yield "as shipped", None
    yield "solution", lab.solution
    yield from ((folder.name.replace("_", " "), folder) for folder in variants(lab, "virtual"))


# ---- Training on the virtual GPU ----


def training_rows(lab: Lab) -> Iterator[list[str]]:
    """Yield the head of the table, then one row for each work."""
    interval = kind_of(lab).settings(lab, "virtual").interval
    of_memory = any(spec.id == "peak-mib" for spec in lab.spec.devices["virtual"].criteria)
    yield [
        "script",
        "ms per step",
        "against the shipped",
        "kernels per step",
        f"waits in {interval} steps",
        *(["peak MiB", "growth KiB per step"] if of_memory else []),
    ]
    shipped: Figures | None = None
    for name, folder in works(lab):
        seen = _train(lab, folder)
        shipped = shipped or seen
        growth = (
            round(figures.growth_kib_per_step(seen.step_bytes, interval), 2) + 0.0
        )  # Never -0.00.
        yield [
            name,
            f"{figures.step_time_us(seen) / 1000:.3f}",
            f"{figures.step_time_us(shipped) / figures.step_time_us(seen):.2f}x",
            f"{figures.launches_per_step(seen):.0f}",
            f"{figures.waits_per_interval(seen)}",
            *([f"{figures.peak_mib(seen):.2f}", f"{growth:.2f}"] if of_memory else []),
        ]


def _train(lab: Lab, overlay: Path | None) -> Figures:
    with Janitor() as janitor:
        folder = janitor.folder / "script"
        collect_pristine(lab, folder, overlay)
        settings = kind_of(lab).settings(lab, "virtual")
        context = Context(
            lab, "virtual", settings, folder, folder, folder, janitor, lambda _doing, _share: None
        )
        return train_trusted(context, folder, TRAINING_SEED).engine_figures()


# ---- Measuring on an emulated machine ----


def measuring_rows(lab: Lab) -> Iterator[list[str]]:
    """Yield the head of the table, then one row for each work: its worst and best figures."""
    criteria = [spec for spec in lab.spec.devices["virtual"].criteria if spec.unit]
    labels = {spec.id: spec.label or spec.id for spec in lab.spec.devices["virtual"].criteria}
    yield ["", *(labels[spec.id] for spec in criteria), "outcome"]
    yield ["wanted", *(_limit(spec) for spec in criteria), ""]
    for name, folder in works(lab):
        entry = (folder or lab.path) / lab.spec.entry
        judged = [_judge(lab, entry, seed) for seed in MEASURING_SEEDS]
        cells = [
            _range(spec.unit, [one[spec.id][2] for one in judged if spec.id in one])
            for spec in criteria
        ]
        failed = sorted({id_ for one in judged for id_, part in one.items() if part[0]})
        yield [name, *cells, f"FAIL ({len(failed)} of {len(labels)})" if failed else "PASS"]


def _judge(lab: Lab, entry: Path, seed: int) -> dict[str, Any]:
    """Return problem, number of trials and figure by criterion for one entry file.

    No process is started: harness, learner's code and emulator all run here.
    """
    settings = lab.spec.devices["virtual"].settings
    judge = load_judge(lab)
    harness = load_module(lab.path / settings["harness"])
    learners = load_module(entry)
    random.seed(seed)
    done = []
    for trial in judge.trials(np.random.default_rng(seed), settings["judge"]):
        serve: Callable[..., Any] = lambda *values, trial=trial: trial.serve(list(values))  # noqa: E731 - bound to this trial
        try:
            trial.finish(list(harness.run(learners, serve, *trial.arguments)))
        except RuntimeError:
            if not trial.late:
                raise
        done.append(trial)
        if trial.late:
            break
    result: dict[str, Any] = judge.judge(done, settings["judge"])
    return result


def _limit(spec: CriterionSpec) -> str:
    if spec.target is None:
        return ""
    return f"{spec.direction.replace('_', ' ')} {format_limit(spec.target, spec.unit)}"


def _figure(value: float, unit: str) -> str:
    """Return a figure as a check prints it: 1,310x, not 1.31e+03 x."""
    if unit != "x":
        return format_figure(value, unit)
    return f"{value:,.0f}x" if value >= 100 else f"{value:.3g}x"


def _range(unit: str, values: list[float | None]) -> str:
    texts = [
        _figure(value, unit) for value in sorted(value for value in values if value is not None)
    ]
    if not texts:
        return ""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


# ---- Tables ----

ROWS = {"training": training_rows, "benchmark": measuring_rows}
"""How the table of a lab is made, by its kind."""


def table(lab: Lab) -> str:
    """Return the table of a lab, printing each row as it is measured."""
    lines: list[str] = []
    for cells in ROWS[lab.spec.measure](lab):
        lines.append(row(cells) if lines else head(cells))
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    labs = {
        slug: lab
        for slug, lab in load_labs().items()
        if lab.spec.measure in ROWS and "virtual" in lab.spec.devices
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", nargs="+", choices=labs, default=list(labs), metavar="LAB")
    parser.add_argument("--write", action="store_true", help="renew the solutions' write-ups")
    options = parser.parse_args()
    for slug in options.lab:
        print(f"\n{slug}\n")
        text = table(labs[slug])
        if options.write:
            page = labs[slug].solution / "README.md"
            page.write_text(renew(page.read_text("utf-8"), "figures", text), "utf-8")


if __name__ == "__main__":
    main()
