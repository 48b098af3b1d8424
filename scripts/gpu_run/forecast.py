"""Say how long each step will take, by the records or by calculation, and what fits a budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scripts.gpu_run.plan import FORMS, form_of
from scripts.gpu_run.records import State, is_good

CHECKS_S = {
    "busy-ensemble": (39.0, 25.0),
    "forecaster-out-of-memory": (20.0, 20.0),
    "fused-attention": (36.0, 49.0),
    "idle-gpu": (25.0, 27.0),
    "past-the-plateau": (40.0, 60.0),
    "perf-gate": (56.0, 56.0),
    "resnet-latency": (45.0, 45.0),
    "resnet-top-ops": (43.0, 43.0),
    "roofline": (32.0, 31.0),
    "stuttering-tagger": (55.0, 44.0),
    "timing-pitfalls": (60.0, 60.0),
}
"""Seconds that a check of starter and solution is expected to take as long as no record says it, by
benchmarks/gpu_budget.py; those of `resnet-latency` and `resnet-top-ops` were read on an H200.
"""


def expected_s(step: str, records: Iterable[dict[str, Any]]) -> float:
    """Return the seconds that a step took when it was last recorded, on any GPU; where it never
    was, those that were calculated for it, or those of its form.
    """
    dated = sorted(records, key=lambda record: record["date"], reverse=True)
    for record in dated:
        row = record["steps"].get(step, {})
        if "seconds" in row and is_good(row):
            return float(row["seconds"])
    kind, lab, what = [*step.split(":"), "", ""][:3]
    if kind == "grade" and lab in CHECKS_S and not what.startswith("variant "):
        return CHECKS_S[lab][what == "solution"]
    return [*FORMS.values()][form_of(step)]


def describe_plan(
    steps: dict[str, str], state: State, records: list[dict[str, Any]], budget_s: float
) -> str:
    """Return the plan for people: a line a step, with its expected seconds and, for what is
    still to do, the minute at which it would be done; then what fits the budget.
    """
    lines, clock_s, to_do, fitting = [], 0.0, 0, 0
    for step, lacks in steps.items():
        seconds = expected_s(step, records)
        if lacks or state.in_order(step):
            lines.append(
                f"{'-' if lacks else 'done':>5}  {seconds:4.0f} s  {step} {lacks}".rstrip()
            )
            continue
        clock_s += seconds
        to_do += 1
        fitting += clock_s <= budget_s
        lines.append(f"{int(clock_s // 60):>2}:{int(clock_s % 60):02}  {seconds:4.0f} s  {step}")
    lines.append(
        f"Still to do: {to_do}, about {clock_s / 60:.0f} minutes. Of these, the first {fitting} fit"
        f" the budget of {budget_s / 60:.0f} minutes."
    )
    return "\n".join(lines)
