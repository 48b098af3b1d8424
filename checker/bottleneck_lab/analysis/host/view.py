"""What the host was doing while a device waited: the stretches in which its launching threads read
input, waited, copied or communicated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bottleneck_lab.analysis import intervals as iv
from bottleneck_lab.analysis.steps.window import step_rows
from bottleneck_lab.trace.timeline import DeviceTable, HostTable, SmallInts, Timeline

_INPUT_RANGE = re.compile(
    r"^(?:enumerate\(DataLoader\)#|(?:#+ )?(?:data|input)s?(?: #+)?$|(?:data|input|batch)["
    r" _-]?(?:wait|load(?:ing|er)?|fetch(?:ing)?|prep\w*|time|next)"
    r"|(?:load|next|get|fetch|read|decode|wait)[ _-]?(?:for["
    r" _-])?(?:data|batch|input|image|sample)s?|data ?loader|dali\b|augment|pre-?process)",
    re.IGNORECASE,
)
_INPUT_FRAME = re.compile(
    r"(?:torch/utils/data/dataloader\.py\(\d+\): (?:__next__|_next_data|_get_data|_try_get_data)"
    r"|nvidia/dali/plugin/\w+/?\S*\(\d+\): __next__|nvidia/dali/pipeline\.py\(\d+\):"
    r" (?:run|share_outputs|outputs))"
)
_COPY_RANGE = re.compile(
    r"^(?:#+ )?(?:h2d|d2h|host[ _-]?to[ _-]?device|copy[ _-]?to[ _-]?(?:device|gpu)|to["
    r" _-]?(?:device|gpu)|transfer)",
    re.IGNORECASE,
)
_COMMUNICATION = re.compile(
    r"^(?:gloo:|mpi:|c10d::barrier"
    r"|(?:#+ )?(?:all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|barrier|gradient[ _-]sync|wait["
    r" _-]for[ _-](?:gradients|ranks)))",
    re.IGNORECASE,
)
_COMPILING = re.compile(
    r"\(dynamo_timed\)$|^(?:entire_frame_compile|backend_compile|inductor_compile|triton_autotune)"
    r"|torch/_(?:dynamo/convert_frame|inductor/(?:compile_fx|codecache|async_compile))\.py\(\d+\): "
    r"|triton/(?:compiler/compiler|runtime/(?:jit|autotuner))\.py\(\d+\):"
    r" (?:compile|_do_compile|benchmark)"
    r"|torch/utils/cpp_extension\.py\(\d+\): load"
    r"|^(?:cuda|cu|hip)(?:Module|Library)(?:Load|GetFunction)|^nvrtcCompile|^(?:jit"
    r" )?compil(?:e|ing|ation)$",
    re.IGNORECASE,
)
_IMPORTING = re.compile(r"^<frozen importlib|importlib/_?bootstrap|^imports?$", re.IGNORECASE)
_SLEEPING = re.compile(
    r"^<built-in (?:function|method) (?:sleep|pause)\b|^(?:clock_)?(?:nano|u)?sleep$|^sleep",
    re.IGNORECASE,
)
_FILES = re.compile(
    r"^<built-in (?:function|method)"
    r" (?:open|print|read|readinto|readline|write|flush|fsync|recv\w*|send\w*|stat|dump|dumps|load|loads)\b"
    r"|torch/serialization\.py\(\d+\): (?:save|load)$|(?:^|/)(?:json/__init__|pickle)\.py\(\d+\):"
    r" (?:dump|load)s?$"
    r"|^(?:#+ )?(?:sav(?:e|ing)|writ(?:e|ing)|logging|log)"
    r"(?:[ _-](?:checkpoints?|model|state|weights|metrics|loss|images?|files?|results?|to["
    r" _-]\w+))?(?: #+)?$",
    re.IGNORECASE,
)
COLLECTIVE_RANGE = re.compile(r"^(?:gloo|mpi|ucc):", re.IGNORECASE)
"""What the libraries for collectives on the CPU mark, on threads of their own, from queueing to
done.
"""
SYNC_CALL = re.compile(
    r"^(?:cuda|cu|hip)(?:DeviceSynchronize|StreamSynchronize|EventSynchronize|CtxSynchronize|StreamWaitValue\w*|Memcpy(?:2D|3D|HtoD|DtoH|DtoD)?)(?:_ptsz|_v\d+\w*)?$"
)
ALLOCATION_CALL = re.compile(
    r"^(?:cuda|cu|hip)(?:Malloc|Free|MallocHost|HostAlloc|FreeHost|Mem(?:Alloc|Free)\w*|Mem(?:Map|Unmap|Create|Release)|MallocAsync)(?:_v\d+\w*)?$"
)
COPY_CALL = re.compile(r"^(?:cuda|cu|hip)Memcpy\w*Async", re.IGNORECASE)


BUSY_LAUNCHING_NS = 500_000
"""A host that launches as fast as it can makes a call every 5 to 100 us. One that makes none for
longer than this does something else.
"""


class Named(Protocol):
    """Any table with names."""

    @property
    def name(self) -> SmallInts: ...


@dataclass(frozen=True, slots=True)
class HostView:
    """Disjoint stretches of the launching threads of one rank; `known` reaches from the first to
    the last thing recorded of them.

    Queueing a collective (`nccl:…`) is no waiting: the wait is the collective's own row on the
    device. `launching` are stretches in which one launch or wait (or operator, where no launch was
    recorded) follows another within BUSY_LAUNCHING_NS. `steps` are the marked steps, `stacks` says
    whether frames of Python were recorded. `collectives` are in flight, on any thread, while the
    launching thread may do something else.
    """

    input: iv.Intervals
    copy: iv.Intervals
    communication: iv.Intervals
    collectives: iv.Intervals
    allocation: iv.Intervals
    sync: iv.Intervals
    known: iv.Intervals
    compiling: iv.Intervals
    importing: iv.Intervals
    sleeping: iv.Intervals
    files: iv.Intervals
    launching: iv.Intervals
    operators: iv.Intervals
    steps: iv.Intervals
    stacks: bool
    threads: tuple[int, ...]


def view_host(timeline: Timeline, rank: int) -> HostView:
    """The host of a rank, seen from the threads that launch work onto its devices.

    Worker threads that read ahead are no cause of a gap: only what the launching threads do delays
    a launch.
    """
    threads = launching_threads(timeline, rank)
    chosen = np.zeros(len(timeline.threads) + 1, dtype=bool)
    chosen[list(threads)] = True

    def where(table: HostTable, pattern: re.Pattern[str]) -> iv.Intervals:
        return union_of(table, named(timeline, table, pattern) & chosen[table.thread])

    def marked(pattern: re.Pattern[str]) -> iv.Intervals:
        return iv.join(
            where(ranges, pattern),
            where(timeline.python, pattern),
            where(timeline.operators, pattern),
        )

    runtime, ranges = timeline.runtime, timeline.ranges
    operators = union_of(timeline.operators, chosen[timeline.operators.thread])
    steps = step_rows(timeline)
    waits = where(runtime, SYNC_CALL)
    return HostView(
        input=iv.join(where(ranges, _INPUT_RANGE), where(timeline.python, _INPUT_FRAME)),
        copy=iv.join(where(ranges, _COPY_RANGE), where(runtime, COPY_CALL)),
        communication=iv.join(
            where(ranges, _COMMUNICATION), where(timeline.operators, _COMMUNICATION)
        ),
        collectives=union_of(
            ranges, named(timeline, ranges, COLLECTIVE_RANGE) & (ranges.rank == rank)
        ),
        allocation=where(runtime, ALLOCATION_CALL),
        sync=waits,
        known=_extent(
            [
                table
                for table in (runtime, timeline.operators, timeline.python, ranges)
                if len(table)
            ],
            chosen,
        ),
        compiling=iv.join(marked(_COMPILING), where(runtime, _COMPILING)),
        importing=marked(_IMPORTING),
        sleeping=marked(_SLEEPING),
        files=marked(_FILES),
        launching=iv.close_holes(
            iv.join(_launches(timeline, rank, operators), waits), BUSY_LAUNCHING_NS
        ),
        operators=operators,
        steps=union_of(steps, steps.rank == rank),
        stacks=bool((timeline.python.rank == rank).any()),
        threads=threads,
    )


def _launches(timeline: Timeline, rank: int, operators: iv.Intervals) -> iv.Intervals:
    """The calls that launched the rank's work; where none was recorded, its operators."""
    calls = timeline.launching & (timeline.runtime.rank == rank)
    return union_of(timeline.runtime, calls) if calls.any() else operators


