"""`lab profile` of a distributed training script, one trace a rank, and its scaling for `lab run
--ranks`.
"""

from __future__ import annotations

from pathlib import Path

from bottleneck_lab.analysis.ranks.scaling import Sweep
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import LearnerFault
from bottleneck_lab.measure.kinds.data_parallel.check import run_alone, timed
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import FEW, MANY, load_costs
from bottleneck_lab.measure.kinds.data_parallel.figures import WARMUP_STEPS
from bottleneck_lab.measure.kinds.data_parallel.protocol import SECRET_BYTES
from bottleneck_lab.measure.kinds.data_parallel.session import Secret
from bottleneck_lab.measure.kinds.data_parallel.session_gpu import gpu_count, launch
from bottleneck_lab.measure.kinds.data_parallel.sweep import curves
from bottleneck_lab.measure.kinds.data_parallel.trace import rank_files, write_traces
from bottleneck_lab.measure.sandbox.children import OnLine
from bottleneck_lab.measure.settings import Settings
from bottleneck_lab.measure.submission import collect


def profile(context: Context[Settings], trace: Path, on_line: OnLine) -> int:
    """Run the script once and write one trace per rank: rank 0 to `trace`, the others beside it.
    Returns 1 when the script failed, else 0.
    """
    _collect(context)
    try:
        if context.device == "cuda":
            files = _profile_gpus(context, trace)
        else:
            secret = Secret(WARMUP_STEPS + 2, context.rng.getrandbits(62), recorded=True)
            (run,) = run_alone(context, [(MANY, secret)])
            files = write_traces(run, trace)
    except LearnerFault as fault:
        on_line(f"{fault.detail}\n")
        return 1
    for file in files:
        on_line(f"{file.name}\n" if context.device == "cuda" else f"emulated: {file.name}\n")
    return 0


def _profile_gpus(context: Context[Settings], trace: Path) -> list[Path]:
    """Run the script on all GPUs (at most eight), each rank under torch.profiler."""
    world, scratch = min(gpu_count(), 8), context.janitor.folder / "profile"
    secret = context.rng.getrandbits(8 * SECRET_BYTES)
    launch(
        context,
        context.submission,
        load_costs(context.lab.path),
        world,
        secret,
        warmup=2,
        steps=12,
        scratch=scratch,
        trace="trace",
    )
    files = rank_files(trace, world)
    for rank, file in enumerate(files):
        file.write_bytes((scratch / f"trace-rank{rank}.json.gz").read_bytes())
    return files


def scale(context: Context[Settings], ranks: list[int]) -> list[Sweep]:
    """Run the script on few and many emulated ranks. Returns its curves over `ranks`."""
    _collect(context)
    trials = [
        (world, Secret(WARMUP_STEPS + 1, context.rng.getrandbits(62))) for world in (MANY, FEW)
    ]
    return curves(timed(run_alone(context, trials)), ranks)


def _collect(context: Context[Settings]) -> None:
    """Put the workspace's script beside the lab's own files, in its own folder. Raises UsageError
    if the script cannot be taken.
    """
    context.submission = context.janitor.folder / "submission"
    try:
        collect(context.lab, context.workspace, context.submission)
    except LearnerFault as fault:
        raise UsageError(fault.detail, "`lab reset` restores the shipped files.") from fault
