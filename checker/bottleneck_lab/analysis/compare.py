"""Compare two versions of a program, each seen in one capture or in several: what got better, what
got worse, what stayed the same, and what cannot be told.

Every figure is judged by its own noise. Of one capture each, the steps are the samples; of repeated
captures, recorded alternately, the captures are, pair by pair: only those also hold what differs
between two runs of the same code.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.analysis.comparability import (
    Conditions,
    Difference,
    find_conditions,
    find_differences,
    is_same_code,
)
from bottleneck_lab.analysis.device.kernel_matching import Match, match_kernels
from bottleneck_lab.analysis.host.line_matching import match_lines
from bottleneck_lab.analysis.host.lines import LINE
from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.statistics import (
    Change,
    Interval,
    judge_ratio,
    rank_sum_interval,
    rank_sum_order,
    signed_rank_interval,
)
from bottleneck_lab.analysis.steps.figures import (
    Group,
    Key,
    Series,
    StepFigures,
    find_served_figures,
    find_work_figures,
    with_device_times,
)
from bottleneck_lab.analysis.steps.serving import find_batch_figures, find_stretches
from bottleneck_lab.analysis.steps.window import find_window
from bottleneck_lab.analysis.summary import Analysis, Summary, analyse_beside
from bottleneck_lab.trace.names import FIXED_PRICE, is_host_modelled
from bottleneck_lab.trace.timeline import Floats64, Ints, Timeline

Unit = Literal["step", "image", "recording"]

EXCLUDED = 0.10
"""\"Same\" says that a change of this size is excluded."""
TOLERATED_ALONE = 0.05
"""Two recordings of the same code differ by a few percent that their steps do not show: with one
capture per side, less than this is not a change.
"""
TOLERATED_REPEATED = 0.02
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
OTHER_BATCHES = 0.1
"""By this share (0-1) two captures may differ in the batches that a device worked on in a step."""
OTHER_CALLS = 0.02
"""By this share (0-1) two captures may differ in how often a step calls something, and in the work
of a call.
"""
BESIDE_WORK = 0.9
"""Where a device works for this share (0-1) of a range, a line or a wait of the host, the host
takes longer there because it is ahead of the device.
"""
LONG_STEP = 1.5
"""A step that takes this many times as long as a typical one is unlike the rest."""
NOTABLE_SHARE = 0.005
"""A figure below this share of a step on both sides is not judged: nobody would act on it."""


class FigureChange(msgspec.Struct, frozen=True):
    """One figure before and after, ns a step: means over all steps, so that a step's parts add up
    to it. `ratio` is how a typical sample before compares with one after (above 1: less now; 0 when
    it is gone), between `low` and `high`; a bound that the samples cannot bear is None. Of modelled
    times, and of what some steps lack, it is the ratio of the means. `was`: what a renamed kernel,
    the kernels that a fused one replaces, a line that was edited or moved, or copies of pageable
    memory that are of pinned memory now, were called. `waits`: the host takes longer here because
    the device is busy meanwhile, which is neither better nor worse.
    """

    what: str
    group: Group
    before: float
    after: float
    ratio: float
    outcome: Change
    low: float | None = None
    high: float | None = None
    was: tuple[str, ...] = ()
    waits: bool = False
    calls: tuple[float, float] | None = None
    """How often a step calls this operator or kernel, before and after, where that differs."""

    @property
    def fixed(self) -> bool:
        """True for what the model of a host charges whatever runs: neither better nor worse."""
        return (self.group == "gap" and self.what == "fixed") or (
            self.group == "range" and bool(FIXED_PRICE.search(self.what))
        )


class MemoryChange(msgspec.Struct, frozen=True):
    """Memory of one device (-1: the host) before and after, in bytes: its peak, and by how much it
    grows from step to step. Of several captures a side, the medians. `fall_bytes` is the most by
    which it falls from step to step, where that hides the growth, else 0.
    """

    rank: int
    device: int
    peak_bytes: tuple[int, int]
    growth_bytes_per_step: tuple[int, int]
    fall_bytes: tuple[int, int] = (0, 0)


class LongStep(msgspec.Struct, frozen=True):
    """The longest step of one side, where a typical one is much shorter: its number, from 1, and
    both times, ns.
    """

    when: Literal["before", "after"]
    number: int
    ns: float
    typical_ns: float


