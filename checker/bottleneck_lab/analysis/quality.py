"""Whether a capture can be relied on: "unreliable, because …"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from bottleneck_lab.analysis.device.use import DeviceUse
from bottleneck_lab.analysis.steps.window import find_window, step_rows
from bottleneck_lab.trace.timeline import ActivityKind, Timeline, different

Ground = Literal["idle", "host", "kernels", "steps"]
"""What a conclusion rests on: when the device did nothing; what the host did then; which kernels
ran for how long; how the steps differ.
"""


class Missing(msgspec.Struct, frozen=True):
    """Something that a capture lacks: `what`, one clause; the share (0–1) of the wall time that it
    concerns, all of it where that cannot be told; and the grounds that fall with it.
    """

    what: str
    share_of_wall: float
    grounds: tuple[Ground, ...]


class Quality(msgspec.Struct, frozen=True):
    """`reasons` make figures unreliable: what is `missing`, said in words, and what is impossible.
    `notes` are worth knowing.
    """

    reliable: bool
    reasons: list[str]
    notes: list[str]
    missing: list[Missing] = []


ALL: tuple[Ground, ...] = ("idle", "host", "kernels", "steps")


def judge_quality(timeline: Timeline, devices: Sequence[DeviceUse]) -> Quality:
    """Looks for what breaks captures in practice: dropped windows, empty steps, impossible times,
    launches without their kernels.

    `devices`: what became of their time, which holds the gaps that no device makes.
    """
    missing = [
        *(
            Missing(what, 1.0, ALL)
            for what in (*_impossible_times(timeline), *_missing_device(timeline))
        ),
        *_lost_kernels(timeline),
        *_unseen_work(devices),
        *_lost_calls(timeline),
        *_empty_steps(timeline),
        *(
            Missing(what, 1.0, ALL)
            for what in (*_work_elsewhere(timeline), *_overlapping_kernels(timeline))
        ),
    ]
    notes = [note for note in timeline.notes if not _is_reason(note)]
    return Quality(
        not missing, [_said(each) for each in missing], [*notes, *_few_steps(timeline)], missing
    )


def _said(missing: Missing) -> str:
    share = f" ({missing.share_of_wall:.0%} of the time)" if missing.share_of_wall < 1 else ""
    return missing.what + share


def _unseen_work(devices: Sequence[DeviceUse]) -> list[Missing]:
    """A device that had work waiting and yet seems to have done nothing: kernels were dropped, or a
    graph's were not recorded.
    """
    wall = sum(use.wall_ns for use in devices) or 1
    share = sum(use.unseen_ns for use in devices) / wall
    if share <= UNSEEN_SHARE:
        return []
    what = (
        "a device had work waiting and nothing that ran was recorded: kernels were dropped, or"
        " those of CUDA graphs are missing"
    )
    return [Missing(what, share, ("idle", "host", "kernels"))]


def _is_reason(note: str) -> bool:
    return "impossible times" in note or "malformed" in note


def _impossible_times(timeline: Timeline) -> list[str]:
    return [note for note in timeline.notes if _is_reason(note)]


def _missing_device(timeline: Timeline) -> list[str]:
    launches = _launches(timeline)
    if launches and not len(timeline.device):
        return [
            f"{launches} kernel launches were recorded but no kernel: the device's activities are"
            " missing"
        ]
    return []


def _launches(timeline: Timeline) -> int:
    return int(np.isin(timeline.runtime.name, _launch_names(timeline)).sum())


def _launch_names(timeline: Timeline) -> list[int]:
    return [
        i
        for i, name in enumerate(timeline.strings)
        if name.startswith(
            ("cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel", "hipExtModuleLaunch")
        )
    ]


UNSEEN_SHARE = 0.05


def _lost_kernels(timeline: Timeline) -> list[Missing]:
    """Launches without a kernel. Where a capture starts or ends some are cut off: a tenth, or more
    in a small capture, is not that.

    What they concern is taken to be as much of the time as they are of the launches.
    """
    calls = np.isin(timeline.runtime.name, _launch_names(timeline))
    lost = calls & ~timeline.launching
    if calls.sum() < 20 or not len(timeline.device) or lost.sum() <= 0.1 * calls.sum():
        return []
    what = (
        f"{int(lost.sum())} of {int(calls.sum())} kernel launches have no kernel: part of the"
        " device's activities was dropped or lies outside the capture"
    )
    return [Missing(what, float(lost.sum() / calls.sum()), ("idle", "host", "kernels"))]


def _lost_calls(timeline: Timeline) -> list[Missing]:
    kernels = timeline.device.kind == ActivityKind.KERNEL
    if kernels.sum() < 20 or not len(timeline.runtime) or timeline.emulated:
        return []
    lost = kernels & (timeline.launched_by < 0)
    graphs = any(
        "GraphLaunch" in timeline.strings[i] for i in different(timeline.runtime.name).tolist()
    )
    if lost.sum() <= 0.2 * kernels.sum() or graphs:
        return []
    what = (
        f"{int(lost.sum())} of {int(kernels.sum())} kernels have no launching call: part of the"
        " host's calls was dropped or lies outside the capture"
    )
    return [Missing(what, float(lost.sum() / kernels.sum()), ("host",))]


def _empty_steps(timeline: Timeline) -> list[Missing]:
    """Steps in which nothing at all happened on host or device."""
    steps = step_rows(timeline)
    if not len(steps):
        return []
    if not (len(timeline.operators) or len(timeline.runtime) or len(timeline.device)):
        what = (
            "only ranges were recorded, no operators, calls or device work: what the steps did is"
            " unknown"
        )
        return [Missing(what, 1.0, ALL)]
    starts = np.sort(
        np.concatenate([t.start for t in (timeline.operators, timeline.runtime, timeline.device)])
    )
    count = np.searchsorted(starts, steps.end) - np.searchsorted(starts, steps.start)
    empty = count == 0
    if not empty.any():
        return []
    lengths = steps.end - steps.start
    share = float(lengths[empty].sum() / max(lengths.sum(), 1))
    return [
        Missing(
            f"{int(empty.sum())} of {len(steps)} steps hold no event: a window was dropped",
            share,
            ("idle", "host", "steps"),
        )
    ]


def _work_elsewhere(timeline: Timeline) -> list[str]:
    """Ranks whose device work lies outside their steps: nothing is known of what the steps cost on
    the device.
    """
    device = timeline.device
    if not len(step_rows(timeline)) or not len(device):
        return []
    worked = device.kind != ActivityKind.SYNC
    windows = {rank: find_window(timeline, rank) for rank in np.unique(device.rank).tolist()}
    without = [
        rank
        for rank, window in windows.items()
        if not (
            worked
            & (device.rank == rank)
            & (device.end > window.start)
            & (device.start < window.end)
        ).any()
    ]
    where = f" of rank {', '.join(map(str, without))}" if len(timeline.ranks) > 1 else ""
    return (
        [
            f"no device work{where} belongs to the marked steps: it was not recorded or lies"
            " outside them"
        ]
        if without
        else []
    )


def _overlapping_kernels(timeline: Timeline) -> list[str]:
    """A stream runs one kernel at a time. Rounding to microseconds makes overlaps of up to that;
    more is a wrong clock or merged files.

    It also makes kernels of no length, which stand at the start of the next.
    """
    device = timeline.device
    rows = np.flatnonzero((device.kind == ActivityKind.KERNEL) & (device.end > device.start))
    if len(rows) < 2 or timeline.emulated:
        return []
    rows = rows[
        np.lexsort((device.stream[rows], device.device[rows], device.rank[rows]))
    ]  # they are in order of time
    deep = device.start[rows][1:] + 2_000 < device.end[rows][:-1]
    for column in (device.rank, device.device, device.stream):
        deep &= column[rows][1:] == column[rows][:-1]
    if deep.mean() <= 0.01:
        return []
    return [
        f"{int(deep.sum())} kernels overlap another on the same stream, which a device cannot do"
    ]


def _few_steps(timeline: Timeline) -> list[str]:
    steps = len(step_rows(timeline))
    return ["only one step was recorded: variation is unknown"] if steps == 1 else []
