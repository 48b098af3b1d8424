"""The scaling of a script's step beyond the ranks that ran: its recorded events replayed on larger
clusters, all ranks alike.
"""

from __future__ import annotations

from bottleneck_lab.analysis.ranks.scaling import Point, Sweep
from bottleneck_lab.measure.kinds.data_parallel.fabric.clock import RankClock
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import (
    Algorithm,
    Fabric,
    Shape,
    load_fabric,
)
from bottleneck_lab.measure.kinds.data_parallel.fabric.timing import (
    COLLECTIVES,
    collective_us,
    communicate,
    play,
)
from bottleneck_lab.measure.kinds.data_parallel.figures import WARMUP_STEPS, EmulatedRun
from bottleneck_lab.measure.kinds.data_parallel.protocol import EventKind, RankEvent, members

RANKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
"""Numbers of ranks that a check carries its curve on to."""


class _Replayed:
    """One rank's recorded events, replayed among any number of ranks that all do the same."""

    def __init__(self, run: EmulatedRun, algorithm: Algorithm) -> None:
        self.world = run.world
        self.events = run.events
        self.costs = run.costs
        self.fabric: Fabric = load_fabric()
        self.algorithm = algorithm
        self.alone_us = self.step_us(1)

    def step_us(self, world: int, without: EventKind | None = None) -> float:
        """Return µs a step after the warm-up, as if no collective of the kind `without`
        were sent.
        """
        ends = self.clock(world, without).step_ends_us
        return (ends[-1] - ends[WARMUP_STEPS - 1]) / (len(ends) - WARMUP_STEPS)

    def clock(self, world: int, without: EventKind | None = None) -> RankClock:
        """Return the rank's clock after all events but collectives of the kind `without`."""
        clock = RankClock(self.fabric)
        for event in self.events:
            if event.kind is without:
                clock.collective_ends_us.append(0.0)  # nobody waits for what is not sent
                continue
            if event.kind in COLLECTIVES:
                announced = clock.announce()
                end_us = announced[1] + self._collective_us(event, world)
                communicate(clock, event, announced, end_us)
            else:
                play(clock, event, self.costs)
        return clock

    def _collective_us(self, event: RankEvent, world: int) -> float:
        return collective_us(event, self._shape(event, world), self.fabric, self.algorithm)

    def _shape(self, event: RankEvent, world: int) -> Shape:
        """Return the ranks of a collective in a job of `world` ranks: all, as many of one node, or
        as many of every node as there were.
        """
        ranks, nodes = self.fabric.shape(members(event.group))
        if ranks == self.world:
            return self.fabric.whole(world)
        if nodes == 1:
            return Shape(min(ranks, world), 1)
        nodes_there = self.fabric.nodes(world)
        return Shape(min(nodes_there * (ranks // nodes), world), nodes_there)

    def link_us(self, world: int) -> float:
        """Return µs on the link of the last step's collectives, one after the other."""
        ends = [at for at, event in enumerate(self.events) if event.kind is EventKind.OPTIMIZER]
        last = self.events[ends[-2] : ends[-1]]
        return sum(self._collective_us(event, world) for event in last if event.kind in COLLECTIVES)

    def point(self, world: int, run: EmulatedRun | None) -> Point:
        """Return one point of the curve, from the run where there was one."""
        step_us = run.step_ms * 1e3 if run else self.step_us(world)
        return Point(
            ranks=world,
            nodes=self.fabric.nodes(world),
            step_ms=step_us / 1e3,
            alone_ms=self.alone_us / 1e3,
            link_ms=self.link_us(world) / 1e3,
            broadcast_ms=(self.step_us(world) - self.step_us(world, EventKind.BROADCAST)) / 1e3,
            samples_per_s=world * self.costs.micro_batches * self.costs.samples / step_us * 1e6,
            source="reducer" if run else "replayed",
        )


def curves(runs: dict[int, EmulatedRun], ranks: list[int]) -> list[Sweep]:
    """Return the curves through one rank, two, those that ran, and `ranks`: with a ring and with a
    tree, the two shapes of all-reduce that the link model has.
    """
    return [sweep(runs, sorted({*ranks, 1, 2, *runs}), algorithm) for algorithm in ("ring", "tree")]


def sweep(runs: dict[int, EmulatedRun], ranks: list[int], algorithm: Algorithm = "ring") -> Sweep:
    """Return the curve through `ranks`: those in `runs` come from the runs, the others from
    replaying rank 0 of the largest.
    """
    replayed = _Replayed(runs[max(runs)], algorithm)
    points = [
        replayed.point(world, runs.get(world) if algorithm == "ring" else None) for world in ranks
    ]
    return Sweep(
        algorithm,
        points,
        [*replayed.fabric.assumptions(), *_assumptions(runs, algorithm)],
        replayed.costs.called,
    )


def _assumptions(runs: dict[int, EmulatedRun], algorithm: Algorithm) -> list[str]:
    batch = (
        "the same batch per rank at every size (weak scaling); no shared switches, no stragglers,"
        " no failures"
    )
    if algorithm == "ring":
        real = " and ".join(map(str, sorted(runs)))
        return [
            (
                f"points at {real} ranks: the real reducer in real processes; all others replay"
                " rank 0's recorded events, with every rank alike"
            ),
            f"all-reduce: one ring through all ranks; {batch}",
        ]
    return [
        (
            "every point replays rank 0's recorded events, with every rank alike; the reducer ran"
            " with the ring only"
        ),
        f"all-reduce: a ring inside each node and a tree of nodes; {batch}",
    ]
