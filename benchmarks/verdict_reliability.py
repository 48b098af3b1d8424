"""How often whole checks err: `lab check`'s own code on work of known speed, on a quiet machine and on loaded ones.

    python benchmarks/verdict_reliability.py --budget-s 600          # goes on where the state file ends; adds to it
    python benchmarks/verdict_reliability.py --budget-s 0 --write    # only writes docs/measured/verdict_reliability.md

Work of known speed. `speedup`: the shipped code on a share of the input and the solution on the rest (running-mean), or the solution
stretched by a factor (resnet-latency), so that reference time over learner time is a multiple of the target; the share is calibrated once,
on the quiet machine, and kept in the state file. `feed`: right samples delivered at a fixed pace (the miniature of tests/exploits).
The level is in multiples of the stricter of a lab's targets.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bottleneck_lab.catalog import Lab, find_lab, load_labs
from bottleneck_lab.grading.statistics import clopper_pearson
from bottleneck_lab.measure.machine import fingerprint
from bottleneck_lab.measure.verifier import check_lab

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "measured" / "verdict_reliability.md"
LEVELS = (0.8, 0.9, 1.0, 1.1, 1.25)
LOADS = ("quiet", "one core busy", "memory", "disk")
OUTCOMES = ("PASS", "FAIL", "INCONCLUSIVE", "ERROR")
CONFIDENCE = 0.95

SHARE = """
def load(device):
    shipped, solution = (_module(source)["load"](device) for source in (SHIPPED, SOLUTION))

    def running_mean(trace, width):
        cut = int(KNOB * (len(trace) - width + 1))
        return np.concatenate((shipped(trace[: cut + width - 1], width), solution(trace[cut:], width)))

    return running_mean
"""
STRETCH = """
def load(device):
    solution = _module(SOLUTION)["load"](device)

    def call(*inputs):
        began = time.perf_counter()
        answer = solution(*inputs)
        end = began + KNOB * (time.perf_counter() - began)
        while time.perf_counter() < end:
            pass
        return answer

    return call
"""
PACE = """
def train(accelerator, photos, cache):
    import recipe

    for epoch in accelerator.epochs():
        due = time.monotonic()
        for indices in recipe.batches(epoch):
            images = np.stack([recipe.sample(index, epoch.seed, epoch.number) for index in indices])
            due += KNOB
            time.sleep(max(0.0, due - time.monotonic()))
            accelerator.step(images, [recipe.label(index) for index in indices])
    accelerator.synchronize()
"""
HEAD = """import os, sys, time
import numpy as np

SHIPPED, SOLUTION, KNOB = {shipped!r}, {solution!r}, {knob!r}


def _module(source):
    names = {{"__name__": "part", "__file__": __file__}}
    exec(source, names)
    return names
"""


@dataclass(frozen=True)
class Subject:
    """A lab in the corpus. `start` is the entry's knob for a target and a level, before it is calibrated."""

    slug: str
    content: Path
    device: str
    entry: str
    start: Callable[[float, float], float]
    mend: Callable[[float, float, float], float] | None = None


STEP_S = 2 * 16 * 0.002
"""The miniature's step: its device_share times its judge's STEP_IMAGE_S for each image of a batch."""
STRICTER = 0.85
"""`data-wait` asks for at most 0.15, which `useful-utilisation` of 0.8 does not reach."""
SUBJECTS = {
    "running-mean": Subject(
        slug="running-mean",
        content=ROOT / "docs" / "example",
        device="cpu",
        entry=SHARE,
        start=lambda target, level: 1 / (target * level),
        mend=lambda knob, figure, wanted: 1 / wanted - (1 / figure - knob),
    ),
    "feeder": Subject(
        slug="feeder",
        content=ROOT / "tests" / "exploits" / "content",
        device="virtual",
        entry=PACE,
        start=lambda _target, level: STEP_S / (STRICTER * level),
    ),
    "resnet-latency": Subject(
        slug="resnet-latency",
        content=ROOT,
        device="cpu",
        entry=STRETCH,
        start=lambda _target, level: 1.5 / level,
        mend=lambda knob, figure, wanted: knob * figure / wanted,
    ),
}
"""`mend` gives the knob for a wanted figure, from the figure that one knob gave: a share costs what the rest costs besides, a factor multiplies."""


