"""One run of a training script on emulated ranks: started, served, checked against another run, reduced to figures."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bottleneck_lab.measure.janitor import Janitor
from bottleneck_lab.measure.process import Limits, Paths, Worker
from bottleneck_lab.measure.ranks.clock import RankClock, Span, covered_us, merge
from bottleneck_lab.measure.ranks.costs import CostTable, load_fabric
from bottleneck_lab.measure.ranks.protocol import Event
from bottleneck_lab.measure.ranks.rules import Violation
from bottleneck_lab.measure.ranks.server import FabricServer
from bottleneck_lab.measure.wire import Arena

WARMUP_STEPS = 2
"""Steps before the timed ones: the reducer builds its buckets anew after the first."""
_SPARE_BYTES = 1 << 20
LIMITS = Limits(total_s=80.0, memory_bytes=8 << 30, processes=64)
SILENCE_S = 25.0


@dataclass
class Secret:
    """What the verifier draws for a check: how many steps, and every rank's pictures and labels."""

    steps: int
    seed: int

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Secret:
        """Three steps or four: a timed one or two after the warm-up."""
        return cls(int(rng.integers(3, 5)), int(rng.integers(1 << 62)))

    def batch(self, costs: CostTable, step: int, rank: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        """Step and rank decide it, so that every script under comparison sees the same; None after the last step."""
        if step >= self.steps:
            return None
        rng, stand_in = np.random.default_rng([self.seed, step, rank]), costs.stand_in
        shape = (costs.micro_batches, stand_in.images)
        pixels = rng.standard_normal((*shape, 3, stand_in.size, stand_in.size), dtype=np.float32)
        return pixels, rng.integers(stand_in.classes, size=shape, dtype=np.int64)


@dataclass
class Run:
    """What a script's run on so many emulated ranks came to; every number is the verifier's own."""

    world: int
    costs: CostTable
    clocks: list[RankClock]
    reduced_bytes: list[int]
    gradients: list[tuple[float, float]]
    start: np.ndarray[Any, Any]
    events: list[Event]
    parameters: list[np.ndarray[Any, Any]]
    isolation: dict[str, str] = field(default_factory=dict)

    @cached_property
    def window_us(self) -> tuple[float, float]:
        """The timed part: from the end of the warm-up to the end of the last step, on the slowest rank."""
        return max(clock.step_ends_us[WARMUP_STEPS - 1] for clock in self.clocks), max(
            clock.step_ends_us[-1] for clock in self.clocks
        )

    @property
    def step_ms(self) -> float:
        """Modelled milliseconds a step."""
        start, end = self.window_us
        return (end - start) / 1e3 / (len(self.clocks[0].step_ends_us) - WARMUP_STEPS)

    @property
    def images_per_s(self) -> float:
        """Modelled throughput of the whole job."""
        return self.world * self.costs.micro_batches * self.costs.images / self.step_ms * 1e3

    def _timed(self, clock: RankClock, stream: str) -> list[tuple[float, float]]:
        start, end = self.window_us
        return [
            (max(start, span.start_us), min(end, span.end_us))
            for span in clock.spans
            if span.stream == stream and start < span.end_us and span.start_us < end
        ]

    @property
    def communication_ms(self) -> float:
        """Modelled communication a step, mean over the ranks."""
        return self._per_step(lambda clock: sum(b - a for a, b in merge(self._timed(clock, "communication"))))

    @property
    def hidden_ms(self) -> float:
        """The part of it under which compute ran."""
        return self._per_step(
            lambda clock: covered_us(self._timed(clock, "communication"), self._timed(clock, "compute"))
        )

    @property
    def compute_ms(self) -> float:
        """Modelled compute a step, mean over the ranks."""
        return self._per_step(lambda clock: sum(b - a for a, b in merge(self._timed(clock, "compute"))))

    def _per_step(self, of: Callable[[RankClock], float]) -> float:
        steps = len(self.clocks[0].step_ends_us) - WARMUP_STEPS
        return sum(map(of, self.clocks)) / len(self.clocks) / steps / 1e3

    @property
    def overlap_share(self) -> float:
        """Share of communication that compute hides."""
        return self.hidden_ms / self.communication_ms if self.communication_ms else 1.0

    def difference(self, reference: Run) -> float:
        """Largest distance of a rank's parameters from the reference's, as a share of how far training moved the reference's."""
        right = reference.parameters[0]
        moved = float(np.linalg.norm(right - reference.start))
        return max(float(np.linalg.norm(parameters - right)) for parameters in self.parameters) / moved

    @property
    def buckets(self) -> list[Span]:
        """The gradient all-reduces of the last step on rank 0, in order: anything of a megabyte or so."""
        last = self.clocks[0].step - 1
        return [
            span
            for span in self.clocks[0].spans
            if span.stream == "communication"
            and span.step == last
            and span.elements >= 1 << 16
            and span.name == "all-reduce"
        ]


def emulate(
    folder: Path,
    entry: str,
    costs: CostTable,
    world: int,
    secret: Secret,
    scratch: Path,
    janitor: Janitor,
    *,
    progress: Callable[[float], None] = lambda _share: None,
) -> Run:
    """Runs the script in `folder` on `world` emulated ranks.

    Raises Violation when it breaks a rule, crashes or hangs; every process is ended and every descriptor closed in any case.
    """
    size = 4 * costs.elements + _SPARE_BYTES
    scratch.mkdir(parents=True)
    shutil.copytree(folder, scratch / "code")
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(world)]
        arenas = [Arena.create(size) for _ in range(world)]
        result = Arena.create(size)
        for pair in pairs:
            stack.callback(pair[0].close)
            stack.callback(pair[1].close)
        for arena in (*arenas, result):
            stack.callback(arena.close)
        job = {
            "world": world,
            "sockets": [theirs.fileno() for _, theirs in pairs],
            "arenas": [arena.fd for arena in arenas],
            "result": result.fd,
            "folder": str(scratch / "code"),
            "entry": entry,
        }
        inherited = [*job["sockets"], *job["arenas"], result.fd]  # type: ignore[misc]  # lists of int, in a mixed dict
        worker = Worker(
            [msgspec.json.encode(job).decode()],
            Paths(scratch),
            LIMITS,
            pass_fds=inherited,
            cores=None,
            threads=1,
            gpu=False,
            janitor=janitor,
            module="bottleneck_lab.measure.ranks.rank",
        )
        stack.callback(worker.end)
        for _, theirs in pairs:
            theirs.close()
        server = FabricServer(
            [(ours, arena) for (ours, _), arena in zip(pairs, arenas, strict=True)],
            result,
            costs,
            load_fabric(),
            partial(secret.batch, costs),
        )
        try:
            server.serve(LIMITS.total_s, SILENCE_S, lambda step: progress(step / secret.steps))
        except Violation as violation:
            raise _with_last_words(violation, worker) from None
        parameters = [server.parameters(rank) for rank in range(world)]
        return Run(
            world,
            costs,
            [link.clock for link in server.links],
            server.links[0].ledger.reduced_bytes,
            server.gradients,
            server.start,
            server.recorded,
            parameters,
            worker.isolation,
        )


def _with_last_words(violation: Violation, worker: Worker) -> Violation:
    if violation.reason != "crashed":
        return violation
    said = [part for part in worker.log_tail().split("\x1e") if part.startswith("Rank ")]
    return Violation("crashed", f"{violation.sentence} {said[-1].strip()}" if said else violation.sentence)
