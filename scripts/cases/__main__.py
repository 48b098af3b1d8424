"""Record the cases of `datasets/cases`, and prove what slows each of them down.

    python -m scripts.cases [--show] [NAME …]

Every program runs as it is and again without each cause and decoy. A case is accepted if the cause
that `case.toml` names gains most, by a tenth more than any other, and if no decoy gains more than
5%. Its capture and what was measured go into the manifest. The same seed gives the same files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from scripts.cases.machine import Machine
from scripts.cases.record import Switch as Declared
from scripts.cases.record import cost, elapsed_ms, lines_of, load_spec, run

from bottleneck_lab import load, merge_ranks
from bottleneck_lab.analysis.summary import summarise
from bottleneck_lab.grading.cases import Case, Switch
from bottleneck_lab.grading.causes import CAUSES
from bottleneck_lab.report.capture_words import describe_gain
from bottleneck_lab.workspace.cases import PROGRAM, Library
from bottleneck_lab.workspace.folder import to_json

ROOT = Path(__file__).resolve().parents[2] / "datasets" / "cases"
MANIFEST = ROOT / "manifest.json"
VERSION = 1
LEAST_GAIN = 1.15
"""The least cost of a case's cause: without it the program is at least this many times as fast."""
MOST_DECOY = 1.05
"""The most that a decoy may bring."""
LEAD = 1.1
"""By how much the top cause has to gain more than any other."""
MOST_BYTES = 320_000
"""Of a rank's capture."""


def record(folder: Path) -> Case:
    """Record one case into its folder, and return its row of the manifest."""
    spec, program = load_spec(folder), (folder / PROGRAM).read_text()
    runs = run(program, spec)
    ms, costs = elapsed_ms(runs), cost(runs, spec.cause)
    for old in folder.glob("*.json.gz"):
        old.unlink()
    for name, content in traces(runs):
        (folder / name).write_bytes(content)
    switches, decoys = (
        [
            Switch(
                each.name,
                each.cause,
                each.fix,
                round(costs / cost(run(program, spec, each), spec.cause), 3),
                lines_of(program, each),
                each.edits,
                each.why,
            )
            for each in kind
        ]
        for kind in (spec.switch, spec.decoy)
    )
    switches.sort(key=lambda each: -each.gain)
    entire = 0.0
    if spec.entire is not None:
        without = Declared("entire", "", machine=spec.entire.machine, host=spec.entire.host)
        entire = round(costs / cost(run(program, spec, without), spec.cause), 3)
    return Case(
        folder.name,
        spec.title,
        spec.level,
        spec.story,
        spec.explanation,
        spec.cause,
        round(ms, 3),
        digests(folder),
        switches,
        decoys,
        entire,
    )


def digests(folder: Path) -> dict[str, str]:
    """Return the checksums of all that a case's row rests on."""
    files = [folder / PROGRAM, folder / "case.toml", *sorted(folder.glob("*.json.gz"))]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def traces(runs: list[Machine]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each rank's trace."""
    for one in runs:
        name = "trace.json.gz" if len(runs) == 1 else f"trace-rank{one.rank}.json.gz"
        text = json.dumps(one.trace(), separators=(",", ":"))
        yield name, gzip.compress(text.encode(), mtime=0)


def problems(case: Case) -> list[str]:
    """Return what contradicts a case's declaration, or makes it a poor one."""
    wrong = []
    if case.cause not in CAUSES:
        wrong.append(f"{case.cause} is no cause")
    if not case.switches and case.cause != "healthy":
        wrong.append("it has no switch")
    if case.switches:
        top, *others = case.switches
        if top.cause != case.cause:
            wrong.append(f"the top cause is {top.cause} ({top.gain:.2f}x), not {case.cause}")
        if top.gain < LEAST_GAIN:
            wrong.append(f"without {top.name} it is only {top.gain:.2f}x as fast")
        wrong += [
            f"{each.name} ({each.cause}) gains {each.gain:.2f}x, too near {top.gain:.2f}x"
            for each in others
            if each.cause != top.cause and LEAD * each.gain > top.gain
        ]
    wrong += [
        f"the decoy {each.name} gains {each.gain:.2f}x"
        for each in case.decoys
        if each.gain > MOST_DECOY
    ]
    size = sum((ROOT / case.name / name).stat().st_size for name in case.traces)
    if size > MOST_BYTES * max(len(case.traces), 1):
        wrong.append(f"its capture has {size} bytes")
    return wrong


def show(case: Case) -> None:
    """Print what a case measures beside what the report says about it."""
    paths = [ROOT / case.name / name for name in case.traces]
    summary = summarise(merge_ranks([load(path) for path in paths]))
    print(f"\n{case.name}: {case.cause}, {case.ms:.1f} ms")
    for each in case.switches:
        print(f"  {each.gain:6.2f}x  {each.name} ({each.cause}), lines {each.lines}")
    for each in case.decoys:
        print(f"  {each.gain:6.2f}x  {each.name}, a decoy")
    if case.entire:
        print(f"  {case.entire:6.2f}x  without its cause altogether")
    for finding in summary.findings:
        print(
            f"  report: {finding.id} ({finding.cause}) {finding.share_of_wall:.0%},"
            f" {describe_gain(finding)}"
        )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases; default: all")
    parser.add_argument("--show", action="store_true", help="print also what the report says")
    options = parser.parse_args()
    folders = sorted(path.parent for path in ROOT.glob("*/case.toml"))
    names = set(options.names) or {folder.name for folder in folders}
    unknown = names - {folder.name for folder in folders}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    known: dict[str, Case] = {}
    if MANIFEST.exists():
        library = msgspec.json.decode(MANIFEST.read_bytes(), type=Library)
        known = {case.name: case for case in library.cases}
    rows, failed = [], False
    for folder in folders:
        if folder.name not in names:
            if folder.name in known:
                rows.append(known[folder.name])
            continue
        case = record(folder)
        rows.append(case)
        if options.show:
            show(case)
        for problem in problems(case):
            failed = True
            print(f"{case.name}: {problem}", file=sys.stderr)
    library = Library(VERSION, sorted(rows, key=lambda case: case.name))
    MANIFEST.write_bytes(to_json(library) + b"\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
