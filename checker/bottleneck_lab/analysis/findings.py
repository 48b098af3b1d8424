"""Findings of a capture, ranked by the largest possible gain: the evidence, the likely cause and
the advice.

`FINDINGS` has a row for each; the table in docs/analysis.md follows from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from bottleneck_lab.analysis.amdahl import ceiling
from bottleneck_lab.analysis.detectors import idle, work
from bottleneck_lab.analysis.evidence import IDLE_SHARE, Bound, Detection, Evidence
from bottleneck_lab.analysis.quality import Ground, Quality

ECHO_SHARE = 0.8
"""Uneven steps of which another finding explains this share (0-1) are no finding of their own."""
LEAST_GAIN = 1.03
"""What cannot make the program faster by this much is no finding, however long it takes: something
else would take as long.
"""
_ELSEWHERE = "Move that work out of the loop, to another thread or process, or do it every N steps."
_LAUNCH_LESS = (
    "Launch less: one operator over stacked tensors where a loop calls it for each (batching),"
    " fused or foreach operators, larger batches where the result allows them"
)
_PYTHON_OUT = "move Python work out of the step."


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A finding that a capture can have.

    `id` is stable: hints, labs and reports refer to it. `reported_when` is its line in
    docs/analysis.md. `rests_on`: the kinds of evidence without which it is in doubt. `at_most`: no
    fix of this can gain more; False if the usual fix saves other time too, as fusing kernels does,
    or if a part of the cost does not show. `shows_gain`: False if this costs no time, or a capture
    doesn't tell what is left of it.
    """

    id: str
    title: str
    cause: Bound
    advice: str
    reported_when: str
    detect: Callable[[Evidence], list[Detection]]
    rests_on: tuple[Ground, ...] = ("idle", "host")
    at_most: bool = True
    shows_gain: bool = True
    on_emulated: str = ""
    """The advice on an emulated device, where it lacks some of `advice`; "" if it lacks nothing."""


