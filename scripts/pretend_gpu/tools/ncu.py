#!/usr/bin/env python3
"""Stands in for Nsight Compute: `ncu --version`, `--help`, `--list-sets`, `--import REPORT …`, `ncu
OPTIONS PROGRAM …`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

TEXTS = {
    "--version": "Version 2026.1.0.0 (stand-in)",
    "--list-sets": "full  ComputeWorkload, Occupancy  no  162",
}
_ROWS = (
    ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Block Size", "Grid Size"),
    ("", "", "", "", "", "", ""),
    ("0", "1", "python", "", "a_kernel", "(128, 1, 1)", "(8, 1, 1)"),
)
_TIMES = ("gpu__time_duration.sum", "ns", "7000")
REPORT = "".join(
    ",".join(f'"{cell}"' for cell in (*row, time)) + "\n"
    for row, time in zip(_ROWS, _TIMES, strict=True)
)


def parser() -> argparse.ArgumentParser:
    """The options, each as one that the real tool has."""
    made = argparse.ArgumentParser(prog="ncu", allow_abbrev=False)
    made.add_argument("--target-processes", choices=["all", "application-only"])
    made.add_argument("--clock-control", choices=["base", "none"])
    made.add_argument("--kernel-name", type=lambda text: re.compile(text.removeprefix("regex:")))
    made.add_argument("--launch-skip", type=int)
    made.add_argument("--launch-count", type=int)
    made.add_argument("--set", choices=["full"])
    made.add_argument("--metrics")
    made.add_argument("--section-folder")
    made.add_argument("--force-overwrite", action="store_true")
    made.add_argument("--export")
    made.add_argument("--import", dest="report")
    made.add_argument("--csv", action="store_true")
    made.add_argument("--page", choices=["raw", "details"])
    made.add_argument("--print-units", choices=["base", "auto"])
    made.add_argument("program", nargs=argparse.REMAINDER)
    return made


def main(words: list[str]) -> int:
    """The program's exit status; the parser's, 2, for a command line that ncu would refuse."""
    if words[:1] and words[0] in TEXTS:
        sys.stdout.write(TEXTS[words[0]] + "\n")
        return 0
    options = parser().parse_args(words)
    if options.report:
        sys.stdout.write(Path(options.report).read_text(encoding="utf-8"))
        return 0
    status = subprocess.run(options.program, check=False).returncode
    Path(f"{options.export}.ncu-rep").write_text(REPORT, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
