"""The figures of each step of a capture: one series a figure, so that every figure can be judged by
its own noise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.device.kernels import kernel_rows
from bottleneck_lab.analysis.device.time import CPU, DeviceTime
from bottleneck_lab.analysis.host.lines import line_tracks, own_frames
from bottleneck_lab.analysis.host.nesting import nest
from bottleneck_lab.analysis.host.operators import (
    OPERATOR,
    CallTree,
    build_calls,
    in_parts,
    nearest_above,
    own_times,
)
from bottleneck_lab.analysis.host.startup import costs_without_startup, find_startups
from bottleneck_lab.analysis.host.waits import waiting_calls
from bottleneck_lab.analysis.steps.window import (
    Step,
    find_steps,
    find_window,
    host_window,
    launch_times,
    step_rows,
)
from bottleneck_lab.trace.timeline import (
    ActivityKind,
    DeviceTable,
    Direction,
    Floats64,
    HostMemory,
    HostTable,
    Ints,
    SmallInts,
    Timeline,
    devices_of,
    take,
)

Group = Literal["step", "device", "gap", "range", "line", "operator", "kernel", "copy", "sync"]
Key = tuple[Group, str]
"""(group, name): ("kernel", "gemm"), ("gap", "input")."""
Series = dict[Key, Floats64]


@dataclass(frozen=True, slots=True)
class StepFigures:
    """`series` holds, by figure, nanoseconds of each step (one value for the whole capture without
    steps); over several devices and ranks, the mean. `mean_step_ns` is what the means of the
    devices' parts add up to.

    `origins`: which operator launched most of a kernel, by the kernel's name; a kernel that is
    renamed or fused is told by it. `beside_work`: of a range, a line or a wait of the host, its
    whole time, ns, and how much of that a device of its rank worked meanwhile. `on_host`: the
    operators by their own time on the host, where `series` has what they launched. `exact_lines`:
    lines that ran, else functions.
    """

    steps: int
    series: Series
    origins: dict[str, str]
    mean_step_ns: float
    beside_work: dict[Key, tuple[int, int]] = field(default_factory=dict)
    on_host: Series = field(default_factory=dict)
    exact_lines: bool = True


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of a server's capture, one after another: the moments between which they lie, and
    how many images were answered in each.
    """

    cuts: Ints
    images: Ints


def find_step_figures(timeline: Timeline, times: Sequence[DeviceTime]) -> StepFigures:
    """Return the figures of a capture like `summarise`, but for every step by itself. `times`: the
    capture's, one entry per device.
    """
    return with_device_times(find_work_figures(timeline), timeline, times)


def with_device_times(
    figures: StepFigures, timeline: Timeline, times: Sequence[DeviceTime]
) -> StepFigures:
    """Return the figures of `find_work_figures` with what the devices did, right after the step's
    time.
    """
    step: Series = {("step", "time"): figures.series["step", "time"]}
    series = step | _device_series(times, find_steps(timeline), figures.steps) | figures.series
    return replace(figures, series=series, beside_work=_find_beside_work(timeline, times))


def _find_beside_work(
    timeline: Timeline, times: Sequence[DeviceTime]
) -> dict[Key, tuple[int, int]]:
    """Return, by range, line and wait of the host, its time in its rank's window and how much of
    that lies beside work of the rank's devices, ns; nothing without devices.
    """
    tables: dict[Group, HostTable] = {
        "range": timeline.ranges,
        "line": _lines(timeline),
        "sync": take(timeline.runtime, waiting_calls(timeline)),
    }
    sums: dict[Key, tuple[int, int]] = {}
    for rank in {time.rank for time in times if time.device != CPU}:
        own = [time for time in times if time.rank == rank]
        busy, window = iv.join(iv.NONE, *(time.busy for time in own)), own[0].window
        for group, table in tables.items():
            begun = (table.start >= window.start) & (table.start < window.end)
            rows = take(table, (table.rank == rank) & begun)
            beside = iv.covered_within(busy, rows.start, rows.end)
            whole_by_name, beside_by_name = (
                np.bincount(rows.name, weights=ns, minlength=len(timeline.strings))
                for ns in (rows.end - rows.start, beside)
            )
            for name in np.flatnonzero(whole_by_name).tolist():
                key = group, timeline.strings[name]
                whole_ns, beside_ns = sums.get(key, (0, 0))
                sums[key] = (
                    whole_ns + int(whole_by_name[name]),
                    beside_ns + int(beside_by_name[name]),
                )
    return sums


