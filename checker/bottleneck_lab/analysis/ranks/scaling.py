"""The scaling of a distributed step with the number of ranks: the points of a curve, its ideal and
its bounds, and what it rests on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

_NOTED_FROM = 0.01
"""Share of a step above which the cost of broadcasts is reported."""


class Point(msgspec.Struct, frozen=True):
    """Modelled throughput at one number of ranks.

    `alone_ms`: the step on one rank, where nothing is communicated. `link_ms`: time on the link of
    one step's collectives. `source`: `reducer` where so many ranks really ran, else `replayed`.
    `broadcast_ms`: what the step takes longer than without its broadcasts.
    """

    ranks: int
    nodes: int
    step_ms: float
    alone_ms: float
    link_ms: float
    samples_per_s: float
    source: Literal["reducer", "replayed"]
    broadcast_ms: float = 0.0

    @property
    def lost_ms(self) -> float:
        """The time by which a step is longer than on one rank."""
        return self.step_ms - self.alone_ms

    @property
    def efficiency(self) -> float:
        """Share (0-1) of the ideal."""
        return self.alone_ms / self.step_ms

    @property
    def broadcast_note(self) -> str:
        """A sentence about the cost of broadcasts; empty below 1% of the step."""
        if self.broadcast_ms < _NOTED_FROM * self.step_ms:
            return ""
        return (
            f"On {self.ranks} ranks, {self.broadcast_ms:.1f} of {self.step_ms:.1f} ms per step are"
            " broadcasts. DistributedDataParallel's `broadcast_buffers`, on by default, sends rank"
            " 0's buffers (BatchNorm's statistics) before forward passes. Without them:"
            f" {self.alone_ms / (self.step_ms - self.broadcast_ms):.1%} of the ideal, not"
            f" {self.efficiency:.1%}."
        )

    @property
    def amdahl(self) -> float:
        """The speed-up of a step that would lose nothing."""
        return self.step_ms / self.alone_ms

    @property
    def hidden_efficiency(self) -> float:
        """Share of the ideal if every byte ran under computation: 1 until the link alone takes
        longer than the computation.
        """
        return self.alone_ms / max(self.alone_ms, self.link_ms)

    @property
    def exposed_efficiency(self) -> float:
        """Share of the ideal if computation and communication took turns."""
        return self.alone_ms / (self.alone_ms + self.link_ms)


class Sweep(msgspec.Struct, frozen=True):
    """A scaling curve and what it rests on, to be shown with it."""

    algorithm: Literal["ring", "tree"]
    points: list[Point]
    assumptions: list[str]
    called: str = "samples"

    def speedup(self, point: Point) -> float:
        """Return the throughput over that of one rank."""
        return point.ranks * point.efficiency


def curves(measurement: Mapping[str, Any]) -> list[Sweep]:
    """Return the curves that a check left in its verdict; none where there are none, or none that
    can be read.
    """
    try:
        return msgspec.convert(measurement.get("curves", []), list[Sweep])
    except msgspec.ValidationError:
        return []


def assumptions(curves: Sequence[Sweep]) -> list[str]:
    """Return what the curves rest on, each assumption once, and whose it is if not of all."""
    lines = []
    for curve in curves:
        for line in curve.assumptions:
            shared = all(line in other.assumptions for other in curves)
            lines.append(line if shared else f"the {curve.algorithm}'s figures: {line}")
    return list(dict.fromkeys(lines))
