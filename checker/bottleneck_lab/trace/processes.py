"""Tell what files hold: several cycles of one process, or several processes in one file.

A profiler with a schedule that repeats writes a file for each cycle: those are captures of one
rank, one after another. Tools that merge traces put several processes into one file: those are
ranks, each with steps of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bottleneck_lab.errors import CaptureError
from bottleneck_lab.trace import timeline as tl
from bottleneck_lab.trace.timeline import NO_WORK, ActivityKind, Timeline

HOST = ("runtime", "operators", "ranges", "python")
STEP = "ProfilerStep#"


MAIN_SHARE = 0.2
"""A process with less than this share (0-1) of the launches, or steps, of an even one is a helper.
"""
OVERLAP_SHARE = 0.1
"""Captures of one process may overlap by this share (0-1) of the shorter: stopping one takes time
while the next begins.
"""


def is_next_cycle(before: Timeline, after: Timeline) -> bool:
    """Return True if the second capture began when the first had ended, and both are of one rank:
    of one process, or of two runs of a program whose ranks send each other nothing.
    """
    rank, other = (before.ranks or (0,))[0], (after.ranks or (0,))[0]
    (begin, end), (start, stop) = before.extent, after.extent
    if rank != other or end - start > OVERLAP_SHARE * min(end - begin, stop - start):
        return False
    processes = {thread.pid for thread in before.threads} & {thread.pid for thread in after.threads}
    alone = not any(
        (each.device.kind == ActivityKind.COMMUNICATION).any() for each in (before, after)
    )
    return bool(processes) or (alone and end <= start)


def join_cycles(timelines: Sequence[Timeline]) -> Timeline:
    """Return one timeline of several captures of one process, in order, without the time between
    them.
    """
    strings: dict[str, int] = {}
    threads: dict[tl.Thread, int] = {}
    tables: dict[str, list[Any]] = {name: [] for name in (*HOST, "device", "memory")}
    works, end, numbers_used = [], timelines[0].extent[0], 0
    for timeline in timelines:
        shift = end - timeline.extent[0]
        end = timeline.extent[1] + shift
        names = _numbers([strings.setdefault(n, len(strings)) for n in timeline.strings])
        lanes = _numbers([threads.setdefault(t, len(threads)) for t in timeline.threads])
        highest = numbers_used
        for name, parts in tables.items():
            table = getattr(timeline, name)
            changes: dict[str, Any] = {"start": table.start + shift}
            if hasattr(table, "end"):
                changes |= {"end": table.end + shift, "name": names[table.name]}
            if hasattr(table, "thread"):
                changes["thread"] = lanes[table.thread]
            # Each cycle may count its launches from one again.
            for column in ("correlation", "external"):
                if hasattr(table, column):
                    values = getattr(table, column)
                    changes[column] = np.where(values >= 0, values + numbers_used, values)
                    highest = max(highest, int(changes[column].max(initial=0)))
            parts.append(replace(table, **changes))
        work = timeline.work
        works.append(replace(work, name=names[work.name], external=work.external + numbers_used))
        numbers_used = highest + 1
    of = "one process"
    if not set.intersection(*({thread.pid for thread in t.threads} for t in timelines)):
        of = "one rank in different processes (`lab compare` sets two runs against each other)"
    note = (
        f"{len(timelines)} captures of {of}, taken one after another: their steps follow each other"
        " here, without the time in between"
    )
    return replace(
        timelines[0],
        source=", ".join(timeline.source for timeline in timelines),
        strings=tuple(strings),
        threads=tuple(threads),
        notes=(*dict.fromkeys(each for t in timelines for each in t.notes), note),
        work=tl.WorkTable(
            **{
                column: np.concatenate([getattr(work, column) for work in works])
                for column in ("external", "rank", "name", "flop", "moved_bytes", "precision")
            }
        ),
        **{name: tl.concatenate(parts) for name, parts in tables.items()},
    )


def split_processes(timeline: Timeline) -> Timeline:
    """Return the timeline with a rank for each process of one file, if several processes have
    steps, or without steps launch work; else as it is.

    Raises CaptureError if they used the same device: nothing then tells whose a kernel is.
    """
    pids = _main_processes(timeline)
    if len(timeline.ranks) > 1 or len(pids) < 2:
        return timeline
    ranks = {pid: rank for rank, pid in enumerate(sorted(pids, key=lambda p: (len(p), p)))}
    rank_of = _numbers([ranks.get(thread.pid, 0) for thread in timeline.threads])
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


def _owners(timeline: Timeline, runtime: tl.HostTable, ranks: int) -> dict[int, int]:
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


def _numbers(values: list[int]) -> Any:
    """Return an array to look numbers up in, never empty."""
    return np.array(values or [0], dtype=np.int32)