def find_work_figures(timeline: Timeline) -> StepFigures:
    """Return the figures for which it need not be known when the devices were idle, and why."""
    steps = find_steps(timeline)
    edges = _host_edges(timeline)
    ends = {rank: host_window(timeline, rank).end for rank in edges}
    # Ranks may have begun to record at different steps: only what all have can be averaged.
    count = min((len(each) for each in edges.values()), default=1)
    costs = np.array([float(find_window(timeline).length)])
    if steps:
        both = list(zip(steps, costs_without_startup(steps, find_startups(timeline)), strict=True))
        ranks = {step.rank for step in steps}
        by_rank = [[cost for step, cost in both if step.rank == rank][:count] for rank in ranks]
        costs = np.mean(np.array(by_rank, dtype=np.float64), axis=0)
    mean_step_ns = float(costs.mean())
    if steps:
        costs = even_out(costs)
    operators, on_host, origins = _operator_series(timeline, edges, ends, count)
    series: Series = {("step", "time"): costs}
    for part in (
        # A step's work is what it launched; a report counts what began before the last of it ended.
        _kernel_series(
            timeline, edges, {rank: find_window(timeline, rank).end for rank in edges}, count
        ),
        operators,
        _range_series(steps, count),
        _wait_series(timeline, edges, ends, count),
        _line_series(timeline, edges, ends, count),
    ):
        series |= part
    exact_lines = bool(line_tracks(timeline))
    return StepFigures(
        count, series, origins, mean_step_ns, on_host=on_host, exact_lines=exact_lines
    )


def find_served_figures(
    timeline: Timeline, times: Sequence[DeviceTime], stretches: Stretches
) -> StepFigures:
    """Return the figures of each stretch for one of its images. Ranges are those of all threads.

    A stretch counts by its images in a mean (`np.average` with them as weights).
    """
    cuts = stretches.cuts
    count = len(cuts) - 1
    edges = dict.fromkeys(timeline.ranks, cuts[:-1])
    ends = dict.fromkeys(timeline.ranks, int(cuts[-1]))
    operators, on_host, origins = _operator_series(timeline, edges, ends, count)
    ranges = timeline.ranges
    step = _step_of(ranges, ranges.start, edges, ends, count)
    series: Series = _parts_between(times, dict.fromkeys(timeline.ranks, cuts))
    for part in (
        _kernel_series(timeline, edges, ends, count),
        operators,
        {
            ("range", timeline.strings[name]): values
            for name, values in _sums(ranges.name, step, ranges.end - ranges.start, count)
        },
        _wait_series(timeline, edges, ends, count),
        _line_series(timeline, edges, ends, count),
    ):
        series |= part
    each, on_host = (
        {key: values / stretches.images for key, values in some.items()}
        for some in (series, on_host)
    )
    whole_ns = float(cuts[-1] - cuts[0]) / float(stretches.images.sum())
    return StepFigures(count, each, origins, whole_ns, on_host=on_host)


def find_step_parts(times: Sequence[DeviceTime], steps: Sequence[Step]) -> Series:
    """Return what the devices of the first step's rank did in each of its steps, and why they were
    idle: ns by ("device", what) and ("gap", cause), which add up to each step's cost.
    """
    if not steps:
        return {}
    own = [step for step in steps if step.rank == steps[0].rank]
    series = _device_series([time for time in times if time.rank == own[0].rank], own, len(own))
    series.pop(("device", "idle"), None)  # its causes are there
    return series


def even_out(costs: Floats64) -> Floats64:
    """Join steps whose end on the device is not known by itself, joined with the next: a step of 0
    ns beside one of double length are two of one length.
    """
    mean, sums, counts = float(costs.mean()), [0.0], [0]
    for cost in costs.tolist():
        if counts[-1] and sums[-1] >= mean * counts[-1] / 2:
            sums.append(0.0)
            counts.append(0)
        sums[-1] += cost
        counts[-1] += 1
    return np.asarray(sums, dtype=np.float64) / np.asarray(counts, dtype=np.float64)


