"""Every figure of two versions, judged by its own noise.

Of one capture each, the steps are the samples; of repeated captures, recorded alternately, the
captures are, pair by pair: only those also hold what differs between two runs of the same code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from bottleneck_lab.analysis.comparing.comparison import (
    TOLERATED_ALONE,
    TOLERATED_REPEATED,
    FigureChange,
    Unit,
)
from bottleneck_lab.analysis.comparing.kernel_matching import Match, match_kernels
from bottleneck_lab.analysis.comparing.line_matching import LineEdit, match_lines
from bottleneck_lab.analysis.comparing.observation import Observation
from bottleneck_lab.analysis.host.lines import LINE
from bottleneck_lab.analysis.statistics import (
    Change,
    Interval,
    judge_ratio,
    rank_sum_interval,
    rank_sum_order,
    signed_rank_interval,
)
from bottleneck_lab.analysis.steps.figures import Key, Series
from bottleneck_lab.trace.timeline import Floats64

EXCLUDED = 0.10
"""\"Same\" says that a change of this size is excluded."""

TOLERATED_MODELLED = 0.01
"""Modelled times are the same in every run: what differs by this much is the code's doing."""

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

BESIDE_WORK = 0.9
"""Where a device works for this share (0-1) of a range, a line or a wait of the host, and of the
whole step, the host takes longer there because it is ahead of the device.
"""

WAITING = 0.9
"""A place takes longer, or shorter, only by waiting where this share (0-1) of the difference is in
its waits.
"""

ONLY_MOVED = 0.5
"""A wait that is gone from its place has moved where all waits together fell by less than this
share (0-1) of it.
"""

COMMON_LINES = 0.3
"""Where lines that both sides have are less than this share (0-1) of the time of all lines on one,
their files differ too much for lines to be compared.
"""

NOTABLE_SHARE = 0.005
"""A figure below this share of a step on both sides is not judged: nobody would act on it."""

NEGLIGIBLE_SHARE = 0.005
"""Modelled times that differ by less than this share of a step are the same."""

Both = tuple[Series, Series]


def find_changes(
    unit: Unit, old: list[Observation], new: list[Observation], *, repeats: bool
) -> list[FigureChange]:
    """Judge the whole first (of a server, its images and batches), then the parts. `repeats`: all
    times are the same in every run.
    """
    paired = len(old) > 1
    with_code = all(each.code for each in (*old, *new))
    sides = [
        [_comparable(each, paired=paired, with_code=with_code) for each in side]
        for side in (old, new)
    ]
    samples = _samples(sides[0]), _samples(sides[1])
    matches = match_kernels(*samples, old[0].figures.origins | new[0].figures.origins)
    was: dict[Key, tuple[str, ...]] = {("kernel", match.new): match.old for match in matches}
    one_for_one = _pinned_since(*samples)
    was |= {key: (name,) for key, (_, name) in one_for_one.items()}
    edits: list[LineEdit] = []
    if with_code and not paired:
        edits = match_lines(_line_numbers(old[0]), _line_numbers(new[0]))
    was |= {("line", edit.name): (edit.was,) for edit in edits}
    # What was before, under the names that it has after: of steps, and of their means.
    merged, means = (
        (
            _with_edits(
                _renamed(before, matches, one_for_one), {edit.name: edit.old for edit in edits}
            ),
            _with_edits(after, {edit.name: edit.new for edit in edits}),
        )
        for before, after in (samples, (_means(sides[0], old), _means(sides[1], new)))
    )
    keys = _notable(means)
    if not _share_lines(means):
        keys = [key for key in keys if key[0] != "line"]
    error_whole, error_part = ERROR_ALONE, ERROR_PART
    if paired:
        error_whole = error_part = ERROR_REPEATED / (len(keys) + 1)
    if unit == "image":
        batches = _samples([each.batches for each in old]), _samples([each.batches for each in new])
        names = ("image", "batch")
        changes = [_judged(("step", name), batches, means, error_whole, paired) for name in names]
    else:
        changes = [_judged(("step", "time"), samples, means, error_whole, paired)]
    changes += [_judged(key, merged, means, error_part, paired, was.get(key, ())) for key in keys]
    if repeats:
        # Steps differ by their data, which both versions share: no other run would differ more.
        step_ns = max(changes[0].before, changes[0].after)
        changes = [_judged_by_means(change, step_ns) for change in changes]
    beside, idle_ns = _beside_work(new, with_code, edits), means[1].get(("device", "idle"), 0.0)
    # Where the device runs out of work, what takes the host longer makes the next work late; a wait
    # is told apart by itself, since all that it costs is the idle time after it.
    ahead = idle_ns <= (1 - BESIDE_WORK) * changes[0].after
    changes = [
        msgspec.structs.replace(each, outcome="differs", waits=True)
        if each.outcome == "worse"
        and (ahead or each.group == "sync")
        and beside.get((each.group, each.what), 0.0) >= BESIDE_WORK
        else each
        for each in changes
    ]
    return _with_moved_waits(changes, _find_waits(old, with_code), _find_waits(new, with_code))


