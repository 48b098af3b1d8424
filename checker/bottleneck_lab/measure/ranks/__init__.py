"""The `ranks` kind: distributed training on emulated GPUs with the real DistributedDataParallel, or on this machine's own GPUs.

What is real: one process a rank, torch's reducer with its buckets and hooks, every gradient and its reduction. What is modelled: when anything
would have run on the GPUs and links of the cost table. The clock, the link and the table are the verifier's; ranks report events, never times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bottleneck_lab.measure.context import Context, Measured


def measure(context: Context) -> Measured:
    """The whole check on the context's device. Raises LearnerFault or VerifierFault when it ends early."""
    if context.device == "cuda":
        from bottleneck_lab.measure.ranks.cuda import measure_cuda

        return measure_cuda(context)
    from bottleneck_lab.measure.ranks.virtual import measure_virtual

    return measure_virtual(context)
