"""Detectors of work that could be hidden, cheaper or more even: copies, communication, kernels,
operators, steps and memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from bottleneck_lab.analysis.causes import CAUSE_OF, CAUSES
from bottleneck_lab.analysis.counters.roofline import find_machine
from bottleneck_lab.analysis.detectors.idle import SMALL_NS, is_reported, repeated_calls
from bottleneck_lab.analysis.device.tensor_cores import find_tensor_cores
from bottleneck_lab.analysis.evidence import IDLE_SHARE, Detection, Evidence
from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.ranks.collectives import (
    BEFORE_ITS_STEP,
    COMMUNICATING,
    COMPUTING,
    LateRank,
)
from bottleneck_lab.analysis.ranks.departures import Departures
from bottleneck_lab.analysis.what_if.removal import Removal
from bottleneck_lab.wording import counted

OUTGROWN_SHARE = 0.2
"""Growth within the capture beyond this share of a device's peak: such a run ends before it is
slow.
"""
LATE_SHARE = 0.5
"""Memory that is made and freed between the ends of steps is held for steps where it is this share
of a device's peak, less what steps have kept for good; by less, it may be a batch that was fetched
ahead.
"""
GROWING_LINES = 2
LISTED_LINES = 3
COPY_SHARE = 0.05
DOMINANT_SHARE = 0.40
STEP_SPREAD = 0.25
FP32_SHARE = 0.30
FP64_SHARE = 0.10
"""Whatever is trained seldom needs it, and it costs a multiple: less of it is worth a look."""
LESS_COMMUNICATION = (
    "Send gradients in buckets while backward is still running (bucket_cap_mb, no"
    " find_unused_parameters unless needed, static_graph), synchronise less (no_sync with gradient"
    " accumulation), send bf16"
)
COPY_LESS = (
    "Keep on the device what is used again, and send smaller types (uint8 images). What must be"
    " sent, send while the device computes: with non_blocking=True on a separate stream. The memory"
    " is pinned already."
)
COPY_BACK = (
    "Reduce or convert the result on the device and copy only that; copy it into a pinned tensor"
    " (torch.empty(…, pin_memory=True).copy_(result, non_blocking=True)), and wait where it is"
    " read."
)
TURNS = (
    "Compare the ranks' batches of one step: give them work of equal cost (sort or bucket samples"
    " by length, pack them). If the batches are alike, look for clocks that change, or other"
    " programs on the devices."
)
STAGES = (
    "Split each batch into more parts (micro-batches), so that every stage has one to work on; use"
    " a schedule with less waiting (torch.distributed.pipelining: 1F1B, interleaved, zero-bubble);"
    " and give the stages equal work."
)
GATHERED = (
    "Gather the next layer's parameters while this one computes (FSDP: forward_prefetch,"
    " backward_prefetch), keep them between forward and backward where memory allows"
    " (reshard_after_forward=False), and send bf16 (mixed precision)"
)
LATE_START = (
    "Ranks begin apart once, not in every step: record steps after a warm-up, in which they meet."
    " If the start counts, see what this rank does before its first step that the others do not:"
    " loading, compiling, a slow disk."
)
OTHER_WORK = 1.5
"""A slow step that launches this many times as many kernels as a typical one does other work."""
OTHER_STEPS = (
    "If that is an evaluation, a checkpoint or the like, do it less often, or mark it with"
    " record_function and outside of steps, to see it by itself."
)
LISTED_RANKS = 8
MOSTLY_ONE = 2 / 3
"""Of a rank that causes less of the waiting (0-1), the others are late nearly as often."""
_POINT_TO_POINT = re.compile(r"SendRecv|(?:^|[:_])(?:send|recv)", re.IGNORECASE)
_GATHERING = re.compile(r"All_?Gather|Reduce_?Scatter", re.IGNORECASE)
ALIKE = 1.25
"""Two times that differ by less than this factor may be the same."""
COPIES = Removal(causes=("copy",), copies=True)
_FP32_GEMM = re.compile(
    # Not those that take fp16 or bf16 and only add up in fp32.
    r"^(?!.*(?:fp16|bf16|hgemm|half))"
    r".*?(?:(?:^|_)sgemm|_f32f32_f32f32_|simt|ffma|scudnn)",
    re.IGNORECASE,
)
_FP32_WORK = re.compile(rf"{_FP32_GEMM.pattern}|fmha_cutlass[FB]_f32", re.IGNORECASE)
"""The same and attention in fp32, whose kernels use tensor cores: half precision runs them several
times as fast as well.
"""
_FP64_GEMM = re.compile(
    # cuBLAS and CUTLASS, cuDNN, cuBLAS's templates, rocBLAS.
    r"d884gemm|(?:^|_|\b)dgemm|_f64f64_|gem[mv]\w*<(?:int, )*double\b|^Cijk_\w+_DB_",
    re.IGNORECASE,
)
_FP64_TENSOR_CORES = re.compile(r"d884")
"""Kernels that run on those of A100 and later, twice as fast as the data sheets' fp64."""
_DOUBLE = re.compile(r"\bdouble\b")
"""Names of kernels that work on double tensors, where they tell: these move half the bytes then."""
FP64_RATIO = 2.0
"""fp32 over fp64 where no data sheet is at hand: the least, of devices for data centres."""
_MATRIX_WORK = re.compile(r"conv|mm$|linear|matmul|attention|einsum|lstm|gru|rnn")
"""Operators that should dominate a busy CPU: that is not a finding."""
_OTHER_ARITHMETIC = re.compile(
    r"::(?:normal|uniform|bernoulli|random|exponential|geometric|cauchy|log_normal|randperm"
    r"|multinomial|_?fft|_?linalg|svd|cholesky|sort|topk|unique|_?unique2|cdist|bessel)"
)
"""Further operators in whose time memory has little part: much is computed for each element."""


