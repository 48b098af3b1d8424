"""What stands out in a capture, ranked by the time it costs: the evidence, the likely cause, what
to try and the largest possible gain.

Ids are stable: hints and reports refer to them. Thresholds are the smallest share of the wall time
that is worth an engineer's day.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.device.kernels import KernelRow, LaunchUse
from bottleneck_lab.analysis.device.transfers import CopyRow
from bottleneck_lab.analysis.device.use import DeviceUse
from bottleneck_lab.analysis.host.lines import LineRow
from bottleneck_lab.analysis.host.operators import OperatorRow
from bottleneck_lab.analysis.host.syncs import SyncRow
from bottleneck_lab.analysis.host.view import BUSY_LAUNCHING_NS
from bottleneck_lab.analysis.memory.growth import MemoryUse
from bottleneck_lab.analysis.quality import Ground, Quality
from bottleneck_lab.analysis.ranks.stragglers import Straggler
from bottleneck_lab.analysis.steps.serving import ServingUse

Bound = Literal[
    "input-bound",
    "launch-bound",
    "synchronisation-bound",
    "copy-bound",
    "communication-bound",
    "compute-bound",
    "memory-bound",
    "host-bound",
]

IDLE_SHARE = 0.10
COPY_SHARE = 0.05
DOMINANT_SHARE = 0.40
ELEMENTWISE_SHARE = 0.40
FP32_SHARE = 0.30
LAYOUT_SHARE = 0.10
STEP_SPREAD = 0.25
SMALL_SHARE = 0.30
SITE_SHARE = 0.30
OUTGROWN_SHARE = 0.25
MANY_CALLS = 100
"""This many operator calls from one line in one step are a loop that could be one operator."""
LONG_CALL_NS = 100_000
SMALL_NS = 10_000
"""An operator call shorter than this on the CPU is mostly call overhead."""

_ELEMENTWISE = re.compile(
    r"elementwise_kernel|vectorized_elementwise|unrolled_elementwise|pointwise", re.IGNORECASE
)
_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|NCHWToNHWC|transpose_readWrite", re.IGNORECASE)
_MATRIX_WORK = re.compile(r"conv|mm$|linear|matmul|attention|einsum|lstm|gru")
"""Operators that should dominate a busy CPU: that is not a finding."""
_FP32_GEMM = re.compile(r"(?:^|_)sgemm|_f32f32_f32f32_|simt|ffma|scudnn", re.IGNORECASE)


class Finding(msgspec.Struct, frozen=True):
    """One finding. `share_of_wall` is the time it costs (0–1), of the time between the first and
    the last work if no steps are marked; `expected_gain_ratio` is what removing it entirely would
    gain: 1 / (1 − share), Amdahl's law with an infinite improvement.

    `at_most`: no fix of this can gain more. False if the usual fix saves other time too, as fusing
    kernels does.
    """

    id: str
    title: str
    evidence: str
    cause: Bound
    advice: str
    share_of_wall: float
    expected_gain_ratio: float
    at_most: bool = True
    doubt: str = ""
    """What this finding needs and the capture lacks; "" if nothing."""


class Evidence(msgspec.Struct, frozen=True):
    """Everything the detectors look at."""

    devices: list[DeviceUse]
    operators: list[OperatorRow]
    kernels: list[KernelRow]
    copies: list[CopyRow]
    syncs: list[SyncRow]
    launches: list[LaunchUse]
    memory: list[MemoryUse]
    stragglers: list[Straggler]
    step_ns: list[int]
    steps: int
    wall_ns: int
    lines: list[LineRow] = []
    serving: ServingUse | None = None


def find_findings(seen: Evidence) -> list[Finding]:
    """All findings, costliest first, preceded by those that end the run. Uneven steps beside a
    costlier finding are its echo, and are left out: they would bury it.

    Nothing is found where no device did anything: a capture without its work shows no bottleneck.
    """
    if seen.devices and not any(use.busy_ns for use in seen.devices):
        return []
    found = sorted(
        (finding for detect in DETECTORS for finding in detect(seen)),
        key=lambda f: -f.share_of_wall,
    )
    told = [finding for i, finding in enumerate(found) if finding.id != "uneven-steps" or i == 0]
    return sorted(told, key=lambda finding: not (finding.id == "memory-growth" and _runs_out(seen)))


def _runs_out(seen: Evidence) -> bool:
    """Whether growth within the capture is a good part of a device's peak: such a run ends before
    it is slow.
    """
    return any(
        use.growth_bytes_per_step * (use.steps - 1) > OUTGROWN_SHARE * use.peak_bytes
        for use in seen.memory
    )


def doubt(found: list[Finding], quality: Quality) -> tuple[list[Finding], list[Finding]]:
    """(the findings, marked where they rest on what the capture lacks; those withheld, since what
    is lacking may be all that they are).
    """
    kept: list[Finding] = []
    withheld: list[Finding] = []
    for finding in found:
        lacking = [
            each for each in quality.missing if set(each.grounds) & set(_grounds(finding.id))
        ]
        marked = msgspec.structs.replace(finding, doubt="; ".join(each.what for each in lacking))
        may_be_all = any(each.share_of_wall >= finding.share_of_wall > 0 for each in lacking)
        (withheld if may_be_all else kept).append(marked)
    return kept, withheld


def _grounds(finding_id: str) -> tuple[Ground, ...]:
    """What a finding rests on."""
    if finding_id in ("uneven-steps", "memory-growth", "allocator-churn"):
        return ("steps",)
    if finding_id in (
        "unfused-elementwise",
        "layout-conversions",
        "tensor-cores-unused",
        "dominant-operator",
        "pageable-copies",
    ):
        return ("kernels",)
    return ("idle", "host")


def _finding(
    id_: str,
    title: str,
    evidence: str,
    cause: Bound,
    advice: str,
    share: float,
    *,
    at_most: bool = True,
) -> Finding:
    share = min(max(share, 0.0), 1.0)
    return Finding(id_, title, evidence, cause, advice, share, ceiling(share), at_most)


def _time(seen: Evidence) -> int:
    """The time that shares are of, over all devices, ns: a program's start-up and end are no part
    of its loop.
    """
    return sum(use.working_ns for use in seen.devices)


def _cause_share(seen: Evidence, cause: str) -> float:
    idle = sum(
        part.idle_ns for use in seen.devices for part in use.gap_causes if part.cause == cause
    )
    return idle / (_time(seen) or 1)


def _on_cpu(seen: Evidence) -> bool:
    return bool(seen.devices) and all(use.is_cpu for use in seen.devices)


_LOAD_AHEAD = (
    "Load in worker processes and ahead of time (num_workers, prefetch_factor, persistent_workers),"
    " make each sample cheaper (decode at reduced size, cheaper transforms, pre-processed data)"
)
_PREPARE_AHEAD = (
    "Prepare the next batch while the device works on this one, in several threads or processes;"
    " make each request's preparation cheaper (decode at reduced size, cheaper transforms), or"
    " decode on the device (DALI)."
)


def _input(seen: Evidence) -> list[Finding]:
    share = _cause_share(seen, "input")
    if share < IDLE_SHARE:
        return []
    if _on_cpu(seen):  # a CPU that prepares input is not idle
        title, evidence = (
            "The model waits for data",
            f"For {share:.0%} of the time no operator of the model ran",
        )
        advice = f"{_LOAD_AHEAD}, and give the loader and the model separate cores."
    else:
        title, evidence = (
            "The device waits for data",
            f"For {share:.0%} of the time the device did no work",
        )
        advice = (
            _PREPARE_AHEAD if seen.serving else f"{_LOAD_AHEAD} or decode on the device (DALI)."
        )
    return [
        _finding(
            "input-starved",
            title,
            f"{evidence} while the main thread waited for or prepared the next batch.",
            "input-bound",
            advice,
            share,
        )
    ]


def _launch(seen: Evidence) -> list[Finding]:
    if _on_cpu(seen):
        return _small_operators(seen)
    share = _cause_share(seen, "launch")
    use = max(seen.launches, key=lambda u: u.kernels, default=None)
    ahead = sum(device.launching_ns for device in seen.devices) < sum(
        device.busy_ns for device in seen.devices
    )
    if (
        share < IDLE_SHARE or use is None or ahead
    ):  # what lets the queue run dry is to blame, and found by itself
        return []
    evidence = (
        f"For {share:.0%} of the time the device was idle while the host launched kernels one by"
        f" one, each too late: {use.kernels_per_step:.0f} kernels per step, half of them under"
        f" {use.median_kernel_ns / 1e3:.1f} µs, {use.short_share:.0%} under 10 µs."
    )
    advice = (
        "Launch less: torch.compile, CUDA Graphs, fused or foreach operators, larger batches; and"
        " move Python work out of the step."
    )
    title = "The host cannot launch work fast enough"
    return [_finding("launch-bound", title, evidence, "launch-bound", advice, share, at_most=False)]


def _small_operators(seen: Evidence) -> list[Finding]:
    """Without an accelerator: Python between operators, and calling operators that have next to
    nothing to compute.
    """
    between = _cause_share(seen, "launch")
    small = [row for row in seen.operators if row.self_ns < SMALL_NS * row.calls]
    calling = sum(row.self_ns for row in small) / (_time(seen) or 1)
    site, where = _repeated_calls(seen)
    overhead = between >= IDLE_SHARE or calling >= SMALL_SHARE
    if not overhead and site < SITE_SHARE:
        return []
    evidence = (
        f"For {between:.0%} of the time no operator ran: Python was between one and the next."
        f" Another {calling:.0%} went to {sum(row.calls for row in small)} calls of operators that"
        f" take under {SMALL_NS / 1e3:.0f} µs each, mostly call overhead."
    )
    advice = (
        "Replace loops of small operators with one operator on a larger tensor, or use"
        " torch.compile; move other Python work out of the step."
    )
    if not where:
        advice += " Record with --stack to see the line."
    id_, title = (
        ("python-overhead", "Calling small operators takes the time")
        if overhead
        else ("many-calls", "One place calls operator after operator")
    )
    share = max(between + calling if overhead else 0.0, site)
    return [
        _finding(
            id_,
            title,
            " ".join([evidence] * overhead + [where] * bool(where)),
            "launch-bound",
            advice,
            share,
            at_most=False,
        )
    ]


def _repeated_calls(seen: Evidence) -> tuple[float, str]:
    """(share of the time, a sentence) of the function whose lines call most operators, each many
    times per step; with the operators' backward.
    """
    steps, time = max(seen.steps, 1), _time(seen) or 1
    sites: dict[str, list[LineRow]] = {}
    for row in seen.lines:
        if (
            row.exact
            and row.operators >= MANY_CALLS * steps
            and row.operator_ns < LONG_CALL_NS * row.operators
        ):
            sites.setdefault(row.line.partition("(")[0] + row.line.rpartition(":")[2], []).append(
                row
            )
    costs = {
        site: sum(row.host_ns + row.backward_ns for row in rows) for site, rows in sites.items()
    }
    if not costs:
        return 0.0, ""
    rows = sites[max(costs, key=costs.__getitem__)]
    share = max(costs.values()) / time
    lines = sorted(row.line for row in rows)
    calls = sum(row.operators for row in rows) / steps
    others = (
        f" and {len(lines) - 1} more line{'s' * (len(lines) > 2)} of it" if len(lines) > 1 else ""
    )
    back = sum(row.backward_ns for row in rows) / time
    return (
        share,
        (
            f"{lines[0]}{others} calls {calls:.0f} operators per step: {share:.0%} of the time,"
            f" {back:.0%} of it in their backward."
        ),
    )


def _host(seen: Evidence) -> list[Finding]:
    """What the host did, other than launching, while the device (or the operators) waited."""
    found = []
    waited = "no operator ran" if _on_cpu(seen) else "the device was idle"
    for cause, id_, title, what, advice in _HOST_CAUSES:
        share = _cause_share(seen, cause)
        if share >= IDLE_SHARE:
            evidence = f"For {share:.0%} of the time {waited} while {what}."
            found.append(_finding(id_, title, evidence, "host-bound", advice, share))
    return found


_HOST_CAUSES = (
    (
        "python",
        "host-stalls",
        "The program does something else for long stretches",
        (
            f"the host launched nothing for {BUSY_LAUNCHING_NS / 1e6:.1f} ms or more at a time:"
            " Python, another library, a sleep, a file or a lock"
        ),
        (
            "Record with --stack to see the line. Move that work out of the loop, to another thread"
            " or process, or do it every N steps."
        ),
    ),
    (
        "host",
        "host-operators",
        "Operators on the CPU hold up the device",
        "the host ran operators on the CPU and launched nothing",
        (
            "Make these tensors on the device (device=...), or prepare them ahead of time in the"
            " loader's workers."
        ),
    ),
    (
        "sleep",
        "sleeping",
        "The program sleeps",
        "the host was asleep",
        "Remove the sleep from the loop, or wait on the real thing (a queue, an event) instead.",
    ),
    (
        "files",
        "file-stalls",
        "The program waits for files or output",
        "the host was reading or writing files, or printing",
        (
            "Write checkpoints and logs less often or from another thread, and read files ahead of"
            " time."
        ),
    ),
    (
        "compilation",
        "compilation",
        "Code is compiled while the work waits",
        "the host was compiling or loading code",
        (
            "Warm up before measuring. If it happens in every step, shapes or flags change: mark"
            " dimensions dynamic, pad to few shapes, keep the compiler's cache."
        ),
    ),
    (
        "imports",
        "imports",
        "Modules are imported while the work waits",
        "the host was importing modules",
        "Import at the top of the program, not inside the loop.",
    ),
    (
        "between_steps",
        "between-steps",
        "The time is lost between the steps",
        "the host was between two marked steps and launched nothing",
        (
            "Mark what happens there (loading, logging, validation) with record_function, or record"
            " with --stack, to see what it is."
        ),
    ),
)


def _sync(seen: Evidence) -> list[Finding]:
    share = _cause_share(seen, "synchronisation")
    if share < IDLE_SHARE:
        return []
    worst = seen.syncs[0] if seen.syncs else None
    where = (
        f"; most waiting is in {worst.name}, {worst.calls_per_step:.1f} calls per step"
        if worst
        else ""
    )
    place = worst and (worst.line or worst.caused_by)
    what = f", from {place}" if place else ""
    return [
        _finding(
            "sync-stalls",
            "The host waits for the device, then the device for the host",
            f"The device was idle for {share:.0%} of the time after the host had waited for"
            f" it{where}{what}.",
            "synchronisation-bound",
            "Keep values on the device (.item(), .cpu(), printing, `if tensor:` all wait), log"
            " every N steps, copy with non_blocking=True from pinned memory, and avoid"
            " torch.cuda.synchronize() and empty_cache() in the loop.",
            share,
            at_most=False,
        )
    ]


def _allocator(seen: Evidence) -> list[Finding]:
    """cudaMalloc and cudaFree wait for the device; after warm-up a caching allocator makes none."""
    calls = max((m.driver_calls for m in seen.memory), default=0)
    if not seen.steps or calls < 2 * seen.steps:
        return []
    share = _cause_share(seen, "synchronisation")
    evidence = (
        f"{calls} calls to cudaMalloc or cudaFree in {seen.steps} steps: the allocator goes to the"
        " driver in the loop."
    )
    advice = (
        "Keep shapes constant, do not call empty_cache() in the loop, warm up before measuring, and"
        " see PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )
    return [
        _finding(
            "allocator-churn",
            "Memory is allocated from the driver in the loop",
            evidence,
            "synchronisation-bound",
            advice,
            share,
        )
    ]


def _copies(seen: Evidence) -> list[Finding]:
    wall = _time(seen) or 1
    share = sum(use.exposed_copy_ns for use in seen.devices) / wall + _cause_share(seen, "copy")
    pageable = [row for row in seen.copies if row.host_memory == "pageable"]
    pageable_share = sum(row.total_ns for row in pageable) / wall
    found = []
    if share >= COPY_SHARE:
        moved = sum(row.bytes for row in seen.copies)
        count = sum(row.calls for row in seen.copies)
        evidence = (
            f"For {share:.0%} of the time the device only copied, or waited for a copy:"
            f" {moved / (1 << 20):.1f} MiB in {count} copies."
        )
        advice = (
            "Copy from pinned memory with non_blocking=True on a separate stream, send smaller"
            " types (uint8 images), and keep reused data on the device."
        )
        found.append(
            _finding(
                "copy-exposed",
                "Copies are not hidden behind computation",
                evidence,
                "copy-bound",
                advice,
                share,
            )
        )
    if pageable and pageable_share >= COPY_SHARE:
        rows = max(pageable, key=lambda r: r.total_ns)
        count = sum(r.calls for r in pageable)
        evidence = (
            f"{count} copies use pageable memory and take {pageable_share:.0%} of the time, at"
            f" {rows.gb_per_s:.1f} GB/s."
        )
        advice = (
            "Pin the host's buffers (pin_memory=True in the DataLoader): pinned copies are faster"
            " and need not block the host."
        )
        found.append(
            _finding(
                "pageable-copies",
                "Copies go through pageable memory",
                evidence,
                "copy-bound",
                advice,
                pageable_share,
            )
        )
    return found


def _communication(seen: Evidence) -> list[Finding]:
    wall = _time(seen) or 1
    exposed = sum(use.exposed_communication_ns for use in seen.devices) / wall
    share = exposed + _cause_share(seen, "communication")
    if share < IDLE_SHARE:
        return []
    whole = sum(use.communication_ns for use in seen.devices)
    hidden = 1 - sum(use.exposed_communication_ns for use in seen.devices) / whole if whole else 0.0
    return [
        _finding(
            "communication-exposed",
            "Communication is not hidden behind computation",
            f"For {share:.0%} of the time a device only communicated or waited for other ranks;"
            f" {hidden:.0%} of the communication overlaps computation.",
            "communication-bound",
            "Send gradients in buckets while backward is still running (bucket_cap_mb, no"
            " find_unused_parameters unless needed, static_graph), synchronise less (no_sync with"
            " gradient accumulation), send bf16, and look for a slow rank.",
            share,
        )
    ]


def _straggler(seen: Evidence) -> list[Finding]:
    slow = [s for s in seen.stragglers if s.share_of_step >= IDLE_SHARE]
    if not slow:
        return []
    worst = max(slow, key=lambda s: s.share_of_step)
    evidence = (
        f"Rank {worst.rank} computes {worst.excess_ns / 1e6:.2f} ms per step longer than the median"
        " rank; the others wait for it in their collectives."
    )
    advice = (
        "Compare that rank's input, shapes and clocks with another's: uneven batches, a throttled"
        " or shared device, a slow disk."
    )
    return [
        _finding(
            "straggler",
            "One rank keeps the others waiting",
            evidence,
            "communication-bound",
            advice,
            worst.share_of_step,
        )
    ]


def _kernels(seen: Evidence) -> list[Finding]:
    """Kernels of a kind that a known remedy exists for, as a share of the wall time."""
    wall = sum(use.working_ns for use in seen.devices if not use.is_cpu)
    if not wall or not seen.kernels:
        return []
    found = []
    for pattern, least, id_, title, cause, what, advice in _KERNEL_KINDS:
        rows = [row for row in seen.kernels if pattern.search(row.name)]
        share = sum(row.total_ns for row in rows) / wall
        if share >= least:
            evidence = (
                f"{sum(row.calls for row in rows)} {what} take {share:.0%} of the time; the largest"
                f" is {_short(rows[0].name)}."
            )
            found.append(_finding(id_, title, evidence, cause, advice, share))
    return found


_KERNEL_KINDS: tuple[tuple[re.Pattern[str], float, str, str, Bound, str, str], ...] = (
    (
        _ELEMENTWISE,
        ELEMENTWISE_SHARE,
        "unfused-elementwise",
        "Elementwise kernels read and write the same data again and again",
        "memory-bound",
        "elementwise kernels",
        (
            "Fuse them: torch.compile, fused optimizers (fused=True), scaled_dot_product_attention,"
            " a Triton kernel."
        ),
    ),
    (
        _LAYOUT,
        LAYOUT_SHARE,
        "layout-conversions",
        "Tensors are converted between memory layouts",
        "memory-bound",
        "layout conversions",
        "Keep model and inputs in channels_last, so that the convolutions need no conversion.",
    ),
    (
        _FP32_GEMM,
        FP32_SHARE,
        "tensor-cores-unused",
        "Matrix work runs without tensor cores",
        "compute-bound",
        "fp32 matrix kernels",
        (
            "Use autocast (bf16 or fp16), or allow TF32 with"
            " torch.set_float32_matmul_precision('high')."
        ),
    ),
)


def _dominant(seen: Evidence) -> list[Finding]:
    """One operator other than matrix work that takes most of a busy CPU: where Amdahl's law says to
    begin.
    """
    if not seen.operators or not _on_cpu(seen):
        return []
    top = max(seen.operators, key=lambda o: o.self_ns)
    share = top.self_ns / (_time(seen) or 1)
    small = top.self_ns < SMALL_NS * top.calls
    named = _repeated_calls(seen)[0] >= share  # the line that calls it says more
    if share < DOMINANT_SHARE or small or named or _MATRIX_WORK.search(top.name):
        return []
    evidence = (
        f"{top.name} takes {share:.0%} of the time itself, in {top.calls} calls of"
        f" {top.self_ns / top.calls / 1e3:.1f} µs."
    )
    advice = (
        "Make it cheaper (lower precision, channels_last, a fused or compiled form), call it less"
        " often, or on smaller tensors."
    )
    return [
        _finding(
            "dominant-operator",
            "One operator takes most of the time",
            evidence,
            "memory-bound",
            advice,
            share,
        )
    ]


def _uneven_steps(seen: Evidence) -> list[Finding]:
    """A few slow steps among many. The cost is what the slow ones take beyond the median.

    Where all steps scatter, as on a shared machine, slow is what lies beyond five times their
    median absolute deviation.
    """
    steps = sorted(seen.step_ns)
    if len(steps) < 4:
        return []
    median = steps[len(steps) // 2]
    scatter = sorted(abs(step - median) for step in steps)[len(steps) // 2]
    slow = median + max(STEP_SPREAD * median, 5 * scatter)
    excess = sum(step - median for step in steps if step > slow)
    share = excess / max(sum(steps), 1)
    if share < IDLE_SHARE:
        return []
    evidence = (
        f"The slowest step takes {steps[-1] / 1e6:.2f} ms, while half of all steps take under "
        f"{median / 1e6:.2f} ms; the excess is {share:.0%} of the time."
    )
    advice = (
        "Warm up before measuring; look for compilation, first allocations, logging, checkpoints or"
        " a loader that runs dry in the slow steps."
    )
    return [
        _finding(
            "uneven-steps",
            "Some steps take much longer than others",
            evidence,
            "synchronisation-bound",
            advice,
            share,
        )
    ]


def _memory(seen: Evidence) -> list[Finding]:
    found = []
    for use in seen.memory:
        growth = use.growth_bytes_per_step
        if use.steps >= 4 and growth > max(0.002 * use.peak_bytes, 64 << 10):
            where = "the host" if use.device < 0 else f"device {use.device}"
            evidence = (
                f"Memory held on {where} grows by {growth / (1 << 20):.2f} MiB every step (peak"
                f" {use.peak_bytes / (1 << 20):.1f} MiB)."
            )
            most = max(
                use.holders, key=lambda row: row.growth_bytes_per_step * row.grows, default=None
            )
            if most and most.grows:
                evidence += (
                    f" {most.growth_bytes_per_step / (1 << 20):.2f} MiB of that was allocated at"
                    f" {most.line}."
                )
            advice = (
                "Look for what keeps tensors alive: losses appended with their graph (use .detach()"
                " or .item()), growing lists, caches, hooks."
            )
            found.append(
                _finding(
                    "memory-growth",
                    "Memory grows from step to step",
                    evidence,
                    "memory-bound",
                    advice,
                    0.0,
                )
            )
    return found


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:57] + "..."


DETECTORS = (
    _input,
    _launch,
    _host,
    _sync,
    _allocator,
    _copies,
    _communication,
    _straggler,
    _kernels,
    _dominant,
    _uneven_steps,
    _memory,
)
FINDING_IDS = (
    "input-starved",
    "launch-bound",
    "python-overhead",
    "many-calls",
    "host-stalls",
    "host-operators",
    "sleeping",
    "file-stalls",
    "compilation",
    "imports",
    "between-steps",
    "sync-stalls",
    "allocator-churn",
    "copy-exposed",
    "pageable-copies",
    "communication-exposed",
    "straggler",
    "unfused-elementwise",
    "layout-conversions",
    "tensor-cores-unused",
    "dominant-operator",
    "uneven-steps",
    "memory-growth",
)
