"""The gains that a lab's write-up records of right scripts, its own solution among them."""

from __future__ import annotations

import re

from bottleneck_lab.catalog import Lab

FIGURES = re.compile(r"<!-- figures: begin -->\n(.*?)<!-- figures: end -->", re.DOTALL)
GAIN = "against the shipped"
SOLUTION = "solution"


def solution_gains(lab: Lab) -> dict[str, float]:
    """Return how many times as fast as the shipped script each of a lab's measured scripts is, by
    its name in the table that `benchmarks/modelled_labs.py` writes; empty without such a table.
    """
    write_up = lab.solution / "README.md"
    figures = FIGURES.search(write_up.read_text("utf-8")) if write_up.is_file() else None
    if figures is None:
        return {}
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in figures[1].splitlines()
    )
    if GAIN not in head:
        return {}
    return {row[0]: float(row[head.index(GAIN)].removesuffix("x")) for row in rows}
