"""Two captures of the same program: what got better, what got worse, and what is only noise."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.analysis.statistics import Interval, median_interval
from bottleneck_lab.analysis.summary import Summary

Outcome = Literal["better", "worse", "same", "unclear"]

NOISE_SHARE = 0.03
"""What no step-to-step variation is known of has to change by more than this share of the wall time of a step to count."""
CONFIDENCE = 0.975
"""Of each median's interval: either misses at most once in 40 times, so the ratio of the two lies in its own at least 95% of the time."""
FEWEST_STEPS = 7
"""Of six samples the smallest and the largest bound the median only 31 times in 32."""


class Change(msgspec.Struct, frozen=True):
    """One figure before and after. `ratio` is before / after (above 1: less now; 0 when it is gone, then `after` is 0). Times are ns a step."""

    what: str
    group: Literal["step", "device", "gap", "range", "operator", "kernel", "copy", "sync"]
    before: float
    after: float
    ratio: float
    outcome: Outcome
    noise: float
    """Half-width of what two captures without any change may differ by, in the same unit."""


class Comparison(msgspec.Struct, frozen=True):
    """`speedup` is the ratio of the median step times, with an interval of at least 95%; `changes` are ordered by the time they are about.

    `few_steps`: one capture has too few for any such interval; the bounds are then the ratios of the steps seen, and no share of the time is vouched for.
    """

    speedup: float
    speedup_low: float
    speedup_high: float
    outcome: Outcome
    emulated: bool
    reliable: bool
    reasons: list[str]
    changes: list[Change]
    findings_gone: list[str]
    findings_new: list[str]
    few_steps: bool


def compare(before: Summary, after: Summary) -> Comparison:
    """Compares per step; captures without steps are compared whole, and then no noise is known.

    The interval is the ratio of the extremes of the medians' sign-test intervals: no shape of the noise is assumed.
    """
    first, second = _steps(before), _steps(after)
    old, new = _bounds(first), _bounds(second)
    low, high = old.low / max(new.high, 1), old.high / max(new.low, 1)
    scale = _noise_scale(first, second)
    changes = [change for change in _changes(before, after, scale) if change.before or change.after]
    ids = [{f.id for f in s.findings} for s in (before, after)]
    return Comparison(
        speedup=old.median / max(new.median, 1),
        speedup_low=low,
        speedup_high=high,
        outcome="better" if low > 1 else "worse" if high < 1 else "unclear" if high / max(low, 1e-9) > 1.2 else "same",
        emulated=before.emulated or after.emulated,
        reliable=before.quality.reliable and after.quality.reliable,
        reasons=[*(f"before: {r}" for r in before.quality.reasons), *(f"after: {r}" for r in after.quality.reasons)],
        changes=sorted(changes, key=lambda c: -max(c.before, c.after)),
        findings_gone=sorted(ids[0] - ids[1]),
        findings_new=sorted(ids[1] - ids[0]),
        few_steps=min(len(first), len(second)) < FEWEST_STEPS,
    )


def _bounds(steps: list[int]) -> Interval:
    """The median step in its interval; between the shortest and the longest where there are too few to bear one."""
    found = median_interval(steps, CONFIDENCE)
    return found if len(steps) >= FEWEST_STEPS else Interval(min(steps), found.median, max(steps))


def _steps(summary: Summary) -> list[int]:
    return [step.cost_ns for step in summary.steps] or [summary.wall_ns]


def _noise_scale(first: list[int], second: list[int]) -> float:
    """Relative noise of a step's time: the larger of both captures' spread of the median, at least NOISE_SHARE."""
    spreads = [np.std(s) / np.mean(s) / np.sqrt(len(s)) for s in (first, second) if len(s) > 1 and np.mean(s)]
    return max(2 * float(max(spreads, default=0)), NOISE_SHARE)


def _changes(before: Summary, after: Summary, scale: float) -> list[Change]:
    groups = [_figures(before), _figures(after)]
    step = max(float(np.median(_steps(before))), float(np.median(_steps(after))))
    keys = dict.fromkeys([*groups[0], *groups[1]])
    return [
        _change(group, what, groups[0].get((group, what), 0.0), groups[1].get((group, what), 0.0), scale * step)
        for group, what in keys
    ]


def _change(group: str, what: str, before: float, after: float, noise: float) -> Change:
    outcome: Outcome = "same" if abs(after - before) <= noise else "better" if after < before else "worse"
    ratio = before / after if after else 0.0
    return msgspec.convert(
        {
            "what": what,
            "group": group,
            "before": before,
            "after": after,
            "ratio": ratio,
            "outcome": outcome,
            "noise": noise,
        },
        Change,
    )


def _figures(summary: Summary) -> dict[tuple[str, str], float]:
    """Times a step, ns, by (group, name)."""
    per = max(len(summary.steps), 1)
    found: dict[tuple[str, str], float] = {("step", "time"): float(np.median(_steps(summary)))}
    for use in summary.devices:
        for cause in use.gap_causes:
            key = ("gap", str(cause.cause))
            found[key] = found.get(key, 0) + cause.idle_ns / per / len(summary.devices)
        for name in ("idle_ns", "compute_ns", "exposed_communication_ns", "exposed_copy_ns"):
            key = ("device", name.removesuffix("_ns"))
            found[key] = found.get(key, 0) + getattr(use, name) / per / len(summary.devices)
    host_step = sum(step.duration_ns for step in summary.steps) / per
    for name, share in summary.range_shares.items():
        found["range", name] = share * host_step
    for operator in summary.operators:
        found["operator", operator.name] = (operator.self_ns if summary.cpu_only else operator.device_self_ns) / per
    for kernel in summary.kernels:
        found["kernel", kernel.name] = kernel.total_ns / per
    for copy in summary.copies:
        found["copy", f"{copy.direction} {copy.host_memory}"] = copy.total_ns / per
    for sync in summary.syncs:
        key = ("sync", sync.name)
        found[key] = found.get(key, 0) + sync.total_ns / per
    return found
