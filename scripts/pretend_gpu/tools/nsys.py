#!/usr/bin/env python3
"""Stands in for Nsight Systems: `nsys --version`, `nsys profile --help`, `nsys profile OPTIONS
PROGRAM …`.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

OPTIONS = {
    "--trace": ("cuda", "nvtx", "osrt", "cudnn", "cublas", "nccl", "mpi"),
    "--sample": ("process-tree", "none"),
    "--cpuctxsw": ("process-tree", "none"),
    "--trace-fork-before-exec": ("true", "false"),
    "--cuda-graph-trace": ("graph", "node"),
    "--pytorch": ("autograd-nvtx", "none"),
    "--discard-environment": ("true", "false"),
    "--wait": ("primary", "all"),
    "--export": ("sqlite", "none"),
    "--force-overwrite": ("true", "false"),
    "--mpi-impl": ("openmpi", "mpich"),
    "--python-backtrace": ("cuda", "none"),
    "--output": (),
}
"""Of `nsys profile`, with the values that each takes; none where it takes any."""
TABLES: dict[str, tuple[str, list[tuple[object, ...]]]] = {
    "StringIds": ("id INT, value TEXT", [(1, "a_kernel"), (2, "cudaLaunchKernel")]),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        (
            "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT,"
            " demangledName INT, shortName INT"
        ),
        [(2000, 9000, 0, 7, 1, 1 << 24, 1, 1)],
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INT, end INT, globalTid INT, correlationId INT, nameId INT, returnValue INT",
        [(1000, 1500, 1 << 24 | 1, 1, 2, 0)],
    ),
    "TARGET_INFO_GPU": (
        "id INT, name TEXT, smCount INT, totalMemory INT, computeMajor INT, computeMinor INT",
        [(0, "Rehearsal (no GPU)", 1, 1 << 30, 9, 0)],
    ),
    "META_DATA_EXPORT": ("name TEXT, value TEXT", [("EXPORT_SCHEMA_VERSION", "3.25")]),
}


def main(words: list[str]) -> int:
    """The program's exit status, 2 for a command line that nsys would refuse."""
    if words == ["--version"]:
        sys.stdout.write("NVIDIA Nsight Systems version 2026.1.1 (stand-in)\n")
        return 0
    if words == ["profile", "--help"]:
        for name, values in OPTIONS.items():
            sys.stdout.write(f"\t{name}=\n\t   {', '.join(repr(value) for value in values)}\n")
        return 0
    at = next(index for index, word in enumerate(words) if index and not word.startswith("-"))
    options = dict(word.split("=", 1) for word in words[1:at])
    wrong = [name for name, value in options.items() if not _is_known(name, value)]
    if words[0] != "profile" or wrong:
        sys.stderr.write(f"unrecognised option or value: {', '.join(wrong) or words[0]}\n")
        return 2
    status = subprocess.run(words[at:], check=False).returncode
    _write(Path(re.sub(r"%q\{(\w+)\}", lambda match: os.environ[match[1]], options["--output"])))
    return status


def _is_known(name: str, value: str) -> bool:
    known = OPTIONS.get(name)
    return known is not None and (not known or set(value.split(",")) <= set(known))


def _write(report: Path) -> None:
    """The report, of which nobody reads more than that it is there, and its export."""
    Path(f"{report}.nsys-rep").touch()
    with sqlite3.connect(f"{report}.sqlite") as database:
        for name, (columns, rows) in TABLES.items():
            database.execute(f"CREATE TABLE {name} ({columns})")
            for row in rows:
                database.execute(f"INSERT INTO {name} VALUES ({','.join('?' * len(row))})", row)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
