"""Precision and recall of the detectors on captures with known bottlenecks, and false alarms on healthy ones.

    python benchmarks/detectors.py [--seeds 5] [--no-recorded]

Three sets, scored apart. *tuned*: synthetic captures (datasets/captures/make.py) of the sizes, strengths and seeds that the thresholds were chosen on.
*held out*: the same programs with seeds, lengths, depths, strengths and jitter that no threshold was chosen on. *recorded*: torch.profiler on this CPU,
around small programs with a bottleneck put in, and healthy controls. A detector is right when it names what was put in (recall) and is silent about
everything else (precision).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from bottleneck_lab import findings, load, merge_ranks

MAKE = Path(__file__).resolve().parents[1] / "datasets" / "captures" / "make.py"
TUNED = {"strength": (0.8, 1.0, 2.0), "steps": (8,), "jitter": (0.03,)}
HELD_OUT = {"strength": (0.9, 1.4, 3.0), "steps": (5, 17), "jitter": (0.10,)}

Case = tuple[str, set[str], set[str]]


class Score:
    """Counts by finding."""

    def __init__(self) -> None:
        self.hits, self.false, self.missed = Counter(), Counter(), Counter()
        self.healthy = self.alarms = 0
        self.wrong: list[str] = []

    def add(self, label: str, expected: set[str], got: set[str]) -> None:
        self.hits.update(got & expected)
        self.false.update(got - expected)
        self.missed.update(expected - got)
        self.healthy += not expected
        self.alarms += bool(got) and not expected
        if got != expected:
            self.wrong.append(f"{label}: put in {sorted(expected)}, found {sorted(got)}")

    def show(self, title: str) -> None:
        print(f"\n{title}\n{'finding':24} {'found':>6} {'false':>6} {'missed':>6} {'precision':>10} {'recall':>7}")
        for name in sorted({*self.hits, *self.false, *self.missed}):
            hits, false, missed = self.hits[name], self.false[name], self.missed[name]
            precision = hits / (hits + false) if hits + false else 1.0
            recall = hits / (hits + missed) if hits + missed else 1.0
            print(f"{name:24} {hits:6} {false:6} {missed:6} {precision:10.3f} {recall:7.3f}")
        print(f"healthy captures: {self.healthy}, with an alarm: {self.alarms}")
        for line in self.wrong[:10]:
            print(f"  {line}")


def made():
    """The module that makes the captures."""
    spec = importlib.util.spec_from_file_location("make_captures", MAKE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_captures"] = module
    spec.loader.exec_module(module)
    return module


def synthetic(folder: Path, seeds: range, varied: dict) -> Iterator[Case]:
    """Every bottleneck with every seed, strength, length and jitter."""
    make = made()
    kinds = [(make.training, make.BOTTLENECKS), (make.on_cpu, make.ON_CPU), (make.job, make.JOBS)]
    for program, bottlenecks in kinds:
        for (bottleneck, expected), seed, values in product(bottlenecks.items(), seeds, product(*varied.values())):
            options = dict(zip(varied, values, strict=True))
            runs = program(bottleneck, seed, **options)
            timelines = []
            for rank, run in enumerate(runs if isinstance(runs, list) else [runs]):
                path = folder / f"rank{rank}.json"
                path.write_text(json.dumps(run.trace(bottleneck, len(runs) if isinstance(runs, list) else 1)))
                timelines.append(load(path))
            yield f"{bottleneck} {seed} {options}", set(expected), {f.id for f in findings(merge_ranks(timelines))}


def recorded(folder: Path, repeats: int) -> Iterator[Case]:
    """Small programs on this CPU under torch.profiler."""
    import torch
    from torch.profiler import profile, record_function

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
    table, few, rows = torch.randn(200_000, 16), torch.randn(8), torch.randint(0, 200_000, (120_000,))

    def healthy(batch: torch.Tensor) -> None:
        model(batch).sum().backward()

    def starved(batch: torch.Tensor) -> None:
        with record_function("data"):
            time.sleep(0.03)
        healthy(batch)

    def pythonic(batch: torch.Tensor) -> None:
        model(batch)
        sum(i * i for i in range(300_000))
        few.add_(1)

    def dominated(batch: torch.Tensor) -> None:
        model(batch)
        for _ in range(4):
            table.index_select(0, rows)

    programs: dict[str, tuple[Callable, set[str]]] = {
        "healthy": (healthy, set()),
        "starved": (starved, {"input-starved"}),
        "python": (pythonic, {"host-stalls"}),
        "dominated": (dominated, {"dominant-operator"}),
    }
    for repeat, (name, (step, expected)) in product(range(repeats), programs.items()):
        batch = torch.randn(256 + 64 * repeat, 512)
        step(batch)
        with profile() as recording:
            for number in range(6):
                with record_function(f"step {number}"):
                    step(batch)
        path = folder / "recorded.json"
        recording.export_chrome_trace(str(path))
        yield f"{name} {repeat}", expected, {finding.id for finding in findings(load(path))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-recorded", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sets = {
            "tuned": synthetic(folder, range(1, options.seeds + 1), TUNED),
            "held out": synthetic(folder, range(101, 101 + options.seeds), HELD_OUT),
        }
        if not options.no_recorded:
            sets["recorded on this CPU"] = recorded(folder, options.seeds)
        for title, cases in sets.items():
            score = Score()
            for case in cases:
                score.add(*case)
            score.show(title)


if __name__ == "__main__":
    main()
