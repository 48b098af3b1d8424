"""One capture, summed up as plain data: what every report, check and hint is rendered from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from bottleneck_lab.analysis.counters.roofline import Machine, Roofline, find_roofline
from bottleneck_lab.analysis.device.kernels import KernelRow, LaunchUse, find_kernels, find_launches
from bottleneck_lab.analysis.device.transfers import (
    CollectiveRow,
    CopyRow,
    find_collectives,
    find_copies,
)
from bottleneck_lab.analysis.device.use import DeviceTime, DeviceUse, find_device_uses
from bottleneck_lab.analysis.evidence import Evidence
from bottleneck_lab.analysis.findings import Finding, doubt, find_findings
from bottleneck_lab.analysis.host.lines import LineRow, find_lines
from bottleneck_lab.analysis.host.operators import OperatorRow, build_calls, find_operators
from bottleneck_lab.analysis.host.startup import StartUp, find_startup
from bottleneck_lab.analysis.host.syncs import SyncRow, find_syncs
from bottleneck_lab.analysis.host.workers import WorkerUse, find_workers
from bottleneck_lab.analysis.memory.growth import MemoryUse, find_memory
from bottleneck_lab.analysis.quality import Quality, judge_quality
from bottleneck_lab.analysis.ranks.stragglers import Straggler, find_stragglers
from bottleneck_lab.analysis.steps.ranges import RangeRow, find_ranges
from bottleneck_lab.analysis.steps.serving import ServingUse, find_serving
from bottleneck_lab.analysis.steps.window import Step, Window, begun_inside, find_steps, find_window
from bottleneck_lab.trace.timeline import Timeline

First = TypeVar("First")
Other = TypeVar("Other")

SCHEMA = 1
LARGE_EVENTS = 5_000_000
"""From here on both sides are summed up at once. With 2.8 million events that gained an eighth of
the time, for a third more memory: not worth it.
"""


class Summary(msgspec.Struct, frozen=True):
    """Where the time went. Times are ns, shares 0–1. `emulated` (an emulated accelerator's rows are
    in it) and `quality` must be shown with any figure.

    `start_ns` and `wall_ns` are the stretch looked at: from the first step to the end of the last
    one's work, or the whole capture without steps. `cpu_only`: no accelerator was recorded; the CPU
    stands in as the device.
    """

    schema: int
    source: str
    format: str
    emulated: bool
    cpu_only: bool
    origin_ns: int
    """The capture's start, from which times shown to a reader count."""
    start_ns: int
    wall_ns: int
    ranks: list[int]
    events: int
    quality: Quality
    devices: list[DeviceUse]
    steps: list[Step]
    step_mean_ns: int
    step_spread: float
    """Standard deviation over mean of the steps' costs."""
    range_shares: dict[str, float]
    """Share of the steps' time in each range on the steps' thread: `data`, `h2d`, `forward`,
    `backward`, `optimizer` and whatever else was marked.
    """
    operators: list[OperatorRow]
    lines: list[LineRow]
    kernels: list[KernelRow]
    ranges: list[RangeRow]
    copies: list[CopyRow]
    syncs: list[SyncRow]
    launches: list[LaunchUse]
    memory: list[MemoryUse]
    stragglers: list[Straggler]
    findings: list[Finding]
    withheld: list[Finding] = []
    """Findings that depend on data the capture lacks: nothing that needs fixing."""
    collectives: list[CollectiveRow] = []
    roofline: Roofline = Roofline()
    workers: list[WorkerUse] = []
    """A data loader's worker processes, if the capture looked inside them."""
    serving: ServingUse | None = None
    startup: StartUp | None = None
    """A server's batches, if the capture shows them."""
    blind: bool = False
    """Causes, findings and ceilings have been removed: they are the reader's to find."""


class Analysis(NamedTuple):
    """A capture, its summary, and when each device did what: for whoever draws what the summary
    adds up, or looks into its steps.
    """

    timeline: Timeline
    summary: Summary
    times: list[DeviceTime]


def analyse(timeline: Timeline, ceilings: Machine | None = None) -> Analysis:
    """As `summarise`, keeping the devices' times."""
    times: list[DeviceTime] = []

    def uses() -> list[DeviceUse]:
        found = [*find_device_uses(timeline)]
        times.extend(time for _, time in found)
        return [use for use, _ in found]

    return Analysis(timeline, _summary(timeline, uses, ceilings), times)


