"""Judge whether a capture can be relied on: "unreliable, because …"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.analysis.device.unrecorded import (
    CONTRADICTED_SHARE,
    FEW_LAUNCHES,
    LOST_SHARE,
    lost_launches,
)
from bottleneck_lab.analysis.device.use import DeviceUse
from bottleneck_lab.analysis.host.second_run import FRAMES_OF, SECOND_RUN
from bottleneck_lab.analysis.steps.window import find_window, queued_before, step_rows
from bottleneck_lab.trace.names import LINES_OF
from bottleneck_lab.trace.timeline import ActivityKind, Timeline, different

Ground = Literal["idle", "host", "kernels", "steps"]
"""What a conclusion rests on: when the device did nothing; what the host did then; which kernels
ran for how long; how the steps differ.
"""
ALL: tuple[Ground, ...] = ("idle", "host", "kernels", "steps")

UNSEEN_SHARE = 0.05
"""Idle time in which the device must have worked, beyond this share of the time, is a reason."""
FEW_KERNELS = 20
LOST_CALLS_SHARE = 0.2
FEW_CALLS = 50
SHORTEST_NS = 500_000
"""The shortest of a few dozen calls and pieces of work takes microseconds; where all take longer
than this, their times are in another unit.
"""
READING = ("aten::_local_scalar_dense",)
READING_NS = 50_000
"""Reading a value of a CPU's tensor takes about a microsecond: one that takes longer waited."""
OVERLAP_NS = 2_000
"""Rounding to microseconds makes kernels of one stream overlap by up to this."""
OVERLAPPING_SHARE = 0.01


class Missing(msgspec.Struct, frozen=True):
    """Something that a capture lacks: `what`, one clause; the share (0–1) of the wall time that it
    concerns, all of it where that cannot be told; and the grounds that fall with it. `of`: what the
    share is of, where it stands for one of the time.
    """

    what: str
    share_of_wall: float
    grounds: tuple[Ground, ...]
    of: str = "the time"


class Quality(msgspec.Struct, frozen=True):
    """`reasons` make figures unreliable: what is `missing`, said in words, and what is impossible.
    `notes` are worth knowing.
    """

    reliable: bool
    reasons: list[str]
    notes: list[str]
    missing: list[Missing] = []
    slowed: str = ""
    """Why the host took longer than it does without recording, one clause; "" if not known."""


def judge_quality(timeline: Timeline, devices: Sequence[DeviceUse]) -> Quality:
    """Look for what breaks captures in practice: dropped windows, empty steps, impossible times,
    launches without their kernels, waits that nothing recorded explains.

    `devices`: the uses of their time, which hold the gaps that no device makes.
    """
    notes, missing = [], []
    for note in timeline.notes:
        if any(words in note for words in ("impossible times", "malformed")):
            missing.append(Missing(note, 1.0, ALL))
        else:
            notes.append(note)
    missing += _lost_kernels(timeline)
    missing += _unseen_device(timeline)
    missing += _unseen_work(devices)
    missing += _lost_calls(timeline)
    missing += _empty_steps(timeline)
    missing += _work_elsewhere(timeline)
    missing += _overlapping_kernels(timeline)
    notes += _times_in_other_units(timeline)
    if len(step_rows(timeline)) == 1:
        notes.append("only one step was recorded: variation is unknown")
    reasons = []
    for each in missing:
        share = f" ({each.share_of_wall:.0%} of {each.of})" if each.share_of_wall < 1 else ""
        reasons.append(each.what + share)
    slowed = ""
    if _frames_slowed(timeline):
        slowed = (
            "Python's frames were recorded, which makes Python slower: the host's share is too"
            " high here, and a capture without --stack has the right one"
        )
        notes.append(slowed)
    return Quality(not missing, reasons, notes, missing, slowed)


def _times_in_other_units(timeline: Timeline) -> list[str]:
    """Return a note where even the shortest of many calls and pieces of work take as long as they
    do in microseconds, written as nanoseconds.
    """
    calls, device = timeline.runtime, timeline.device
    if min(len(calls), len(device)) < FEW_CALLS or timeline.emulated:
        return []
    shortest_ns = min(int((each.end - each.start).min()) for each in (calls, device))
    if shortest_ns < SHORTEST_NS:
        return []
    return [
        f"none of {len(calls)} calls of the runtime takes under {SHORTEST_NS / 1e6:.1f} ms, where"
        " most take microseconds: times are 1000 times too long if the file has ns, since a Chrome"
        " trace is in µs"
    ]


