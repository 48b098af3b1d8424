"""ncu's counters of single kernels: figures against known-good values, one's own kernel beside the
library's, and what to attack first.

ncu has renamed much over the years: a figure is read by whichever of its names a report has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from bottleneck_lab.trace.counters import KernelCounters

Grade = Literal["good", "fair", "poor", ""]
Metrics = Mapping[str, float]

LIBRARY = re.compile(
    r"pytorch_|flash_fwd|flash::|fmha|cudnn|cublas|cutlass|nvjet|ampere_|sm\d\d_x|at::native",
    re.IGNORECASE,
)
"""Kernels that came with PyTorch or NVIDIA's libraries, by their names."""

STALLS = {
    "global memory": ("long_scoreboard", "lg_throttle", "tex_throttle"),
    "shared memory": ("short_scoreboard", "mio_throttle"),
    "barriers": ("barrier", "membar"),
    "arithmetic": ("math_pipe_throttle", "wait", "dispatch_stall"),
    "instruction fetch": ("no_instruction", "no_instructions", "branch_resolving", "imc_miss"),
}
"""ncu's reasons for a warp not to issue, by what is waited for ("Warp Scheduler States" in NVIDIA's
Kernel Profiling Guide).
"""

_CACHED = 80.0
"""L2 hit rate, %, above which a kernel's data come from the cache."""

_STALL_NAMES = (
    # Cycles a warp spent in it for an instruction issued.
    re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio"),
    re.compile(r"smsp__average_warp_latency_issue_stalled_(\w+?)\.(?:pct|ratio)"),
    re.compile(r"smsp?__warp_issue_stalled_(\w+?)_per_warp_active\.pct"),  # before 2020
    re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+)"),  # samples
)
_NO_STALL = ("selected", "not_selected")


class Rule(NamedTuple):
    """A figure, and how it is read and judged. `good` and `poor` are where it begins to be so;
    `source` is where these come from.
    """

    id: str
    label: str
    unit: str
    good: float
    poor: float
    source: str
    names: tuple[str, ...] = ()
    derive: Callable[[Metrics], float | None] | None = None

    def read(self, metrics: Metrics) -> float | None:
        """Return the figure, None if the report does not have it."""
        if self.derive is not None:
            return self.derive(metrics)
        return next((metrics[name] for name in self.names if name in metrics), None)

    def grade(self, value: float) -> Grade:
        """Grade a value; more is better where `good` lies above `poor`, less where below."""
        sign = 1 if self.good > self.poor else -1
        if sign * (value - self.good) >= 0:
            return "good"
        if sign * (value - self.poor) <= 0:
            return "poor"
        return "fair"


class Figure(msgspec.Struct, frozen=True):
    """One counter of one kernel. `wanted` says from where on it is good."""

    id: str
    label: str
    value: float
    unit: str
    grade: Grade
    wanted: str


class KernelFigures(msgspec.Struct, frozen=True):
    """One profiled launch. `stalls` are shares (0–1) of the time in which its warps could not
    issue, the largest first.
    """

    name: str
    library: bool
    duration_ns: float
    figures: list[Figure]
    stalls: dict[str, float]

    def figure(self, id_: str) -> Figure | None:
        """Return one figure by its id, None if the report does not have it."""
        return next((figure for figure in self.figures if figure.id == id_), None)


class Target(msgspec.Struct, frozen=True):
    """Something to attack. `share` (0–1) is the part of the warps' waiting that it is behind."""

    id: str
    title: str
    share: float
    evidence: str
    advice: str


class Pair(msgspec.Struct, frozen=True):
    """A launch of one's own kernel, the library's for the same inputs where there is one, and what
    to attack, the first first.
    """

    own: KernelFigures
    library: KernelFigures | None
    targets: list[Target]

    @property
    def ratio(self) -> float | None:
        """Return the library's time over one's own: below 1 it is slower. None without both."""
        if self.library is None or not self.own.duration_ns:
            return None
        return self.library.duration_ns / self.own.duration_ns


def stalls(metrics: Metrics) -> dict[str, float]:
    """Return the share (0–1) of the warps' waiting by what they wait for, the largest first; empty
    if the report has no stall reasons.
    """
    for pattern in _STALL_NAMES:
        waiting = {}
        for name, value in metrics.items():
            match = pattern.fullmatch(name)
            # A warp that issues, or could and was not chosen, does not wait.
            if match and match[1] not in _NO_STALL:
                waiting[match[1]] = value
        total = sum(waiting.values())
        if total:
            shares = {
                group: sum(waiting.get(name, 0.0) for name in names) / total
                for group, names in STALLS.items()
            }
            shares["other"] = 1 - sum(shares.values())
            return dict(sorted(shares.items(), key=lambda item: -item[1]))
    return {}


def _stall(*groups: str) -> Callable[[Metrics], float | None]:
    """Return a reader of the percentage of waiting in these groups of STALLS."""

    def read(metrics: Metrics) -> float | None:
        shares = stalls(metrics)
        if not shares:
            return None
        return 100 * sum(shares[group] for group in groups)

    return read


