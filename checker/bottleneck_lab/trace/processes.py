"""Tell the processes in one file apart: tools that merge traces put several into one, and those are
ranks, each with steps of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace.names import STEP
from bottleneck_lab.trace.timeline import NO_WORK, HostTable, Timeline

HOST = ("runtime", "operators", "ranges", "python")

ROUNDING_NS = 2_000
"""Formats in microseconds make ranges overlap by up to this."""
MAIN_SHARE = 0.2
"""A process with less than this share (0-1) of the launches, or steps, of an even one is a helper.
"""


def split_processes(timeline: Timeline) -> Timeline:
    """Return the timeline with a rank for each process of one file, if several processes have
    steps, or without steps launch work; else as it is.

    Raises CaptureError if they used the same device: nothing then tells whose a kernel is.
    """
    if len(timeline.ranks) > 1:
        return timeline
    process_of = _processes(timeline)
    pids = _main_processes(timeline, process_of)
    if len(pids) < 2:
        return timeline
    ranks = {pid: rank for rank, pid in enumerate(sorted(pids, key=lambda p: (len(p), p)))}
    rank_of = np.array([ranks.get(pid, 0) for pid in process_of] or [0], dtype=np.int32)
    host = {
        name: replace(table, rank=rank_of[table.thread])
        for name in (*HOST, "memory", "autograd")
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
        threads=tuple(
            replace(thread, rank=rank)
            for thread, rank in zip(timeline.threads, rank_of.tolist(), strict=False)
        ),
        devices=tuple(replace(d, rank=owners.get(d.index, 0)) for d in timeline.devices),
        # Operators of different processes have the same numbers: their work cannot be told apart.
        work=NO_WORK,
        notes=(
            *timeline.notes,
            f"{len(ranks)} processes in one file ({names}) are read as ranks 0 to {len(ranks) - 1}",
        ),
    )


def _processes(timeline: Timeline) -> list[str]:
    """Return the process of each thread: its number, and where two processes have one number, as in
    containers, that of the thread that marks the steps too.

    Raises CaptureError where nothing tells the threads of two such processes apart.
    """
    process_of = [thread.pid for thread in timeline.threads]
    marking = _marking_at_once(timeline)
    if not marking:
        return process_of
    launching = set(np.unique(timeline.runtime.thread[timeline.launching]).tolist())
    for pid in {process_of[thread] for thread in marking}:
        threads = {number for number, each in enumerate(timeline.threads) if each.pid == pid}
        own = marking & threads
        if len(own) < 2 or (launching & threads) - own:
            raise CaptureError(
                f"{Path(timeline.source).name} holds two processes of one number ({pid}), as"
                " containers have: both mark the same steps at the same time, and nothing tells"
                " which of them launched what.",
                "Put one file per process into a folder, and pass that.",
            )
        for thread in own:
            process_of[thread] = f"{pid} (thread {timeline.threads[thread].tid})"
        for thread in threads - own:
            process_of[thread] = process_of[min(own)]
    return process_of


def _marking_at_once(timeline: Timeline) -> set[int]:
    """Return the threads that mark a step which another of the same process number marks, too, at
    the same time, or which they mark twice themselves: a process is in one step at a time.
    """
    ranges, threads = timeline.ranges, timeline.threads
    is_step = np.array([name.startswith(STEP) for name in timeline.strings] or [False])
    rows = np.flatnonzero(is_step[ranges.name])
    latest: dict[tuple[str, int], tuple[int, int, int]] = {}
    at_once: set[int] = set()
    columns = (ranges.name, ranges.thread, ranges.start, ranges.end)
    for name, thread, start, end in zip(*(each[rows].tolist() for each in columns), strict=True):
        key = threads[thread].pid, name
        other, begun, until = latest.get(key, (thread, start, start))
        # What two tools mark on one thread lies one inside the other.
        crosses = min(start - begun, end - until) > ROUNDING_NS
        if until - start > ROUNDING_NS and (other != thread or crosses):
            at_once |= {thread, other}
        latest[key] = thread, start, end
    return at_once


def _main_processes(timeline: Timeline, process_of: Sequence[str]) -> set[str]:
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
            counts[process_of[thread]] += count
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