def lab_of(subject: Subject) -> Lab:
    os.environ["BOTTLENECK_LAB_CONTENT"] = str(subject.content)
    load_labs.cache_clear()
    return find_lab(subject.slug)


def target_of(lab: Lab, device: str) -> float:
    return next(spec.target for spec in lab.spec.devices[device].criteria if spec.kind == "target" and spec.target)


def one_check(subject: Subject, knob: float, data: Path) -> dict[str, Any]:
    """Checks the work that `knob` makes; what came out, and the figure that was measured."""
    lab = lab_of(subject)
    shipped, solution = ((folder / lab.spec.entry).read_text(encoding="utf-8") for folder in (lab.path, lab.solution))
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        for name in lab.spec.files:
            shutil.copy(lab.path / name, workspace / name)
        (workspace / lab.spec.entry).write_text(
            HEAD.format(shipped=shipped, solution=solution, knob=knob) + subject.entry
        )
        verdict = check_lab(lab, workspace, subject.device, data=data, home=workspace)
    figure = next((result.value for result in verdict.criteria if result.kind == "target" and result.value), None)
    return {
        "outcome": str(verdict.outcome),
        "reason": verdict.reason,
        "figure": figure,
        "seconds": verdict.duration_s,
        "summary": verdict.summary[:200],
    }


def calibrate(subject: Subject, data: Path) -> dict[str, float]:
    """The knob for each level, from five checks on the quiet machine. The feed's pace needs none."""
    target = target_of(lab_of(subject), subject.device)
    knob = subject.start(target, 1.0)
    if subject.mend is None:
        return {str(level): subject.start(target, level) for level in LEVELS}
    figures = [one_check(subject, knob, data)["figure"] for _ in range(5)]
    typical = median(figure for figure in figures if figure)
    return {str(level): subject.mend(knob, typical, target * level) for level in LEVELS}


def _burn() -> None:
    while True:
        pass


def _copy() -> None:
    source = np.zeros(64 << 20, np.uint8)
    target = np.empty_like(source)
    while True:
        target[...] = source
        time.sleep(0.005)


def _write(folder: str) -> None:
    block = os.urandom(8 << 20)
    while True:
        with Path(folder, "load").open("wb") as file:
            file.write(block)
            os.fsync(file.fileno())


@contextmanager
def load(kind: str) -> Iterator[None]:
    """One process that disturbs, for as long as the context lasts."""
    if kind == "quiet":
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        what = {"one core busy": (_burn, ()), "memory": (_copy, ()), "disk": (_write, (folder,))}[kind]
        process = multiprocessing.get_context("fork").Process(target=what[0], args=what[1], daemon=True)
        process.start()
        time.sleep(0.3)
        try:
            yield
        finally:
            process.kill()
            process.join()


def read(state: Path) -> list[dict[str, Any]]:
    """The lines of the state file; a last line that a killed run left half written is dropped."""
    if not state.exists():
        return []
    lines = state.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def add(state: Path, line: dict[str, Any]) -> None:
    """Appends a line, after cutting off what an interrupted run left half written."""
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.open("a+", encoding="utf-8") as file:
        file.seek(0)
        whole = file.read().rpartition("\n")[0]
        file.truncate(len(whole.encode()) + 1 if whole else 0)
        file.write(json.dumps(line) + "\n")


def run(state: Path, slugs: list[str], budget_s: float, data: Path) -> None:
    """Adds checks, always to the cell that has fewest, until the time is up."""
    end = time.monotonic() + budget_s
    for slug in slugs:
        if time.monotonic() < end and not any(line.get("knobs") and line["lab"] == slug for line in read(state)):
            add(state, {"lab": slug, "knobs": calibrate(SUBJECTS[slug], data)})
    while time.monotonic() < end:
        lines = read(state)
        knobs = {line["lab"]: line["knobs"] for line in lines if "knobs" in line}
        done = Counter((line["lab"], line["level"], line["load"]) for line in lines if "outcome" in line)
        cells = [(slug, level, kind) for slug in slugs if slug in knobs for level in LEVELS for kind in LOADS]
        if not cells:
            return
        # The quiet machine carries the promises: it is measured three times as often as each kind of load.
        cell = min(cells, key=lambda cell: (done[cell] / (3 if cell[2] == "quiet" else 1), random.random()))
        slug, level, kind = cell
        with load(kind):
            found = one_check(SUBJECTS[slug], knobs[slug][str(level)], data)
        add(
            state,
            {"lab": slug, "level": level, "load": kind, "at": datetime.now(UTC).isoformat(timespec="seconds"), **found},
        )
        print(
            f"{slug:15} {level:4}x {kind:14} {found['outcome']:13} {found['figure'] or 0:.3g}  {found['seconds']:.1f} s",
            flush=True,
        )


