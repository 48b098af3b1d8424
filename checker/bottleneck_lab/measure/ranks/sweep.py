"""How a script's step would scale beyond the ranks that were run: its recorded events replayed on larger clusters, all ranks alike."""

from __future__ import annotations

from typing import Literal

import msgspec

from bottleneck_lab.measure.ranks.clock import RankClock
from bottleneck_lab.measure.ranks.costs import Algorithm, Fabric, load_costs, load_fabric
from bottleneck_lab.measure.ranks.play import COLLECTIVES, MODELLED_IMAGES, collective_us, communicate, play
from bottleneck_lab.measure.ranks.protocol import Event, Kind
from bottleneck_lab.measure.ranks.run import MICRO_BATCHES, WARMUP_STEPS, Run

RANKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


class Point(msgspec.Struct, frozen=True):
    """Modelled throughput at one number of ranks. `ideal`: that of one rank times their number. `bound`: the most that this script's bytes allow,
    were all of its communication hidden. `source`: `reducer` where so many ranks really ran, `replayed` otherwise."""

    ranks: int
    nodes: int
    step_ms: float
    exposed_ms: float
    images_per_s: float
    ideal_images_per_s: float
    bound_images_per_s: float
    source: Literal["reducer", "replayed"]

    @property
    def efficiency(self) -> float:
        """Share (0–1) of the ideal."""
        return self.images_per_s / self.ideal_images_per_s


class Sweep(msgspec.Struct, frozen=True):
    """A scaling curve and what it rests on, to be shown with it."""

    algorithm: Algorithm
    points: list[Point]
    assumptions: list[str]


def sweep(runs: dict[int, Run], ranks: list[int], algorithm: Algorithm = "ring") -> Sweep:
    """The curve through `ranks`; those in `runs` come from the runs, the others from replaying the largest run's rank 0."""
    fabric, events = load_fabric(), runs[max(runs)].events
    alone = _step_us(replay(events, 1, fabric, algorithm))
    points = [_point(world, runs.get(world), events, fabric, algorithm, alone) for world in ranks]
    return Sweep(algorithm, points, [*fabric.assumptions(), *_assumptions(runs, algorithm)])


def _assumptions(runs: dict[int, Run], algorithm: Algorithm) -> list[str]:
    real = ", ".join(map(str, sorted(runs)))
    shape = "one ring through all ranks" if algorithm == "ring" else "a ring inside each node and a tree of nodes"
    return [
        f"points at {real} ranks: the real reducer in real processes; all others: rank 0's recorded events replayed, every rank alike",
        f"all-reduce: {shape}; the same batch a rank at every size (weak scaling); one link a node, no sharing of switches, no stragglers, no failures",
    ]


def _point(
    world: int, run: Run | None, events: list[Event], fabric: Fabric, algorithm: Algorithm, alone_us: float
) -> Point:
    images = world * MICRO_BATCHES * MODELLED_IMAGES
    if run is not None:
        step_us, exposed_us = run.step_ms * 1e3, (run.communication_ms - run.hidden_ms) * 1e3
    else:
        step_us = _step_us(replay(events, world, fabric, algorithm))
        exposed_us = step_us - alone_us
    bound_us = max(alone_us, _communication_us(events, world, fabric, algorithm))
    return Point(
        ranks=world,
        nodes=fabric.nodes(world),
        step_ms=step_us / 1e3,
        exposed_ms=exposed_us / 1e3,
        images_per_s=images / step_us * 1e6,
        ideal_images_per_s=images / alone_us * 1e6,
        bound_images_per_s=images / bound_us * 1e6,
        source="reducer" if run is not None else "replayed",
    )


def replay(events: list[Event], world: int, fabric: Fabric, algorithm: Algorithm = "ring") -> RankClock:
    """The clock of a rank that does what these events say among `world` ranks that all do the same."""
    clock, costs = RankClock(fabric), load_costs()
    for event in events:
        if event.kind in COLLECTIVES:
            announced = clock.announce()
            communicate(clock, event, announced, announced[1] + collective_us(event, world, fabric, algorithm))
        else:
            play(clock, event, costs)
    return clock


def _step_us(clock: RankClock) -> float:
    ends = clock.step_ends_us
    return (ends[-1] - ends[WARMUP_STEPS - 1]) / (len(ends) - WARMUP_STEPS)


def _communication_us(events: list[Event], world: int, fabric: Fabric, algorithm: Algorithm) -> float:
    """Time on the link of the last step's collectives, one after the other."""
    ends = [at for at, event in enumerate(events) if event.kind is Kind.OPTIMIZER]
    last = events[ends[-2] : ends[-1]]
    return sum(collective_us(event, world, fabric, algorithm) for event in last if event.kind in COLLECTIVES)
