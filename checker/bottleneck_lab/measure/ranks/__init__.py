"""The `ranks` kind: distributed training on emulated GPUs with the real DistributedDataParallel, or on this machine's own GPUs.

What is real: one process a rank, torch's reducer with its buckets and hooks, every gradient and its reduction. What is modelled: when anything
would have run on the GPUs and links of the cost table. The clock, the link and the table are the verifier's; ranks report events, never times.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bottleneck_lab.analysis.scaling import Sweep
    from bottleneck_lab.measure.children import OnLine
from bottleneck_lab.measure.context import Context, Measured


def measure(context: Context) -> Measured:
    """The whole check on the context's device. Raises LearnerFault or VerifierFault when it ends early."""
    if context.device == "cuda":
        from bottleneck_lab.measure.ranks.cuda import measure_cuda

        return measure_cuda(context)
    from bottleneck_lab.measure.ranks.virtual import measure_virtual

    return measure_virtual(context)


def profile(context: Context, trace: Path, on_line: OnLine) -> int:
    """Captures the workspace's script on the context's device: one trace a rank, rank 0 in `trace`. Returns 0, or 1 when the script failed."""
    if context.device == "cuda":
        from bottleneck_lab.measure.ranks.cuda import profile_cuda

        return profile_cuda(context, trace, on_line)
    from bottleneck_lab.measure.ranks.virtual import profile_virtual

    return profile_virtual(context, trace, on_line)


def run(context: Context, ranks: list[int]) -> list[Sweep]:
    """Runs the workspace's script on 4 and 8 emulated ranks and carries its modelled scaling on to `ranks`. Raises LearnerFault."""
    from bottleneck_lab.measure.ranks.virtual import run_virtual

    return run_virtual(context, ranks)
