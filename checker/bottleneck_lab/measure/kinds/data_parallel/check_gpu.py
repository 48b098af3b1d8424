"""A check on this machine's own GPUs: torchrun and NCCL, timed by the verifier's clock. Written
without GPUs at hand and never run on any.
"""

from __future__ import annotations

import numpy as np

from bottleneck_lab.errors import MachineError
from bottleneck_lab.grading.criteria import format_figure, format_limit, grade_check, grade_value
from bottleneck_lab.measure.channel.session import Role
from bottleneck_lab.measure.context import Context, Measured
from bottleneck_lab.measure.faults import LearnerFault, VerifierFault
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable, load_costs
from bottleneck_lab.measure.kinds.data_parallel.figures import TOLERANCE
from bottleneck_lab.measure.kinds.data_parallel.protocol import SECRET_BYTES
from bottleneck_lab.measure.kinds.data_parallel.session_gpu import (
    CudaRun,
    gpu_count,
    launch,
)
from bottleneck_lab.measure.settings import Settings

STEPS, WARMUP = 30, 10


def measure_on_gpus(context: Context[Settings]) -> Measured:
    """Run the learner's and the shipped script on half of the GPUs (at most four) and on all (at
    most eight). Raises MachineError below two GPUs.
    """
    many = 1 << (min(gpu_count(), 8).bit_length() - 1) if gpu_count() else 0
    if many < 2:
        raise MachineError(
            "This lab on cuda needs at least two GPUs in this machine.",
            "Use the emulated ones: `lab check --device virtual`.",
        )
    costs, seed = load_costs(context.lab.path), context.rng.getrandbits(8 * SECRET_BYTES)
    theirs, shipped = {}, {}
    for world in (many, many // 2):
        theirs[world] = _run(context, "learner", costs, world, seed)
        shipped[world] = _run(context, "reference", costs, world, seed)
    return _conclude(context, theirs, shipped, many)


def _conclude(
    context: Context[Settings], theirs: dict[int, CudaRun], shipped: dict[int, CudaRun], many: int
) -> Measured:
    few = many // 2
    problem = differs(theirs[many], shipped[many]) or differs(theirs[few], shipped[few])
    scaling = 2 * min(theirs[few].step_s, shipped[few].step_s) / theirs[many].step_s
    results = [grade_check(context.required("same-training"), problem, many + few, "ranks")]
    if problem is None:
        results.append(grade_value(context.required("scaling"), scaling, STEPS - WARMUP, "steps"))
    figures = {f"step_s_{world}": run.step_s for world, run in theirs.items()}
    return Measured(
        results,
        details=figures
        | {f"shipped_step_s_{world}": run.step_s for world, run in shipped.items()}
        | {"scaling": scaling},
        notes=[
            f"{few} and {many} GPUs of this machine, NCCL, wall clock of the verifier, mean of"
            f" {STEPS - WARMUP} steps"
        ],
        speedup=shipped[many].step_s / theirs[many].step_s if problem is None else None,
    )


def differs(run: CudaRun, reference: CudaRun) -> str | None:
    """Say why this training is not the reference's, or None. GPU kernels differ in their last bits,
    so equality is up to the tolerance.
    """
    if not run.ranks_agree:
        return f"The {run.world} ranks end with different parameters."
    moved = float(np.linalg.norm(reference.parameters))
    apart = float(np.linalg.norm(run.parameters - reference.parameters)) / moved if moved else 0.0
    if apart <= TOLERANCE:
        return None
    return (
        f"On {run.world} ranks the parameters differ from the reference's by"
        f" {format_figure(apart, 'share', TOLERANCE)} of how far training moved them;"
        f" {format_limit(TOLERANCE, 'share')} is allowed."
    )


def _run(
    context: Context[Settings], role: Role, costs: CostTable, world: int, seed: int
) -> CudaRun:
    """Run one side's script. A failure of the shipped one is the verifier's fault."""
    if role == "learner":
        owner, folder = "your", context.submission
    else:
        owner, folder = "the shipped", context.pristine()
    context.progress(f"{owner} script on {world} GPUs", 0.5)
    scratch = context.janitor.folder / f"{role}-{world}"
    try:
        return launch(
            context, folder, costs, world, seed, warmup=WARMUP, steps=STEPS, scratch=scratch
        )
    except LearnerFault as fault:
        if role == "learner":
            raise
        raise VerifierFault(f"The shipped script failed on {world} GPUs: {fault.detail}") from fault
