"""One capture, summed up as plain data: what every report, check and hint is rendered from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.causes import CAUSES, OUTSIDE
from bottleneck_lab.analysis.comparing.comparability import calibrated_ns
from bottleneck_lab.analysis.counters.roofline import Machine, Roofline, find_roofline
from bottleneck_lab.analysis.device.kernels import (
    Interruptions,
    KernelRow,
    LaunchUse,
    find_interruptions,
    find_kernels,
    find_launches,
)
from bottleneck_lab.analysis.device.time import DeviceTime
from bottleneck_lab.analysis.device.transfers import (
    CollectiveRow,
    CopyRow,
    Sizes,
    exposed_by_size,
    find_collectives,
    find_copies,
)
from bottleneck_lab.analysis.device.use import DeviceUse, find_device_uses
from bottleneck_lab.analysis.evidence import Evidence
from bottleneck_lab.analysis.findings import Finding, doubt, find_findings
from bottleneck_lab.analysis.footprint import at_once, release_freed
from bottleneck_lab.analysis.host.lines import LineRow, find_lines, longest_line
from bottleneck_lab.analysis.host.operators import (
    OperatorRow,
    build_calls,
    in_parts,
    rank_operators,
    sum_operators,
)
from bottleneck_lab.analysis.host.startup import (
    StartUp,
    costs_without_startup,
    find_startups,
    longest_startup,
    settled_costs,
)
from bottleneck_lab.analysis.host.syncs import (
    SyncRow,
    find_causes,
    find_syncs,
    longest_waiting_line,
    waits_by_line,
)
from bottleneck_lab.analysis.host.waits import waiting_calls
from bottleneck_lab.analysis.host.workers import WorkerUse, find_loader, find_workers
from bottleneck_lab.analysis.memory.growth import MemoryUse, find_driver_calls, find_memory
from bottleneck_lab.analysis.quality import Quality, judge_quality
from bottleneck_lab.analysis.ranks.collectives import CollectiveWaits, find_collective_waits
from bottleneck_lab.analysis.ranks.departures import Departures, find_departures
from bottleneck_lab.analysis.ranks.matching import match_collectives
from bottleneck_lab.analysis.ranks.stragglers import Straggler, find_stragglers
from bottleneck_lab.analysis.steps.generation import GenerationUse, find_generation
from bottleneck_lab.analysis.steps.ranges import RangeRow, find_ranges
from bottleneck_lab.analysis.steps.serving import ServingUse, find_serving
from bottleneck_lab.analysis.steps.sides import Sides, find_sides
from bottleneck_lab.analysis.steps.window import (
    Step,
    begun_inside,
    count_launches,
    find_steps,
    find_window,
)
from bottleneck_lab.analysis.what_if.gain import WhatIf
from bottleneck_lab.analysis.what_if.removal import Removal
from bottleneck_lab.trace.names import is_host_modelled
from bottleneck_lab.trace.timeline import Timeline

Result = TypeVar("Result")

SCHEMA = 1
LEAST_PART = 0.02
"""A part of the time below this share has no gain worth working out."""

LAB_EVENTS = 1_000_000
"""More than any lab's capture has. What only a lab asks for is not worth a replay of more."""

WAITING_LINES = 12
"""Of so many lines that wait a summary says what the program gains without each: a replay each."""

