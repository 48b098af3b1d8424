"""The emulated GPU's cost table and link: constants as data, with their sources, and the alpha-beta ring that follows from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from bottleneck_lab.errors import LabError

Algorithm = Literal["ring", "tree"]


class ModuleCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One module with parameters of its own: how many, and its time an image on the emulated GPU."""

    name: str
    elements: int
    forward_us: float
    backward_us: float


class StandIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the ranks really train on, in place of a modelled micro-batch: a few stamp-sized pictures, so that gradients are real and cheap."""

    images: int
    size: int
    classes: int


class CostTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the emulated GPU takes for each module, in `named_modules` order, and the step that is modelled: so many micro-batches of so many images."""

    gpu: str
    source: str
    optimizer_us: float
    micro_batches: int
    images: int
    stand_in: StandIn
    modules: list[ModuleCost]

    @property
    def elements(self) -> int:
        """Parameters of the whole model."""
        return sum(module.elements for module in self.modules)

    @property
    def compute_us(self) -> float:
        """Compute of one optimizer step on one rank: what a step takes when communication costs nothing."""
        a_pass = sum(module.forward_us + module.backward_us for module in self.modules)
        return a_pass * self.images * self.micro_batches + self.optimizer_us


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links and the host of the emulated machines: nodes of `ranks_per_node` GPUs on NVLink, nodes joined by Ethernet."""

    intra_bytes_per_s: float
    intra_hop_us: float
    inter_bytes_per_s: float
    inter_hop_us: float
    ranks_per_node: int
    launch_us: float
    sync_us: float
    write_us: float
    source: str

    def nodes(self, ranks: int) -> int:
        """Nodes that so many ranks fill."""
        return -(-ranks // self.ranks_per_node)

    def _link(self, ranks: int) -> tuple[float, float]:
        """Bytes a microsecond and microseconds a hop of the slowest link among so many ranks."""
        if ranks <= self.ranks_per_node:
            return self.intra_bytes_per_s / 1e6, self.intra_hop_us
        return self.inter_bytes_per_s / 1e6, self.inter_hop_us

    def allreduce_us(self, nbytes: int, ranks: int, algorithm: Algorithm = "ring") -> float:
        """All-reduce of `nbytes` on every rank.

        Ring: 2(n-1) hops, each moving 1/n of the bytes over the slowest link (Patarasuk and Yuan, 2009). Tree: the same bytes, but only
        2·log2(nodes) slow hops beside the ring inside a node: what a library changes to when rings become long.
        """
        if ranks == 1:
            return 0.0
        rate, hop_us = self._link(ranks)
        transfer_us = 2 * (ranks - 1) / ranks * nbytes / rate
        if algorithm == "tree" and self.nodes(ranks) > 1:
            inside = 2 * (min(ranks, self.ranks_per_node) - 1) * self.intra_hop_us
            return transfer_us + inside + 2 * (self.nodes(ranks) - 1).bit_length() * hop_us
        return transfer_us + 2 * (ranks - 1) * hop_us

    def spread_us(self, nbytes: int, ranks: int) -> float:
        """Broadcast or all-gather of `nbytes` in total: once around the ring."""
        if ranks == 1:
            return 0.0
        rate, hop_us = self._link(ranks)
        return (ranks - 1) / ranks * nbytes / rate + (ranks - 1) * hop_us

    def assumptions(self) -> list[str]:
        """What every modelled figure rests on, one sentence each, to be printed beside it."""
        return [
            f"modelled: nodes of {self.ranks_per_node} virtual GPUs; {self.intra_bytes_per_s / 1e9:g} GB/s and {self.intra_hop_us:g} µs a hop inside a node, "
            f"{self.inter_bytes_per_s / 1e9:g} GB/s and {self.inter_hop_us:g} µs between nodes (100 Gbit/s Ethernet)",
            "modelled: one alpha-beta ring per all-reduce, compute and communication on separate streams that do not slow each other",
            "not modelled: contention of communication kernels with compute, choice of algorithm and bandwidth ramp, jitter, bucket copies, "
            "compression kernels, input loading, convergence",
        ]


def load_costs(lab: Path) -> CostTable:
    """The cost table in a lab's own folder. Raises LabError when it is missing or no such table."""
    try:
        return msgspec.json.decode((lab / "costs.json").read_bytes(), type=CostTable)
    except (OSError, msgspec.ValidationError, msgspec.DecodeError) as error:
        raise LabError(
            f"{lab.name} has no usable costs.json: {error}.",
            "The lab's author must write it; see scripts/ddp_cost_table.py.",
        ) from error


@cache
def load_fabric() -> Fabric:
    """The links of this package."""
    return msgspec.json.decode(Path(__file__).with_name("fabric.json").read_bytes(), type=Fabric)
