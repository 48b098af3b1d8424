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
    """Errors and hazards together; None for a report that does not come to its summary, and so
    proves nothing.
    """
    counts = [int(errors or hazards) for errors, hazards in _SUMMARY.findall(text)]
    if counts:
        return sum(counts)
    return None


def first_problem(text: str) -> str:
    """Such as `Invalid __global__ read of size 4 bytes, attention.cu:68`; the line only where the
    kernel was compiled with -lineinfo.
    """
    found = _PROBLEM.search(text)
    if found is None:
        return ""
    rest = text[found.start() :].split("\n")[
        :6
    ]  # the problem, and where: the backtrace of the host comes later
    place = next((match[0] for line in rest if (match := _PLACE.search(line))), "")
    if place and place not in found[1]:
        return f"{found[1]}, {place}"
    return found[1]