class Comparison(msgspec.Struct, frozen=True):
    """`speedup` is the ratio of the step times, before / after; `changes` are ordered by how much
    time they moved.

    `findings_gone` and `findings_new`: the title of each finding that only one side has, by its id.
    `pairs`: how many pairs of captures were compared; with one, `steps` are the samples. `few`: too
    few for an interval at the level asked for. `repeats`: all times of host and devices are
    modelled, and the same in every run, so that even a few steps can be judged by their means.

    `differences`: what differs beside the code; while there is any, nothing is called the same, and
    under other settings nothing faster or slower. `unit`: what `speedup` compares the time of: a
    step, an image that a server answered, or without either the whole recording. `memory` is of
    devices whose allocations every capture holds.
    """

    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    outcome: Change
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
    differences: list[Difference] = []
    unit: Unit = "step"
    images_per_s: tuple[float, float] | None = None
    memory: list[MemoryChange] = []
    repeats: bool = False
    mean_speedup: float | None = None
    """The ratio of the mean times, as `changes` have them: near what a check measures, which times
    whole runs.
    """
    waits_per_step: tuple[float, float] | None = None
    """How often the host of a rank waits for the device in a step, before and after; None without
    steps.
    """
    ranks: int = 1
    """How many ranks the largest of the captures holds, which per-step figures are the mean of."""
    of_memory: bool = False
    """Both are of a lab about memory, which comes first there."""
    check_ceiling: float | None = None
    """The largest gain that a check of the lab can measure, where it has such a limit."""
    cpu_only: bool = False
    """No capture has an accelerator: the CPU is the device."""
    measures: bool = False
    """The program measures others: how long it takes is neither good nor bad."""
    calibrated_ns: tuple[float, float] | None = None
    """Time of a full batch, before and after, on a device that is set by the machine's speed anew
    for each capture (of several, the mean): all times are scaled to that of the first capture. None
    for other devices.
    """
    tolerated: float = TOLERATED_ALONE
    """The change (a share) that is nobody's concern: an interval has to lie beyond it."""
    long_steps: list[LongStep] = []
    """Of one capture a side, the steps that move the mean away from a typical step."""
    same_code: bool = False
    """All captures are of the same code of a lab, so that no difference is its doing."""
    batches_per_step: tuple[float, float] | None = None
    """How many full batches such a device worked on in a step, before and after: where these
    differ, it began with work from before the recording, and nothing is said of its own times.
    """

    startup_ns: tuple[float, float] = (0.0, 0.0)
    """The start-up that the first step holds, before and after, which no figure counts; of several
    captures, the mean.
    """
    flop_per_call: FlopPerCall | None = None
    """The operator with most work of those whose calls do other work now, where both sides have
    shapes.
    """


class FlopPerCall(msgspec.Struct, frozen=True):
    """Work of an average call of an operator, before and after, by its shapes. `shapes` are those
    of the inputs that most work goes into of those that only one side has; "" without such.
    """

    operator: str
    before: float
    after: float
    shapes: tuple[str, str] = ("", "")


class Control(msgspec.Struct, frozen=True):
    """The version before, recorded a second time in the same turns, against itself: whatever comes
    out as changed there is the machine's doing.

    `outcome` and `ratio` are the whole step's; `moved` names what came out as better or worse, of
    which the comparison then says nothing.
    """

    outcome: Change
    ratio: float
    moved: list[tuple[Group, str]]


@dataclass(frozen=True, slots=True)
class Observation:
    """All that a comparison needs of one capture: the capture itself can be let go of. `code` is
    the source of the user's own lines by their names, where it is at hand; `flop_per_call` what a
    call of each operator computes, by its shapes, and `shapes` these, most work first. Of a server:
    `batches`, a sample a batch, and `served`, the figures for an image, a sample a stretch with so
    many `images`.
    """

    summary: Summary
    figures: StepFigures
    conditions: Conditions | None = None
    batches: Series = field(default_factory=dict)
    served: StepFigures | None = None
    images: Ints | None = None
    repeats: bool = False
    code: Mapping[str, str] = field(default_factory=dict)
    flop_per_call: Mapping[str, float] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[str]] = field(default_factory=dict)


Side = Timeline | Observation | Sequence[Timeline | Observation]


