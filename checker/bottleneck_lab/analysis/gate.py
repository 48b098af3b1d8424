"""Judge whether a change made a program slower: two versions measured alternately, pair by pair,
with an interval, and with controls that say when not to ask.

The two measurements of a pair lie side by side in time, so whatever drifts is in both; which one
goes first is a fair coin's choice. Without a change, each log ratio is then as likely to be +x as
-x, whatever the noise and however it drifts, and the signed-rank test is exact
(`statistics.signed_rank_interval`). Pure functions: whoever measures calls `alternate` for the
order and `judge` for the answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import msgspec

from bottleneck_lab.analysis.statistics import (
    Change,
    Interval,
    judge_ratio,
    log_ratios,
    noise_share,
    signed_rank_interval,
)

Pairs = tuple[Sequence[float], Sequence[float]]
"""Seconds before and seconds after, pair by pair."""


class Rules(msgspec.Struct, frozen=True):
    """The size of a change that counts, and how sure an answer must be.

    `regression`: the slow-down that must not go unseen, a share; "same" says that one of this size
    is excluded. `tolerated`: changes up to this share are nobody's concern. `false_alarms`: how
    often, at most, "worse" may be said of a suite in which nothing changed; "better" as often.
    `looks`: how many pairs are measured before each look at the data; a look that decides is the
    last one.
    """

    regression: float = 0.10
    tolerated: float = 0.02
    false_alarms: float = 0.001
    looks: tuple[int, ...] = (16, 24, 36, 54, 80)


class BenchmarkChange(msgspec.Struct, frozen=True):
    """The outcome for one benchmark. `ratio` is time after over time before (1.1: a tenth slower),
    between `low` and `high`; a missing bound is None.

    `noise`: typical difference between single pairs, a share. `wanted`: how many pairs the next
    look needs; 0 when there is none.
    """

    outcome: Change
    ratio: float
    low: float | None
    high: float | None
    pairs: int
    noise: float
    wanted: int
    sentence: str


def alternate(rng: random.Random, n: int) -> list[bool]:
    """Return, for each of `n` pairs, True if the version after the change is measured first: a fair
    coin a pair, which is what makes `judge` exact.
    """
    return [bool(rng.getrandbits(1)) for _ in range(n)]


def judge(pairs: Pairs, rules: Rules | None = None, *, benchmarks: int = 1) -> BenchmarkChange:
    """Judge one benchmark out of `benchmarks` in the suite, after any number of pairs.

    Raises ValueError without pairs, when the two sides differ in length, or when a time is not a
    positive number of seconds.
    """
    rules = rules or Rules()
    logs = log_ratios(pairs[1], pairs[0])
    error = rules.false_alarms / len(rules.looks) / benchmarks
    interval = Interval(*(math.exp(bound) for bound in signed_rank_interval(logs, 1 - 2 * error)))
    outcome = judge_ratio(interval, rules.tolerated, rules.regression)
    later = [look for look in rules.looks if look > len(logs)]
    return BenchmarkChange(
        outcome=outcome,
        ratio=interval.median,
        low=interval.low or None,
        high=interval.high if math.isfinite(interval.high) else None,
        pairs=len(logs),
        noise=noise_share(logs),
        wanted=later[0] if later and outcome == "cannot tell" else 0,
        sentence=_sentence(outcome, interval, len(logs), rules),
    )


def judge_suite(
    suite: Mapping[str, Pairs],
    rules: Rules | None = None,
    *,
    unaffected: Sequence[str] = (),
    same_code: Pairs | None = None,
) -> dict[str, BenchmarkChange]:
    """Judge all benchmarks of a suite: together the answers raise a false alarm as rarely as the
    rules say for one.

    `unaffected` names benchmarks that the change cannot have touched, `same_code` is the old
    version measured against itself in the same turns. Where these controls move, the measurement
    moved and not the code: then nothing is called better or worse.
    """
    rules = rules or Rules()
    count = len(suite) + (same_code is not None)
    changes = {name: judge(pairs, rules, benchmarks=count) for name, pairs in suite.items()}
    controls = {f"'{name}', which the change does not touch,": changes[name] for name in unaffected}
    if same_code is not None:
        controls["the same code, measured against itself,"] = judge(
            same_code, rules, benchmarks=count
        )
    moved = [
        f"{who} came out at {c.ratio:.2f}x"
        for who, c in controls.items()
        if c.outcome in ("better", "worse")
    ]
    if not moved:
        return changes
    for name, change in changes.items():
        if change.outcome in ("better", "worse"):
            changes[name] = msgspec.structs.replace(
                change,
                outcome="cannot tell",
                wanted=0,
                sentence=f"cannot tell: {moved[0]}, so the machine or the harness favours one side;"
                f" this one read {change.ratio:.2f}x.",
            )
    return changes


def _sentence(outcome: Change, interval: Interval, pairs: int, rules: Rules) -> str:
    span = "no bounds yet"
    if math.isfinite(interval.high):
        span = f"{interval.low:.3f}–{interval.high:.3f}x"
    seen = f"{interval.median:.3f}x the time ({span}, {pairs} pairs)"
    return {
        "worse": f"slower: {seen}.",
        "better": f"faster: {seen}.",
        "same": f"same: {seen}; a change of {rules.regression:.0%} is excluded.",
        "cannot tell": (
            f"cannot tell: {seen}; that neither shows nor excludes a change of"
            f" {rules.regression:.0%}."
        ),
    }[outcome]