def _with_moved_waits(
    changes: Sequence[FigureChange], before: Mapping[Key, _Waits], after: Mapping[Key, _Waits]
) -> list[FigureChange]:
    """Return the changes with those told apart that are worse only because the host waits there
    for what it waited for elsewhere, or comes there earlier: a wait comes to the first place after
    what is gone. So are those that are better only because their wait went to such a place: then
    all waits together fell by much less.

    That is sure where a place waits no more often than before, the device's work is no longer, and
    the step, or the waits of all places together, shrank.
    """
    longer = any(
        (each.group, each.what, each.outcome) == ("device", "compute", "worse") for each in changes
    )
    fallen = {
        group: sum(each.ns for (of, _), each in before.items() if of == group)
        - sum(each.ns for (of, _), each in after.items() if of == group)
        for group in ("line", "sync")
    }
    shorter = changes[0].outcome == "better" or any(ns > 0 for ns in fallen.values())
    if longer or not shorter:
        return list(changes)
    moved: set[Key] = set()
    for each in changes:
        old, new = _waits_of(each, before, after)
        if (
            each.outcome == "worse"
            and new.calls
            and new.calls <= (1 + TOLERATED_ALONE) * old.calls
            and new.ns - old.ns >= WAITING * (each.after - each.before)
        ):
            moved.add((each.group, each.what))
    longer_at = {group for group, _ in moved}
    for each in changes:
        old, new = _waits_of(each, before, after)
        if (
            each.outcome == "better"
            and each.group in longer_at
            and old.ns - new.ns >= WAITING * (each.before - each.after)
            and fallen[each.group] < ONLY_MOVED * (old.ns - new.ns)
        ):
            moved.add((each.group, each.what))
    return [
        msgspec.structs.replace(each, outcome="differs", moved=True)
        if (each.group, each.what) in moved
        else each
        for each in changes
    ]


class _Waits(NamedTuple):
    """The waits of a step in one place: how many, and how long they are together."""

    calls: float
    ns: float


def _waits_of(
    change: FigureChange, before: Mapping[Key, _Waits], after: Mapping[Key, _Waits]
) -> tuple[_Waits, _Waits]:
    """Return the waits in the place of a change, before and after: of edited lines, before, those
    of all of them.
    """
    names, none = change.was or (change.what,), _Waits(0.0, 0.0)
    old = [before.get((change.group, name), none) for name in names]
    both = _Waits(sum(each.calls for each in old), sum(each.ns for each in old))
    return both, after.get((change.group, change.what), none)


def _find_waits(observations: Sequence[Observation], with_code: bool) -> dict[Key, _Waits]:
    """Return the waits of each line, and of each call that waits, by their names in a
    comparison; none without steps.
    """
    sums: dict[Key, _Waits] = {}
    for each in observations:
        steps = len(each.summary.steps) * len(observations)
        for row in each.summary.syncs if steps else []:
            keys: list[Key] = [("sync", row.name), ("line", row.line)]
            for key in keys:
                name = _name_alike(key, each, with_code)
                so_far = sums.get(name, _Waits(0.0, 0.0))
                sums[name] = _Waits(
                    so_far.calls + row.calls / steps, so_far.ns + row.total_ns / steps
                )
    return sums


def samples_needed(parts: int) -> tuple[int, int]:
    """Return how many samples of each side give the whole an interval: steps of one capture each,
    and captures, where so many `parts` are judged, too.
    """
    steps = captures = 1
    while math.isinf(rank_sum_interval([0.0] * steps, [0.0] * steps, 1 - ERROR_ALONE).low):
        steps += 1
    confidence = 1 - ERROR_REPEATED / (parts + 1)
    while math.isinf(signed_rank_interval([0.0] * captures, confidence).low):
        captures += 1
    return steps, captures