def _host_edges(timeline: Timeline) -> dict[int, Ints]:
    """Return when each step of a rank began on the host; the capture's start where there are no
    steps.
    """
    steps = step_rows(timeline)
    if not len(steps):
        return {rank: np.array([timeline.extent[0]], dtype=np.int64) for rank in timeline.ranks}
    return {rank: steps.start[steps.rank == rank] for rank in np.unique(steps.rank).tolist()}


def _step_of(
    table: DeviceTable | HostTable,
    moments: Ints,
    edges: dict[int, Ints],
    ends: dict[int, int],
    count: int,
) -> Ints:
    """Return the step in which each row's moment lies; -1 for none, and for a row that begins, or
    whose moment is, when the steps of its rank have ended.
    """
    step = np.full(len(table), -1, dtype=np.int64)
    for rank, begins in edges.items():
        mine = np.flatnonzero(table.rank == rank)
        at = np.searchsorted(begins, moments[mine], side="right") - 1
        inside = (at < count) & (np.maximum(table.start, moments)[mine] < ends[rank])
        step[mine] = np.where(inside, at, -1)
    return step


def _sums(
    names: SmallInts, step: Ints | SmallInts, value: Ints, count: int
) -> Iterator[tuple[int, Floats64]]:
    """Yield (name, its nanoseconds by step) for every name."""
    # One histogram over (name, step) instead of a mask for each name: there are thousands.
    inside = np.flatnonzero((step >= 0) & (value > 0))
    used, number = np.unique(names[inside], return_inverse=True)
    at = number.reshape(-1) * count + step[inside]
    table = np.bincount(at, weights=value[inside], minlength=len(used) * count)
    yield from zip(used.tolist(), table.reshape(-1, count), strict=True)


def _kernel_series(
    timeline: Timeline, edges: dict[int, Ints], ends: dict[int, int], count: int
) -> Series:
    device = timeline.device
    series: Series = {}
    step = np.empty(len(device), dtype=np.int32)
    for rows in iv.blocks(len(device)):
        step[rows] = _step_of(take(device, rows), launch_times(timeline, rows), edges, ends, count)
    length, share = device.end - device.start, max(len(devices_of(device)), 1)
    kernels = np.zeros(len(device), dtype=bool)
    kernels[kernel_rows(device)] = True
    for name, values in _sums(device.name, np.where(kernels, step, -1), length, count):
        series["kernel", timeline.strings[name]] = values / share
    # Direction and memory in one number, since sums are by one: four bits hold any memory.
    ways = (device.direction.astype(np.int32) << 4) + device.host_memory
    for way, values in _sums(
        ways, np.where(device.kind == ActivityKind.COPY, step, -1), length, count
    ):
        memory = HostMemory(way & 15).name.lower()
        series["copy", f"{Direction(way >> 4).name.lower()} {memory}"] = values / share
    return series


def _operator_series(
    timeline: Timeline, edges: dict[int, Ints], ends: dict[int, int], count: int
) -> tuple[Series, Series, dict[str, str]]:
    """Return (the operators' own times, as `own_times` returns them, by step; on the host, where
    these are the device's; which operator launched most of a kernel, by the kernel's name).
    """
    where = (True, False) if len(timeline.device) else (False,)
    sums: dict[tuple[bool, int], Floats64] = defaultdict(lambda: np.zeros(count))
    launches: Counter[tuple[int, int]] = Counter()
    for part in in_parts(timeline):
        calls, operators = build_calls(part, python=False), part.operators
        step = _step_of(operators, operators.start, edges, ends, count)
        for on_device in where:
            own = own_times(part, calls, on_device=on_device)
            for name, values in _sums(operators.name, step, own, count):
                sums[on_device, name] += values
        launches.update(_launches(part, calls))
    series: dict[bool, Series] = {True: {}, False: {}}
    for on_device, name in sorted(sums):
        values = sums[on_device, name] / max(len(edges), 1)
        series[on_device]["operator", timeline.strings[name]] = values
    # The operator of most launches of a kernel is the last one that it is told of.
    by_launches = sorted(launches, key=lambda pair: (launches[pair], pair))
    origins = {timeline.strings[kernel]: timeline.strings[name] for kernel, name in by_launches}
    if len(timeline.device):
        return series[True], series[False], origins
    return series[False], {}, origins