def exposed_copies(seen: Evidence) -> list[Detection]:
    """Detect copies that nothing runs beside, and waiting for copies."""
    exposed = sum(use.exposed_copy_ns for use in seen.devices) / seen.time_ns
    share = exposed + seen.idle_share("copy")
    if share < COPY_SHARE:
        return []
    moved = sum(row.bytes for row in seen.copies)
    count = sum(row.calls for row in seen.copies)
    size = f"{moved / (1 << 20):.1f} MiB" if moved < 10 << 30 else f"{moved / (1 << 30):.1f} GiB"
    evidence = (
        f"For {share:.0%} of the time the device only copied, or waited for a copy: {size} in"
        f" {count} copies."
    )
    host_rows = [row for row in seen.copies if row.direction in ("h2d", "d2h")]
    pinned_ns = sum(row.total_ns for row in host_rows if row.host_memory == "pinned")
    advice = COPY_LESS if 2 * pinned_ns > sum(row.total_ns for row in host_rows) else ""
    return [Detection(evidence, share, removal=COPIES, advice=advice)]


def pageable_copies(seen: Evidence) -> list[Detection]:
    """Detect copies from or to memory that is not pinned."""
    rows = [row for row in seen.copies if row.host_memory == "pageable"]
    share = sum(row.total_ns for row in rows) / seen.time_ns
    if not rows or share < COPY_SHARE:
        return []
    count = sum(row.calls for row in rows)
    speed = max(rows, key=lambda row: row.total_ns).gb_per_s
    evidence = (
        f"{count} copies use pageable memory and take {share:.0%} of the time, at {speed:.1f} GB/s."
    )
    back = sum(row.total_ns for row in rows if row.direction == "d2h")
    advice = COPY_BACK if 2 * back > sum(row.total_ns for row in rows) else ""
    return [Detection(evidence, share, removal=COPIES, advice=advice)]


