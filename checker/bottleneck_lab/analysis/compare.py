"""Two versions of a program, each seen in one capture or in several: what got better, what got
worse, what stayed the same, and what cannot be told.

Every figure is judged by its own noise. Of one capture each, the steps are the samples; of repeated
captures, recorded alternately, the captures are, pair by pair: only those also hold what differs
between two runs of the same code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.analysis.device.kernel_matching import Match, match_kernels
from bottleneck_lab.analysis.statistics import Interval, rank_sum_interval, signed_rank_interval
from bottleneck_lab.analysis.steps.figures import Key, Series, StepFigures, find_step_figures
from bottleneck_lab.analysis.summary import Analysis, Summary, analyse
from bottleneck_lab.trace.timeline import Floats64, Timeline

Outcome = Literal["better", "worse", "same", "cannot tell"]
Group = Literal["step", "device", "gap", "range", "operator", "kernel", "copy", "sync"]

EXCLUDED = 0.10
"""\"Same\" says that a change of this size is excluded."""
TOLERATED_ALONE = 0.05
"""Two recordings of the same code differ by a few percent that their steps do not show: with one
capture per side, less than this is not a change.
"""
TOLERATED_REPEATED = 0.02
ERROR_ALONE = 0.05
"""How often, at most, the interval of the whole step misses."""
ERROR_PART = 0.01
"""How often a part's interval misses: there are many parts, and one reported as changed should have
changed.
"""
ERROR_REPEATED = 0.002
"""Of repeated captures, for the whole and all parts together: "worse" is said of anything in the
same code once in a thousand comparisons at most, as `gate` has it of a suite. Each figure gets its
part of this (Bonferroni).
"""
MOST_STEPS = 200
"""Of more steps, evenly spread ones are taken: every pair of two is looked at."""
NOTABLE_SHARE = 0.005
"""A figure below this share of a step on both sides is not judged: nobody would act on it."""


class FigureChange(msgspec.Struct, frozen=True):
    """One figure before and after, ns a step (medians). `ratio` is before / after (above 1: less
    now; 0 when it is gone), between `low` and `high`; a bound that the samples cannot bear is None.
    `was`: what a renamed kernel, or the kernels that a fused one replaces, were called.
    """

    what: str
    group: Group
    before: float
    after: float
    ratio: float
    outcome: Outcome
    low: float | None = None
    high: float | None = None
    was: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True):
    """`speedup` is the ratio of the step times, before / after; `changes` are ordered by how much
    time they moved.

    `findings_gone` and `findings_new`: the title of each finding that only one side has, by its id.
    `pairs`: how many pairs of captures were compared; with one, `steps` are the samples. `few`: too
    few for an interval at the level asked for.
    """

    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    outcome: Outcome
    pairs: int
    steps: tuple[int, int]
    few: bool
    emulated: bool
    reliable: bool
    reasons: list[str]
    changes: list[FigureChange]
    findings_gone: dict[str, str]
    findings_new: dict[str, str]
    control: Control | None = None


class Control(msgspec.Struct, frozen=True):
    """The version before, recorded a second time in the same turns, against itself: whatever comes
    out as changed there is the machine's doing.

    `outcome` and `ratio` are the whole step's; `moved` names what came out as better or worse, of
    which the comparison then says nothing.
    """

    outcome: Outcome
    ratio: float
    moved: list[tuple[Group, str]]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a comparison needs of one capture: the capture itself can be let go of."""

    summary: Summary
    figures: StepFigures


Side = Timeline | Observation | Sequence[Timeline | Observation]


def observe(capture: Timeline | Analysis) -> Observation:
    """A capture's summary and the figures of each of its steps."""
    found = analyse(capture) if isinstance(capture, Timeline) else capture
    return Observation(found.summary, find_step_figures(found.timeline, found.times))


def compare(before: Side, after: Side, control: Side = ()) -> Comparison:
    """One capture a side, or as many on each, recorded alternately (the first of one side beside
    the first of the other).

    `control`: as many captures again of the version before, recorded in the same turns. What
    differs between it and `before` cannot be told. Raises ValueError when one side has several
    captures and another not as many.
    """
    found = _compare(before, after)
    return _held_against(found, _compare(before, control)) if _observed(control) else found


def _held_against(found: Comparison, again: Comparison) -> Comparison:
    """What moved in the control is withdrawn; all of it where the whole step did."""
    moved = [
        (change.group, change.what)
        for change in again.changes
        if change.outcome in ("better", "worse")
    ]
    whole = again.outcome in ("better", "worse")
    changes = [
        (
            msgspec.structs.replace(change, outcome="cannot tell")
            if change.outcome in ("better", "worse")
            and (whole or (change.group, change.what) in moved)
            else change
        )
        for change in found.changes
    ]
    outcome = next(change.outcome for change in changes if change.group == "step")
    return msgspec.structs.replace(
        found,
        outcome=outcome,
        changes=changes,
        control=Control(again.outcome, again.speedup, moved),
    )


