"""The two labs on measuring code, starter, solution and variants: what a check finds, in the
emulated machine's own time.

    python benchmarks/measuring_labs.py timing-pitfalls            # prints the table python
    benchmarks/measuring_labs.py perf-gate --write          # also writes it into the solution's
    write-up

No process is started and nothing is timed: harness, learner's code and emulator run here, so every
figure follows from the seed.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from verdict_simulation import table

from bottleneck_lab.catalog import Lab, find_lab
from bottleneck_lab.measure.lab_rules import variants

SEEDS = range(3)


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def check(lab: Lab, entry: Path, seed: int) -> dict[str, Any]:
    """What the judge finds of one entry file: problem, number of trials and figure of each
    criterion.
    """
    settings = lab.spec.devices["virtual"].settings
    judge, harness = (
        load(lab.path / "judge.py", "judge"),
        load(lab.path / settings["harness"], "harness"),
    )
    learners, done = load(entry, "learners"), []
    random.seed(seed)
    for trial in judge.trials(np.random.default_rng(seed), settings["judge"]):
        try:
            trial.finish(
                list(
                    harness.run(
                        learners,
                        lambda *values, trial=trial: trial.serve(list(values)),
                        *trial.arguments,
                    )
                )
            )
        except RuntimeError:
            if not trial.late:
                raise
        done.append(trial)
        if trial.late:
            break
    return judge.judge(done, settings["judge"])


def figure(unit: str, values: list[float | None]) -> str:
    """The worst and the best of them, as a reader expects the unit."""
    known = sorted(value for value in values if value is not None)
    texts = [
        f"{100 * value:.3g}%" if unit == "share" else f"{value:.3g} {unit}".rstrip()
        for value in known
    ]
    return "" if not texts else texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def rows(lab: Lab) -> Iterator[list[str]]:
    criteria = lab.spec.devices["virtual"].criteria
    folders = {
        "shipped": lab.path,
        "solution": lab.solution,
        **{path.name: path for path in variants(lab)},
    }
    for name, folder in folders.items():
        found = [check(lab, folder / lab.spec.entry, seed) for seed in SEEDS]
        cells = [
            figure(spec.unit, [one[spec.id][2] for one in found if spec.id in one])
            for spec in criteria
            if spec.target
        ]
        failed = sorted({id_ for one in found for id_, part in one.items() if part[0]})
        yield [name, *cells, f"FAIL ({', '.join(failed)})" if failed else "PASS"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lab", choices=["timing-pitfalls", "perf-gate"])
    parser.add_argument(
        "--write", action="store_true", help="write the table into the solution's README.md"
    )
    options = parser.parse_args()
    lab = find_lab(options.lab)
    head = [
        "",
        *(spec.id for spec in lab.spec.devices["virtual"].criteria if spec.target),
        "outcome",
    ]
    text = table(head, list(rows(lab)))
    print(text)
    if options.write:
        page = lab.solution / "README.md"
        before, rest = page.read_text(encoding="utf-8").split("<!-- measured:begin -->")
        _, after = rest.split("<!-- measured:end -->")
        page.write_text(
            f"{before}<!-- measured:begin -->\n{text}\n<!-- measured:end -->{after}",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