def _wait_series(
    timeline: Timeline, edges: dict[int, Ints], ends: dict[int, int], count: int
) -> Series:
    """Return the host's waits for the device by step."""
    waits = take(timeline.runtime, waiting_calls(timeline))
    lengths, share = waits.end - waits.start, max(len(edges), 1)
    # A wait after a step may begin a rounded nanosecond before its end: most of it lies outside.
    step = _step_of(waits, waits.start + lengths // 2, edges, ends, count)
    return {
        ("sync", timeline.strings[name]): values / share
        for name, values in _sums(waits.name, step, lengths, count)
    }


def _line_series(
    timeline: Timeline, edges: dict[int, Ints], ends: dict[int, int], count: int
) -> Series:
    """Return the host's time on each of the user's own lines by step or, where none were recorded,
    in each of the user's own functions, without those that it calls.
    """
    rows = _lines(timeline)
    parent, own_ns = nest(rows).parent, rows.end - rows.start
    np.subtract.at(own_ns, parent[parent >= 0], (rows.end - rows.start)[parent >= 0])
    step = _step_of(rows, rows.start, edges, ends, count)
    return {
        ("line", timeline.strings[name]): values / max(len(edges), 1)
        for name, values in _sums(rows.name, step, np.maximum(own_ns, 0), count)
    }


def _lines(timeline: Timeline) -> HostTable:
    """Return the user's own lines that ran; without these, the frames of the user's functions."""
    tracks = line_tracks(timeline)
    if not tracks:
        return own_frames(timeline)
    return take(timeline.python, np.isin(timeline.python.thread, tracks))


def _range_series(steps: list[Step], count: int) -> Series:
    """Return the outermost ranges of each step on its own thread; of several ranks, the mean."""
    series: Series = {}
    ranks = max(len({step.rank for step in steps}), 1)
    next_step: dict[int, int] = {}
    for step in steps:
        at = next_step.get(step.rank, 0)
        next_step[step.rank] = at + 1
        for name, ns in step.range_ns.items():
            if at < count:
                series.setdefault(("range", name), np.zeros(count))[at] += ns / ranks
    return series


def _device_series(times: Sequence[DeviceTime], steps: list[Step], count: int) -> Series:
    """Return what each device did and why it was idle from the end of one step's work to the
    next's, but for the start-up, which no step's time holds.
    """
    edges = {}
    for time in times:
        # The work of each step is done at these moments, after the window's start.
        costs = [step.cost_ns for step in steps if step.rank == time.rank][:count]
        edges[time.rank] = np.cumsum(
            [time.window.start, *(costs or [time.window.length])], dtype=np.int64
        )
    series = _parts_between(times, edges)
    if steps and ("gap", "startup") in series:
        series["device", "idle"] -= series.pop(("gap", "startup"))
    return series


def _parts_between(times: Sequence[DeviceTime], edges: Mapping[int, Ints]) -> Series:
    """Return what each device did between one of its rank's edges and the next, and why it was
    idle; of several, the mean.
    """
    series: Series = {}
    for time in times:
        parts: dict[Key, iv.Intervals] = {
            ("device", "compute"): time.compute,
            ("device", "exposed_communication"): time.exposed_communication,
            ("device", "exposed_copy"): time.exposed_copy,
            ("device", "idle"): time.idle,
        }
        parts |= {("gap", cause): part for cause, part in time.causes.items() if part.total}
        for key, part in parts.items():
            inside = np.diff(iv.covered_before(part, edges[time.rank])) / len(times)
            series[key] = series.get(key, np.zeros(len(inside))) + inside
    return series


def _launches(timeline: Timeline, calls: CallTree) -> dict[tuple[int, int], int]:
    """Return how often each kernel was launched right under each operator, by their names."""
    device, operators = timeline.device, timeline.operators
    rows = kernel_rows(device)
    rows = rows[timeline.launched_by[rows] >= 0]
    if not len(rows) or not len(operators):
        return {}
    call = calls.rows(OPERATOR + 1)[timeline.launched_by[rows]]
    above = nearest_above(calls, OPERATOR)[call]
    rows, above = rows[above >= 0], above[above >= 0]
    names = operators.name[np.searchsorted(calls.rows(OPERATOR), above)]
    # Both in one number: to sort pairs takes many times as long.
    count = len(timeline.strings)
    pairs, times = np.unique(device.name[rows].astype(np.int64) * count + names, return_counts=True)
    return {divmod(pair, count): n for pair, n in zip(pairs.tolist(), times.tolist(), strict=True)}