def page(lines: list[dict[str, Any]]) -> str:
    """docs/measured/verdict_reliability.md from the state."""
    checks = [line for line in lines if "outcome" in line]
    days = sorted({line["at"][:10] for line in checks})
    machine = fingerprint()
    out = [
        "# Whole checks of known speed",
        "",
        f"{len(checks)} checks by `python benchmarks/verdict_reliability.py`, {' to '.join(days[:1] + days[1:][-1:])}, ",
        f"on {machine['cpu']}, {machine['cores']} cores,",
        f"Linux {platform.release()}, Python {machine['python']}, NumPy {machine['numpy']}, torch {machine['torch']}, no GPU.",
        "",
        "The level is the speed in multiples of the lab's target (`feeder`, the feed lab in miniature: of 85% utilisation,",
        "which its stricter criterion asks for).",
        "Loads are one process each: a loop, copies of 64 MB, writes with fsync. *Figure* is the median of what the checks measured.",
        "",
        "| lab | load | level | PASS | FAIL | INCONCLUSIVE | ERROR | figure | seconds a check |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for slug in SUBJECTS:
        for kind in LOADS:
            for level in LEVELS:
                cell = [line for line in checks if (line["lab"], line["load"], line["level"]) == (slug, kind, level)]
                if cell:
                    out.append(_row(slug, kind, level, cell))
    return "\n".join([*out, "", "## What this bears", "", *_bounds(checks)]) + "\n"


def _row(slug: str, kind: str, level: float, cell: list[dict[str, Any]]) -> str:
    counts = Counter(line["outcome"] for line in cell)
    figures = sorted(line["figure"] for line in cell if line["figure"])
    middle = f"{figures[len(figures) // 2]:.3g}" if figures else "–"
    seconds = sorted(line["seconds"] for line in cell)[len(cell) // 2]
    return f"| {slug} | {kind} | {level}x | {' | '.join(str(counts[name]) for name in OUTCOMES)} | {middle} | {seconds:.1f} |"


def _bounds(checks: list[dict[str, Any]]) -> list[str]:
    """Counts with the upper Clopper–Pearson bound, and what they would have to be for the promise."""
    rows = [
        f"Upper Clopper–Pearson bounds at {CONFIDENCE:.0%} confidence (two-sided).",
        "",
        "| lab | promise | where | seen | at most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for slug in SUBJECTS:
        for promise, outcome, chosen, where in (
            ("false pass ≤ 0.1%", "PASS", lambda line: line["level"] <= 0.9, "at ≤ 0.9x, all loads"),
            ("false fail ≤ 1%", "FAIL", lambda line: line["level"] >= 1.1, "at ≥ 1.1x, all loads"),
            (
                "inconclusive ≤ 5%",
                "INCONCLUSIVE",
                lambda line: line["load"] == "quiet" and line["level"] != 1.0,
                "quiet, not at the target itself",
            ),
            ("(no promise)", "ERROR", lambda line: line["load"] == "quiet", "quiet"),
        ):
            group = [line for line in checks if line["lab"] == slug and chosen(line)]
            if group:
                seen = sum(line["outcome"] == outcome for line in group)
                high = clopper_pearson(seen, len(group), CONFIDENCE)[1]
                rows.append(f"| {slug} | {promise} | {where} | {seen} of {len(group)} | {high:.1%} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=600.0)
    parser.add_argument("--labs", nargs="+", choices=SUBJECTS, default=["running-mean", "feeder"])
    parser.add_argument("--photos", type=Path, default=Path(), help="what datasets/photos.py made; for resnet-latency")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "verdict_reliability.jsonl")
    parser.add_argument("--write", action="store_true", help="writes docs/measured/verdict_reliability.md")
    options = parser.parse_args()
    run(options.state, options.labs, options.budget_s, options.photos.resolve())
    text = page(read(options.state))
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
