"""Each capture of a comparison: its summary, the figures of its steps, and both scaled to another
calibration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec
import numpy as np

from bottleneck_lab.analysis.comparing.comparability import Conditions, find_conditions
from bottleneck_lab.analysis.comparing.machine_speed import CallTimes, find_call_times
from bottleneck_lab.analysis.counters.kernel_counters import LIBRARY
from bottleneck_lab.analysis.steps.figures import (
    Series,
    StepFigures,
    find_served_figures,
    find_work_figures,
    with_device_times,
)
from bottleneck_lab.analysis.steps.serving import find_batch_figures, find_stretches
from bottleneck_lab.analysis.steps.window import find_window
from bottleneck_lab.analysis.summary import Analysis, Summary, analyse_beside
from bottleneck_lab.trace.names import is_host_modelled
from bottleneck_lab.trace.timeline import Ints, Timeline


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
    call_times: Mapping[str, CallTimes] = field(default_factory=dict)


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
        call_times=find_call_times(timeline),
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


def observed(side: Side) -> list[Observation]:
    several = [side] if isinstance(side, Timeline | Observation) else side
    return [observe(each) if isinstance(each, Timeline) else each for each in several]


def by_image(observation: Observation) -> Observation:
    """Return a server's capture with the figures for an image as its figures."""
    assert observation.served is not None, "the unit is an image only of servers"
    return replace(observation, figures=observation.served)


def on_host(observation: Observation) -> Observation:
    """Return a capture without what only one of two devices has, if one is the CPU: the times of
    ranges and lines stay, and of operators those on the host.
    """
    figures = observation.figures
    kept = {
        key: values
        for key, values in figures.series.items()
        if key[0] in ("step", "range", "line") or (key[0] == "operator" and not figures.on_host)
    }
    figures = replace(figures, series=kept | figures.on_host, origins={}, beside_work={})
    return replace(observation, figures=figures)


def own_kernels(observation: Observation) -> Observation:
    """Return a report of ncu with the user's own kernels, and their sum as its whole: launches of a
    library were measured beside them. A report of a library's kernels alone is as it is.
    """
    figures = observation.figures
    kernels = {key: values for key, values in figures.series.items() if key[0] == "kernel"}
    own = {key: values for key, values in kernels.items() if not LIBRARY.search(key[1])}
    own = own or kernels
    whole = np.sum(list(own.values()), axis=0)
    figures = replace(
        figures, series={("step", "time"): whole, **own}, mean_step_ns=float(np.mean(whole))
    )
    return replace(observation, figures=figures)


def scaled_alike(
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
    series, on_host = (
        {key: values * factor for key, values in some.items()}
        for some in (figures.series, figures.on_host)
    )
    mean_step_ns = figures.mean_step_ns * factor
    return replace(figures, series=series, on_host=on_host, mean_step_ns=mean_step_ns)
