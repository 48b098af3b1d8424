"""The `data_parallel` kind: distributed training on emulated GPUs with the real
DistributedDataParallel, or on this machine's own GPUs.

What is real: one process per rank, torch's reducer with its buckets and hooks, every gradient and
its reduction. What is modelled: when anything would have run on the GPUs and links of the cost
table. The clock, the link and the table are the verifier's; ranks report events, never times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from bottleneck_lab.catalog import Device, Lab
from bottleneck_lab.measure.kinds.base import Criteria, Kind
from bottleneck_lab.measure.settings import Settings

if TYPE_CHECKING:
    from bottleneck_lab.analysis.ranks.scaling import Sweep
    from bottleneck_lab.measure.context import Context

LAUNCHER = ("-m", "torch.distributed.run", "--standalone")


class DataParallelKind(Kind[Settings]):
    """A script of several ranks: modelled on `virtual`, timed on `cuda`."""

    name = "data_parallel"
    modelled_on: ClassVar[tuple[Device, ...]] = ("virtual",)
    settings_type = Settings
    criteria: ClassVar[Criteria] = {
        "same-training": "correctness",
        "scaling": "target",
        "overlap-share": "mechanism",
    }
    required = ("same-training", "scaling")

    def program(self, lab: Lab, device: Device, tool: str | None = None) -> tuple[str, ...]:
        """Return the command line: on GPUs all ranks, one nsys report each."""
        # The other tools look at one rank alone: they repeat kernels, which a collective cannot
        # survive.
        if device == "cuda" and tool in (None, "nsys"):
            unbuffered = () if tool else ("-u",)
            ranks = "--nproc-per-node=gpu"
            return (sys.executable, *unbuffered, *LAUNCHER, ranks, lab.spec.entry)
        return super().program(lab, device, tool)

    def scales_on(self, device: Device) -> bool:
        return device == "virtual"

    def scale(self, context: Context[Settings], ranks: list[int]) -> list[Sweep]:
        from bottleneck_lab.measure.kinds.data_parallel.run import scale

        return scale(context, ranks)

    def problems(self, lab: Lab) -> Iterator[str]:
        from bottleneck_lab.measure.kinds.data_parallel.fabric import table_rules

        yield from super().problems(lab)
        yield from table_rules.problems(lab)

    def trusted_files(self, lab: Lab) -> list[str]:  # noqa: ARG002 - the same for every lab
        """Return the cost table. Ranks are judged by their parameters, and need no judge."""
        return ["costs.json"]


KIND = DataParallelKind()
