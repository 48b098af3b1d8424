"""Check every lab's right and wrong work, as `lab dev check` does, until each has come out as
declared three times.

    python benchmarks/judged_work.py --budget-s 3600 --write    # continue where the record ends
    python benchmarks/judged_work.py --budget-s 0 --write       # only renew the tables
    python benchmarks/judged_work.py --labs ddp-scaling --device virtual --budget-s 600

The record has one line for each work: a lab's starter, solution, variant or mutant on one device.
A line counts while the code that it judged and the code that judged it are unchanged: the lab's
files, the work itself, and the modules of the checker that a check of its kind imports or starts as
programs. Code is compared by its syntax tree, so formatting, comments and docstrings do not matter.
Changed lines stay in the record as "of earlier code" until their work is checked again.

INCONCLUSIVE and ERROR decide nothing; such a check is made again later. Labs whose times are
modelled tolerate other programs; for the others leave the machine alone.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import grimp
import msgspec
from markdown_tables import renew, table

import bottleneck_lab
from bottleneck_lab.catalog import Device, Lab, load_labs
from bottleneck_lab.course.proving import machine, prove
from bottleneck_lab.grading.criteria import format_figure
from bottleneck_lab.grading.margins import Part, Row
from bottleneck_lab.measure.lab_rules.mutants import load_mutants, write_mutant
from bottleneck_lab.measure.lab_rules.variants import variants

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "checker"
RECORD = ROOT / "docs" / "measured" / "judged_work.jsonl"
PAGE = RECORD.with_suffix(".md")
MARK = "checks"
"""Of the generated part of a page."""
TIMES = 3
WITHOUT_EFFECT = ("*.md", "lab.toml", "diagnosis.toml")
"""Files of a lab on which no verdict depends. Its criteria and settings, which lab.toml holds, are
hashed by their values.
"""
KINDS = "bottleneck_lab.measure.kinds"
CHECK = "bottleneck_lab.measure.verifier"
"""Where a check begins. The kind that it runs is loaded by name, so it is added to this."""


class Work(msgspec.Struct, frozen=True):
    """One submission with a known verdict."""

    lab: str
    device: Device
    part: Part
    name: str = ""


class Tally(msgspec.Struct, omit_defaults=True):
    """One line of the record: every check of a work in one state.

    `files` and `checker` are hashes of the code that was judged and of the code that judged it.
    `problems` says how the last check that differed from the declaration did so; `figures` are
    those of the last check that decided, by criterion, formatted.
    """

    work: Work
    files: str
    checker: str
    right: int = 0
    wrong: int = 0
    undecided: int = 0
    seconds: list[float] = []
    problems: list[str] = []
    loads: list[float] = []
    outcome: str = ""
    figures: dict[str, str] = {}
    machine: str = ""
    at: str = ""
    commit: str = ""

    @property
    def done(self) -> bool:
        """True after enough right verdicts, or one wrong one: that is mended, not tried again."""
        return self.right >= TIMES or self.wrong > 0


# ---- Which code a verdict depends on ----


def hash_code(files: Iterable[tuple[str, bytes]]) -> str:
    """Return a short hash of named files. Python counts by its syntax tree without docstrings."""
    digest = hashlib.sha256()
    for name, content in sorted(files):
        digest.update(name.encode() + b"\0")
        if name.endswith(".py"):
            digest.update(_significant(content).encode())
        else:
            digest.update(content)
    return digest.hexdigest()[:12]


def _significant(source: bytes) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        # A string that stands alone has no effect: a docstring, or the description of a constant.
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]  # every node with a list of that name
                one
                for one in body
                if not (
                    isinstance(one, ast.Expr)
                    and isinstance(one.value, ast.Constant)
                    and isinstance(one.value.value, str)
                )
            ]
    return ast.dump(tree)


@cache
def checker_of(measure: str) -> str:
    """Return the hash of every module that a check of this kind imports or starts as a program,
    directly or not.
    """
    return hash_code(
        (path.relative_to(PACKAGE).as_posix(), path.read_bytes()) for path in checker_files(measure)
    )


def checker_files(measure: str) -> set[Path]:
    """Return the files of the checker that decide a check of the kind called `measure`."""
    graph = grimp.build_graph("bottleneck_lab", cache_dir=None)
    kind = f"{KINDS}.{measure}"
    modules: set[str] = set()
    left = {CHECK, kind} | graph.find_descendants(kind)
    while left:
        module = left.pop()
        modules.add(module)
        # A program that is started as a module stands in the text of the one that starts it. Those
        # of other kinds make captures, or are imported as well.
        named = _strings_in(_file_of(module)) & graph.modules
        started = {name for name in named if name.startswith(kind) or KINDS not in name}
        left |= (graph.find_modules_directly_imported_by(module) | started) - modules
    folder = PACKAGE / Path(*kind.split("."))
    native = {path for path in folder.rglob("*") if path.suffix in {".c", ".cpp", ".cu", ".h"}}
    return {*map(_file_of, modules), *native}


def _file_of(module: str) -> Path:
    path = PACKAGE / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _strings_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_bytes())
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def files_of(lab: Lab, work: Work) -> str:
    """Return the hash of the lab's files and settings, and of the work's own files."""
    spec = lab.spec.devices[work.device]
    criteria = [msgspec.structs.replace(criterion, text="") for criterion in spec.criteria]
    files = [("settings", msgspec.json.encode([spec.settings, criteria]))]
    with tempfile.TemporaryDirectory() as scratch:
        for name, folder in (("lab", lab.path), ("work", folder_of(lab, work, Path(scratch)))):
            for path in folder.rglob("*"):
                if (
                    path.is_file()
                    and "__pycache__" not in path.parts
                    and not any(map(path.match, WITHOUT_EFFECT))
                ):
                    relative = path.relative_to(folder).as_posix()
                    files.append((f"{name}/{relative}", path.read_bytes()))
    return hash_code(files)


def folder_of(lab: Lab, work: Work, scratch: Path) -> Path:
    """Return the folder of a work's own files. A mutant's are written to `scratch`."""
    if work.part == "mutants":
        write_mutant(lab, next(one for one in load_mutants(lab) if one.id == work.name), scratch)
        return scratch
    if work.part == "variants":
        return next(folder for folder in variants(lab, work.device) if folder.name == work.name)
    return lab.path if work.part == "starter" else lab.solution


# ---- The record ----


def all_work(labs: Iterable[Lab]) -> Iterator[tuple[Lab, Work]]:
    """Yield everything that a machine without a GPU can judge."""
    for lab in labs:
        for device in lab.spec.devices:
            if device == "cuda":
                continue
            yield lab, Work(lab.slug, device, "starter")
            yield lab, Work(lab.slug, device, "solution")
            for folder in variants(lab, device):
                yield lab, Work(lab.slug, device, "variants", folder.name)
            for mutant in load_mutants(lab, device):
                yield lab, Work(lab.slug, device, "mutants", mutant.id)


def read() -> dict[Work, Tally]:
    """Return the record by work."""
    lines = RECORD.read_bytes().splitlines() if RECORD.exists() else []
    tallies = (msgspec.json.decode(line, type=Tally) for line in lines)
    return {tally.work: tally for tally in tallies}


def save(record: dict[Work, Tally]) -> None:
    """Write the record in one piece, a line for each work in a fixed order."""
    tallies = sorted(record.values(), key=lambda tally: msgspec.structs.astuple(tally.work))
    fresh = RECORD.with_suffix(".new")
    fresh.write_bytes(b"".join(msgspec.json.encode(tally) + b"\n" for tally in tallies))
    fresh.replace(RECORD)


def tally_of(lab: Lab, work: Work, record: dict[Work, Tally]) -> Tally:
    """Return the tally that counts for a work as it is now: the recorded one, or an empty one."""
    files, checker = files_of(lab, work), checker_of(lab.spec.measure)
    recorded = record.get(work)
    if recorded is not None and (recorded.files, recorded.checker) == (files, checker):
        return recorded
    return Tally(work, files, checker)


# ---- Checking ----


def run(labs: list[Lab], device: str | None, only: str | None, budget_s: float) -> None:
    """Check what has come out right least often, the quickest first, while the budget lasts."""
    end = time.monotonic() + budget_s
    record = read()
    candidates = [
        (lab, tally_of(lab, work, record))
        for lab, work in all_work(labs)
        if device in (None, work.device) and only in (None, work.part)
    ]
    # What a check took with earlier code tells how long it will take now.
    expected_s = {work: max(tally.seconds) for work, tally in record.items() if tally.seconds}
    while True:
        left_s = end - time.monotonic()
        open_ = [
            (lab, tally)
            for lab, tally in candidates
            if not tally.done and expected_s.get(tally.work, 0.0) < left_s
        ]
        if left_s <= 0 or not open_:
            return
        lab, tally = min(
            open_, key=lambda one: (len(one[1].seconds), expected_s.get(one[1].work, 0.0))
        )
        check(lab, tally)
        expected_s[tally.work] = max(tally.seconds)
        record[tally.work] = tally
        save(record)


def check(lab: Lab, tally: Tally) -> None:
    """Make one whole check of a work and add it to its tally."""
    work, load, began = tally.work, os.getloadavg()[0], time.monotonic()
    # A lab with a key has a row for that as well, which no check is made for.
    rows = prove(lab, work.device, work.part, work.name or None)
    ((row, proof),) = [(row, row.proof) for row in rows if row.proof is not None]
    seconds = round(time.monotonic() - began, 1)
    count(tally, row, seconds, round(load, 1))
    tally.machine = machine()
    tally.at = datetime.now(UTC).isoformat(timespec="seconds")
    command = ["git", "rev-parse", "--short", "HEAD"]
    git = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    tally.commit = git.stdout.strip()
    mark = "✗" if row.problems else "✓"
    name = f"{work.lab} {work.device} {work.part} {work.name}".strip()
    print(f"{mark} {name}: {proof.outcome}, {seconds:.0f} s", flush=True)
    for problem in row.problems:
        print(f"    {problem}", flush=True)


def count(tally: Tally, row: Row, seconds: float, load: float) -> None:
    """Add one check to a tally. `load` is the machine's load average when the check began."""
    assert row.proof is not None
    decided = row.proof.outcome in ("PASS", "FAIL")
    if not row.problems:
        tally.right += 1
    elif decided:
        tally.wrong += 1
    else:
        tally.undecided += 1
    tally.seconds = [*tally.seconds, seconds]
    if row.problems:
        tally.problems = [problem[:300] for problem in row.problems]
        tally.loads = [*tally.loads, load]
    if decided:
        tally.outcome = row.proof.outcome
        tally.figures = {
            margin.criterion: format_figure(margin.value, margin.unit)
            for margin in row.proof.margins
        }