FINDINGS: tuple[FindingKind, ...] = (
    FindingKind(
        "input-starved",
        "The device waits for data",
        "input-bound",
        f"{idle.LOAD_AHEAD} {idle.ON_THE_DEVICE}.",
        "idle for input ≥ 10%",
        idle.late_input,
    ),
    FindingKind(
        "launch-bound",
        "The host cannot launch work fast enough",
        "launch-bound",
        f"{_LAUNCH_LESS}, torch.compile, CUDA Graphs; and {_PYTHON_OUT}",
        "idle while the host launched continuously, but too late, ≥ 10%, on a rank whose host takes"
        " longer for that than its devices for their work",
        idle.late_launches,
        at_most=False,
        on_emulated=f"{_LAUNCH_LESS}; and {_PYTHON_OUT}",
    ),
    FindingKind(
        "python-overhead",
        "Many small operators take the time",
        "launch-bound",
        idle.FASTER_OPERATORS,
        "no accelerator: between operators ≥ 10%, or in operators that take under 10 µs per call"
        " ≥ 30%",
        idle.python_overhead,
        at_most=False,
        # A fix brought 1.4 to 150 times the speed, in captures that look alike.
        shows_gain=False,
    ),
    FindingKind(
        "many-calls",
        "One place calls operator after operator",
        "launch-bound",
        idle.FASTER_OPERATORS,
        "no accelerator, with `--stack`: a line that calls 100 or more operators per step, under"
        " 0.1 ms each; with their backward ≥ 30%",
        idle.many_calls,
        at_most=False,
        shows_gain=False,
    ),
    FindingKind(
        "host-stalls",
        "The program does something else for long stretches",
        "host-bound",
        f"Record with --stack to see the line. {_ELSEWHERE}",
        "idle for `python` ≥ 10%",
        idle.idle_for("python", _ELSEWHERE),
    ),
    FindingKind(
        "host-operators",
        "Operators on the CPU hold up the device",
        "host-bound",
        "Make these tensors on the device (device=...), or prepare them ahead of time in the"
        " loader's workers; what only makes views takes the host's time too: do it once, not in"
        " every step.",
        "idle for `host` ≥ 10%",
        idle.idle_for("host"),
        at_most=False,
    ),
    FindingKind(
        "sleeping",
        "The program sleeps",
        "host-bound",
        "Remove the sleep from the loop, or wait on the real thing (a queue, an event) instead.",
        "idle for `sleep` ≥ 10%",
        idle.idle_for("sleep"),
    ),
    FindingKind(
        "file-stalls",
        "The program waits for files or output",
        "host-bound",
        "Write checkpoints and logs less often or from another thread, and read files ahead of"
        " time.",
        "idle for `files` ≥ 10%",
        idle.idle_for("files"),
    ),
    FindingKind(
        "compilation",
        "Code is compiled or loaded while the work waits",
        "host-bound",
        "Warm up before measuring. If it happens in every step, shapes or flags change: mark"
        " dimensions dynamic, pad to few shapes, keep the compiler's cache.",
        "idle for `compilation` ≥ 10%",
        idle.idle_for("compilation"),
    ),
    FindingKind(
        "imports",
        "Modules are imported while the work waits",
        "host-bound",
        "Import at the top of the program, not inside the loop.",
        "idle for `imports` ≥ 10%",
        idle.idle_for("imports"),
    ),
    FindingKind(
        "between-steps",
        "The time is lost between the steps",
        "host-bound",
        "Mark what happens there (loading, logging, validation) with record_function, or record"
        " with --stack, to see what it is.",
        "idle for `between_steps` ≥ 10%",
        idle.idle_for("between_steps", _ELSEWHERE),
    ),
    FindingKind(
        "sync-stalls",
        "The host waits for the device, then the device for the host",
        "synchronisation-bound",
        "Keep values on the device (.item(), .cpu(), printing, `if tensor:` and indexing with a"
        " mask, `a[mask]`, all wait), log every N"
        " steps, copy with non_blocking=True from pinned memory, and avoid"
        " torch.cuda.synchronize() and empty_cache() in the loop.",
        "idle after waits ≥ 10%",
        idle.waits,
        # What reads a value also copies it: without the wait, that is gone, too.
        at_most=False,
    ),
    FindingKind(
        "device-turns",
        "Devices of one process wait for one another",
        "communication-bound",
        "Split each batch into more parts, so that one stage works on the next while another works"
        " on the last (torch.distributed.pipelining: GPipe, 1F1B); give the stages equal work; or"
        " keep the model whole on each device (DistributedDataParallel), where it fits.",
        "idle for `devices` ≥ 10%",
        idle.waiting_devices,
        rests_on=("idle",),
    ),
    FindingKind(
        "allocator-churn",
        "Memory is allocated from the driver",
        "allocation-bound",
        "Keep shapes constant, do not call empty_cache() in the loop, warm up before measuring, and"
        " see PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        "two or more cudaMalloc/cudaFree per step (with memory records), or idle for `allocation`"
        " ≥ 10%",
        idle.driver_allocations,
        rests_on=("steps",),
    ),
    FindingKind(
        "copy-exposed",
        "Copies are not hidden behind computation",
        "copy-bound",
        "Copy from pinned memory with non_blocking=True on a separate stream, send smaller types"
        " (uint8 images), and keep reused data on the device.",
        "only copying, or waiting for a copy, ≥ 5%",
        work.exposed_copies,
    ),
    FindingKind(
        "pageable-copies",
        "Copies go through pageable memory",
        "copy-bound",
        "Pin the host's buffers (pin_memory=True in the DataLoader): pinned copies are faster and"
        " need not block the host.",
        "such copies take ≥ 5%",
        work.pageable_copies,
        rests_on=("kernels",),
    ),
    FindingKind(
        "communication-exposed",
        "Communication is not hidden behind computation",
        "communication-bound",
        f"{work.LESS_COMMUNICATION}, and look for a slow rank.",
        "exposed ≥ 10%; without waiting for late ranks where the ranks' collectives can be matched",
        work.exposed_communication,
        # Fewer messages also save their launches, and the host's waits for them.
        at_most=False,
    ),
    FindingKind(
        "straggler",
        "One rank keeps the others waiting",
        "straggler",
        "Compare that rank's input, shapes and clocks with another's: uneven batches, a throttled"
        " or shared device, a slow disk.",
        "waiting in collectives ≥ 10%, for a rank that computes for longer, begins late, or is idle"
        " for a cause that no other finding names. Where ranks cannot be matched: a rank's own work"
        " ≥ 10% of a step above the median rank's",
        work.late_ranks,
    ),
    FindingKind(
        "unfused-elementwise",
        "Elementwise kernels read and write the same data again and again",
        "memory-bound",
        "Fuse them: torch.compile, fused optimizers (fused=True), scaled_dot_product_attention, a"
        " Triton kernel.",
        "such kernels take ≥ 40%; of those in a row, reductions among them, the longest remains",
        work.unfused_kernels,
        rests_on=("kernels",),
        at_most=False,
        on_emulated=(
            "Use one operator where several spell it out (layer_norm, silu), fused optimizers"
            " (fused=True), scaled_dot_product_attention."
        ),
    ),
    FindingKind(
        "layout-conversions",
        "Tensors are converted between memory layouts",
        "memory-bound",
        "Keep model, inputs and all that runs between the convolutions in channels_last:"
        " contiguous(), view() and reshape() make tensors that convolutions convert again.",
        "such kernels take ≥ 10%; copies by contiguous() go with them",
        work.layout_conversions,
        rests_on=("kernels",),
        at_most=False,
    ),
    FindingKind(
        "tensor-cores-unused",
        "Matrix work runs without tensor cores",
        "compute-bound",
        "Use autocast (bf16 or fp16), or allow TF32 with"
        " torch.set_float32_matmul_precision('high').",
        "fp32 matrix kernels take ≥ 30%, on devices known to have tensor cores",
        work.unused_tensor_cores,
        rests_on=("kernels",),
        at_most=False,
    ),
    FindingKind(
        "double-precision",
        "Matrix products run in double precision",
        "compute-bound",
        "Where sixteen digits are not needed, call .float() where the data enter the program (NumPy"
        " makes doubles), and allow TF32 with torch.set_float32_matmul_precision('high').",
        "fp64 matrix kernels, or matrix operators on double tensors, take ≥ 10%; what else is"
        " double then takes half the time",
        work.double_products,
        rests_on=("kernels",),
        at_most=False,
    ),
    FindingKind(
        "dominant-operator",
        "One operator takes most of the time",
        "memory-bound",
        "It does little arithmetic and mostly waits for memory: move fewer bytes (lower precision,"
        " channels_last, a fused or compiled form), call it less often, or on smaller tensors.",
        "on the CPU, one operator takes ≥ 40%, other than matrix work, random numbers, sorting and"
        " the like",
        work.dominant_operator,
        rests_on=("kernels",),
    ),
    FindingKind(
        "interrupted-kernels",
        "The same kernels take much longer now and then",
        "shared-device",
        "Look with nvidia-smi for another process on this device. Give each a device of its own, or"
        " let them share it with MPS.",
        "kernels that take more than 1.5 times as long as the same ones in steps with as much work"
        " cost ≥ 10%, and are not what makes ranks late",
        work.interrupted_kernels,
        rests_on=("kernels", "steps"),
        # Kernels that are interrupted in every step don't stand out.
        at_most=False,
    ),
    FindingKind(
        "uneven-steps",
        "Some steps take much longer than others",
        "host-bound",
        "Warm up before measuring; look for compilation, first allocations, logging, checkpoints or"
        " a loader that runs dry in the slow steps.",
        "the slow steps' excess over the median (their idle time, where no launches are recorded)"
        " is ≥ 10%, nothing else costs 80% of it, and a loader has no more workers than cores",
        work.uneven_steps,
        rests_on=("steps",),
    ),
    FindingKind(
        "memory-growth",
        "Memory grows from step to step",
        "memory-growth",
        "Look for what keeps tensors alive: losses appended with their graph (use .item(), or"
        " .detach(), which still holds the number's whole block), growing lists, caches, hooks, and"
        " objects that refer to each other in a circle, which stay until Python's collector comes"
        " by.",
        "memory at the ends of steps grows over half of the steps, or its lowest level does; listed"
        " first if the capture's steps have added more than a quarter of the peak",
        work.growing_memory,
        rests_on=("steps",),
        shows_gain=False,
    ),
    FindingKind(
        "memory-freed-late",
        "What a step makes is freed only steps later",
        "memory-growth",
        "Look for objects that refer to each other in a circle: they, and the tensors they hold,"
        " stay until Python's collector comes by. Do without the references, let one side be weak"
        " (weakref), or clear it after use.",
        "a device's memory at the ends of steps falls and rises by half of the peak (without what"
        " steps have kept for good), and does not grow, or by less than it falls, or falls at equal"
        " distances",
        work.late_freeing,
        rests_on=("steps",),
        shows_gain=False,
    ),
)
FINDING_IDS = tuple(kind.id for kind in FINDINGS)
RESTS_ON = {kind.id: kind.rests_on for kind in FINDINGS}


