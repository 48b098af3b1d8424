"""Compare two versions of a program, each seen in one capture or in several: what got better, what
got worse, what stayed the same, and what cannot be told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.analysis.comparing.changes import (
    TOLERATED_MODELLED,
    find_changes,
    samples_needed,
)
from bottleneck_lab.analysis.comparing.comparability import (
    Difference,
    find_differences,
    is_same_code,
)
from bottleneck_lab.analysis.comparing.comparison import (
    TOLERATED_ALONE,
    TOLERATED_REPEATED,
    Comparison,
    Control,
    FigureChange,
    FlopPerCall,
    LongStep,
    MemoryChange,
    Unit,
    neutral,
)
from bottleneck_lab.analysis.comparing.machine_speed import find_slower_machine
from bottleneck_lab.analysis.comparing.observation import (
    Observation,
    Side,
    by_image,
    observed,
    on_host,
    own_kernels,
    scaled_alike,
)
from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.steps.figures import Key

OTHER_BATCHES = 0.1
"""By this share (0-1) two captures may differ in the batches that a device worked on in a step."""

OTHER_CALLS = 0.02
"""By this share (0-1) two captures may differ in how often a step calls something, and in the work
of a call.
"""

LONG_STEP = 1.5
"""A step that takes this many times as long as a typical one is unlike the rest."""


def compare(before: Side, after: Side, control: Side = ()) -> Comparison:
    """Compare one capture a side, or as many on each, recorded alternately (the first of one side
    beside the first of the other).

    `control`: as many captures again of the version before, recorded in the same turns. What
    differs between it and `before` cannot be told. Raises ValueError when one side has several
    captures and another not as many.
    """
    comparison = _compare(before, after)
    if not observed(control):
        return comparison
    again = _compare(before, control)
    moved = [
        (change.group, change.what)
        for change in again.changes
        if change.outcome in ("better", "worse")
    ]
    whole = again.outcome in ("better", "worse")
    changes = []
    for change in comparison.changes:
        machine_moved = whole or (change.group, change.what) in moved
        if machine_moved and change.outcome in ("better", "worse"):
            changes.append(msgspec.structs.replace(change, outcome="cannot tell"))
        else:
            changes.append(change)
    return msgspec.structs.replace(
        comparison,
        outcome=next(
            change.outcome
            for change in changes
            if change.group == "step" and change.what in ("time", "image")
        ),
        changes=changes,
        control=Control(again.outcome, again.speedup, moved),
    )


def _compare(before: Side, after: Side) -> Comparison:
    old, new = observed(before), observed(after)
    if len(old) != len(new):
        raise ValueError(
            f"{len(old)} captures before and {len(new)} after cannot be compared in pairs"
        )
    old, new, calibrated_ns = scaled_alike(old, new)
    paired, unit = len(old) > 1, _unit(old, new)
    if unit == "image":
        old, new = ([by_image(each) for each in side] for side in (old, new))
    host_only = len({each.summary.cpu_only for each in (*old, *new)}) > 1
    if host_only:
        old, new = ([on_host(each) for each in side] for side in (old, new))
    library_ns = (0.0, 0.0)
    if unit == "kernel":
        library_ns = _library_ns(old), _library_ns(new)
        old, new = ([own_kernels(each) for each in side] for side in (old, new))
    repeats = not paired and old[0].repeats and new[0].repeats
    changes = find_changes(unit, old, new, repeats=repeats)
    few = not repeats and _few(changes[0])
    differences = _find_differences(old, new)
    same_code = not repeats and is_same_code(
        each.conditions for each in (*old, *new) if each.conditions
    )
    reliable = all(each.summary.quality.reliable for each in (*old, *new))
    if not reliable:
        changes = [msgspec.structs.replace(each, outcome="cannot tell") for each in changes]
    changes = [_withheld(differences, change, same_code=same_code) for change in changes]
    batches = _batches_per_step(old), _batches_per_step(new)
    if not _alike(*batches):
        changes = [_of_other_batches(change) for change in changes]
    if unit == "step":
        calls = _calls_per_step(old), _calls_per_step(new)
        changes = [_with_calls(change, *calls) for change in changes]
    whole = changes[0]
    return Comparison(
        speedup=whole.ratio,
        speedup_low=whole.low,
        speedup_high=whole.high,
        outcome=whole.outcome,
        pairs=len(old),
        steps=(old[0].figures.steps, new[0].figures.steps),
        few=few,
        emulated=any(o.summary.emulated for o in (*old, *new)),
        cpu_only=all(o.summary.cpu_only for o in (*old, *new)),
        reliable=reliable,
        reasons=_reasons(old, new),
        changes=sorted(changes, key=lambda c: -abs(c.before - c.after)),
        findings_gone={} if host_only else _findings_alone(old, new),
        findings_new={} if host_only else _findings_alone(new, old),
        differences=differences,
        unit=unit,
        images_per_s=None if unit != "image" else (1e9 / whole.before, 1e9 / whole.after),
        memory=_memory(old, new),
        repeats=repeats,
        mean_speedup=whole.before / whole.after if whole.after else None,
        waits_per_step=(_waits(old), _waits(new)) if unit == "step" and not host_only else None,
        kernels_per_step=(_kernels(old), _kernels(new)) if unit == "step" else None,
        ranks=max(len(o.summary.ranks) for o in (*old, *new)),
        calibrated_ns=calibrated_ns,
        tolerated=_tolerated(paired=paired, repeats=repeats),
        long_steps=[] if paired or unit != "step" else _long_steps(old[0], new[0]),
        batches_per_step=batches if all(batches) else None,
        same_code=same_code,
        startup_ns=(_startup_ns(old), _startup_ns(new)),
        flop_per_call=_flop_per_call(old, new),
        host_only=host_only,
        load_known=unit == "kernel" or _is_load_known([*old, *new]),
        exact_lines=all(each.figures.exact_lines for each in (*old, *new)),
        library_ns=library_ns,
        needed=samples_needed(sum(each.group != "step" for each in changes)),
    )


def _unit(old: list[Observation], new: list[Observation]) -> Unit:
    """Return what the times are of: steps where both sides mark some, else images of a server."""
    both = [*old, *new]
    if all(observation.summary.steps for observation in both):
        return "step"
    if all(observation.batches for observation in both):
        return "image"
    timed_by_ncu = all(
        each.conditions and each.conditions.tool == "ncu" and each.figures.mean_step_ns
        for each in both
    )
    return "kernel" if timed_by_ncu else "recording"


def _library_ns(side: Sequence[Observation]) -> float:
    """Return the time of a library's kernels beside one's own; 0 without either."""
    times = [each.figures.mean_step_ns - own_kernels(each).figures.mean_step_ns for each in side]
    return float(np.mean(times))


def _tolerated(*, paired: bool, repeats: bool) -> float:
    if repeats:
        return TOLERATED_MODELLED
    return TOLERATED_REPEATED if paired else TOLERATED_ALONE


def _few(whole: FigureChange) -> bool:
    """Return True if the samples are too few for an interval at the level asked for."""
    return whole.low is None or whole.high is None


def _reasons(old: list[Observation], new: list[Observation]) -> list[str]:
    """Return what makes figures unreliable, each reason once a side."""
    reasons = []
    for when, side in (("before", old), ("after", new)):
        for observation in side:
            reasons += [f"{when}: {reason}" for reason in observation.summary.quality.reasons]
    return list(dict.fromkeys(reasons))


def _find_differences(old: list[Observation], new: list[Observation]) -> list[Difference]:
    """Return what differs beside the code, marked steps included."""
    conditions = (
        [each.conditions for each in side if each.conditions is not None] for side in (old, new)
    )
    differences = find_differences(*conditions)
    marked = [any(each.summary.steps for each in side) for side in (old, new)]
    if marked[0] != marked[1]:
        when = "before" if marked[0] else "after"
        sentence = f"steps are marked only {when}, and a step is no match for a whole recording"
        differences.append(Difference("settings", sentence))
    kinds = {each.kind for each in differences}
    modelled = any(each.repeats for each in (*old, *new))
    # Other loads, settings or devices explain slower operators already; captures in turns have the
    # same machine.
    if len(old) == 1 and not modelled and not kinds & {"load", "settings", "device", "program"}:
        differences += find_slower_machine(old[0].call_times, new[0].call_times)
    return differences


def _is_load_known(captures: Iterable[Observation]) -> bool:
    """Return True if it is known how busy the machine was, or times do not depend on it."""
    known = (each.conditions for each in captures if not each.repeats)
    return all(each.load or each.calibrated_ns for each in known if each)


def _withheld(
    differences: list[Difference], change: FigureChange, *, same_code: bool
) -> FigureChange:
    """Return the change without a verdict that something else than the code may have brought, or
    that cannot be the code's.

    Recording costs time itself, so that other settings make anything faster or slower. On another
    GPU a difference is real, though not the code's; only that nothing changed cannot be told.
    Beside busier programs the host is slower, and a device that waits for it; kernels and copies
    are not. Of two programs neither is better, but for what took the place of something else.
    """
    kinds = {difference.kind for difference in differences}
    slowed = any(_may_bring(difference, change) for difference in differences)
    moved = same_code and change.outcome in ("better", "worse")
    if "settings" in kinds or (kinds and change.outcome == "same") or slowed or moved:
        return msgspec.structs.replace(change, outcome="cannot tell")
    if change.fixed or ("program" in kinds and not change.was):
        return msgspec.structs.replace(change, outcome=neutral(change.outcome))
    return change


def _may_bring(difference: Difference, change: FigureChange) -> bool:
    """Return True if a difference beside the code slows one side enough for all of a change."""
    outcome = {"before": "better", "after": "worse"}.get(difference.slows)
    if change.outcome != outcome or change.group in ("kernel", "copy") or not change.ratio:
        return False
    return max(change.ratio, 1 / change.ratio) <= difference.up_to


def _of_other_batches(change: FigureChange) -> FigureChange:
    """Return the change without a verdict where it is the device's time, of which the steps of one
    side hold the work of other steps.
    """
    if change.group == "kernel" or (change.group, change.what) == ("device", "compute"):
        return msgspec.structs.replace(change, outcome="cannot tell")
    return change


def _batches_per_step(side: Sequence[Observation]) -> float:
    return float(np.mean([each.summary.batches_per_step for each in side]))


def _alike(before: float, after: float) -> bool:
    """Return True if a device worked on as many batches a step on both sides, or on none."""
    return abs(before - after) <= OTHER_BATCHES * max(before, after)


def _calls_per_step(side: Sequence[Observation]) -> dict[Key, float]:
    """Return how often a step calls each operator and kernel, on average."""
    calls: dict[Key, float] = defaultdict(float)
    for each in side:
        summary, steps = each.summary, len(each.summary.steps) * len(side)
        for row in summary.operators:
            calls["operator", row.name] += row.calls / steps
        for kernel in summary.kernels:
            calls["kernel", kernel.name] += kernel.calls / steps
    return calls


def _with_calls(
    change: FigureChange, before: Mapping[Key, float], after: Mapping[Key, float]
) -> FigureChange:
    """Return the change with how often a step calls it, where that differs between the sides."""
    old = sum(before.get((change.group, name), 0.0) for name in change.was or (change.what,))
    new = after.get((change.group, change.what), 0.0)
    if not old or not new or abs(old - new) <= OTHER_CALLS * max(old, new):
        return change
    return msgspec.structs.replace(change, calls=(old, new))


def _findings_alone(side: list[Observation], other: list[Observation]) -> dict[str, str]:
    """Return the title of each finding that only one side has, by its id; none where the other has
    captures in which detectors find nothing, whatever happened.
    """
    if not all(each.summary.quality.reliable for each in other):
        return {}
    known = {each.id for one in other for each in one.summary.findings}
    findings = (each for one in side for each in one.summary.findings)
    return {each.id: each.title for each in findings if each.id not in known}


def _waits(side: list[Observation]) -> float:
    """Return how often the host waits for the device in a step; of several captures, the median."""
    return float(np.median([sum(row.calls_per_step for row in o.summary.syncs) for o in side]))


def _kernels(side: list[Observation]) -> float:
    """Return how many kernels the devices get in a step, all together; of several captures, the
    median.
    """
    return float(np.median([sum(use.kernels_per_step for use in o.summary.launches) for o in side]))


def _memory(old: list[Observation], new: list[Observation]) -> list[MemoryChange]:
    """Return the memory of every device on both sides, by rank and device."""
    sides = [
        [{(use.rank, use.device): use for use in each.summary.memory} for each in side]
        for side in (old, new)
    ]
    everywhere = set.intersection(*(set(uses) for side in sides for uses in side))

    def medians(key: tuple[int, int], figure: Callable[[MemoryUse], int]) -> tuple[int, int]:
        before, after = (int(np.median([figure(uses[key]) for uses in side])) for side in sides)
        return before, after

    def hidden(key: tuple[int, int]) -> tuple[bool, bool]:
        before, after = (any(uses[key].hides_growth for uses in side) for side in sides)
        return before, after

    return [
        MemoryChange(
            *key,
            medians(key, lambda use: use.peak_bytes),
            medians(key, lambda use: use.growth_bytes_per_step),
            medians(key, lambda use: (use.late_bytes or use.fall_bytes) * use.is_sawtooth),
            hidden(key),
        )
        for key in sorted(everywhere)
    ]


def _long_steps(old: Observation, new: Observation) -> list[LongStep]:
    """Return the longest step of each side, where it takes much longer than a typical one."""
    sides: list[tuple[Literal["before", "after"], Observation]] = [("before", old), ("after", new)]
    long = []
    for when, side in sides:
        step_ns = side.figures.series["step", "time"]
        longest, typical_ns = int(np.argmax(step_ns)), float(np.median(step_ns))
        if step_ns[longest] > LONG_STEP * typical_ns:
            long.append(LongStep(when, longest + 1, float(step_ns[longest]), typical_ns))
    return long


def _startup_ns(side: Sequence[Observation]) -> float:
    return float(np.mean([each.summary.startup_in_step_ns for each in side]))


def _mean_flop(side: Sequence[Observation]) -> dict[str, list[float]]:
    """Return what a call of each operator computes in each capture that has its shapes."""
    flop: dict[str, list[float]] = {}
    for each in side:
        for name, mean in each.flop_per_call.items():
            flop.setdefault(name, []).append(mean)
    return flop


def _flop_per_call(old: Sequence[Observation], new: Sequence[Observation]) -> FlopPerCall | None:
    """Return the operator with most work whose calls do other work now; None without such."""
    before, after = (_mean_flop(side) for side in (old, new))
    for operator in (name for name in before if name in after):
        was, now = (float(np.mean(side[operator])) for side in (before, after))
        if abs(was - now) > OTHER_CALLS * max(was, now):
            return FlopPerCall(operator, was, now, _other_shapes(operator, old, new))
    return None


def _other_shapes(
    operator: str, old: Sequence[Observation], new: Sequence[Observation]
) -> tuple[str, str]:
    """Return the shapes with most work of those that only one side has, for each side; "" without
    such.
    """
    before, after = (
        list(dict.fromkeys(shapes for each in side for shapes in each.shapes.get(operator, ())))
        for side in (old, new)
    )
    first, second = set(before), set(after)
    return (
        next((shapes for shapes in before if shapes not in second), ""),
        next((shapes for shapes in after if shapes not in first), ""),
    )