# ---- The tables ----

HEAD = ["lab", "device", "work", "right once", f"{TIMES} times", "wrong", "undecided"]
HEAD += ["seconds per check", "by earlier code"]


def tables(labs: Iterable[Lab]) -> str:
    """Return a row for each lab and device, then what came out otherwise than declared."""
    record = read()
    groups: dict[tuple[str, str, str], list[tuple[Tally, Tally | None]]] = {}
    for lab, work in all_work(labs):
        tally, recorded = tally_of(lab, work, record), record.get(work)
        earlier = recorded if recorded is not None and recorded is not tally else None
        side = "wrong" if work.part in ("mutants", "starter") else "right"
        groups.setdefault((lab.slug, work.device, side), []).append((tally, earlier))
    rows = [
        [lab, device, f"{len(group)} {side}", *_cells(group)]
        for (lab, device, side), group in groups.items()
    ]
    everything = [pair for group in groups.values() for pair in group]
    rows.append(["**all**", "", str(len(everything)), *_cells(everything)])
    unexpected = [f"- {_unexpected(tally)}" for tally, _ in everything if tally.problems]
    below = ["", "Otherwise than declared:", "", *(unexpected or ["- nothing"])]
    return "\n".join([table(HEAD, rows), *below])


def _cells(group: list[tuple[Tally, Tally | None]]) -> list[str]:
    tallies = [tally for tally, _ in group]
    seconds = [second for tally in tallies for second in tally.seconds]
    earlier = sum(1 for _, old in group if old is not None and old.done and not old.wrong)
    counts = [
        sum(tally.right >= 1 for tally in tallies),
        sum(tally.right >= TIMES for tally in tallies),
        sum(tally.wrong > 0 for tally in tallies),
        sum(tally.undecided for tally in tallies),
        f"{statistics.median(seconds):.0f}" if seconds else "–",
        earlier,
    ]
    return list(map(str, counts))