def _compare(before: Side, after: Side) -> Comparison:
    old, new = _observed(before), _observed(after)
    if len(old) != len(new):
        raise ValueError(
            f"{len(old)} captures before and {len(new)} after cannot be compared in pairs"
        )
    samples = _samples(old), _samples(new)
    matches = match_kernels(*samples, old[0].figures.origins | new[0].figures.origins)
    paired = len(old) > 1
    merged = _with_matches(samples, matches)
    keys = _notable(merged)
    whole = _judged(
        ("step", "time"),
        samples,
        ERROR_REPEATED / (len(keys) + 1) if paired else ERROR_ALONE,
        paired,
    )
    changes = [whole, *_parts(merged, keys, matches, paired)]
    found = [{f.id: f.title for o in side for f in o.summary.findings} for side in (old, new)]
    return Comparison(
        speedup=whole.ratio,
        speedup_low=whole.low,
        speedup_high=whole.high,
        outcome=whole.outcome,
        pairs=len(old),
        steps=(old[0].figures.steps, new[0].figures.steps),
        few=whole.low is None or whole.high is None,
        emulated=any(o.summary.emulated for o in (*old, *new)),
        reliable=all(o.summary.quality.reliable for o in (*old, *new)),
        reasons=[*_reasons("before", old), *_reasons("after", new)],
        changes=sorted(changes, key=lambda c: -abs(c.before - c.after)),
        findings_gone=_only(found[0], found[1]),
        findings_new=_only(found[1], found[0]),
    )


def _only(here: dict[str, str], there: dict[str, str]) -> dict[str, str]:
    return {id_: title for id_, title in here.items() if id_ not in there}


def _observed(side: Side) -> list[Observation]:
    several = [side] if isinstance(side, Timeline | Observation) else side
    return [observe(each) if isinstance(each, Timeline) else each for each in several]


def _reasons(when: str, side: list[Observation]) -> list[str]:
    return list(
        dict.fromkeys(f"{when}: {reason}" for o in side for reason in o.summary.quality.reasons)
    )


def _samples(side: list[Observation]) -> Series:
    """Of one capture its steps; of several the median step of each."""
    if len(side) == 1:
        return side[0].figures.series
    keys = dict.fromkeys(key for o in side for key in o.figures.series)
    return {key: np.array([_median(o.figures.series.get(key)) for o in side]) for key in keys}


def _median(values: Floats64 | None) -> float:
    return 0.0 if values is None else float(np.median(values))


Both = tuple[Series, Series]


def _notable(merged: Both) -> list[Key]:
    """Every figure but the whole step that is long enough on one side to be judged."""
    least = NOTABLE_SHARE * max(_median(side["step", "time"]) for side in merged)
    return [
        key
        for key in dict.fromkeys([*merged[0], *merged[1]])
        if key[0] != "step" and max(_median(side.get(key)) for side in merged) >= least
    ]


def _parts(merged: Both, keys: list[Key], matches: list[Match], paired: bool) -> list[FigureChange]:
    error = ERROR_REPEATED / (len(keys) + 1) if paired else ERROR_PART
    was = {match.new: match.old for match in matches}
    return [
        _judged(key, merged, error, paired, was.get(key[1], ()) if key[0] == "kernel" else ())
        for key in keys
    ]


def _with_matches(samples: Both, matches: list[Match]) -> Both:
    """Kernels before under the name that they have after; those that one took the place of, summed
    up.
    """
    old = dict(samples[0])
    for match in matches:
        old["kernel", match.new] = np.sum([old.pop(("kernel", name)) for name in match.old], axis=0)
    return old, samples[1]


def _judged(
    key: Key, samples: Both, error: float, paired: bool, was: tuple[str, ...] = ()
) -> FigureChange:
    old, new = (side.get(key, np.zeros(len(next(iter(side.values()))))) for side in samples)
    before, after = float(np.median(old)), float(np.median(new))
    found = _ratio_interval(old, new, 1 - error, paired)
    tolerated = TOLERATED_REPEATED if paired else TOLERATED_ALONE
    outcome = (
        _outcome(found, tolerated)
        if found
        else _by_difference(_difference(old, new, 1 - error, paired))
    )
    low, high = (None, None) if found is None else (_inverse(found.high), _inverse(found.low))
    ratio = 0.0 if not after else before / after if found is None else 1 / found.median
    return msgspec.convert(
        {
            "what": key[1],
            "group": key[0],
            "before": before,
            "after": after,
            "ratio": ratio,
            "outcome": outcome,
            "low": low,
            "high": high,
            "was": was,
        },
        FigureChange,
    )


def _inverse(bound: float) -> float | None:
    return 1 / bound if 0 < bound < math.inf else None


def _ratio_interval(
    old: Floats64, new: Floats64, confidence: float, paired: bool
) -> Interval | None:
    """After over before; None if a figure is zero at times, of which there is no ratio."""
    if not (old > 0).all() or not (new > 0).all():
        return None
    found = _difference(np.log(old), np.log(new), confidence, paired)
    return Interval(*(math.exp(bound) if bound < 700 else math.inf for bound in found))


def _difference(old: Floats64, new: Floats64, confidence: float, paired: bool) -> Interval:
    """How far the values of `new` lie above those of `old`."""
    if paired:
        return signed_rank_interval((new - old).tolist(), confidence)
    first, second = (values[:: 1 + len(values) // MOST_STEPS].tolist() for values in (old, new))
    return rank_sum_interval(first, second, confidence)


def _outcome(found: Interval, tolerated: float) -> Outcome:
    if found.low > 1 + tolerated:
        return "worse"
    if found.high < 1 / (1 + tolerated):
        return "better"
    within = found.high < 1 + EXCLUDED and found.low > 1 / (1 + EXCLUDED)
    return "same" if within else "cannot tell"


def _by_difference(found: Interval) -> Outcome:
    """Of what is there in some steps only, as a copy every tenth step is."""
    return "better" if found.high < 0 else "worse" if found.low > 0 else "cannot tell"