STEPS_WITH_EDGES = 5
"""Of this many steps the first and the last are no part of the spread."""


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
    """Without the start-up, which a rank's first step may hold."""
    step_spread: float
    """Standard deviation over mean of these costs; of five or more, without each rank's first
    and last: they hold what the device did for steps before, or lack what it did after.
    """
    inner_step_mean_ns: int
    """The mean of the costs that the spread is of."""
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
    """A server's batches, if the capture shows them."""
    generation: GenerationUse | None = None
    """Times of a token, if the program generates some."""
    startup: StartUp | None = None
    """What the program did before its first work, if that took long."""
    collective_waits: CollectiveWaits | None = None
    """Who waited for whom in collectives, where the captures of several ranks hold them."""
    gains: dict[str, float] = {}
    """By part of the time (`idle-<cause>`, `communication`, `copy`) how many times as fast the
    program would be without it at most; parts of which that cannot be told are left out.
    """
    longest_line_share: float = 0.0
    """Share of the wall time in which the host was on the line that takes it longest; see
    `analysis.host.lines.longest_line`.
    """
    waiting_line_share: float = 0.0
    """Share of the wall time in which the host was on the line that waits longest for the device;
    see `analysis.host.syncs.longest_waiting_line`.
    """
    gains_without_waits: dict[str, float] = {}
    """How many times as fast the program would be without all that a line does, while others still
    wait, by the lines that wait longest for the device; where no lines were recorded, the operator,
    or the call. Empty where nothing waits for long, and in captures of more than LAB_EVENTS.
    """
    idle_after_waits: dict[str, int] = {}
    """How long devices were idle after the host's waits (ns), by the line that waited; where no
    lines were recorded by the outermost operator, or the call.
    """
    batches_per_step: float = 0.0
    """How many full batches a device that was set by the machine's speed worked on in a step: more
    than one where it began with what had been handed over before. 0 on any other.
    """
    code: dict[str, str] = {}
    """The source of the user's own lines, by their names here, where it is at hand."""
    modelled_host: bool = False
    """The times of the host are modelled, too, not only an emulated accelerator's."""
    disturbed: str = ""
    """A sentence about other programs that kept the machine busy while it was recorded; "" where
    they took next to nothing, where that is not known, and where the host's times are modelled.
    """
    of_memory: bool = False
    """The capture is of a lab about memory, which comes first there."""
    check_ceiling: float | None = None
    """How many times as fast a check of the capture's lab can find any work, where it has a limit
    of its own.
    """
    blind: bool = False
    """Causes, findings and ceilings have been removed: they are the reader's to find."""
    remedies_later: bool = False
    """The advice on findings has been removed: it is the reader's to find until the first check."""
    measures: bool = False
    """The program measures others. Findings and ceilings have been removed: they do not apply."""
    sides: Sides | None = None
    """Both sides of a step without waits, where detectors find nothing, steps are marked and there
    is an accelerator.
    """
    startup_in_step_ns: int = 0
    """Most that a rank's first step holds of the start-up, which `step_mean_ns` leaves out."""

    @property
    def longest_wait_gain(self) -> float | None:
        """The gain without the line that waits longest, if it is known."""
        longest = waits_by_line(self.syncs).most_common(1)
        return self.gains_without_waits.get(longest[0][0]) if longest else None


class Analysis(NamedTuple):
    """A capture, its summary, and when each device did what: for whoever draws what the summary
    adds up, or looks into its steps.
    """

    timeline: Timeline
    summary: Summary
    times: list[DeviceTime]


def analyse(timeline: Timeline, ceilings: Machine | None = None) -> Analysis:
    """Summarise a capture, and keep the devices' times."""
    return analyse_beside(timeline, lambda _: None, ceilings)[0]


def analyse_beside(
    timeline: Timeline, work: Callable[[Timeline], Result], ceilings: Machine | None = None
) -> tuple[Analysis, Result]:
    """Return what `analyse` does, and the result of other `work` on a capture, which is done by
    whichever process has less to do.
    """
    times: list[DeviceTime] = []

    def kept_uses() -> Iterator[tuple[DeviceUse, DeviceTime]]:
        for use, time in find_device_uses(timeline):
            times.append(time)
            yield use, time

    with at_once((_host_side, work, _work_side), timeline) as results:
        summary = _summary(timeline, kept_uses(), lambda: (results()[0], results()[2]), ceilings)
        return Analysis(timeline, summary, times), results()[1]


def summarise(timeline: Timeline, ceilings: Machine | None = None) -> Summary:
    """Sum up everything at once. A pure function of the capture and of the `ceilings` measured on
    the machine that it is from, where they were.
    """
    with at_once((_host_side, _work_side), timeline) as results:
        return _summary(timeline, find_device_uses(timeline), lambda: tuple(results()), ceilings)


