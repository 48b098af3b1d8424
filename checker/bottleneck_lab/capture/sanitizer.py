"""compute-sanitizer: stray reads, races, uninitialised memory and misused barriers of a program's
kernels.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bottleneck_lab.capture.launchers import split
from bottleneck_lab.capture.recording import Captured, CommandEnd, Request, run, typed
from bottleneck_lab.errors import CaptureError, MachineError
from bottleneck_lab.trace.external import run_tool
from bottleneck_lab.trace.sanitizer import count_problems, first_problem

CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")
REPORT = "{}.txt"
PROBE_S = 60

_OPTION = re.compile(r"(--[a-z][a-z0-9-]*)")
_VERSION = re.compile(r"[vV]ersion (\d+(?:\.\d+)+)")


def command(tool: str, options: frozenset[str], request: Request, check: str) -> list[str]:
    """Return the whole command line, of options that this release knows."""
    settings = {"--tool": check, "--target-processes": "all", "--print-limit": "100"}
    known = [word for name, value in settings.items() if name in options for word in (name, value)]
    return split(request.program, sys.executable).around(
        tool, *known, "--log-file", str(request.out / REPORT.format(check))
    )


def record(tool: str, request: Request) -> Captured:
    """Run the program under compute-sanitizer. Raises CaptureError when it came to no conclusion,
    MachineError without a GPU.
    """
    version = _VERSION.search(run_tool([tool, "--version"], Path(tool), PROBE_S))
    options = frozenset(_OPTION.findall(run_tool([tool, "--help"], Path(tool), PROBE_S)))
    files, notes, typed_lines = [], [], []
    for check in request.options.check.split(","):
        line = command(tool, options, request, check)
        request.announce(typed(line, request))
        ended, report = run(request, line), REPORT.format(check)
        files.append(report)
        notes.append(f"{check}: {conclusion_of(request.out / report, ended)}")
        typed_lines.append(typed(line, request))
    return Captured(
        files, "\n".join(typed_lines), ended, version[1] if version else "", notes=notes
    )


def conclusion_of(report: Path, ended: CommandEnd) -> str:
    """State the report's conclusion in one sentence. A run without its summary proves nothing."""
    text = ""
    if report.is_file():
        text = report.read_text(encoding="utf-8", errors="replace")
    problems = count_problems(text)
    if problems:
        first = first_problem(text)
        return f"compute-sanitizer found {problems} problems{f', first: {first}' if first else ''}."
    if problems == 0:
        return "compute-sanitizer found nothing."
    if "CUDA driver" in text + ended.tail or "no CUDA" in text + ended.tail:
        raise MachineError(
            "compute-sanitizer found no CUDA device.",
            "It needs a GPU; `lab doctor` says what this machine has.",
        )
    raise CaptureError(
        f"compute-sanitizer was inconclusive; the program {ended.why()}:\n{ended.last_lines()}",
        "Run the program without it first; if it launches no kernel, there is nothing to check.",
    )