def summarise(timeline: Timeline, ceilings: Machine | None = None) -> Summary:
    """Everything at once. A pure function of the capture and of the `ceilings` measured on the
    machine that it is from, where they were.
    """
    uses = find_device_uses(timeline)
    return _summary(
        timeline, lambda: [use for use, _ in uses], ceilings
    )  # one device's time at a time


def _summary(
    timeline: Timeline, uses: Callable[[], list[DeviceUse]], ceilings: Machine | None
) -> Summary:
    window, inside, steps = find_window(timeline), begun_inside(timeline), find_steps(timeline)
    seen, quality = _gather_evidence(
        timeline, inside, uses, [step.cost_ns for step in steps], window
    )
    findings, withheld = doubt(find_findings(seen), quality)
    lengths = np.array(seen.step_ns or [0], dtype=np.int64)
    return Summary(
        schema=SCHEMA,
        source=timeline.source,
        format=timeline.format,
        emulated=timeline.emulated,
        cpu_only=not len(timeline.device),
        origin_ns=timeline.extent[0],
        start_ns=window.start,
        wall_ns=window.length,
        ranks=list(timeline.ranks),
        events=timeline.events,
        quality=quality,
        devices=seen.devices,
        steps=steps,
        step_mean_ns=int(lengths.mean()),
        step_spread=float(lengths.std() / lengths.mean()) if lengths.mean() else 0.0,
        range_shares=_range_shares(steps),
        operators=seen.operators,
        lines=seen.lines,
        kernels=seen.kernels,
        ranges=find_ranges(timeline, window),
        copies=seen.copies,
        syncs=seen.syncs,
        launches=seen.launches,
        memory=seen.memory,
        stragglers=seen.stragglers,
        findings=findings,
        withheld=withheld,
        collectives=find_collectives(inside),
        roofline=find_roofline(timeline, ceilings),
        workers=find_workers(timeline, window),
        serving=seen.serving,
        startup=find_startup(timeline),
    )


def _gather_evidence(
    timeline: Timeline,
    inside: Timeline,
    uses: Callable[[], list[DeviceUse]],
    step_ns: list[int],
    window: Window,
) -> tuple[Evidence, Quality]:
    """What findings are drawn from, and whether it can be relied on. `inside`: what of the timeline
    began in its window.
    """
    (operators, syncs, lines), (devices, quality) = _beside(
        timeline.events, lambda: _host_side(inside), lambda: _device_side(timeline, uses)
    )
    seen = Evidence(
        devices=devices,
        operators=operators,
        kernels=find_kernels(inside),
        copies=find_copies(inside),
        syncs=syncs,
        lines=lines,
        launches=find_launches(inside),
        memory=find_memory(inside),
        stragglers=find_stragglers(timeline),
        step_ns=step_ns,
        steps=len(step_ns),
        wall_ns=window.length,
        serving=find_serving(timeline, window),
    )
    return seen, quality


def _beside(
    events: int, first: Callable[[], First], other: Callable[[], Other]
) -> tuple[First, Other]:
    """Both at once for a large capture: NumPy works without Python's lock where arrays are
    large.
    """
    if events < LARGE_EVENTS:
        return first(), other()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(other)
        return first(), found.result()


def _device_side(
    timeline: Timeline, uses: Callable[[], list[DeviceUse]]
) -> tuple[list[DeviceUse], Quality]:
    """What became of the devices' time, and whether that can be relied on."""
    devices = uses()
    return devices, judge_quality(timeline, devices)


def _host_side(timeline: Timeline) -> tuple[list[OperatorRow], list[SyncRow], list[LineRow]]:
    """What the host's calls tell, nested."""
    calls = build_calls(timeline, python=bool(len(timeline.python)))
    return find_operators(timeline, calls), find_syncs(timeline, calls), find_lines(timeline, calls)


def _range_shares(steps: list[Step]) -> dict[str, float]:
    whole = sum(step.duration_ns for step in steps)
    times: dict[str, int] = {}
    for step in steps:
        for name, time in step.range_ns.items():
            times[name] = times.get(name, 0) + time
    return {
        name: time / whole
        for name, time in sorted(times.items(), key=lambda item: -item[1])
        if whole
    }
