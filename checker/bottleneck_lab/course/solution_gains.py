"""The gains that a lab's write-up records of right scripts, its own solution among them."""

from __future__ import annotations

import re

from bottleneck_lab.catalog import Lab
from bottleneck_lab.grading.verdict import Outcome, Verdict

FIGURES = re.compile(r"<!-- figures: begin -->\n(.*?)<!-- figures: end -->", re.DOTALL)
GAIN = "against the shipped"
SOLUTION = "solution"
ALIKE = 0.99
"""A gain is as large as another from this part of it on."""


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


def comparable_gains(lab: Lab, verdict: Verdict) -> dict[str, float]:
    """Return the gains of a lab's scripts that the one of a verdict can be compared with; empty
    before a pass, and where none was measured or speed is not what the lab is about.
    """
    gains, prediction = solution_gains(lab), verdict.prediction
    if verdict.outcome is not Outcome.PASS or verdict.device != "virtual" or SOLUTION not in gains:
        return {}
    return gains if prediction is not None and prediction.quantity == "time" else {}


def describe_nothing_left(lab: Lab, verdict: Verdict) -> str:
    """Return why nothing is left to gain after a check, as far as is known: the work is as fast as
    the fastest script. Empty where something may be left.
    """
    gains, prediction = comparable_gains(lab, verdict), verdict.prediction
    if prediction and gains and (prediction.measured or 0.0) > ALIKE * max(gains.values()):
        return "Your last check found your work as fast as the fastest script known to us."
    return ""
