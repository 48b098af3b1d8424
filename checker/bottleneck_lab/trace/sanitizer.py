"""compute-sanitizer's reports: how many problems it found, and the first of them."""

from __future__ import annotations

import re

_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards?")
_PROBLEM = re.compile(
    r"^=+ (?:Error: |Warning:"
    r" )?((?:Invalid|Misaligned|Race|Uninitialized|Barrier|Divergent|Potential)\b.*?|Program hit"
    r" .*?)\s*$",
    re.MULTILINE,
)
_PLACE = re.compile(r"[^\s/]+\.(?:cuh?|py):\d+")


def count_problems(text: str) -> int | None:
    """Count errors and hazards together; None for a report without a summary, which proves
    nothing.
    """
    counts = [int(errors or hazards) for errors, hazards in _SUMMARY.findall(text)]
    if counts:
        return sum(counts)
    return None


def first_problem(text: str) -> str:
    """Return the first problem, such as `Invalid __global__ read of size 4 bytes, attention.cu:68`;
    the line only where the kernel was compiled with -lineinfo.
    """
    problem = _PROBLEM.search(text)
    if problem is None:
        return ""
    # The problem, and where: the backtrace of the host comes later.
    rest = text[problem.start() :].split("\n")[:6]
    source_line = next((match[0] for line in rest if (match := _PLACE.search(line))), "")
    if source_line and source_line not in problem[1]:
        return f"{problem[1]}, {source_line}"
    return problem[1]