def _summary(
    timeline: Timeline,
    uses: Iterable[tuple[DeviceUse, DeviceTime]],
    other_sides: Callable[[], tuple[_HostSide, _WorkSide]],
    ceilings: Machine | None,
) -> Summary:
    window, inside = find_window(timeline), begun_inside(timeline)
    devices = _device_side(timeline, uses)
    roofline = find_roofline(timeline, ceilings)
    seen = _evidence_of(timeline, devices, roofline)
    release_freed(timeline)
    # Before the other process is waited for: for this, the devices are enough.
    gains = _part_gains(seen, devices.quality)
    host, work = other_sides()
    seen = _with_rows(seen, host, work)
    findings, withheld = doubt(find_findings(seen), devices.quality)
    inner_ns = _inner_costs(work.steps, work.costs_ns)
    sides = None
    if not findings and not withheld:
        sides = find_sides(timeline, seen.devices, seen.syncs, len(work.steps))
    return Summary(
        schema=SCHEMA,
        source=timeline.source,
        format=timeline.format,
        emulated=timeline.emulated,
        cpu_only=all(use.is_cpu for use in seen.devices),
        origin_ns=timeline.extent[0],
        start_ns=window.start,
        wall_ns=window.length,
        ranks=list(timeline.ranks),
        events=timeline.events,
        quality=devices.quality,
        devices=seen.devices,
        steps=work.steps,
        step_mean_ns=int(np.mean(work.costs_ns or [0])),
        startup_in_step_ns=max(
            (s.cost_ns - ns for s, ns in zip(work.steps, work.costs_ns, strict=True)), default=0
        ),
        step_spread=float(np.std(inner_ns)) / max(float(np.mean(inner_ns)), 1.0),
        inner_step_mean_ns=int(np.mean(inner_ns)),
        range_shares=_range_shares(work.steps),
        operators=seen.operators,
        lines=seen.lines,
        kernels=seen.kernels,
        ranges=work.ranges,
        copies=seen.copies,
        syncs=seen.syncs,
        launches=seen.launches,
        memory=seen.memory,
        stragglers=seen.stragglers,
        findings=findings,
        withheld=withheld,
        collectives=find_collectives(inside, devices.exposed),
        roofline=roofline,
        workers=find_workers(timeline, window),
        serving=seen.serving,
        # Of what was not recorded, or at wrong times, neither can be told.
        generation=work.generation if devices.quality.reliable else None,
        startup=work.startup if devices.quality.reliable else None,
        collective_waits=seen.collective_waits,
        gains=gains,
        modelled_host=is_host_modelled(timeline),
        batches_per_step=_batches_per_step(timeline, seen.devices, len(work.steps)),
        longest_line_share=work.longest_line_share,
        waiting_line_share=host.waiting_line_share,
        gains_without_waits=_gains_without_waits(seen, timeline.events),
        idle_after_waits=_idle_after_waits(seen.devices),
        sides=sides,
    )


def _batches_per_step(timeline: Timeline, devices: Sequence[DeviceUse], steps: int) -> float:
    """Return how many full batches a device worked on in a step, by its calibration; 0 without."""
    batch_ns = calibrated_ns(timeline)
    if not batch_ns or not steps:
        return 0.0
    return float(sum(use.compute_ns for use in devices)) / batch_ns / steps


def _idle_after_waits(devices: Sequence[DeviceUse]) -> dict[str, int]:
    """Return how long devices were idle after the waits of each line, all together, ns."""
    times: Counter[str] = Counter()
    for use in devices:
        for part in use.gap_causes:
            times.update(dict(part.after))
    return dict(times.most_common())


class _HostSide(NamedTuple):
    """The part of a summary that needs the host's call tree, whatever time its devices had."""

    operators: list[OperatorRow]
    syncs: list[SyncRow]
    lines: list[LineRow]
    waiting_line_share: float