def exposed_communication(seen: Evidence) -> list[Detection]:
    """Detect communication that nothing runs beside, and waiting for other ranks."""
    # Waiting for other ranks is part of the communication, unless the ranks could be matched.
    exposed_ns = sum(use.exposed_communication_ns for use in seen.devices)
    whole = sum(use.communication_ns for use in seen.devices)
    hidden = 1 - exposed_ns / whole if whole else 0.0
    title, advice, waited = "", "", ""
    recorded = seen.ranks
    less = GATHERED if _communicates_by(seen, _GATHERING) else LESS_COMMUNICATION
    if seen.collective_waits is not None:
        # Smaller or earlier messages make the transfer cheaper, not the waiting for a late rank.
        exposed_ns = seen.collective_waits.transfer_ns
        advice = f"{less}."
        waited = " (without waiting for late ranks)"
        if recorded < seen.world_size:
            waited = " (without waiting for the ranks that were recorded)"
    share = exposed_ns / seen.time_ns + seen.idle_share("communication")
    if share < IDLE_SHARE:
        return []
    what = "only communicated" if waited else "only communicated or waited for other ranks"
    evidence = (
        f"For {share:.0%} of the time a device {what}{waited}; {hidden:.0%} of all communication"
        f" overlaps computation.{_describe_departures(seen.departures)}"
    )
    if recorded < seen.world_size:
        evidence += (
            f" Only {recorded} of {seen.world_size} ranks {'was' if recorded == 1 else 'were'}"
            " recorded: how much of it is waiting for another cannot be told."
        )
        title = "The device communicates, or waits for other ranks"
        advice = (
            "Put the captures of all ranks into one folder and report on that: waiting for a late"
            f" rank needs another remedy than transfer. For transfer: {less}."
        )
    removal = Removal(causes=("communication",), communication=True)
    return [Detection(evidence, share, title, advice, removal=removal)]


def _communicates_by(seen: Evidence, pattern: re.Pattern[str]) -> bool:
    """Return True if collectives whose names match take most of the time of all."""
    rows = [row for row in seen.kernels if row.communication]
    matching = sum(row.total_ns for row in rows if pattern.search(row.name))
    return 2 * matching > sum(row.total_ns for row in rows)


def _describe_departures(departures: Departures | None) -> str:
    """Return a sentence about when gradients left, against the end of their backward; empty where
    a capture does not show it.
    """
    if departures is None:
        return ""
    if not departures.early_bytes:
        return (
            " Every message to be reduced left only after the backward before it had ended on the"
            " device, last gradient included."
        )
    early = departures.early_bytes / departures.bytes
    return (
        f" Of what was to be reduced, {early:.0%} left while the backward before it still ran on"
        " the device."
    )


def late_ranks(seen: Evidence) -> list[Detection]:
    """Detect ranks that keep the others waiting: by who joined each collective last where ranks
    can be matched, by their own work where not.
    """
    if seen.collective_waits is None:
        return _slow_ranks(seen)
    # Waiting for a rank that stood idle for a cause is told with that cause, if it is reported.
    reported = [cause for cause in CAUSES if is_reported(seen, cause)]
    # A start-up in the first step happens once, and no step's time holds it.
    once = ("startup",) if seen.steps else ()
    late = [row for row in seen.late if row.doing not in (*reported, *once)]
    waited, share = seen.waiting_share(late), seen.removable_share(late)
    if waited < IDLE_SHARE:
        return []
    by_rank, unreported = _waiting_by_rank(seen.late), _waiting_by_rank(late)
    worst_rank, worst_ns = unreported.most_common(1)[0]
    title, who, advice = f"Rank {worst_rank} keeps the others waiting", f"Rank {worst_rank}", ""
    doing = _longest_doing([row for row in late if row.rank == worst_rank])
    if worst_ns < MOSTLY_ONE * unreported.total():
        title, who = "Ranks take turns in keeping the others waiting", "The late rank of a step"
        doing, advice = _longest_doing(late), TURNS
    if _communicates_by(seen, _POINT_TO_POINT):
        return [_waiting_stages(seen, waited)]
    if doing in (BEFORE_ITS_STEP, "startup"):
        advice = LATE_START
    transfer = seen.collective_waits.transfer_ns
    alone = seen.collective_waits.waiting_ns + transfer
    evidence = (
        f"Of {alone / 1e6:.2f} ms in which ranks only communicated, they waited"
        f" {_list_waiting(by_rank)} to join a collective: {waited:.0%} of the time of each that"
        f" waits, on average. {who} was late mostly because"
        f" {_LATE_BECAUSE.get(doing) or CAUSE_OF[doing].sentence}."
    )
    if _kernels_make_late(seen):
        evidence += (
            f" {seen.interruptions.kernels} kernels took more than 1.5 times as long as the same"
            " ones in other steps."
        )
    evidence += f" The transfers themselves take {transfer / 1e6:.2f} ms."
    # Only what is computed can be spread over the ranks. Where that saves more, since the busiest
    # rank's own work is spread, too, it is the most that can be gained.
    shared_out = waited * (seen.ranks - 1) / seen.ranks if doing == COMPUTING else 0.0
    if shared_out >= share:
        share, shared_out = shared_out, 0.0
    return [Detection(evidence, share, title, advice, shared_out=shared_out)]


