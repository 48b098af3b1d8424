"""Precision and recall of the detectors on captures with known bottlenecks, and false alarms on
healthy ones.

    python benchmarks/detectors.py [--seeds 5] [--no-recorded] [--shapes FOLDER]

Four sets, scored apart. *tuned*: synthetic captures (datasets/captures/make.py) of the sizes,
strengths and seeds that the thresholds were chosen on. *held out*: the same programs with seeds,
lengths, depths, strengths and jitter that no threshold was chosen on. *real shapes*: a step of each
capture in FOLDER, its kernels and launches in their order and of their lengths, replayed by a host
and a queue, with a bottleneck put in or none, with steps marked or not. *recorded*: torch.profiler
on this CPU, around small programs with a bottleneck put in, and healthy controls. A detector is
right when it names what was put in (recall) and is silent about everything else (precision). Exits
with 1 where precision falls below 98%, recall below 95%, or a healthy capture raises an alarm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bottleneck_lab import findings, load, merge_ranks
from bottleneck_lab.analysis.steps.window import step_rows
from bottleneck_lab.measure.worker import load_module
from bottleneck_lab.trace import ActivityKind

MAKE = Path(__file__).resolve().parents[1] / "datasets" / "captures" / "make.py"
TUNED = {"strength": (0.8, 1.0, 2.0), "steps": (8,), "jitter": (0.03,)}
HELD_OUT = {"strength": (0.9, 1.4, 2.0), "steps": (5, 17), "jitter": (0.10,)}
PRECISION, RECALL = 0.98, 0.95
MOST_KERNELS = 600
LONGEST_LAUNCH_US = 300.0

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

    def good(self) -> bool:
        hits, false, missed = (
            sum(counts.values()) for counts in (self.hits, self.false, self.missed)
        )
        return (
            hits >= PRECISION * (hits + false)
            and hits >= RECALL * (hits + missed)
            and not self.alarms
        )

    def show(self, title: str) -> None:
        print(
            f"\n{title}\n{'finding':24} {'found':>6} {'false':>6} {'missed':>6} {'precision':>10}"
            f" {'recall':>7}"
        )
        for name in sorted({*self.hits, *self.false, *self.missed}):
            hits, false, missed = self.hits[name], self.false[name], self.missed[name]
            precision = hits / (hits + false) if hits + false else 1.0
            recall = hits / (hits + missed) if hits + missed else 1.0
            print(f"{name:24} {hits:6} {false:6} {missed:6} {precision:10.3f} {recall:7.3f}")
        print(f"healthy captures: {self.healthy}, with an alarm: {self.alarms}")
        for line in self.wrong[:10]:
            print(f"  {line}")


def synthetic(folder: Path, seeds: range, varied: dict) -> Iterator[Case]:
    """Every bottleneck with every seed, strength, length and jitter."""
    make = load_module(MAKE)
    kinds = [(make.training, make.BOTTLENECKS), (make.on_cpu, make.ON_CPU), (make.job, make.JOBS)]
    for program, bottlenecks in kinds:
        for (bottleneck, expected), seed, values in product(
            bottlenecks.items(), seeds, product(*varied.values())
        ):
            options = dict(zip(varied, values, strict=True))
            runs = program(bottleneck, seed, **options)
            timelines = []
            for rank, run in enumerate(runs if isinstance(runs, list) else [runs]):
                path = folder / f"rank{rank}.json"
                path.write_text(
                    json.dumps(run.trace(bottleneck, len(runs) if isinstance(runs, list) else 1))
                )
                timelines.append(load(path))
            yield (
                f"{bottleneck} {seed} {options}",
                set(expected),
                {f.id for f in findings(merge_ranks(timelines))},
            )


class Shape(NamedTuple):
    """One step of a real program: of each kernel, in the order of launching, its length and the
    host's time since the launch before, us.
    """

    name: str
    kernels: list[float]
    host: list[float]

    @property
    def device_us(self) -> float:
        return sum(self.kernels)


def read_shapes(folder: Path) -> Iterator[Shape]:
    """The busiest step of every capture (without steps, its first kernels), of those that say what
    launched what.
    """
    for path in sorted([*folder.glob("*.json.gz"), *folder.glob("*.sqlite.gz")]):
        timeline = load(path)
        device, call = timeline.device, timeline.launched_by
        rows = np.flatnonzero((device.kind == ActivityKind.KERNEL) & (call >= 0))
        if len(rows) < 50:
            continue
        rows = rows[np.argsort(timeline.runtime.start[call[rows]], kind="stable")]
        launched = timeline.runtime.start[call[rows]]
        begins = np.append(step_rows(timeline).start, np.iinfo(np.int64).max)
        if len(begins) > 1:
            at = np.searchsorted(begins, launched, side="right") - 1
            rows = rows[at == np.bincount(at[at >= 0]).argmax()]
            launched = launched[at == np.bincount(at[at >= 0]).argmax()]
        rows, launched = rows[:MOST_KERNELS], launched[:MOST_KERNELS]
        kernels = (device.end - device.start)[rows] / 1e3
        host = np.diff(launched, prepend=launched[0]) / 1e3
        yield Shape(path.name.split(".")[0], kernels.tolist(), host.clip(0, 300).tolist())


STALL = {
    "input": ("input-starved",),
    "stall": ("host-stalls",),
    "sleep": ("sleeping",),
    "files": ("file-stalls",),
    "compile": ("compilation",),
    "operators": ("host-operators",),
    "between": ("between-steps",),
}
SHAPED = {
    "healthy": (),
    "launch": ("launch-bound",),
    "sync": ("sync-stalls",),
    "pageable": ("copy-exposed", "pageable-copies"),
    "communication": ("communication-exposed",),
    "uneven": ("uneven-steps",),
    **STALL,
}
NEED_STEPS = ("between", "uneven")


def shaped(folder: Path, shapes: list[Shape], seeds: range) -> Iterator[Case]:
    """Every bottleneck in every shape, with steps and without."""
    make = load_module(MAKE)
    for shape, (bottleneck, expected), seed, marked in product(
        shapes, SHAPED.items(), seeds, (True, False)
    ):
        if not marked and bottleneck in NEED_STEPS:
            continue
        if bottleneck == "launch" and 2.5 * shape.device_us > LONGEST_LAUNCH_US * len(
            shape.kernels
        ):
            continue  # no host is too slow for kernels as long as these
        run, strength = make.Program(seed, jitter=0.05), 0.7 + 0.3 * (seed % 4)
        if not marked:  # imports and start-up, as long as all that follows
            run.add("cpu_op", "aten::empty", run.host, 5.0)
            run.python(20 * shape.device_us)
        for number in range(8):
            replay(run, make, shape, bottleneck, strength, number, marked)
        path = folder / "shaped.json"
        path.write_text(json.dumps(run.trace(bottleneck)))
        reported = {finding.id for finding in findings(load(path))}
        yield (
            f"{shape.name} {bottleneck} {seed} {'steps' if marked else 'no steps'}",
            set(expected),
            reported,
        )


def replay(
    run: Any, make: Any, shape: Shape, bottleneck: str, strength: float, number: int, marked: bool
) -> None:
    """A step. A healthy host takes half as long for its launches as the device for its kernels;
    where the real kernels are too short for that, they are made longer.
    """
    count = len(shape.kernels)
    longer = max(1.0, 2 * 9.0 * count / shape.device_us)
    unit = longer * shape.device_us
    wanted = (1.2 + strength) * unit if bottleneck == "launch" else 0.5 * unit
    scale = max(wanted - 5.0 * count, 0.0) / max(sum(shape.host), 1.0)
    begin = run.host
    if bottleneck in STALL and bottleneck != "between":
        stall(run, bottleneck, (0.5 + 0.5 * strength) * unit)
    if bottleneck == "pageable":
        run.copy(int(0.4 * strength * unit * 6e3), pinned=False)
    group = 0.0
    for index, (us, host) in enumerate(zip(shape.kernels, shape.host, strict=True)):
        start = run.host
        run.python(min(scale * host, 300.0) if bottleneck != "launch" else wanted / count - 5.0)
        run.launch(f"kernel_{index % 40}", us * longer)
        run.add("cpu_op", f"aten::op{index % 40}", start, run.host - start)
        group += us * longer
        if bottleneck == "sync" and group > 400.0:
            run.item()
            run.python(min(0.5 * strength * group, 420.0))
            group = 0.0
    if bottleneck == "communication":
        ready = max(run.tail.values())
        run.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            0.4 * strength * unit,
            stream=make.COMMUNICATION_STREAM,
            after=ready,
        )
        run.tail[make.COMPUTE_STREAM] = run.tail[make.COMMUNICATION_STREAM]
    if bottleneck == "uneven" and number % 4 == 3:
        run.launch("rare", 3 * strength * unit)
    if number % 4 == 3:
        run.wait()
    if marked:
        run.range(f"ProfilerStep#{number}", begin)
    if bottleneck == "between":
        stall(run, bottleneck, (0.5 + 0.5 * strength) * unit)


def stall(run: Any, bottleneck: str, us: float) -> None:
    """The host does something else for so long, marked as a capture would."""
    start = run.host
    run.python(max(us, 1_500.0))
    frames = {"sleep": "<built-in function sleep>", "files": "torch/serialization.py(800): save"}
    if bottleneck == "input":
        run.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", start)
    elif bottleneck in frames:
        run.add("python_function", frames[bottleneck], start, run.host - start)
    elif bottleneck in ("compile", "operators"):
        run.add(
            "cpu_op",
            "backend_compile (dynamo_timed)" if bottleneck == "compile" else "aten::randperm",
            start,
            run.host - start,
        )


def recorded(folder: Path, repeats: int) -> Iterator[Case]:
    """Small programs on this CPU under torch.profiler."""
    import torch
    from torch.profiler import profile, record_function

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
    table = torch.randn(200_000, 16)
    few = torch.randn(8)
    rows = torch.randint(0, 200_000, (120_000,))

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-recorded", action="store_true")
    parser.add_argument("--shapes", type=Path, help="real captures whose steps are replayed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sets = {
            "tuned": synthetic(folder, range(1, options.seeds + 1), TUNED),
            "held out": synthetic(folder, range(101, 101 + options.seeds), HELD_OUT),
        }
        shapes = [*read_shapes(options.shapes)] if options.shapes else []
        if shapes:
            sets[f"real shapes, {len(shapes)} captures"] = shaped(
                folder, shapes, range(201, 201 + options.seeds)
            )
        if not options.no_recorded:
            sets["recorded on this CPU"] = recorded(folder, options.seeds)
        good = True
        for title, cases in sets.items():
            score = Score()
            for case in cases:
                score.add(*case)
            score.show(title)
            good &= score.good()
    sys.exit(not good)


if __name__ == "__main__":
    main()
