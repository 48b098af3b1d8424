"""The emulated GPU's cost table and link: constants as data, with their sources, and the alpha-beta
ring that follows from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from bottleneck_lab.errors import LabError

Algorithm = Literal["ring", "tree"]
FEW, MANY = 4, 8
"""The ranks on which a check runs a script."""


class ModuleCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One module with parameters of its own: their number, and its time a sample on the emulated
    GPU.
    """

    name: str
    elements: int
    forward_us: float
    backward_us: float


class StandIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The real data of ranks, in place of a modelled micro-batch: a few small samples, so that
    gradients are real and cheap.
    """

    samples: int
    shape: tuple[int, ...]


class SmallModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recipe's `make_small_model()`: the `elements` of its modules by their names, in
    `named_modules` order, and `smallest` and `stand_in` as in the table.
    """

    elements: dict[str, int]
    smallest: int
    stand_in: StandIn


class CostTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The emulated GPU's times for each module, in `named_modules` order, and the modelled step:
    `micro_batches` of `samples` samples each.

    `classes`: labels are smaller than this. `shape`: of a sample, where it is real. `tokens`:
    samples are whole numbers smaller than this, if given, else normal draws. `called`: the word for
    samples, in messages. `smallest`: elements of the smallest parameter; to reduce fewer is
    somebody's metric. `shipped_samples_per_s`: the modelled throughput of the shipped script by
    ranks, FEW and MANY, which is the same in every check; if it is not here, a check measures it
    again.
    """

    gpu: str
    source: str
    optimizer_us: float
    micro_batches: int
    samples: int
    classes: int
    stand_in: StandIn
    modules: list[ModuleCost]
    shape: tuple[int, ...] = ()
    tokens: int = 0
    called: str = "samples"
    smallest: int = 64
    small: SmallModel | None = None
    shipped_samples_per_s: dict[int, float] = {}

    def __post_init__(self) -> None:
        if self.shipped_samples_per_s and self.shipped_samples_per_s.keys() != {FEW, MANY}:
            raise ValueError(
                f"`shipped_samples_per_s` needs the throughput on {FEW} and on {MANY} ranks, and no"
                " other"
            )

    @property
    def elements(self) -> int:
        """Parameters of the whole model."""
        return sum(module.elements for module in self.modules)

    def of_small_model(self) -> CostTable:
        """Return the table of the model that many steps are trained with."""
        if self.small is None:
            return self
        return msgspec.structs.replace(
            self,
            # None of its steps are timed.
            modules=[
                ModuleCost(name, elements, 0.0, 0.0)
                for name, elements in self.small.elements.items()
            ],
            smallest=self.small.smallest,
            stand_in=self.small.stand_in,
            small=None,
        )

    def as_one(self, ranks: int) -> CostTable:
        """Return the table of a single rank whose only micro-batch is those of `ranks` ranks."""
        samples = ranks * self.micro_batches * self.stand_in.samples
        return msgspec.structs.replace(
            self,
            micro_batches=1,
            stand_in=msgspec.structs.replace(self.stand_in, samples=samples),
        )

    @property
    def compute_us(self) -> float:
        """Compute of one optimizer step on one rank: the step's time if communication cost
        nothing.
        """
        a_pass = sum(module.forward_us + module.backward_us for module in self.modules)
        return a_pass * self.samples * self.micro_batches + self.optimizer_us


class Shape(NamedTuple):
    """The ranks of a collective, as the links see them: their number, and that of their nodes."""

    ranks: int
    nodes: int


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links and the host of the emulated machines: nodes of `ranks_per_node` GPUs on NVLink,
    nodes joined by Ethernet.
    """

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
        """Return the number of nodes that this many ranks fill."""
        return -(-ranks // self.ranks_per_node)

    def whole(self, ranks: int) -> Shape:
        """Return the shape of all ranks of a job that fills one node after the other."""
        return Shape(ranks, self.nodes(ranks))

    def shape(self, ranks: Iterable[int]) -> Shape:
        """Return the shape of these ranks of a job."""
        chosen = list(ranks)
        return Shape(len(chosen), len({rank // self.ranks_per_node for rank in chosen}))

    def _bytes_per_us(self, shape: Shape) -> float:
        """Return the rate of the slowest link between these ranks."""
        return (self.intra_bytes_per_s if shape.nodes == 1 else self.inter_bytes_per_s) / 1e6

    def _around_us(self, shape: Shape) -> float:
        """Return the hops' time once around the ring, to all but the rank where it began: as many
        links between nodes as there are, the rest inside.
        """
        # A ring over several nodes crosses as many links between them as there are nodes; over two
        # ranks on two nodes, the one hop that is counted.
        hops = shape.ranks - 1
        between = min(shape.nodes, hops) if shape.nodes > 1 else 0
        return between * self.inter_hop_us + (hops - between) * self.intra_hop_us

    def allreduce_us(self, nbytes: int, shape: Shape, algorithm: Algorithm = "ring") -> float:
        """Return the time of an all-reduce of `nbytes` on every rank, µs.

        Ring: 2(n-1) hops, each moving 1/n of the bytes, at the rate of the slowest link (Patarasuk
        and Yuan, 2009). Tree: the same bytes, but only 2·log2(nodes) hops between nodes beside the
        ring inside a node; libraries change to it when rings become long.
        """
        if shape.ranks == 1:
            return 0.0
        transfer_us = 2 * (shape.ranks - 1) / shape.ranks * nbytes / self._bytes_per_us(shape)
        if algorithm == "tree" and shape.nodes > 1:
            inside = 2 * (min(shape.ranks, self.ranks_per_node) - 1) * self.intra_hop_us
            return transfer_us + inside + 2 * (shape.nodes - 1).bit_length() * self.inter_hop_us
        return transfer_us + 2 * self._around_us(shape)

    def spread_us(self, nbytes: int, shape: Shape) -> float:
        """Return the time of a broadcast, reduce, all-gather or reduce-scatter of `nbytes` in
        total, µs: once around the ring.
        """
        if shape.ranks == 1:
            return 0.0
        transfer_us = (shape.ranks - 1) / shape.ranks * nbytes / self._bytes_per_us(shape)
        return transfer_us + self._around_us(shape)

    def assumptions(self) -> list[str]:
        """Return the assumptions of every modelled figure, one sentence each, to be printed beside
        it.
        """
        return [
            (
                f"modelled: nodes of {self.ranks_per_node} virtual GPUs;"
                f" {self.intra_bytes_per_s / 1e9:g} GB/s and {self.intra_hop_us:g} µs per hop"
                f" inside a node, {self.inter_bytes_per_s / 1e9:g} GB/s and {self.inter_hop_us:g}"
                " µs between nodes (100 Gbit/s Ethernet)"
            ),
            (
                "modelled: every GPU has its own network card; a ring uses one per node, and groups"
                " of one rank per node use one each"
            ),
            (
                "modelled: one alpha-beta ring per all-reduce, each hop charged as the link that it"
                " crosses"
            ),
            "modelled: compute and communication on separate streams that do not slow each other",
            (
                "not modelled: contention of communication kernels with compute, choice of"
                " algorithm and bandwidth ramp, jitter, bucket copies, compression kernels, input"
                " loading, convergence"
            ),
        ]


def load_costs(lab: Path) -> CostTable:
    """Load the cost table of a lab's own folder. Raises LabError when it is missing or invalid."""
    try:
        return msgspec.json.decode((lab / "costs.json").read_bytes(), type=CostTable)
    except (OSError, msgspec.ValidationError, msgspec.DecodeError) as error:
        raise LabError(
            f"{lab.name} has no usable costs.json: {error}.",
            "The lab's author must write it; docs/authors.md says what is in it.",
        ) from error


@cache
def load_fabric() -> Fabric:
    """Load the links of this package."""
    return msgspec.json.decode(Path(__file__).with_name("fabric.json").read_bytes(), type=Fabric)