def observe(
    capture: Timeline | Analysis,
    code_of: Callable[[Summary], Mapping[str, str]] = lambda _: MappingProxyType({}),
) -> Observation:
    """Return a capture's summary and the figures of each of its steps. By what `code_of` has of its
    lines, their source by their names, they are told again where another version has moved them.
    """
    if isinstance(capture, Timeline):
        analysis, figures = analyse_beside(capture, find_work_figures)
    else:
        analysis, figures = capture, find_work_figures(capture.timeline)
    timeline = analysis.timeline
    window = find_window(timeline)
    stretches = None if analysis.summary.steps else find_stretches(timeline, window)
    served = None
    if stretches:
        served = find_served_figures(timeline, analysis.times, stretches)
    return Observation(
        analysis.summary,
        with_device_times(figures, timeline, analysis.times),
        find_conditions(timeline),
        find_batch_figures(timeline, window) if stretches else {},
        served,
        stretches.images if stretches else None,
        repeats=is_host_modelled(timeline),
        code=code_of(analysis.summary),
        flop_per_call=_find_flop(timeline),
        shapes=_find_shapes(timeline),
    )


def _find_flop(timeline: Timeline) -> dict[str, float]:
    """Return what a call of each operator computes on average, most of all first, by its shapes."""
    work, count = timeline.work, len(timeline.strings)
    calls = np.bincount(work.name, minlength=count)
    flop = np.bincount(work.name, weights=work.flop, minlength=count)
    order = np.argsort(-flop, kind="stable")[: np.count_nonzero(flop)]
    return {timeline.strings[at]: float(flop[at] / calls[at]) for at in order.tolist()}


def _find_shapes(timeline: Timeline) -> dict[str, list[str]]:
    """Return the shapes of the inputs of each operator, in words, those with most work first."""
    work, strings = timeline.work, timeline.strings
    # Each pair of name and shapes as one number: to sort pairs takes thirty times as long.
    both = work.name.astype(np.int64) * len(strings) + work.shapes
    pairs, number = np.unique(both, return_inverse=True)
    flop = np.bincount(number, weights=work.flop, minlength=len(pairs))
    shapes: dict[str, list[str]] = defaultdict(list)
    for pair in pairs[np.argsort(-flop, kind="stable")].tolist():
        name, inputs = divmod(pair, len(strings))
        shapes[strings[name]].append(strings[inputs])
    return shapes


def _neutral(outcome: Change) -> Change:
    return "differs" if outcome in ("better", "worse") else outcome


def without_judgement(comparison: Comparison) -> Comparison:
    """Return the comparison of two versions of a program that measures others: how long that takes
    is its own choice, and other calls are no other program.
    """
    left = [each for each in comparison.differences if each.kind != "program"]
    return msgspec.structs.replace(
        comparison,
        outcome=_neutral(comparison.outcome),
        changes=[
            msgspec.structs.replace(
                each,
                # Withheld because of the program, which is no difference here.
                outcome="same"
                if comparison.repeats and not left and each.before == each.after
                else _neutral(each.outcome),
            )
            for each in comparison.changes
        ],
        differences=left,
        findings_gone={},
        findings_new={},
        measures=True,
    )