def _waiting_stages(seen: Evidence, waited: float) -> Detection:
    """Return the stages of a pipeline that wait for one another: no rank is late, and the work of
    the busiest stage stays.
    """
    working: Counter[int] = Counter()
    for use in seen.devices:
        working[use.rank] += use.busy_ns - use.exposed_communication_ns
    longest_ns = seen.collective_waits.longest_ns if seen.collective_waits else 0
    share = min(waited, 1 - max(working.values()) / max(longest_ns, 1))
    waiting = sum(row.waiting_ns for row in seen.late) / seen.time_ns
    evidence = (
        f"For {waiting:.0%} of the time a rank waited in a send or receive for another to send or"
        " to take: stages take turns instead of working side by side."
    )
    return Detection(evidence, share, "Stages of the pipeline wait for one another", STAGES)


def _kernels_make_late(seen: Evidence) -> bool:
    """Return True if kernels that now and then take far longer are no more than what makes ranks
    late.
    """
    waited_ns = seen.waited_for(COMPUTING) / max(seen.ranks - 1, 1)
    return 0 < seen.interruptions.excess_ns <= ALIKE * waited_ns


def _longest_doing(late: Sequence[LateRank]) -> str:
    """Return what late ranks did while they were waited for longest."""
    waiting: Counter[str] = Counter()
    for row in late:
        waiting[row.doing] += row.waiting_ns
    return waiting.most_common(1)[0][0]


def _list_waiting(by_rank: Counter[int]) -> str:
    """Return how long the ranks were waited for, in words; of many, the first."""
    parts = [f"{ns / 1e6:.2f} ms for rank {rank}" for rank, ns in by_rank.most_common(LISTED_RANKS)]
    rest = [ns for _, ns in by_rank.most_common()[LISTED_RANKS:]]
    if rest:
        parts.append(f"{sum(rest) / 1e6:.2f} ms for {counted(len(rest), 'other rank')}")
    return ", ".join(parts)


def _waiting_by_rank(late: Sequence[LateRank]) -> Counter[int]:
    """Return how long each rank was waited for, ns."""
    waiting: Counter[int] = Counter()
    for row in late:
        waiting[row.rank] += row.waiting_ns
    return waiting


def _slow_ranks(seen: Evidence) -> list[Detection]:
    """Detect a rank that works longer than the others, where collectives were not matched."""
    slow = [row for row in seen.stragglers if row.share_of_step >= IDLE_SHARE]
    if not slow:
        return []
    worst = max(slow, key=lambda row: row.share_of_step)
    often = " per step" if seen.steps else ""
    evidence = (
        f"Rank {worst.rank} computes {worst.excess_ns / 1e6:.2f} ms{often} longer than the"
        " median rank; the others wait for it in their collectives."
    )
    title = f"Rank {worst.rank} keeps the others waiting"
    # Of the excess, the rank keeps its part where all ranks share it.
    ranks, share = len(seen.stragglers), worst.share_of_step
    return [Detection(evidence, share, title, shared_out=share * (ranks - 1) / ranks)]


_LATE_BECAUSE = {
    COMPUTING: "it computed for longer than the others",
    COMMUNICATING: "it was in an earlier collective for longer than the others",
    BEFORE_ITS_STEP: "it began its step later than the others",
}