def _sectors_per_request(metrics: Metrics) -> float | None:
    ratio = metrics.get("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio")
    requests = metrics.get("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum")
    sectors = metrics.get("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum")
    if ratio is None and requests and sectors is not None:
        return sectors / requests
    return ratio


def _conflict_share(metrics: Metrics) -> float | None:
    """Return bank conflicts over all passes through shared memory, %: without conflicts every pass
    is useful.
    """
    totals = []
    for counter in ("data_bank_conflicts_pipe_lsu", "data_pipe_lsu_wavefronts"):
        # Reports have the sum, or loads and stores by themselves.
        whole = metrics.get(f"l1tex__{counter}_mem_shared.sum")
        parts = [metrics.get(f"l1tex__{counter}_mem_shared_op_{op}.sum") for op in ("ld", "st")]
        if whole is None and any(part is not None for part in parts):
            whole = sum(part or 0.0 for part in parts)
        totals.append(whole)
    conflicts, passes = totals
    if conflicts is None or not passes:
        return None
    return 100 * conflicts / passes


def _active_lanes(metrics: Metrics) -> float | None:
    lanes = metrics.get("smsp__thread_inst_executed_per_inst_executed.ratio")
    if lanes is None:
        return None
    return 100 * lanes / 32


_COURSE = "the course's thresholds"
_OWN = "arithmetic: what a request, a pass or a warp can do at best"
_SHARE = ".pct_of_peak_sustained_elapsed"
_SM = (f"sm__throughput.avg{_SHARE}", "Compute (SM) Throughput", "SM [%]")
_MEMORY = (
    f"gpu__compute_memory_throughput.avg{_SHARE}",
    f"gpu__compute_memory_access_throughput.avg{_SHARE}",
)
_DRAM = (f"dram__throughput.avg{_SHARE}", f"gpu__dram_throughput.avg{_SHARE}")
_OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")
_L2 = (
    "lts__t_sector_hit_rate.pct",
    "lts__t_sectors_hit_rate.pct",
    "lts__t_sectors_srcunit_tex_queries_hit_rate.avg.pct",
    "L2 Hit Rate",
)
_IPC = (
    "sm__inst_executed.avg.per_cycle_active",
    "sm__inst_executed.sum.per_cycle_active",
    "Executed Ipc Active",
)
_ON_MEMORY, _ON_BARRIERS = _stall("global memory", "shared memory"), _stall("barriers")
RULES = (
    Rule("sm", "SM throughput", "%", 80, 50, _COURSE, _SM),
    Rule("memory", "memory throughput", "%", 60, 20, _COURSE, _MEMORY),
    Rule("dram", "of it DRAM", "%", 60, 20, _COURSE, _DRAM),
    Rule("occupancy", "achieved occupancy", "%", 50, 25, _COURSE, _OCCUPANCY),
    Rule("l2", "L2 hit rate", "%", 50, 20, _COURSE, _L2),
    Rule("ipc", "instructions per cycle", "", 1.0, 0.5, _COURSE, _IPC),
    Rule("memory-stalls", "stalls on memory", "%", 30, 50, _COURSE, derive=_ON_MEMORY),
    Rule("barrier-stalls", "stalls on barriers", "%", 10, 20, _COURSE, derive=_ON_BARRIERS),
    Rule("conflicts", "bank conflicts (of passes)", "%", 10, 50, _OWN, derive=_conflict_share),
    Rule("sectors", "sectors per request", "", 16, 24, _OWN, derive=_sectors_per_request),
    Rule("lanes", "active lanes per warp", "%", 90, 60, _OWN, derive=_active_lanes),
)
"""In reading order: how much of the machine is used, then why not more."""


def read_kernel(counters: KernelCounters) -> KernelFigures:
    """Return the figures that a report has of one launch."""
    figures = []
    for rule in RULES:
        value = rule.read(counters.metrics)
        if value is not None:
            wanted = f"{'≥' if rule.good > rule.poor else '≤'} {rule.good:g}{rule.unit}"
            figures.append(Figure(rule.id, rule.label, value, rule.unit, rule.grade(value), wanted))
    # Little memory throughput is poor only where memory is what a kernel uses most, and little of
    # it from DRAM only where the caches miss.
    values = {figure.id: figure.value for figure in figures}
    ungraded = set()
    if values.get("memory", 0.0) <= values.get("sm", 0.0):
        ungraded |= {"memory", "dram"}
    if values.get("l2", 0.0) > _CACHED:
        ungraded.add("dram")
    for number, figure in enumerate(figures):
        if figure.id in ungraded:
            figures[number] = msgspec.structs.replace(figure, grade="")
    name = counters.name.removeprefix("void ")
    return KernelFigures(
        name, bool(LIBRARY.search(name)), counters.duration_ns, figures, stalls(counters.metrics)
    )