def compare(before: Side, after: Side, control: Side = ()) -> Comparison:
    """Compare one capture a side, or as many on each, recorded alternately (the first of one side
    beside the first of the other).

    `control`: as many captures again of the version before, recorded in the same turns. What
    differs between it and `before` cannot be told. Raises ValueError when one side has several
    captures and another not as many.
    """
    comparison = _compare(before, after)
    if not _observed(control):
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
    old, new = _observed(before), _observed(after)
    if len(old) != len(new):
        raise ValueError(
            f"{len(old)} captures before and {len(new)} after cannot be compared in pairs"
        )
    old, new, calibrated_ns = _calibrated_alike(old, new)
    paired, unit = len(old) > 1, _unit(old, new)
    if unit == "image":
        old, new = ([_by_image(each) for each in side] for side in (old, new))
    changes = _find_changes(unit, old, new)
    repeats, few = not paired and old[0].repeats and new[0].repeats, _few(changes[0])
    if repeats:
        # Steps differ by their data, which both versions share: no other run would differ more.
        changes = [_by_means(change) for change in changes]
    differences = _find_differences(old, new)
    same_code = not repeats and is_same_code(
        each.conditions for each in (*old, *new) if each.conditions
    )
    changes = [_withheld(differences, change, same_code=same_code) for change in changes]
    batches = _batches_per_step(old), _batches_per_step(new)
    if not _alike(*batches):
        changes = [_of_other_batches(change) for change in changes]
    if unit == "step":
        calls = _calls_per_step(old), _calls_per_step(new)
        changes = [_with_calls(change, *calls) for change in changes]
    whole = changes[0]
    findings, new_findings = (
        {f.id: f.title for o in side for f in o.summary.findings} for side in (old, new)
    )
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
        reliable=all(o.summary.quality.reliable for o in (*old, *new)),
        reasons=_reasons(old, new),
        changes=sorted(changes, key=lambda c: -abs(c.before - c.after)),
        findings_gone={k: title for k, title in findings.items() if k not in new_findings},
        findings_new={k: title for k, title in new_findings.items() if k not in findings},
        differences=differences,
        unit=unit,
        images_per_s=None if unit != "image" else (1e9 / whole.before, 1e9 / whole.after),
        memory=_memory(old, new),
        repeats=repeats,
        mean_speedup=whole.before / whole.after if whole.after else None,
        waits_per_step=None if unit != "step" else (_waits(old), _waits(new)),
        ranks=max(len(o.summary.ranks) for o in (*old, *new)),
        calibrated_ns=calibrated_ns,
        tolerated=TOLERATED_REPEATED if paired else TOLERATED_ALONE,
        long_steps=[] if paired or unit != "step" else _long_steps(old[0], new[0]),
        batches_per_step=batches if all(batches) else None,
        same_code=same_code,
        startup_ns=(_startup_ns(old), _startup_ns(new)),
        flop_per_call=_flop_per_call(old, new),
    )


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


def _batches_per_step(side: Sequence[Observation]) -> float:
    return float(np.mean([each.summary.batches_per_step for each in side]))


def _alike(before: float, after: float) -> bool:
    """Return True if a device worked on as many batches a step on both sides, or on none."""
    return abs(before - after) <= OTHER_BATCHES * max(before, after)


def _of_other_batches(change: FigureChange) -> FigureChange:
    """Return the change without a verdict where it is the device's time, of which the steps of one
    side hold the work of other steps.
    """
    if change.group == "kernel" or (change.group, change.what) == ("device", "compute"):
        return msgspec.structs.replace(change, outcome="cannot tell")
    return change


def _by_image(observation: Observation) -> Observation:
    """Return a server's capture with the figures for an image as its figures."""
    assert observation.served is not None, "the unit is an image only of servers"
    return replace(observation, figures=observation.served)


def _calibrated_alike(
    old: list[Observation], new: list[Observation]
) -> tuple[list[Observation], list[Observation], tuple[float, float] | None]:
    """Return both sides with all times scaled to one calibration of the device, that of the first
    capture, and the calibrations before that; None where the device has none.

    The machine was faster or slower by that much when it was calibrated, and so was the host.
    """
    sides = [
        [each.conditions.calibrated_ns if each.conditions else 0 for each in side]
        for side in (old, new)
    ]
    every, first = [*sides[0], *sides[1]], sides[0][0]
    if not all(every):
        return old, new, None
    scaled_old, scaled_new = (
        [_scaled(each, first / ns) for each, ns in zip(side, calibrated_ns, strict=True)]
        for side, calibrated_ns in ((old, sides[0]), (new, sides[1]))
    )
    return scaled_old, scaled_new, (float(np.mean(sides[0])), float(np.mean(sides[1])))


def _scaled(observation: Observation, factor: float) -> Observation:
    """Return a capture's figures with all times multiplied by a factor."""
    serving = observation.summary.serving
    if serving is not None:
        serving = msgspec.structs.replace(serving, images_per_s=serving.images_per_s / factor)
    return replace(
        observation,
        summary=msgspec.structs.replace(observation.summary, serving=serving),
        figures=_scaled_figures(observation.figures, factor),
        batches={key: values * factor for key, values in observation.batches.items()},
        served=observation.served and _scaled_figures(observation.served, factor),
    )


def _scaled_figures(figures: StepFigures, factor: float) -> StepFigures:
    series = {key: values * factor for key, values in figures.series.items()}
    return replace(figures, series=series, mean_step_ns=figures.mean_step_ns * factor)


