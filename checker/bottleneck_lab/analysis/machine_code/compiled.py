"""A compiled CUDA source, all of it together: machine code, launches and one warp's addresses,
near-identical kernels as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bottleneck_lab.analysis.machine_code.sass import (
    USUAL_THREADS,
    Expectation,
    KernelReport,
    judge,
)
from bottleneck_lab.analysis.machine_code.warp import Access, Launch, WarpAccesses


class KernelResources(msgspec.Struct, frozen=True):
    """The figures that are equal for the kernels that are shown as one. `threads` a block; not
    `launched`: they are a guess. Bytes are a block's, `share` (0–1) is of a multiprocessor's warps.
    """

    launched: bool
    threads: int
    shared_bytes: int
    registers: int
    spills: int
    widest_load_bytes: int
    async_copies: int
    tensor_core: tuple[str, ...]
    tensor_core_instructions: int
    blocks: int
    share: float
    limit: str


class KernelGroup(msgspec.Struct, frozen=True):
    """Kernels, on these architectures, whose figures are equal."""

    kernels: list[str]
    archs: list[str]
    figures: KernelResources


class Property(msgspec.Struct, frozen=True):
    """A judgement and where it holds: of all kernels, unless `of` names some."""

    judged: Expectation
    of: list[str]


class CompiledSource(msgspec.Struct, frozen=True):
    """One source. `accesses` are the first warp's, each at its worst among the kernels. Not
    `followed`: some could not be followed to the end.
    """

    source: str
    groups: list[KernelGroup]
    judged: list[Property]
    accesses: list[Access]
    followed: bool


def sum_up(
    source: str,
    reports: dict[str, list[KernelReport]],
    launched: Sequence[tuple[Launch, WarpAccesses]],
    readable: Callable[[str], str],
) -> CompiledSource:
    """Sum up one source. `reports` by architecture; `readable` makes of a mangled name one that is
    the same in machine code and PTX.
    """
    launches = {readable(launch.kernel): launch for launch, _ in launched}
    rows = [
        (readable(report.name), arch, _figures(report, launches.get(readable(report.name))))
        for arch, kernels_of in reports.items()
        for report in kernels_of
    ]
    kernels = dict.fromkeys(name for name, _, _ in rows)
    judged = [
        (f"{readable(report.name)} on sm_{arch}", one)
        for arch, kernels_of in reports.items()
        for report in kernels_of
        for one in judge(report)
    ]
    whole = (
        bool(launched)
        and all(followed.whole for _, followed in launched)
        and set(kernels) <= set(launches)
    )
    # Each sentence once, what is wrong first; of all kernels, or of those that it names.
    holds_for: dict[Expectation, list[str]] = {}
    for of, one in judged:
        holds_for.setdefault(one, []).append(of)
    properties = [
        Property(one, [] if len(of) == len(rows) else of) for one, of in holds_for.items()
    ]
    properties.sort(key=lambda one: one.judged.good)
    return CompiledSource(source, _groups(rows), properties, _worst(launched), whole)


def _figures(report: KernelReport, launch: Launch | None) -> KernelResources:
    threads = launch.threads if launch else report.max_threads or USUAL_THREADS
    dynamic = launch.dynamic_shared_bytes if launch else 0
    fit = report.occupancy(threads, dynamic)
    return KernelResources(
        launched=launch is not None,
        threads=threads,
        shared_bytes=report.shared_bytes + dynamic,
        registers=report.registers,
        spills=report.local_loads + report.local_stores,
        widest_load_bytes=report.widest_load_bytes,
        async_copies=sum(report.async_copies.values()) + report.bulk_copies,
        tensor_core=tuple(report.tensor_core),
        tensor_core_instructions=report.tensor_core_instructions,
        blocks=fit.blocks,
        share=fit.share,
        limit=fit.limit,
    )


def _groups(rows: list[tuple[str, str, KernelResources]]) -> list[KernelGroup]:
    """Group kernels whose figures are equal."""
    members_of: dict[KernelResources, list[tuple[str, str]]] = {}
    for name, arch, figures in rows:
        members_of.setdefault(figures, []).append((name, arch))
    return [
        KernelGroup(
            list(dict.fromkeys(n for n, _ in members)),
            list(dict.fromkeys(a for _, a in members)),
            figures,
        )
        for figures, members in members_of.items()
    ]


def _worst(launched: Sequence[tuple[Launch, WarpAccesses]]) -> list[Access]:
    """Return each access at its worst among the kernels: the cost of a request, not their sum."""
    worst: dict[tuple[int, int, str, str, int], Access] = {}
    for _, followed in launched:
        for access in followed.accesses:
            key = (access.line, access.caller, access.space, access.what, access.bytes)
            if (
                key not in worst
                or access.cost / access.requests > worst[key].cost / worst[key].requests
            ):
                worst[key] = access
    return sorted(worst.values(), key=lambda access: (access.line, access.caller))