def _frames_slowed(timeline: Timeline) -> bool:
    """Return True if frames of Python were recorded at the cost of the times in this capture."""
    if timeline.facts.get(FRAMES_OF) == SECOND_RUN:
        return False
    # Frames whose names broke the file were recorded, too.
    if timeline.facts.get("with_stack") in ("1", "True") and not timeline.emulated:
        return True
    # A loader's workers are sampled from outside, and the lines and frames of an emulated thread
    # are modelled: neither costs anything.
    free = [
        thread.name.startswith("DataLoader worker")
        or thread.name.endswith("(emulated)")
        or thread.tid.startswith(LINES_OF)
        for thread in timeline.threads
    ]
    threads = different(timeline.python.thread).tolist()
    return any(thread >= len(free) or not free[thread] for thread in threads)


def _unseen_work(devices: Sequence[DeviceUse]) -> list[Missing]:
    """Return what the host's waits and the devices' queues prove to be missing."""
    wall = sum(use.wall_ns for use in devices) or 1
    share = sum(use.unseen_ns for use in devices if use.busy_ns) / wall
    waits, outlasting = sum(u.waits for u in devices), sum(u.outlasting_waits for u in devices)
    contradicted = sum(use.contradicted_waits for use in devices)
    if contradicted > CONTRADICTED_SHARE * max(waits, 1):
        what = (
            f"{contradicted} of {waits} waits of the host return before the work that they wait for"
            " has ended: the device's times are wrong, and only how long each kernel ran holds"
        )
        return [Missing(what, 1.0, ("idle", "host", "steps"))]
    early = sum(use.early_rows for use in devices)
    if early:
        what = (
            f"{early} kernels and copies start before the call that launched them: the device's"
            " times are wrong, and only how long each ran holds"
        )
        return [Missing(what, 1.0, ("idle", "host", "steps"))]
    disordered = sum(use.disordered_rows for use in devices)
    if disordered:
        what = (
            f"{disordered} kernels and copies start after others of their stream that were launched"
            " later: the device's times contradict the order of the stream, and only how long each"
            " ran holds"
        )
        return [Missing(what, 1.0, ("idle", "host", "steps"))]
    if share <= UNSEEN_SHARE:
        return []
    what = (
        "a device had work waiting and nothing that ran was recorded: kernels were dropped, those"
        " of CUDA graphs are missing, or the profiler or another process held the device"
    )
    if outlasting:
        what = (
            f"{outlasting} of {waits} waits of the host go on after all recorded work has ended,"
            " and a wait returns when the work is done: kernels were dropped, those of CUDA graphs"
            " are missing, or another process used the device"
        )
    return [Missing(what, share, ("idle", "host", "kernels"))]


def _lost_kernels(timeline: Timeline) -> list[Missing]:
    """Return launches without a kernel. They are taken to concern as much of the time as they are
    of the launches.
    """
    calls, lost = lost_launches(timeline)
    if calls and not len(timeline.device):
        what = (
            f"{calls} kernel launches were recorded but no kernel: the device's activities are"
            " missing"
        )
        return [Missing(what, 1.0, ALL)]
    if calls < FEW_LAUNCHES or lost <= LOST_SHARE * calls:
        return []
    what = (
        f"{lost} of {calls} kernel launches have no kernel: part of the device's activities was"
        " dropped or lies outside the capture"
    )
    return [Missing(what, lost / calls, ("idle", "host", "kernels"), "the launches")]


def _unseen_device(timeline: Timeline) -> list[Missing]:
    """Return the waits for a device of which neither work nor calls were recorded."""
    if len(timeline.device) or len(timeline.runtime) or timeline.emulated:
        return []
    names = [i for i, name in enumerate(timeline.strings) if name in READING]
    operators = timeline.operators
    rows = np.flatnonzero(np.isin(operators.name, names))
    waits = (operators.end - operators.start)[rows]
    waits = waits[waits > READING_NS]
    begin, end = timeline.extent
    if waits.sum() <= UNSEEN_SHARE * (end - begin) or 2 * len(waits) < len(rows):
        return []
    what = (
        f"{len(waits)} reads of a value (.item()) take {waits.mean() / 1e6:.1f} ms each, and on a"
        " CPU they take a microsecond: they waited for a device that was not recorded. Add it to"
        " the profiler's activities (ProfilerActivity.CUDA, XPU); torch.profiler does not see"
        " Apple's MPS"
    )
    return [Missing(what, 1.0, ALL)]