def _find_changes(unit: Unit, old: list[Observation], new: list[Observation]) -> list[FigureChange]:
    """Judge the whole first (of a server, its images and batches), then the parts."""
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
    lines = match_lines(*samples)
    one_for_one |= {("line", name): ("line", lines[name]) for name in lines}
    was |= {key: (name,) for key, (_, name) in one_for_one.items()}
    # What was before, under the names that it has after: of steps, and of their means.
    merged = _renamed(samples[0], matches, one_for_one), samples[1]
    means = _renamed(_means(sides[0], old), matches, one_for_one), _means(sides[1], new)
    keys = _notable(means)
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
    beside = _beside_work(new, with_code)
    return [
        msgspec.structs.replace(each, outcome="differs", waits=True)
        if each.outcome == "worse" and beside.get((each.group, each.what), 0.0) >= BESIDE_WORK
        else each
        for each in changes
    ]


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


def _beside_work(observations: Sequence[Observation], with_code: bool) -> dict[Key, float]:
    """Return the share (0-1) of each range, line and wait in which a device worked."""
    sums: dict[Key, tuple[int, int]] = {}
    for each in observations:
        for key, (whole_ns, beside_ns) in each.figures.beside_work.items():
            name = _name_alike(key, each, with_code)
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


def _few(whole: FigureChange) -> bool:
    """Return True if the samples are too few for an interval at the level asked for."""
    return whole.low is None or whole.high is None


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
    return differences


def _reasons(old: list[Observation], new: list[Observation]) -> list[str]:
    """Return what makes figures unreliable, each reason once a side."""
    reasons = []
    for when, side in (("before", old), ("after", new)):
        for observation in side:
            reasons += [f"{when}: {reason}" for reason in observation.summary.quality.reasons]
    return list(dict.fromkeys(reasons))


def _waits(side: list[Observation]) -> float:
    """Return how often the host waits for the device in a step; of several captures, the median."""
    return float(np.median([sum(row.calls_per_step for row in o.summary.syncs) for o in side]))


def _by_means(change: FigureChange) -> FigureChange:
    """Judge a change by its means alone: those of times that are the same in every run."""
    after_over_before = change.after / change.before if change.before else math.inf
    outcome = judge_ratio(Interval(*[after_over_before] * 3), TOLERATED_MODELLED, EXCLUDED)
    ratio = change.before / change.after if change.after else 0.0
    return msgspec.structs.replace(change, ratio=ratio, outcome=outcome, low=None, high=None)


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

    return [
        MemoryChange(
            *key,
            medians(key, lambda use: use.peak_bytes),
            medians(key, lambda use: use.growth_bytes_per_step),
            medians(key, lambda use: use.fall_bytes * use.hides_growth),
        )
        for key in sorted(everywhere)
    ]


def _unit(old: list[Observation], new: list[Observation]) -> Unit:
    """Return what the times are of: steps where both sides mark some, else images of a server."""
    both = [*old, *new]
    if all(observation.summary.steps for observation in both):
        return "step"
    return "image" if all(observation.batches for observation in both) else "recording"


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
        return msgspec.structs.replace(change, outcome=_neutral(change.outcome))
    return change


def _may_bring(difference: Difference, change: FigureChange) -> bool:
    """Return True if a difference beside the code slows one side enough for all of a change."""
    outcome = {"before": "better", "after": "worse"}.get(difference.slows)
    if change.outcome != outcome or change.group in ("kernel", "copy") or not change.ratio:
        return False
    return max(change.ratio, 1 / change.ratio) <= difference.up_to


def _observed(side: Side) -> list[Observation]:
    several = [side] if isinstance(side, Timeline | Observation) else side
    return [observe(each) if isinstance(each, Timeline) else each for each in several]


def _samples(captures: list[Series]) -> Series:
    """Return the steps of one capture; of several, the median step of each."""
    if len(captures) == 1:
        return captures[0]
    keys = dict.fromkeys(key for series in captures for key in series)
    return {key: np.array([_median(series.get(key)) for series in captures]) for key in keys}


def _median(values: Floats64 | None) -> float:
    return 0.0 if values is None else float(np.median(values))


Both = tuple[Series, Series]


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