class Finding(msgspec.Struct, frozen=True):
    """One finding. `share_of_wall` is the time it costs (0–1), of the time between the first and
    the last work if no steps are marked.

    `expected_gain_ratio` is the most that removing it entirely can gain, by the recorded
    dependencies (`analysis.what_if`), or by Amdahl's law, 1 / (1 − share), where everything takes
    turns; 0 where a capture doesn't show it. `at_most` as in `FindingKind`. `shared_gain_ratio`:
    of a rank's time, the most that can be gained if all of its work stays and is spread evenly
    over the ranks; 0 for other findings. `of_all`: the evidence names one line, and the gain is
    that of all such lines together.
    """

    id: str
    title: str
    evidence: str
    cause: Bound
    advice: str
    share_of_wall: float
    expected_gain_ratio: float
    at_most: bool = True
    shared_gain_ratio: float = 0.0
    of_all: bool = False
    doubt: str = ""
    """What this finding needs and the capture lacks; "" if nothing."""

    @property
    def bound_ratio(self) -> float:
        """The gain that findings are ranked by: by Amdahl's law where none is stated."""
        return self.expected_gain_ratio or ceiling(self.share_of_wall)


def find_findings(seen: Evidence) -> list[Finding]:
    """Return all findings, costliest first, preceded by those that end the run.

    Nothing is found where no device did anything: a capture without its work shows no bottleneck.
    """
    if seen.devices and not any(use.busy_ns for use in seen.devices):
        return []
    findings = []
    for kind in FINDINGS:
        for detection in kind.detect(seen):
            share = min(max(detection.share, 0.0), 1.0)
            gain = seen.gain(detection.removal, share)
            if share >= IDLE_SHARE and gain < LEAST_GAIN:
                continue
            findings.append(
                Finding(
                    kind.id,
                    (detection.title or kind.title) + detection.where,
                    detection.evidence,
                    kind.cause,
                    detection.advice or (seen.emulated and kind.on_emulated) or kind.advice,
                    share,
                    gain if kind.shows_gain else 0.0,
                    kind.at_most,
                    ceiling(min(detection.shared_out, 1.0)) if detection.shared_out else 0.0,
                    detection.of_all and kind.shows_gain,
                )
            )
    # What a fix can save goes first: a part that takes long may hardly hold anything up.
    findings.sort(key=lambda finding: (1 / finding.bound_ratio, -finding.share_of_wall))
    # Uneven steps beside a finding that costs as much are its echo, and would bury it. So are those
    # of a loader whose workers take the cores from each other and from the model.
    others = {finding.id: finding.share_of_wall for finding in findings}
    uneven = others.pop("uneven-steps", 0.0)
    crowded = seen.loader is not None and seen.loader.crowded and "input-starved" in others
    if crowded or uneven * ECHO_SHARE <= max(others.values(), default=0.0):
        findings = [finding for finding in findings if finding.id != "uneven-steps"]
    if any(work.outgrows(use) for use in seen.memory):  # such a run ends before it is slow
        findings.sort(key=lambda finding: finding.id != "memory-growth")
    return findings


def doubt(findings: list[Finding], quality: Quality) -> tuple[list[Finding], list[Finding]]:
    """Return (the findings, marked where they rest on what the capture lacks; those withheld, since
    what is lacking may be all that they are).
    """
    kept: list[Finding] = []
    withheld: list[Finding] = []
    for finding in findings:
        grounds = set(RESTS_ON[finding.id])
        lacking = [each for each in quality.missing if grounds & set(each.grounds)]
        reasons = [each.what for each in lacking]
        if quality.slowed and "host" in grounds:
            reasons.append(quality.slowed)
        marked = msgspec.structs.replace(finding, doubt="; ".join(reasons))
        if any(each.share_of_wall >= finding.share_of_wall > 0 for each in lacking):
            withheld.append(marked)
        else:
            kept.append(marked)
    return kept, withheld