def _renamed(before: Series, matches: Sequence[Match], one_for_one: Mapping[Key, Key]) -> Series:
    """Return what was before under the names that it has after; kernels that one took the place of
    are summed.
    """
    renamed = dict(before)
    for match in matches:
        replaced = [renamed.pop(("kernel", name)) for name in match.old]
        renamed["kernel", match.new] = np.sum(replaced, axis=0)
    for key, old_key in one_for_one.items():
        renamed[key] = renamed.pop(old_key)
    return renamed


def _with_edits(series: Series, edited: Mapping[str, Sequence[str]]) -> Series:
    """Return a side's figures with those of edited lines summed, by the names of the edits."""
    summed = dict(series)
    for name, lines in edited.items():
        summed["line", name] = np.sum([summed.pop(("line", line)) for line in lines], axis=0)
    return summed


def _means(captures: Sequence[Series], observations: Sequence[Observation]) -> Series:
    """Return one value for each figure: the mean of all steps of a capture, as in its report; of
    several captures, the mean of those. Of a server's images it follows from the throughput.
    """
    rows: list[dict[Key, float]] = []
    for series, observation in zip(captures, observations, strict=True):
        weights = observation.images if observation.figures is observation.served else None
        row = {key: float(np.average(v, weights=weights)) for key, v in series.items()}
        row["step", "time"] = observation.figures.mean_step_ns
        row |= {key: float(values.mean()) for key, values in observation.batches.items()}
        serving = observation.summary.serving if observation.batches else None
        if serving is not None:
            row["step", "image"] = 1e9 / serving.images_per_s
        rows.append(row)
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: np.array([np.mean([row.get(key, 0.0) for row in rows])]) for key in keys}


def _comparable(observation: Observation, *, paired: bool, with_code: bool) -> Series:
    """Return the figures of a capture, with those of lines by function and source instead of by
    number, which an edit above them changes; without sources, by function.

    Of repeated captures there are no lines: each figure more would widen the intervals of all.
    """
    series: Series = {}
    for key, values in observation.figures.series.items():
        if not (paired and key[0] == "line"):
            name = _name_alike(key, observation, with_code)
            series[name] = series.get(name, 0) + values
    return series


def _name_alike(key: Key, observation: Observation, with_code: bool) -> Key:
    """Return the name that a figure has in a comparison."""
    line = LINE.match(key[1]) if key[0] == "line" else None
    if line is None:
        return key
    name = f"{line[1].rpartition('/')[2]}: {line[3]}"
    if with_code:
        name = f"{name}: {observation.code.get(key[1], '')}".removesuffix(": ")
    return "line", name


def _line_numbers(observation: Observation) -> dict[str, int]:
    """Return the number of each line, by the name that it has in a comparison; of lines with the
    same source in one function, that of the first.
    """
    numbers: dict[str, int] = {}
    for key in observation.figures.series:
        if key[0] == "line" and (line := LINE.match(key[1])):
            _, name = _name_alike(key, observation, with_code=True)
            numbers[name] = min(numbers.get(name, int(line[2])), int(line[2]))
    return numbers


def _beside_work(
    observations: Sequence[Observation], with_code: bool, edits: Sequence[LineEdit]
) -> dict[Key, float]:
    """Return the share (0-1) of each range, line and wait in which a device worked."""
    edited: dict[Key, Key] = {
        ("line", line): ("line", edit.name) for edit in edits for line in edit.new
    }
    sums: dict[Key, tuple[int, int]] = {}
    for each in observations:
        for key, (whole_ns, beside_ns) in each.figures.beside_work.items():
            name = _name_alike(key, each, with_code)
            name = edited.get(name, name)
            so_far = sums.get(name, (0, 0))
            sums[name] = so_far[0] + whole_ns, so_far[1] + beside_ns
    return {key: beside_ns / max(whole_ns, 1) for key, (whole_ns, beside_ns) in sums.items()}


def _pinned_since(before: Series, after: Series) -> dict[Key, Key]:
    """Return the copies of pinned memory that took the place of all those of pageable memory, each
    with these.
    """
    changed: dict[Key, Key] = {}
    for way in ("h2d", "d2h"):
        pageable, pinned = f"{way} pageable", f"{way} pinned"
        gone, new = before.keys() - after.keys(), after.keys() - before.keys()
        if ("copy", pageable) in gone and ("copy", pinned) in new:
            changed["copy", pinned] = ("copy", pageable)
    return changed