def kernels_like(
    pattern: re.Pattern[str], least: float, called: str, removal: Removal | None = None
) -> Callable[[Evidence], list[Detection]]:
    """Return a detector of kernels whose names match and that take `least` of the time or more.

    `called`: what the evidence calls them. `removal`: what a fix takes away; without, all of them.
    """

    def detect(seen: Evidence) -> list[Detection]:
        wall = sum(use.working_ns for use in seen.devices if not use.is_cpu)
        rows = [row for row in seen.kernels if pattern.search(row.name)]
        if not wall or not rows:
            return []
        # Kernels that run side by side take more than the time: their share is of all of theirs.
        whole = max(wall, rows[0].total_ns / rows[0].share)
        share = sum(row.total_ns for row in rows) / whole
        if share < least:
            return []
        largest = rows[0].name
        if len(largest) > 60:
            largest = f"{largest[:35]}…{largest[-24:]}"  # kernels often differ at their end only
        evidence = (
            f"{sum(row.calls for row in rows)} {called} take {share:.0%} of the time; the largest"
            f" is {largest}."
        )
        return [Detection(evidence, share, removal=removal or Removal(kernels=pattern))]

    return detect


_ELEMENTWISE = r"elementwise_kernel|vectorized_elementwise|unrolled_elementwise|pointwise"
_FUSABLE = re.compile(rf"{_ELEMENTWISE}|reduce_kernel", re.IGNORECASE)
_BOUND_BY_MEMORY = re.compile(rf"{_FUSABLE.pattern}|CatArray|multi_tensor_apply", re.IGNORECASE)
unfused_kernels = kernels_like(
    re.compile(_ELEMENTWISE, re.IGNORECASE),
    0.40,
    "elementwise kernels",
    # A fused kernel reads and writes about as much as the longest of them.
    Removal(fused=_FUSABLE),
)

_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|NCHWToNHWC|transpose_readWrite", re.IGNORECASE)


def layout_conversions(seen: Evidence) -> list[Detection]:
    """Detect conversions between memory layouts, with the copies that go with them: those that
    contiguous() makes, which are an `aten::clone` where only outermost operators were recorded.
    """
    times = {row.name: row.device_total_ns for row in seen.operators}
    copying = next((name for name in _COPYING if times.get(name)), "")
    share, beside, operators = times.get(copying, 0) / seen.time_ns, "", None
    if share >= _NAMED_SHARE:
        call = "contiguous()" if copying in _COPYING[:1] else "contiguous() or clone()"
        beside = (
            f" Copies by {call} take another {share:.1%}, and go with the layout: the gain is"
            " without them, too."
        )
        operators = re.compile(f"^{copying}$")
    return [
        msgspec.structs.replace(
            each,
            evidence=each.evidence + beside,
            removal=Removal(kernels=_LAYOUT, operators=operators),
        )
        for each in kernels_like(_LAYOUT, 0.10, "layout conversions")(seen)
    ]


_COPYING = ("aten::contiguous", "aten::clone")
_NAMED_SHARE = 0.02
"""Copies that take less of the time than this are not worth a sentence."""


def unused_tensor_cores(seen: Evidence) -> list[Detection]:
    """Detect fp32 matrix kernels on devices that have something faster for them."""
    cores = [
        find_tensor_cores(use.name, seen.compute_capabilities.get((use.rank, use.device), 0.0))
        for use in seen.devices
        if not use.is_cpu
    ]
    known = [each for each in cores if each is not None]
    if not known or len(known) < len(cores):
        return []
    # Tensor cores make matrix work as much faster as the data sheet says, not infinitely.
    ratio = max(each.ratio for each in known)
    detections = [
        msgspec.structs.replace(each, removal=Removal(kernels=_FP32_WORK, left=1 / ratio))
        for each in kernels_like(_FP32_GEMM, FP32_SHARE, "fp32 matrix kernels")(seen)
    ]
    if any(each.only_fp16 for each in known):
        advice = (
            "Use autocast with fp16 and a GradScaler: this device's tensor cores take neither bf16"
            " nor TF32."
        )
        return [msgspec.structs.replace(each, advice=advice) for each in detections]
    return detections