def _host_side(whole: Timeline) -> _HostSide:
    timeline = begun_inside(whole)
    sums = np.zeros((5, len(timeline.strings)), dtype=np.int64)
    causes: list[str] = []
    lines: list[LineRow] = []
    waiting, seen = waiting_calls(timeline), 0
    for part in in_parts(timeline):
        calls = build_calls(part, python=bool(len(timeline.python)))
        sums += sum_operators(part, calls)
        causes += find_causes(part, calls, waiting[seen : seen + len(part.runtime)])
        seen += len(part.runtime)
        lines += find_lines(part, calls)  # none without frames, with which there is one part
    release_freed(timeline)
    syncs = find_syncs(timeline, causes)
    share = _host_share(whole, lambda rank: longest_waiting_line(whole, rank, syncs))
    return _HostSide(rank_operators(timeline, sums), syncs, lines, share)


class _WorkSide(NamedTuple):
    """The part of a summary that follows from what ran, whatever time the devices had."""

    kernels: list[KernelRow]
    interruptions: Interruptions
    copies: list[CopyRow]
    launches: list[LaunchUse]
    memory: list[MemoryUse]
    stragglers: list[Straggler]
    departures: Departures | None
    steps: list[Step]
    ranges: list[RangeRow]
    generation: GenerationUse | None
    costs_ns: list[int]
    settled_ns: list[int]
    step_launches: list[int]
    driver_calls: dict[str, int]
    startup: StartUp | None
    longest_line_share: float


def _work_side(whole: Timeline) -> _WorkSide:
    timeline = begun_inside(whole)
    steps, startups = find_steps(whole), find_startups(whole)
    return _WorkSide(
        kernels=find_kernels(timeline),
        interruptions=find_interruptions(whole),
        copies=find_copies(timeline),
        launches=find_launches(timeline, whole),
        memory=find_memory(timeline),
        stragglers=find_stragglers(whole),
        departures=find_departures(timeline),
        steps=steps,
        ranges=find_ranges(whole, find_window(whole)),
        generation=find_generation(whole),
        costs_ns=costs_without_startup(steps, startups),
        settled_ns=settled_costs(whole, steps, startups),
        step_launches=count_launches(whole, steps),
        driver_calls=find_driver_calls(timeline),
        startup=longest_startup(startups),
        longest_line_share=_host_share(whole, lambda rank: longest_line(whole, rank)),
    )


class _DeviceSide(NamedTuple):
    """The uses of the devices' time, and whether they can be relied on."""

    uses: list[DeviceUse]
    quality: Quality
    what_if: WhatIf
    waits: CollectiveWaits | None
    exposed: Sizes


def _device_side(
    timeline: Timeline, uses_and_times: Iterable[tuple[DeviceUse, DeviceTime]]
) -> _DeviceSide:
    uses, programs, times = [], [], []
    exposed: Sizes = Counter()
    arrivals = match_collectives(timeline)
    for use, time in uses_and_times:
        uses.append(use)
        exposed.update(exposed_by_size(timeline, time))
        if time.program is not None:
            programs.append(time.program)
        # Kept only for ranks that met in collectives: else each goes before the next is made.
        if arrivals:
            times.append(time)
    release_freed(timeline)
    quality = judge_quality(timeline, uses)
    waits = find_collective_waits(arrivals, times)
    return _DeviceSide(uses, quality, WhatIf(timeline, programs), waits, exposed)


def _evidence_of(timeline: Timeline, devices: _DeviceSide, roofline: Roofline) -> Evidence:
    """Return what the detectors look at, as far as it does not follow from the rows alone."""
    window = find_window(timeline)
    return Evidence(
        devices=devices.uses,
        wall_ns=window.length,
        serving=find_serving(timeline, window),
        collective_waits=devices.waits,
        what_if=devices.what_if,
        loader=find_loader(timeline, window),
        modelled_host=is_host_modelled(timeline),
        world_size=timeline.world_size,
        compute_capabilities={
            (info.rank, info.index): float(info.compute_capability)
            for info in timeline.devices
            if re.fullmatch(r"[1-9]\d*\.\d", info.compute_capability)
        },
        double_rows=[row for row in roofline.rows if row.precision == "fp64"],
    )


