"""Before and after: the shipped files, the solution and every variant of a lab, each through a
whole check, in one run.

    python benchmarks/before_after.py [dataloader …] [--device virtual] [--write]

Prints a table of each criterion that has a figure; with --write, puts it between the `measured`
marks of the solution's README. Uses the data set of BOTTLENECK_LAB_HOME (make it with `lab data`).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
import tempfile
from datetime import date
from pathlib import Path

from bottleneck_lab.catalog import Lab, find_lab, load_labs
from bottleneck_lab.grading.criteria import format_figure
from bottleneck_lab.grading.verdict import Verdict
from bottleneck_lab.measure.lab_rules import variants
from bottleneck_lab.measure.submission import collect_pristine
from bottleneck_lab.measure.verifier import check_lab
from bottleneck_lab.workspace.home import dataset_root, home

MARKS = re.compile(r"(<!-- measured:begin -->\n).*?(<!-- measured:end -->)", re.DOTALL)


def check(lab: Lab, device: str, overlay: Path | None) -> Verdict:
    """The verdict on the shipped files with those of `overlay` laid over them; asked again when the
    machine was too busy.
    """
    for _ in range(3):
        with tempfile.TemporaryDirectory() as place:
            collect_pristine(lab, Path(place), overlay)
            if overlay is not None and lab.spec.questions:
                shutil.copyfile(lab.solution / "diagnosis.toml", Path(place) / "diagnosis.toml")
            verdict = check_lab(lab, Path(place), device, data=dataset_root("photos"), home=home())
        if verdict.outcome in ("PASS", "FAIL"):
            break
    return verdict


def row(name: str, verdict: Verdict) -> str:
    """One line of the table."""
    figures = [
        f"{format_figure(result.value, result.unit)}" if result.value is not None else "-"
        for result in verdict.criteria
        if result.target is not None
    ]
    outcome = f"{verdict.outcome} ({verdict.reason})" if verdict.reason else str(verdict.outcome)
    return f"| {' | '.join([name, *figures, outcome])} |"


def operators(verdict: Verdict) -> list[str]:
    """What the captures of a finding lab showed, as a table of its own; nothing for other labs."""
    found = verdict.measurement.get("operators", [])
    lines = [
        f"| `{one['name']}` | {one['share']:.1%} ± {100 * one['half_width']:.1f} |"
        f" {intensity(one['flop_per_byte'])} |"
        for one in found
    ]
    return (
        ["", "| operator | share of self time | FLOP per byte |", "| --- | --- | --- |", *lines]
        if lines
        else []
    )


def intensity(flop_per_byte: float | None) -> str:
    """Two digits, whole numbers above ten; operators that compute nothing have none."""
    if flop_per_byte is None:
        return "-"
    return f"{flop_per_byte:.0f}" if flop_per_byte > 10 else f"{flop_per_byte:.2g}"


def table(lab: Lab, device: str) -> str:
    """The whole table, with the machine and the date."""
    targets = [spec.id for spec in lab.spec.devices[device].criteria if spec.target is not None]
    lines = [f"| {' | '.join(['', *targets, 'outcome'])} |", "| --- " * (len(targets) + 2) + "|"]
    folders = {
        "shipped": None,
        "solution": lab.solution,
        **{folder.name: folder for folder in variants(lab, device)},
    }
    for name, overlay in folders.items():
        verdict = check(lab, device, overlay)
        lines.append(row(name, verdict))
        print(lines[-1], flush=True)
    lines += operators(verdict)
    cpu = next(
        (
            line.split(": ")[1]
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    machine = f"{cpu}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    command = f"`python benchmarks/before_after.py {lab.slug} --device {device}`"
    return "\n".join(lines) + f"\n\nMeasured {date.today()} by {command} on {machine}.\n"


def measure(lab: Lab, asked: str | None, *, write: bool) -> None:
    """The table of one lab, printed as it comes about and written into its solution's README.md
    where that is asked for.
    """
    device = asked or next(
        device for device in ("virtual", "cpu", "cuda") if device in lab.spec.devices
    )
    text = table(lab, device)
    if write:
        readme = lab.solution / "README.md"
        page, count = MARKS.subn(
            lambda marks: marks[1] + text + marks[2], readme.read_text(encoding="utf-8")
        )
        if not count:
            sys.exit(f"{readme} has no measured marks")
        readme.write_text(page, encoding="utf-8")


def main() -> None:
    """Print the table, and write it where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("labs", nargs="*", metavar="lab", help="all of them unless told")
    parser.add_argument("--device")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for lab in [find_lab(slug) for slug in options.labs] or load_labs().values():
        measure(lab, options.device, write=options.write)


if __name__ == "__main__":
    main()