def double_products(seen: Evidence) -> list[Detection]:
    """Detect matrix products in double precision: by the names of kernels, or where these don't
    tell, by the types of operators.
    """
    kernels = [row for row in seen.kernels if _FP64_GEMM.search(row.name)]
    if kernels:
        left = 1 / _single_over_double([use.name for use in seen.devices], kernels[0].name)
        named_double = any(_DOUBLE.search(row.name) for row in seen.kernels if row not in kernels)
        halved = _DOUBLE if named_double else _BOUND_BY_MEMORY
        removal = Removal(kernels=_FP64_GEMM, left=left, halved=halved)
        return kernels_like(_FP64_GEMM, FP64_SHARE, "fp64 matrix kernels", removal)(seen)
    rows = [row for row in seen.double_rows if _MATRIX_WORK.search(row.operator)]
    share = sum(row.time_ns for row in rows) / seen.time_ns
    if share < FP64_SHARE:
        return []
    evidence = (
        f"{sum(row.calls for row in rows)} matrix operators on double tensors take {share:.0%} of"
        f" the time, most of all {rows[0].operator}."
    )
    return [Detection(evidence, share * (1 - 1 / FP64_RATIO))]


def _single_over_double(devices: Sequence[str], kernel: str) -> float:
    """Return how many times as fast fp32 products are on devices of these names, in TF32 where
    there is that, as an fp64 `kernel`.
    """
    ratios = []
    for machine in filter(None, map(find_machine, devices)):
        if "fp64" in machine.flops:
            single = machine.flops.get("tf32", machine.flops["fp32"])
            double = machine.flops["fp64"] * (2 if _FP64_TENSOR_CORES.search(kernel) else 1)
            ratios.append(single / double)
    return max(ratios, default=FP64_RATIO)


def dominant_operator(seen: Evidence) -> list[Detection]:
    """Detect one operator that takes most of a busy CPU and mostly waits for memory: where Amdahl's
    law says to begin.
    """
    if not seen.operators or not seen.on_cpu:
        return []
    # Many calls of next to nothing are another finding.
    top = max(seen.operators, key=lambda row: row.self_ns)
    share = top.self_ns / seen.time_ns
    small = top.self_ns < SMALL_NS * top.calls
    by_line = repeated_calls(seen)[0] >= share  # the line that calls it says more
    computes = _MATRIX_WORK.search(top.name) or _OTHER_ARITHMETIC.search(top.name)
    if share < DOMINANT_SHARE or small or by_line or computes:
        return []
    each = top.self_ns / top.calls
    length = f"{each / 1e3:.1f} µs" if each < 1e6 else f"{each / 1e6:.1f} ms"
    evidence = f"{top.name} takes {share:.0%} of the time itself, in {top.calls} calls of {length}."
    return [Detection(evidence, share)]


