"""Tell the processes in one file apart: tools that merge traces put several into one, and those are
ranks, each with steps of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.names import STEP
from bottleneck_lab.trace.timeline import NO_WORK, HostTable, Timeline

HOST = ("runtime", "operators", "ranges", "python")

MAIN_SHARE = 0.2
"""A process with less than this share (0-1) of the launches, or steps, of an even one is a helper.
"""


def split_processes(timeline: Timeline) -> Timeline:
    """Return the timeline with a rank for each process of one file, if several processes have
    steps, or without steps launch work; else as it is.

    Raises CaptureError if they used the same device: nothing then tells whose a kernel is.
    """
    pids = _main_processes(timeline)
    if len(timeline.ranks) > 1 or len(pids) < 2:
        return timeline
    ranks = {pid: rank for rank, pid in enumerate(sorted(pids, key=lambda p: (len(p), p)))}
    rank_of = np.array([ranks.get(t.pid, 0) for t in timeline.threads] or [0], dtype=np.int32)
    host = {
        name: replace(table, rank=rank_of[table.thread])
        for name in (*HOST, "memory")
        for table in [getattr(timeline, name)]
    }
    owners = _owners(timeline, host["runtime"], len(ranks))
    launches = np.bincount(host["runtime"].rank[timeline.launching], minlength=len(ranks))
    if any(launches[rank] and rank not in owners.values() for rank in ranks.values()):
        raise CaptureError(
            f"{Path(timeline.source).name} holds {len(ranks)} processes ({', '.join(ranks)}) that"
            " used the same device: nothing tells which of them launched what.",
            "Put one file per process into a folder, and pass that.",
        )
    device = timeline.device
    numbers = np.zeros(int(device.device.max(initial=0)) + 1, dtype=np.int32)
    for index, rank in owners.items():
        numbers[index] = rank
    names = ", ".join(ranks)
    return replace(
        timeline,
        **host,
        device=replace(device, rank=numbers[device.device]),
        threads=tuple(replace(t, rank=ranks.get(t.pid, 0)) for t in timeline.threads),
        devices=tuple(replace(d, rank=owners.get(d.index, 0)) for d in timeline.devices),
        # Operators of different processes have the same numbers: their work cannot be told apart.
        work=NO_WORK,
        notes=(
            *timeline.notes,
            f"{len(ranks)} processes in one file ({names}) are read as ranks 0 to {len(ranks) - 1}",
        ),
    )


def _main_processes(timeline: Timeline) -> set[str]:
    """Return the processes that have steps; without steps, those that launched a good part of the
    work.
    """
    steps = np.array([name.startswith(STEP) for name in timeline.strings] or [False])
    ranges, runtime = timeline.ranges, timeline.runtime
    threads = ranges.thread[steps[ranges.name]]
    if not len(threads):
        threads = runtime.thread[timeline.launching]
    counts: Counter[str] = Counter()
    for thread, count in enumerate(np.bincount(threads).tolist()):
        if count:
            counts[timeline.threads[thread].pid] += count
    least = MAIN_SHARE * counts.total() / max(len(counts), 1)
    return {pid for pid, count in counts.items() if count >= least}


def _owners(timeline: Timeline, runtime: HostTable, ranks: int) -> dict[int, int]:
    """Return the rank whose launches explain each device's rows best: work starts after its launch,
    and soon. Each rank has a device of its own as long as there are any.
    """
    device = timeline.device
    indices = np.unique(device.device).tolist()
    scores: list[tuple[float, float, int, int, int]] = []
    for rank in range(ranks):
        calls = np.flatnonzero((runtime.rank == rank) & (runtime.correlation >= 0))
        order = calls[np.argsort(runtime.correlation[calls], kind="stable")]
        keys = runtime.correlation[order]
        if not len(keys):
            continue
        for position, index in enumerate(indices):
            mine = np.flatnonzero(device.device == index)
            at = np.minimum(np.searchsorted(keys, device.correlation[mine]), len(keys) - 1)
            known = keys[at] == device.correlation[mine]
            delay = device.start[mine] - runtime.start[order[at]]
            good = known & (delay >= 0)
            typical = float(np.median(delay[good])) if good.any() else 0.0
            # Where two ranks explain a device alike, devices are in the order of the ranks.
            scores.append((-float(good.mean()), typical, abs(position - rank), index, rank))
    owners: dict[int, int] = {}
    for *_, index, rank in sorted(scores):
        if index not in owners and rank not in owners.values():
            owners[index] = rank
    for *_, index, rank in sorted(scores):
        owners.setdefault(index, rank)
    return owners