def compare_kernels(counters: tuple[KernelCounters, ...]) -> list[Pair]:
    """Pair one's own launches with the library's, in the order of the report; where their numbers
    differ, with its slowest.
    """
    kernels = [read_kernel(kernel) for kernel in counters]
    library = [kernel for kernel in kernels if kernel.library]
    own = [kernel for kernel in kernels if not kernel.library]
    if not own:  # a report of the library's kernels alone is read as one's own
        own, library = library, []
    others: list[KernelFigures | None] = [None] * len(own)
    if library and len(library) == len(own):
        others = [*library]
    elif library:
        others = [max(library, key=lambda kernel: kernel.duration_ns)] * len(own)
    return [
        Pair(kernel, other, find_targets(kernel, other))
        for kernel, other in zip(own, others, strict=True)
    ]


def furthest_behind(pairs: list[Pair]) -> Pair:
    """Return the pair in which one's own kernel is slowest against the library's; without a
    library, the longest launch.
    """
    return min(pairs, key=lambda pair: (pair.ratio or 0.0, -pair.own.duration_ns))


def find_targets(kernel: KernelFigures, library: KernelFigures | None = None) -> list[Target]:
    """Return what to attack, most urgent first: each cause of waiting with the counter that proves
    it.

    Alone, causes are ordered by their share of the waiting. Beside a library's kernel for the same
    inputs, they are ordered by the time that they cost beyond what they cost the library.
    """
    urgency = {}
    for group, make_target in _TARGETS.items():
        share = kernel.stalls.get(group, 0.0)
        if share >= WORTHWHILE:
            # Every attention kernel waits for its tensor cores: what a faster kernel waits for as
            # long is not why this one is slower.
            spent_ns = share * kernel.duration_ns
            if library is not None:
                spent_ns -= library.stalls.get(group, 0.0) * library.duration_ns
            urgency[make_target(kernel, share)] = spent_ns
    return sorted(urgency, key=lambda target: -urgency[target])


_DRAM_FULL = 60.0
WORTHWHILE = 0.15
"""Share of the waiting below which a cause is not worth a line: removing it would change little."""


def _global_memory(kernel: KernelFigures, share: float) -> Target:
    sectors, dram, occupancy = (kernel.figure(id_) for id_ in ("sectors", "dram", "occupancy"))
    waited = f"Warps wait {share:.0%} of the time for global memory"
    if sectors and sectors.grade == "poor":
        title = "Global loads are not coalesced"
        evidence = (
            f"{waited}, and a request touches {sectors.value:.0f} sectors of 32 bytes where 4 to 16"
            " would do."
        )
        advice = "Let neighbouring threads read neighbouring addresses, 16 bytes each."
        return Target("uncoalesced", title, share, evidence, advice)
    if dram and dram.value >= _DRAM_FULL:
        evidence = f"{waited}, and DRAM is {dram.value:.0f}% busy."
        advice = "Read less: reuse tiles, fuse, or use a smaller type."
        return Target("dram-bound", "Memory bandwidth is used up", share, evidence, advice)
    warps = f", with {occupancy.value:.0f}% of the warps that fit" if occupancy else ""
    evidence = f"{waited}{warps}: too little is in flight."
    advice = (
        "Load the next tile before using this one: asynchronous copies and two buffers, or more"
        " warps."
    )
    return Target("latency", "Warps wait for loads", share, evidence, advice)


def _shared_memory(kernel: KernelFigures, share: float) -> Target:
    conflicts = kernel.figure("conflicts")
    waited = f"Warps wait {share:.0%} of the time for shared memory"
    if conflicts and conflicts.grade != "good":
        title = "Shared memory is read and written with bank conflicts"
        evidence = f"{waited}, and {conflicts.value:.0f}% of its passes are bank conflicts."
        advice = "Pad or swizzle the rows so that the lanes of one request use different banks."
        return Target("bank-conflicts", title, share, evidence, advice)
    evidence = f"{waited}, with few conflicts."
    advice = "Keep more in registers: larger tiles per warp, wider instructions."
    return Target("shared-traffic", "Shared memory is busy", share, evidence, advice)


def _barriers(_: KernelFigures, share: float) -> Target:
    evidence = f"Warps wait {share:.0%} of the time at barriers; 10% is good."
    advice = "Load the next tile while computing this one, and remove barriers that nothing needs."
    return Target("barriers", "Warps wait for each other", share, evidence, advice)


def _arithmetic(kernel: KernelFigures, share: float) -> Target:
    sm, lanes = kernel.figure("sm"), kernel.figure("lanes")
    waited = f"Warps wait {share:.0%} of the time for arithmetic"
    if lanes and lanes.grade == "poor":
        evidence = f"{waited}, and only {lanes.value:.0f}% of a warp's lanes are active."
        advice = "Move branches out of inner loops: decide per tile, not per element."
        return Target("divergence", "Threads of a warp diverge", share, evidence, advice)
    busy = f", and the SMs are at {sm.value:.0f}% of their peak" if sm else ""
    advice = (
        "Near the ceiling, only less work helps; far from it, more independent instructions per"
        " warp help."
    )
    return Target("arithmetic", "Warps wait for arithmetic", share, f"{waited}{busy}.", advice)


_TARGETS = {
    "global memory": _global_memory,
    "shared memory": _shared_memory,
    "barriers": _barriers,
    "arithmetic": _arithmetic,
}
"""By group of STALLS, the function that makes a target of waiting for it."""