def _unexpected(tally: Tally) -> str:
    work = tally.work
    counts = [f"{tally.wrong} wrong"] * (tally.wrong > 0)
    counts += [f"{tally.undecided} undecided"] * (tally.undecided > 0)
    loads = f"{min(tally.loads)} to {max(tally.loads)}"
    return (
        f"`{work.lab}/{work.name or work.part}` on {work.device}: {', '.join(counts)}, at a load of"
        f" {loads}. For example: {' '.join(tally.problems)}"
    )


def before_and_after(lab: Lab, device: Device) -> str | None:
    """Return the table of a solution's write-up: the shipped files beside all right work.

    None until every work of it has been decided in its present state.
    """
    record = read()
    tallies = [
        tally_of(lab, work, record)
        for _, work in all_work([lab])
        if work.device == device and work.part != "mutants"
    ]
    if not all(tally.outcome for tally in tallies):
        return None
    targets = {
        spec.id: spec.label or spec.id
        for spec in lab.spec.devices[device].criteria
        if spec.target is not None
    }
    rows = []
    for tally in tallies:
        name = "shipped" if tally.work.part == "starter" else tally.work.name or "solution"
        rows.append([name, *(tally.figures.get(id_, "–") for id_ in targets), tally.outcome])
    latest = max(tallies, key=lambda tally: tally.at)
    source = f"Measured until {latest.at[:10]}, on {latest.machine}."
    return "\n".join([table(["", *targets.values(), "outcome"], rows), "", source])