def uneven_steps(seen: Evidence) -> list[Detection]:
    """Detect a few slow steps among many. The cost is what the slow ones take beyond the median."""
    steps = sorted(seen.settled_ns)
    if len(steps) < 4:
        return []
    median = steps[len(steps) // 2]
    # Where all steps scatter, as on a shared machine, slow is what lies beyond five times their
    # median absolute deviation.
    scatter = sorted(abs(step - median) for step in steps)[len(steps) // 2]
    slow = median + max(STEP_SPREAD * median, 5 * scatter)
    excess = sum(step - median for step in steps if step > slow)
    if seen.launches and not any(use.launch_call_ns for use in seen.launches):
        # Without its launch, a device's work belongs to no step: one ends wherever the queue of
        # work stood, so that only the time in which the device had none is lost.
        excess = min(excess, sum(use.idle_ns for use in seen.devices))
    share = excess / max(sum(seen.step_ns), 1)
    if share < IDLE_SHARE:
        return []
    evidence = (
        f"The slowest step takes {steps[-1] / 1e6:.2f} ms, while half of all steps take under "
        f"{median / 1e6:.2f} ms; the excess is {share:.0%} of the time."
    )
    launches = seen.step_launches or [0]
    most = launches[max(range(len(launches)), key=lambda at: seen.settled_ns[at])]
    usual = sorted(launches)[len(launches) // 2]
    if most <= OTHER_WORK * usual or not usual:
        return [Detection(evidence, share)]
    what = "calls {} operators" if seen.on_cpu else "launches {} kernels"
    evidence += (
        f" The slowest {what.format(most)}, and a typical step {usual}: it does other work, too."
    )
    return [Detection(evidence, share, "Some steps do other work than the rest", OTHER_STEPS)]


def outgrows(use: MemoryUse) -> bool:
    """Return True if the steps of a capture have added much of a device's peak."""
    return not use.hides_growth and use.kept_bytes > OUTGROWN_SHARE * use.peak_bytes


def interrupted_kernels(seen: Evidence) -> list[Detection]:
    """Detect kernels that now and then take far longer than the same ones in other steps."""
    count, excess_ns = seen.interruptions
    share = excess_ns / seen.time_ns
    if share < IDLE_SHARE or (_kernels_make_late(seen) and late_ranks(seen)):
        return []
    evidence = (
        f"{count} kernels took more than 1.5 times as long as the same ones in other steps, which"
        f" costs {share:.0%} of the time: {excess_ns / count / 1e6:.1f} ms each."
    )
    return [Detection(evidence, share)]


def _size(size: int) -> str:
    """Return bytes as the tables beside a finding have them."""
    if size >= 1 << 20:
        return f"{size / (1 << 20):,.1f} MiB"
    return f"{size / (1 << 10):,.1f} KiB"


def growing_memory(seen: Evidence) -> list[Detection]:
    """Detect devices whose memory grows from step to step. No figure: it ends a run, not slows
    it.
    """
    detections = []
    for use in seen.memory:
        growth = use.growth_bytes_per_step
        # 64 KiB or 0.2% of the peak a step: less is bookkeeping, unless it adds up.
        much = not use.hides_growth and growth > max(0.002 * use.peak_bytes, 64 << 10)
        if use.steps < 4 or not (much or outgrows(use)):
            continue
        where = "the host" if use.device < 0 else f"device {use.device}"
        evidence = (
            f"Memory held on {where} grows by {_size(growth)} every step (peak"
            f" {_size(use.peak_bytes)})."
        )
        lines = Counter[str]()
        for row in use.holders:
            if row.grows:
                # What another line had it allocate is that line's.
                apart = {each.line: each.growth_bytes_per_step for each in row.callers}
                lines.update(
                    apart if sum(apart.values()) else {row.line: row.growth_bytes_per_step}
                )
        most = [f"{_size(kept)} at {line}" for line, kept in lines.most_common(GROWING_LINES)]
        if most:
            evidence += f" By line, with what is called there: {', '.join(most)}."
        detections.append(Detection(evidence, 0.0))
    return detections


def late_freeing(seen: Evidence) -> list[Detection]:
    """Detect devices on which part of what steps make is freed only steps later. The host's memory
    is left out: a loader's batches come and go there at any time.
    """
    detections = []
    for use in seen.memory:
        late_bytes = use.late_bytes or use.fall_bytes
        held = min(late_bytes, use.rise_bytes)
        grows = use.growth_bytes_per_step > 0 and not use.is_sawtooth
        rest_bytes = use.peak_bytes - (0 if use.hides_growth else use.kept_bytes)
        if use.device < 0 or use.steps < 4 or grows or held < LATE_SHARE * rest_bytes:
            continue
        evidence = (
            f"Memory held on device {use.device} is between {_size(use.lowest_after_step_bytes)}"
            f" and {_size(use.highest_after_step_bytes)} at the ends of steps (peak"
            f" {_size(use.peak_bytes)}), and falls by up to {_size(use.fall_bytes)} after several"
            " steps."
        )
        if use.period_steps:
            before = "step before has"
            if use.period_steps > 2:
                before = f"{use.period_steps - 1} steps before have"
            evidence = (
                f"Every {use.period_steps} steps, the {_size(late_bytes)} that the {before} left on"
                f" device {use.device} is freed at once (peak {_size(use.peak_bytes)})."
            )
        falls = Counter[str]()
        for row in use.holders:
            if row.fall_bytes:
                # As of all memory, what a line keeps in the step of the fall lessens its fall.
                kept = row.growth_bytes_per_step if row.grows and use.period_steps else 0
                falls[row.line] = row.fall_bytes + kept
        lines = [f"{line} ({_size(fall)})" for line, fall in falls.most_common(LISTED_LINES)]
        if lines:
            evidence += f" Most of that was allocated by {', '.join(lines)}."
        detections.append(Detection(evidence, 0.0))
    return detections