def _judged_by_means(change: FigureChange, step_ns: float) -> FigureChange:
    """Judge a change by its means alone: those of times that are the same in every run."""
    after_over_before = change.after / change.before if change.before else math.inf
    outcome: Change = "same"
    if abs(change.after - change.before) >= NEGLIGIBLE_SHARE * step_ns:
        outcome = judge_ratio(Interval(*[after_over_before] * 3), TOLERATED_MODELLED, EXCLUDED)
    ratio = change.before / change.after if change.after else 0.0
    return msgspec.structs.replace(change, ratio=ratio, outcome=outcome, low=None, high=None)


def _samples(captures: list[Series]) -> Series:
    """Return the steps of one capture; of several, the median step of each."""
    if len(captures) == 1:
        return captures[0]
    keys = dict.fromkeys(key for series in captures for key in series)
    return {key: np.array([_median(series.get(key)) for series in captures]) for key in keys}


def _median(values: Floats64 | None) -> float:
    return 0.0 if values is None else float(np.median(values))


def _notable(means: Both) -> list[Key]:
    """Return every figure but the whole step that is long enough on one side to be judged, and of
    the operators and kernels that came for others the longest, however short it is.
    """
    keys: list[Key] = []
    for key in dict.fromkeys([*means[0], *means[1]]):
        shares = [_mean(side, key) / _mean(side, ("step", "time")) for side in means]
        if key[0] != "step" and max(shares) >= NOTABLE_SHARE:
            keys.append(key)
    before, after = means
    for group in ("operator", "kernel"):
        gone = any(key[0] == group and key not in after for key in keys)
        came = [key for key in after if key[0] == group and key not in before]
        if gone and came:
            keys.append(max(came, key=lambda key: _mean(after, key)))
    return list(dict.fromkeys(keys))


def _share_lines(means: Both) -> bool:
    """Return True if both sides have lines, and enough of their time on each is in lines that the
    other has, too.
    """
    common = [key for key in means[0] if key[0] == "line" and key in means[1]]
    for side in means:
        whole = sum(_mean(side, key) for key in side if key[0] == "line")
        if sum(_mean(side, key) for key in common) <= COMMON_LINES * whole:
            return False
    return True


def _mean(means: Series, key: Key) -> float:
    return float(means[key][0]) if key in means else 0.0


def _judged(
    key: Key, samples: Both, means: Both, error: float, paired: bool, was: tuple[str, ...] = ()
) -> FigureChange:
    """Judge one figure by its samples; `error` is how often the interval may miss."""
    old, new = (side.get(key, np.zeros(len(next(iter(side.values()))))) for side in samples)
    before, after = (_mean(side, key) for side in means)
    low = high = None
    outcome: Change = "cannot tell"
    if (old > 0).all() and (new > 0).all():
        logs = _difference(np.log(old), np.log(new), 1 - error, paired)
        # after over before; math.exp overflows from 710 on
        interval = Interval(*(math.exp(bound) if bound < 700 else math.inf for bound in logs))
        outcome = judge_ratio(interval, TOLERATED_REPEATED if paired else TOLERATED_ALONE, EXCLUDED)
        low, high = _inverse(interval.high), _inverse(interval.low)
        ratio = 1 / interval.median
    else:
        # What is zero in some steps, as a copy every tenth step is, has no ratio to judge.
        least = NOTABLE_SHARE * max(_mean(side, ("step", "time")) for side in means)
        old, new = np.where(old < least, 0.0, old), np.where(new < least, 0.0, new)
        order = _order(old, new, 1 - error, paired)
        if order:
            outcome = "better" if order < 0 else "worse"
        ratio = before / after if after else 0.0
    group, what = key
    return FigureChange(what, group, before, after, ratio, outcome, low, high, was)


def _inverse(bound: float) -> float | None:
    return 1 / bound if 0 < bound < math.inf else None


def _order(old: Floats64, new: Floats64, confidence: float, paired: bool) -> int:
    """Return -1 if `new` lies below `old`, 1 if above, and 0 if that cannot be told."""
    if not paired:
        return rank_sum_order(_thinned(old), _thinned(new), confidence)
    difference = _difference(old, new, confidence, paired)
    return int(difference.low > 0) - int(difference.high < 0)


def _thinned(values: Floats64) -> list[float]:
    return [float(value) for value in values[:: 1 + len(values) // MOST_STEPS]]


def _difference(old: Floats64, new: Floats64, confidence: float, paired: bool) -> Interval:
    """Return how far the values of `new` lie above those of `old`."""
    if paired:
        return signed_rank_interval((new - old).tolist(), confidence)
    return rank_sum_interval(_thinned(old), _thinned(new), confidence)