def write(labs: Iterable[Lab]) -> None:
    """Renew the tables of the page and of the solutions whose write-up has the same marks."""
    labs = list(labs)
    _renew(PAGE, tables(labs))
    for lab in labs:
        page = lab.solution / "README.md"
        if f"<!-- {MARK}: begin -->" in page.read_text("utf-8"):
            device = next(device for device in ("virtual", "cpu") if device in lab.spec.devices)
            if figures := before_and_after(lab, device):
                _renew(page, figures)


def _renew(page: Path, text: str) -> None:
    page.write_text(renew(page.read_text("utf-8"), MARK, text), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    labs = load_labs()
    parser.add_argument("--budget-s", type=float, default=600.0)
    parser.add_argument("--labs", nargs="+", choices=labs, default=list(labs), metavar="LAB")
    parser.add_argument("--device", choices=("virtual", "cpu"))
    parser.add_argument("--only", choices=("starter", "solution", "variants", "mutants"))
    parser.add_argument("--write", action="store_true", help="renew the tables in docs/measured")
    options = parser.parse_args()
    if not Path(bottleneck_lab.__file__).is_relative_to(ROOT):
        parser.error(f"a record of {ROOT} cannot be made with {bottleneck_lab.__file__}")
    run([labs[slug] for slug in options.labs], options.device, options.only, options.budget_s)
    if options.write:
        write(labs.values())


if __name__ == "__main__":
    main()
