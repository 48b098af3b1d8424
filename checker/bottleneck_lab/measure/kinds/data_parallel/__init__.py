"""The `data_parallel` kind: distributed training on emulated GPUs with the real
DistributedDataParallel, or on this machine's own GPUs.

What is real: one process per rank, torch's reducer with its buckets and hooks, every gradient and
its reduction. What is modelled: when anything would have run on the GPUs and links of the cost
table. The clock, the link and the table are the verifier's; ranks report events, never times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.errors import UsageError
from bottleneck_lab.measure.kinds.base import Criteria, Kind
from bottleneck_lab.measure.rehearsal import GPUS, python, rehearsing
from bottleneck_lab.measure.settings import Settings

if TYPE_CHECKING:
    from bottleneck_lab.analysis.ranks.scaling import Sweep
    from bottleneck_lab.measure.context import Context, Measured
    from bottleneck_lab.measure.sandbox.children import OnLine

LAUNCHER = ("-m", "torch.distributed.run", "--standalone")


class RanksKind(Kind[Settings]):
    """A script of several ranks: modelled on `virtual`, timed on `cuda`."""

    name = "data_parallel"
    settings_type = Settings
    criteria: ClassVar[Criteria] = {
        "same-training": "correctness",
        "scaling": "target",
        "overlap-share": "mechanism",
    }
    required = ("same-training", "scaling")

    def measure(self, context: Context[Settings]) -> Measured:
        if context.device == "cuda":
            from bottleneck_lab.measure.kinds.data_parallel.check_gpu import measure_cuda

            return measure_cuda(context)
        from bottleneck_lab.measure.kinds.data_parallel.check import measure_virtual

        return measure_virtual(context)

    def profile(self, context: Context[Settings], trace: Path, on_line: OnLine) -> int:
        """One trace per rank, rank 0 in `trace`; the exit status."""
        _collect(context)
        if context.device == "cuda":
            from bottleneck_lab.measure.kinds.data_parallel.check_gpu import profile_cuda

            return profile_cuda(context, trace, on_line)
        from bottleneck_lab.measure.kinds.data_parallel.check import profile_virtual

        return profile_virtual(context, trace, on_line)

    def program(self, lab: Lab, device: Device, tool: str | None = None) -> tuple[str, ...]:
        """On GPUs all ranks, one nsys report each. The other tools look at one rank alone: they
        repeat kernels, which a collective cannot survive.
        """
        if device == "cuda" and tool in (None, "nsys"):
            each, *script = python(device)[1:]
            ranks = f"--nproc-per-node={GPUS if rehearsing() else 'gpu'}"
            return (
                sys.executable,
                *(() if tool else (each,)),
                *LAUNCHER,
                ranks,
                *script,
                lab.spec.entry,
            )
        return super().program(lab, device, tool)

    def scales_on(self, device: Device) -> bool:
        return device == "virtual"

    def scale(self, context: Context[Settings], ranks: list[int]) -> list[Sweep]:
        from bottleneck_lab.measure.kinds.data_parallel.check import run_virtual

        _collect(context)
        return run_virtual(context, ranks)

    def problems(self, lab: Lab) -> Iterator[str]:
        from bottleneck_lab.measure.kinds.data_parallel.fabric import table_rules

        yield from super().problems(lab)
        yield from table_rules.problems(lab)

    def trusted_files(self, lab: Lab) -> list[str]:  # noqa: ARG002 - the same for every lab
        """The cost table; ranks are judged by their parameters, whatever is trained, and need no
        judge.
        """
        return ["costs.json"]


def _collect(context: Context[Settings]) -> None:
    """The workspace's script beside the lab's own files, in its own folder. Raises UsageError if
    the script cannot be taken.
    """
    from bottleneck_lab.measure.faults import LearnerFault
    from bottleneck_lab.measure.submission import collect

    context.submission = context.janitor.folder / "submission"
    try:
        collect(context.lab, context.workspace, context.submission)
    except LearnerFault as fault:
        raise UsageError(fault.detail, "`lab reset` restores the shipped files.") from fault


KIND = RanksKind()
