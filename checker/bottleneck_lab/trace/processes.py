"""Tell what files hold: several cycles of one process, or several processes in one file.

A profiler with a schedule that repeats writes a file for each cycle: those are captures of one
rank, one after another. Tools that merge traces put several processes into one file: those are
ranks, each with steps of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bottleneck_lab.trace import timeline as tl
from bottleneck_lab.trace.timeline import NO_WORK, Timeline

HOST = ("runtime", "operators", "ranges", "python")
STEP = "ProfilerStep#"


def is_next_cycle(before: Timeline, after: Timeline) -> bool:
    """Return True if both captures are of one process, and the second began when the first had
    ended.
    """
    rank, other = (before.ranks or (0,))[0], (after.ranks or (0,))[0]
    processes = {thread.pid for thread in before.threads} & {thread.pid for thread in after.threads}
    return rank == other and bool(processes) and before.extent[1] <= after.extent[0]


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
    count = len(timelines)
    note = (
        f"{count} captures of one process, taken one after another: their steps follow each other"
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
    """Return the timeline with a rank for each process of one file, if several processes have steps
    of the same names; else as it is.
    """
    steps = np.array([name.startswith(STEP) for name in timeline.strings], dtype=bool)
    ranges = timeline.ranges
    rows = np.flatnonzero(steps[ranges.name]) if len(ranges) else np.empty(0, dtype=np.int64)
    pids = [timeline.threads[thread].pid for thread in ranges.thread[rows].tolist()]
    by_pid: dict[str, set[int]] = {}
    for pid, name in zip(pids, ranges.name[rows].tolist(), strict=True):
        by_pid.setdefault(pid, set()).add(name)
    if len(timeline.ranks) > 1 or len(by_pid) < 2 or not set.intersection(*by_pid.values()):
        return timeline
    ranks = {pid: rank for rank, pid in enumerate(sorted(by_pid, key=lambda p: (len(p), p)))}
    rank_of = _numbers([ranks.get(thread.pid, 0) for thread in timeline.threads])
    host = {
        name: replace(table, rank=rank_of[table.thread])
        for name in (*HOST, "memory")
        for table in [getattr(timeline, name)]
    }
    owners = _owners(timeline, host["runtime"], len(ranks))
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


def _owners(timeline: Timeline, runtime: tl.HostTable, ranks: int) -> dict[int, int]:
    """Return the rank whose launches explain each device's rows best: work starts after its launch,
    and soon.
    """
    device = timeline.device
    owners = {}
    for index in np.unique(device.device).tolist():
        mine = np.flatnonzero(device.device == index)
        scores = []
        for rank in range(ranks):
            calls = np.flatnonzero((runtime.rank == rank) & (runtime.correlation >= 0))
            order = calls[np.argsort(runtime.correlation[calls], kind="stable")]
            keys = runtime.correlation[order]
            at = np.minimum(np.searchsorted(keys, device.correlation[mine]), max(len(keys) - 1, 0))
            if not len(keys):
                scores.append((0.0, 0.0))
                continue
            known = keys[at] == device.correlation[mine]
            delay = device.start[mine] - runtime.start[order[at]]
            good = known & (delay >= 0)
            typical = float(np.median(delay[good])) if good.any() else 0.0
            scores.append((float(good.mean()), -typical))
        owners[index] = max(range(ranks), key=lambda rank: scores[rank])
    return owners


def _numbers(values: list[int]) -> Any:
    """Return an array to look numbers up in, never empty."""
    return np.array(values or [0], dtype=np.int32)