def _inner_costs(steps: Sequence[Step], costs_ns: Sequence[int]) -> list[int]:
    """Return the steps' costs, of many without those at the edges; a 0 where there are no steps."""
    costs: list[int] = []
    for rank in {step.rank for step in steps}:
        both = zip(steps, costs_ns, strict=True)
        of_rank = [cost_ns for step, cost_ns in both if step.rank == rank]
        costs += of_rank[1:-1] if len(of_rank) >= STEPS_WITH_EDGES else of_rank
    return costs or [0]


def _with_rows(seen: Evidence, host: _HostSide, work: _WorkSide) -> Evidence:
    """Add what follows from the rows to the evidence."""
    return msgspec.structs.replace(
        seen,
        operators=host.operators,
        syncs=host.syncs,
        lines=host.lines,
        kernels=work.kernels,
        interruptions=work.interruptions,
        copies=work.copies,
        launches=work.launches,
        memory=work.memory,
        stragglers=work.stragglers,
        departures=work.departures,
        step_ns=[step.cost_ns for step in work.steps],
        settled_ns=work.settled_ns,
        step_launches=work.step_launches,
        driver_calls=work.driver_calls,
        steps=len(work.steps),
    )


def _part_gains(evidence: Evidence, quality: Quality) -> dict[str, float]:
    """Return, for each part of the time that is lost, how many times as fast the program would be
    without it at most. Nothing for a part that may be what the capture lacks.
    """
    unknown = max(
        (each.share_of_wall for each in quality.missing if "idle" in each.grounds), default=0.0
    )
    parts: dict[str, tuple[float, Removal]] = {}
    for cause in CAUSES:
        # Work that waited in a queue is no time to gain, nor is what a model charges whatever runs,
        # nor what nobody knows the cause of.
        if cause not in (*OUTSIDE, "unrecorded", "unknown", "queued", "fixed"):
            removal = Removal(causes=(cause,), waits=cause == "synchronisation")
            if cause == "devices":
                removal = Removal(devices=True)
            parts[f"idle-{cause}"] = (evidence.idle_share(cause), removal)
    exposed = sum(use.exposed_communication_ns for use in evidence.devices) / evidence.time_ns
    parts["communication"] = exposed, Removal(causes=("communication",), communication=True)
    copying = sum(use.exposed_copy_ns for use in evidence.devices) / evidence.time_ns
    parts["copy"] = copying, Removal(causes=("copy",), copies=True)
    gains = {}
    for part, (share, removal) in parts.items():
        if LEAST_PART <= share < 1 and share > unknown:
            gains[part] = evidence.gain(removal, share)
    return gains


def _gains_without_waits(evidence: Evidence, events: int) -> dict[str, float]:
    """Return how many times as fast the program would be without each of the lines that wait
    longest; empty where none does for long, and in a capture of too many events.
    """
    waits = waits_by_line(evidence.syncs)
    if events > LAB_EVENTS or max(waits.values(), default=0) < LEAST_PART * evidence.time_ns:
        return {}
    return {
        line: evidence.gain(Removal(scopes=(line,)), wait_ns / evidence.time_ns)
        for line, wait_ns in waits.most_common(WAITING_LINES)
    }


def _host_share(timeline: Timeline, times_of: Callable[[int], iv.Intervals]) -> float:
    """Return the share (0-1) of the wall time, over all ranks, that `times_of` a rank take."""
    wall_ns = sum(find_window(timeline, rank).length for rank in timeline.ranks)
    times_ns = sum(times_of(rank).total for rank in timeline.ranks)
    return times_ns / wall_ns if wall_ns else 0.0


def _range_shares(steps: list[Step]) -> dict[str, float]:
    """Return the share of the steps' time in each range, the longest first."""
    whole = sum(step.duration_ns for step in steps)
    times: Counter[str] = Counter()
    for step in steps:
        times.update(step.range_ns)
    return {name: time / whole for name, time in times.most_common() if whole}
