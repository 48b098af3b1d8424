#!/usr/bin/env python3
"""Stands in for compute-sanitizer: `--version`, `--help`, and `compute-sanitizer OPTIONS PROGRAM
…`, which finds nothing in a program that ends well.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The options, each as one that the real tool has."""
    made = argparse.ArgumentParser(prog="compute-sanitizer", allow_abbrev=False)
    made.add_argument("--version", action="version", version="Version 2026.1.0 (stand-in)")
    made.add_argument("--tool", choices=["memcheck", "racecheck", "initcheck", "synccheck"])
    made.add_argument("--target-processes", choices=["all", "application-only"])
    made.add_argument("--print-limit", type=int)
    made.add_argument("--log-file", type=Path, required=True)
    made.add_argument("program", nargs=argparse.REMAINDER)
    return made


def main(words: list[str]) -> int:
    """The program's exit status; the parser's, 2, for a command line that the tool would refuse."""
    options = parser().parse_args(words)
    status = subprocess.run(options.program, check=False).returncode
    if status == 0:
        options.log_file.write_text("========= ERROR SUMMARY: 0 errors\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
