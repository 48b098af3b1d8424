"""Whole checks of every lab's right and wrong work, as `lab dev check` makes them, until each has
come out as declared three times.

    python benchmarks/judged_work.py --budget-s 3600 --write     # goes on where the record ends,
    then renews the tables in docs/measured/ python benchmarks/judged_work.py --budget-s 0 --write
    # only the tables python benchmarks/judged_work.py --labs ddp-scaling sync-points --device
    virtual --budget-s 600

A check counts for the files it judged: those of the lab that decide a verdict, and the work itself.
When one of them changes, its checks no longer count. The checker's own code is not among them (each
line names its commit): after a change to how a kind of lab is judged, delete that lab's lines.
INCONCLUSIVE and ERROR decide nothing; such a check is made again later. Labs whose times are
modelled mind no other program; for the others leave the machine alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import bottleneck_lab
from bottleneck_lab.catalog import Device, Lab, load_labs
from bottleneck_lab.commands.proving import machine, prove
from bottleneck_lab.grading.margins import Part
from bottleneck_lab.measure.lab_rules import variants
from bottleneck_lab.workspace.mutants import load_mutants, write_mutant

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "measured" / "judged_work.jsonl"
PAGE = RECORD.with_suffix(".md")
BEGIN, END = "<!-- checks: begin -->", "<!-- checks: end -->"
TIMES = 3
TELLS_NOTHING = ("*.md", "lab.toml", "diagnosis.toml")
"""Files of a lab that no verdict depends on, once its criteria and settings are taken from
lab.toml.
"""


class Work(msgspec.Struct, frozen=True):
    """What one check judges."""

    lab: str
    device: Device
    part: Part
    name: str


class Check(msgspec.Struct, frozen=True):
    """One line of the record. `problems`: how the verdict differs from what was declared; empty
    where it does not. `load`: the machine's, as it began.
    """

    work: Work
    files: str
    outcome: str
    problems: list[str]
    seconds: float
    load: float
    machine: str
    at: str
    commit: str


def all_work(labs: Iterable[Lab]) -> Iterator[tuple[Lab, Work]]:
    """Everything that a machine without a GPU can judge."""
    for lab in labs:
        for device in lab.spec.devices:
            if device == "cuda":
                continue
            for part in ("starter", "solution"):
                yield lab, Work(lab.slug, device, part, "")
            for folder in variants(lab, device):
                yield lab, Work(lab.slug, device, "variants", folder.name)
            for mutant in load_mutants(lab, device):
                yield lab, Work(lab.slug, device, "mutants", mutant.id)


def files_of(lab: Lab, work: Work) -> str:
    """A hash of what the verdict depends on."""
    spec = lab.spec.devices[work.device]
    asked = [msgspec.structs.replace(criterion, text="") for criterion in spec.criteria]
    found = hashlib.sha256(msgspec.json.encode([spec.settings, asked]))
    with tempfile.TemporaryDirectory() as scratch:
        for folder in (lab.path, _folder_of(lab, work, Path(scratch))):
            for path in sorted(folder.rglob("*")):
                if (
                    path.is_file()
                    and "__pycache__" not in path.parts
                    and not any(map(path.match, TELLS_NOTHING))
                ):
                    found.update(
                        path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes()
                    )
    return found.hexdigest()[:12]


def _folder_of(lab: Lab, work: Work, scratch: Path) -> Path:
    if work.part == "mutants":
        write_mutant(lab, next(one for one in load_mutants(lab) if one.id == work.name), scratch)
        return scratch
    if work.part == "variants":
        return next(folder for folder in variants(lab, work.device) if folder.name == work.name)
    return lab.path if work.part == "starter" else lab.solution


def read() -> list[Check]:
    """The record."""
    lines = RECORD.read_bytes().splitlines() if RECORD.exists() else []
    return [msgspec.json.decode(line, type=Check) for line in lines]


def current(labs: Iterable[Lab]) -> dict[tuple[Work, str], tuple[Lab, list[Check]]]:
    """All work with the checks that still count for it."""
    found = {(work, files_of(lab, work)): (lab, list[Check]()) for lab, work in all_work(labs)}
    for check in read():
        if (check.work, check.files) in found:
            found[check.work, check.files][1].append(check)
    return found


def run(labs: list[Lab], device: str | None, only: str | None, budget_s: float) -> None:
    """Checks what has come out right least often, the quickest first, while one as long as before
    still fits the budget.
    """
    end = time.monotonic() + budget_s
    while time.monotonic() < end:
        open_ = [
            (work, files, lab, checks)
            for (work, files), (lab, checks) in current(labs).items()
            if device in (None, work.device) and only in (None, work.part) and not _is_done(checks)
        ]
        open_.sort(key=lambda one: (len(one[3]), one[3][0].seconds if one[3] else 0))
        fits = (one for one in open_ if not one[3] or time.monotonic() + one[3][0].seconds < end)
        if (chosen := next(fits, None)) is None:
            return
        work, files, lab, _ = chosen
        check = _checked(lab, work, files)
        with RECORD.open("ab") as record:
            record.write(msgspec.json.encode(check) + b"\n")
        mark = "✗" if check.problems else "✓"
        print(
            f"{mark} {work.lab} {work.device} {work.part} {work.name}: {check.outcome},"
            f" {check.seconds:.0f} s",
            flush=True,
        )
        for problem in check.problems:
            print(f"    {problem}", flush=True)


def _checked(lab: Lab, work: Work, files: str) -> Check:
    load, began = os.getloadavg()[0], time.monotonic()
    (row,) = prove(lab, work.device, work.part, work.name or None)
    assert row.proof is not None
    at, seconds = (
        datetime.now(UTC).isoformat(timespec="seconds"),
        round(time.monotonic() - began, 1),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    problems = [problem[:500] for problem in row.problems]
    return Check(
        work,
        files,
        row.proof.outcome,
        problems,
        seconds,
        round(load, 1),
        machine(),
        at,
        commit.stdout.strip(),
    )


def _is_done(checks: list[Check]) -> bool:
    """Whether it came out as declared often enough; what came out wrong is checked no more, but
    mended.
    """
    return _right(checks) >= TIMES or any(map(_is_wrong, checks))


def _right(checks: list[Check]) -> int:
    return sum(not check.problems for check in checks)


def _is_wrong(check: Check) -> bool:
    """A verdict that decided, and decided otherwise than declared."""
    return bool(check.problems) and check.outcome in ("PASS", "FAIL")


def tables(labs: Iterable[Lab]) -> str:
    """A row for each lab and device, then every check that came out otherwise than declared."""
    found = current(labs)
    out = [
        (
            f"| lab | device | work | right once | {TIMES} times | wrong | undecided | seconds per"
            " check |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    groups: dict[tuple[str, str, str], list[list[Check]]] = {}
    for (work, _), (_, checks) in found.items():
        kind = "wrong" if work.part in ("mutants", "starter") else "right"
        groups.setdefault((work.lab, work.device, kind), []).append(checks)
    out += [_row(*key, group) for key, group in groups.items()]
    total = [checks for _, checks in found.values()]
    out.append(_row("**all**", "", "", total))
    odd: dict[tuple[str, str, str], list[Check]] = {}
    for check in (check for checks in total for check in checks if check.problems):
        odd.setdefault((check.work.lab, check.work.device, check.outcome), []).append(check)
    rows = [_said(*key, checks) for key, checks in sorted(odd.items())]
    return "\n".join([*out, "", "Otherwise than declared:", "", *(rows or ["- nothing"])])


def _row(lab: str, device: str, kind: str, group: list[list[Check]]) -> str:
    seconds = sorted(check.seconds for checks in group for check in checks)
    cells = [
        lab,
        device,
        f"{len(group)} {kind}".strip(),
        sum(_right(checks) >= 1 for checks in group),
        sum(_right(checks) >= TIMES for checks in group),
        sum(any(map(_is_wrong, checks)) for checks in group),
        sum(check.outcome not in ("PASS", "FAIL") for checks in group for check in checks),
        f"{seconds[len(seconds) // 2]:.0f}" if seconds else "–",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _said(lab: str, device: str, outcome: str, checks: list[Check]) -> str:
    """Which work came out so, how busy the machine was, and what one of the verdicts said."""
    names = Counter(check.work.name or check.work.part for check in checks)
    works = ", ".join(
        name if count == 1 else f"{name} ({count} times)" for name, count in sorted(names.items())
    )
    loads = [check.load for check in checks]
    said = " ".join(checks[-1].problems)[:300]
    return (
        f"- {lab} on {device}, {outcome}, at a load of {min(loads)} to {max(loads)}: {works}. For"
        f" example: {said}"
    )


def write(labs: Iterable[Lab]) -> None:
    """Renew the tables between the page's two markers."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(
        f"{head}{BEGIN}\n{tables(labs)}\n{END}{rest.partition(END)[2]}", encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget-s", type=float, default=600.0)
    parser.add_argument(
        "--labs", nargs="+", choices=load_labs(), default=list(load_labs()), metavar="LAB"
    )
    parser.add_argument("--device", choices=("virtual", "cpu"))
    parser.add_argument("--only", choices=("starter", "solution", "variants", "mutants"))
    parser.add_argument(
        "--write", action="store_true", help="renews the tables in docs/measured/judged_work.md"
    )
    options = parser.parse_args()
    if not Path(bottleneck_lab.__file__).is_relative_to(ROOT):
        parser.error(f"a record of {ROOT} cannot be made with {bottleneck_lab.__file__}")
    run(
        [load_labs()[slug] for slug in options.labs], options.device, options.only, options.budget_s
    )
    if options.write:
        write(load_labs().values())


if __name__ == "__main__":
    main()