def _lost_calls(timeline: Timeline) -> list[Missing]:
    """Return kernels without a launching call."""
    kernels = timeline.device.kind == ActivityKind.KERNEL
    if kernels.sum() < FEW_KERNELS or not len(timeline.runtime) or timeline.emulated:
        return []
    lost = kernels & (timeline.launched_by < 0)
    for rank in timeline.ranks:  # of these, the recording began too late for the calls
        lost[queued_before(timeline, rank)] = False
    # The kernels of a graph are launched by one call, which not every tool joins to them.
    graphs = any(
        "GraphLaunch" in timeline.strings[i] for i in different(timeline.runtime.name).tolist()
    )
    if lost.sum() <= LOST_CALLS_SHARE * kernels.sum() or graphs:
        return []
    what = (
        f"{int(lost.sum())} of {int(kernels.sum())} kernels have no launching call: part of the"
        " host's calls was dropped or lies outside the capture"
    )
    return [Missing(what, float(lost.sum() / kernels.sum()), ("host",), "the kernels")]


def _empty_steps(timeline: Timeline) -> list[Missing]:
    """Return steps in which nothing at all happened on host or device."""
    steps = step_rows(timeline)
    if not len(steps):
        return []
    tables = (timeline.operators, timeline.runtime, timeline.device)
    if not any(len(table) for table in tables):
        what = (
            "only ranges were recorded, no operators, calls or device work: what the steps did is"
            " unknown"
        )
        return [Missing(what, 1.0, ALL)]
    empty = np.ones(len(steps), dtype=bool)
    for table in tables:
        empty &= np.searchsorted(table.start, steps.end) == np.searchsorted(
            table.start, steps.start
        )
    if not empty.any():
        return []
    lengths = steps.end - steps.start
    share = float(lengths[empty].sum() / max(lengths.sum(), 1))
    what = f"{int(empty.sum())} of {len(steps)} steps hold no event: a window was dropped"
    return [Missing(what, share, ("idle", "host", "steps"))]


def _work_elsewhere(timeline: Timeline) -> list[Missing]:
    """Return the ranks whose device work lies outside their steps: nothing is known of what the
    steps cost on the device.
    """
    device = timeline.device
    if not len(step_rows(timeline)) or not len(device):
        return []
    without = []
    for rank in np.unique(device.rank).tolist():
        window = find_window(timeline, rank)
        inside = (device.end > window.start) & (device.start < window.end)
        if not (device.works & (device.rank == rank) & inside).any():
            without.append(rank)
    if not without:
        return []
    where = f" of rank {', '.join(map(str, without))}" if len(timeline.ranks) > 1 else ""
    what = (
        f"no device work{where} belongs to the marked steps: it was not recorded or lies outside"
        " them"
    )
    return [Missing(what, 1.0, ALL)]


def _overlapping_kernels(timeline: Timeline) -> list[Missing]:
    """Return kernels that overlap on one stream, which runs one at a time: a wrong clock or merged
    files.
    """
    device = timeline.device
    # Rounding also makes kernels of no length, which stand at the start of the next.
    rows = np.flatnonzero((device.kind == ActivityKind.KERNEL) & (device.end > device.start))
    if len(rows) < 2 or timeline.emulated:
        return []
    # Each stream by itself, in order of time.
    rows = rows[np.lexsort((device.stream[rows], device.device[rows], device.rank[rows]))]
    deep = device.start[rows][1:] + OVERLAP_NS < device.end[rows][:-1]
    for column in (device.rank, device.device, device.stream):
        deep &= column[rows][1:] == column[rows][:-1]
    if deep.mean() <= OVERLAPPING_SHARE:
        return []
    what = f"{int(deep.sum())} kernels overlap another on the same stream, which a device cannot do"
    return [Missing(what, 1.0, ALL)]