def _extent(tables: list[HostTable], chosen: NDArray[np.bool_]) -> iv.Intervals:
    """From the first to the last thing known of the threads."""
    masks = [chosen[table.thread] for table in tables]
    starts = [
        int(table.start[mask.argmax()])
        for table, mask in zip(tables, masks, strict=True)
        if mask.any()
    ]
    ends = [
        int(table.end[mask].max()) for table, mask in zip(tables, masks, strict=True) if mask.any()
    ]
    return iv.union(np.array([min(starts)]), np.array([max(ends)])) if starts else iv.NONE


def launching_threads(timeline: Timeline, rank: int) -> tuple[int, ...]:
    """The threads whose runtime calls launched at least 1% of the rank's device rows; without such
    calls, those that mark ranges or run operators.
    """
    runtime = timeline.runtime
    mine = runtime.rank == rank
    for candidates in (
        runtime.thread[mine & timeline.launching],
        _main(timeline.ranges, rank),
        _main(timeline.operators, rank),
        runtime.thread[mine],
    ):
        if len(candidates):
            counts = np.bincount(candidates)
            return tuple(np.flatnonzero(counts >= max(1, 0.01 * counts.sum())).tolist())
    return ()


def _main(table: HostTable, rank: int) -> NDArray[np.int32]:
    """The thread that has most rows of the rank, once; empty when there is none."""
    threads = table.thread[table.rank == rank]
    return np.array([np.bincount(threads).argmax()], dtype=np.int32) if len(threads) else threads


def named(timeline: Timeline, table: Named, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """A mask of the rows whose name matches. Each distinct name is looked at once."""
    used = np.flatnonzero(np.bincount(table.name, minlength=1))
    matches = np.zeros(len(timeline.strings) + 1, dtype=bool)
    matches[[i for i in used.tolist() if pattern.search(timeline.strings[i])]] = True
    return np.asarray(matches[table.name])


def union_of(table: HostTable | DeviceTable, mask: NDArray[np.bool_]) -> iv.Intervals:
    """The time covered by the masked rows."""
    return iv.union(table.start[mask], table.end[mask])
