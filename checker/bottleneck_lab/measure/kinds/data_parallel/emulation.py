"""One run of a training script on emulated ranks: started, served, checked against another run,
reduced to figures.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bottleneck_lab.errors import BusyMachineError
from bottleneck_lab.measure.channel.wire import Arena
from bottleneck_lab.measure.kinds.data_parallel.fabric.clock import (
    RankClock,
    Span,
    covered_us,
    merge,
)
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable, load_fabric
from bottleneck_lab.measure.kinds.data_parallel.fabric.moments import Moments
from bottleneck_lab.measure.kinds.data_parallel.fabric.rules import Violation
from bottleneck_lab.measure.kinds.data_parallel.fabric.server import FabricServer
from bottleneck_lab.measure.kinds.data_parallel.fabric.starvation import Starvation
from bottleneck_lab.measure.kinds.data_parallel.protocol import OK, RankEvent
from bottleneck_lab.measure.sandbox.bubblewrap import lets_ranks_part
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.sandbox.limits import Limits
from bottleneck_lab.measure.sandbox.process import Worker, python_module
from bottleneck_lab.measure.sandbox.visible import Paths, readable_folders

WARMUP_STEPS = 2
"""Steps before the timed ones: the reducer builds its buckets again after the first."""
_APART = "files, processes, network and shared memory of each rank's own"
_TOGETHER = "could reach each other through files: they share the machine's"
_SPARE_BYTES = 1 << 20
RUN_S = 300.0
"""A run takes 20 s on two quiet cores, and several times that beside other programs, which is not
the script's fault: what hangs is told by silence.
"""
LIMITS = Limits(total_s=4 * RUN_S, memory_bytes=12 << 30, processes=64)
"""Of one script's worker, which makes two runs; the shipped script's waits until the learner's has
made its own. Eight ranks of the solution hold 4.6 GiB.
"""
SILENCE_S = 25.0
"""Longest time in which no rank says anything, once the first has."""


@dataclass
class Secret:
    """What the verifier draws for a check: how many steps, and every rank's samples and labels."""

    steps: int
    seed: int

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Secret:
        """Three steps or four: a timed one or two after the warm-up."""
        return cls(int(rng.integers(3, 5)), int(rng.integers(1 << 62)))

    def batch(
        self, costs: CostTable, step: int, rank: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        """Step and rank decide it, so that every script under comparison sees the same; None after
        the last step.
        """
        if step >= self.steps:
            return None
        rng, stand_in = np.random.default_rng([self.seed, step, rank]), costs.stand_in
        batch = (costs.micro_batches, stand_in.samples)
        shape = (*batch, *stand_in.shape)
        samples = (
            rng.integers(costs.tokens, size=shape)
            if costs.tokens
            else rng.standard_normal(shape, dtype=np.float32)
        )
        return samples, rng.integers(costs.classes, size=batch, dtype=np.int64)

    def factor(self, step: int, micro_batch: int, module: int) -> float:
        """What the gradient of a module's output is multiplied with, the same on every rank and for
        every script under comparison.
        """
        return float(
            np.random.default_rng([self.seed, step, micro_batch, module]).uniform(0.6, 1.6)
        )


@dataclass
class EmulatedRun:
    """What a script's run on so many emulated ranks came to; every number is the verifier's own.

    `gradients`: for each step what the reduced gradients may look like; `orders`: for each rank the
    modules in the order of its forward passes.
    """

    world: int
    costs: CostTable
    clocks: list[RankClock]
    reduced_bytes: list[int]
    gradients: list[list[Moments]]
    orders: list[list[int]]
    start: np.ndarray[Any, Any]
    events: list[RankEvent]
    parameters: list[np.ndarray[Any, Any]]

    @cached_property
    def window_us(self) -> tuple[float, float]:
        """The timed part: from the end of the warm-up to the end of the last step, on the slowest
        rank.
        """
        return max(clock.step_ends_us[WARMUP_STEPS - 1] for clock in self.clocks), max(
            clock.step_ends_us[-1] for clock in self.clocks
        )

    @property
    def step_ms(self) -> float:
        """Modelled milliseconds a step."""
        start, end = self.window_us
        return (end - start) / 1e3 / (len(self.clocks[0].step_ends_us) - WARMUP_STEPS)

    @property
    def samples_per_s(self) -> float:
        """Modelled throughput of the whole job."""
        return self.world * self.costs.micro_batches * self.costs.samples / self.step_ms * 1e3

    def _timed(
        self, clock: RankClock, stream: str, named: tuple[str, ...] = ("",)
    ) -> list[tuple[float, float]]:
        start, end = self.window_us
        return [
            (max(start, span.start_us), min(end, span.end_us))
            for span in clock.spans
            if span.stream == stream
            and span.name.startswith(named)
            and start < span.end_us
            and span.start_us < end
        ]

    @property
    def communication_ms(self) -> float:
        """Modelled communication a step, mean over the ranks."""
        return self._per_step(
            lambda clock: sum(b - a for a, b in merge(self._timed(clock, "communication")))
        )

    @property
    def exposed_ms(self) -> float:
        """The part of it under which nothing was computed."""
        return self.communication_ms - self._per_step(
            lambda clock: covered_us(
                self._timed(clock, "communication"), self._timed(clock, "compute")
            )
        )

    @property
    def compute_ms(self) -> float:
        """Modelled compute a step, mean over the ranks."""
        return self._per_step(
            lambda clock: sum(b - a for a, b in merge(self._timed(clock, "compute")))
        )

    def _per_step(self, of: Callable[[RankClock], float]) -> float:
        steps = len(self.clocks[0].step_ends_us) - WARMUP_STEPS
        return sum(map(of, self.clocks)) / len(self.clocks) / steps / 1e3

    @property
    def overlap_share(self) -> float:
        """Share of the exchange that the model's passes hide: of all communication since a step's
        last forward, gradients alone count as hidden.

        What is sent with an earlier micro-batch, or beside gradients, brings an update no earlier,
        however well it is hidden; nor does what a script computes beside the model.
        """
        exchanges = [(clock, self._exchange(clock)) for clock in self.clocks]
        sent = sum(span.end_us - span.start_us for _, exchange in exchanges for span in exchange)
        hidden = sum(
            covered_us(
                [(span.start_us, span.end_us) for span in exchange if span.gradients],
                self._timed(clock, "compute", ("forward ", "backward ")),
            )
            for clock, exchange in exchanges
        )
        return hidden / sent if sent else 1.0

    def _exchange(self, clock: RankClock) -> list[Span]:
        """A rank's collectives of the timed steps, each step's from its last forward on."""
        forward = {
            span.step: span.launched_us for span in clock.spans if span.name.startswith("forward ")
        }
        return [
            span
            for span in clock.spans
            if span.stream == "communication"
            and WARMUP_STEPS <= span.step < clock.step
            and span.launched_us > forward[span.step]
        ]

    def difference(self, reference: EmulatedRun) -> float:
        """Largest distance of a rank's parameters from the reference's, as a share of how far
        training moved the reference's.
        """
        right = reference.parameters[0]
        moved = float(np.linalg.norm(right - reference.start))
        return (
            max(float(np.linalg.norm(parameters - right)) for parameters in self.parameters) / moved
        )


@dataclass
class _Shared:
    """What the verifier shares with ranks: for each run a pair of sockets a rank, memory a rank, a
    region for results, and the line that starts runs.
    """

    runs: list[list[tuple[socket.socket, socket.socket]]]
    arenas: list[Arena]
    result: Arena
    go: tuple[socket.socket, socket.socket]

    @classmethod
    def create(cls, stack: contextlib.ExitStack, worlds: list[int], size: int) -> _Shared:
        """Everything is closed with `stack`. Runs come one after the other, so they use the same
        memory.
        """

        def pair() -> tuple[socket.socket, socket.socket]:
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            stack.callback(theirs.close)
            return ours, theirs

        def arena(*, others_write: bool = True) -> Arena:
            made = Arena.create(size, others_write=others_write)
            stack.callback(made.close)
            return made

        runs = [[pair() for _ in range(world)] for world in worlds]
        return cls(runs, [arena() for _ in range(max(worlds))], arena(others_write=False), pair())

    def job(self, folder: Path, entry: str) -> dict[str, Any]:
        """What the worker is told: descriptors by their numbers, and where the script lies."""
        return {
            "sockets": [[theirs.fileno() for _, theirs in run] for run in self.runs],
            "arenas": [arena.fd for arena in self.arenas],
            "result": self.result.fd,
            "go": self.go[1].fileno(),
            "folder": str(folder),
            "entry": entry,
            "apart": lets_ranks_part(),
            "readable": readable_folders([]),
        }

    def close_theirs(self) -> None:
        """A rank's death is seen only once nobody here holds its end."""
        for _, theirs in (*(pair for run in self.runs for pair in run), self.go):
            theirs.close()


class Crew:
    """A worker that has torch imported, and forks the ranks of one run after the other from it."""

    def __init__(self, shared: _Shared, worker: Worker, costs: CostTable) -> None:
        self.isolation = {**worker.isolation, "ranks": _APART if lets_ranks_part() else _TOGETHER}
        self._shared = shared
        self._worker = worker
        self._costs = costs
        self._runs = iter(shared.runs)

    def run(
        self, secret: Secret, progress: Callable[[float], None] = lambda _share: None
    ) -> EmulatedRun:
        """The script on the next number of ranks.

        Raises Violation when it breaks a rule, crashes or hangs, MachineError when it came to no
        end because the cores were others'.
        """
        pairs = next(self._runs)
        links = [
            (ours, arena) for (ours, _), arena in zip(pairs, self._shared.arenas, strict=False)
        ]
        server = FabricServer(
            links,
            self._shared.result,
            self._costs,
            load_fabric(),
            partial(secret.batch, self._costs),
            secret.factor,
        )
        starvation = Starvation(self._worker)
        with contextlib.suppress(
            BrokenPipeError
        ):  # the worker is dead, which its ranks' sockets tell as well
            self._shared.go[0].sendall(OK)
        try:
            server.serve(
                RUN_S,
                SILENCE_S,
                lambda step: progress(step / secret.steps),
                self._worker.watch.now_and_then,
            )
        except Violation as violation:
            told = with_last_words(violation, self._worker.log_tail())
            if violation.reason == "timed out" and starvation.found():
                raise BusyMachineError(
                    f"Other programs kept most cores busy: {len(links)} ranks did not finish.",
                    "Close other programs, wait for background jobs to end, and check again.",
                ) from None
            raise told from None
        return EmulatedRun(
            len(links),
            self._costs,
            [link.clock for link in server.links],
            server.links[0].ledger.reduced_bytes,
            server.gradients,
            [link.ledger.order for link in server.links],
            server.start,
            server.recorded,
            server.all_parameters(),
        )


@contextlib.contextmanager
def crew(
    folder: Path, entry: str, costs: CostTable, worlds: list[int], scratch: Path, janitor: Janitor
) -> Iterator[Crew]:
    """A crew for the script in `folder`, for one run on each of `worlds` ranks in this order.

    When it is left, every process is ended and every descriptor closed.
    """
    scratch.mkdir(parents=True)
    shutil.copytree(folder, scratch / "code")
    with contextlib.ExitStack() as stack:
        shared = _Shared.create(stack, worlds, 4 * costs.elements + _SPARE_BYTES)
        job = shared.job(scratch / "code", entry)
        worker = Worker(
            python_module(
                "bottleneck_lab.measure.kinds.data_parallel.child",
                msgspec.json.encode(job).decode(),
            ),
            Paths(scratch, may_mount=job["apart"]),
            LIMITS,
            pass_fds=[*chain(*job["sockets"]), *job["arenas"], job["result"], job["go"]],
            cores=None,
            threads=1,
            gpu=False,
            janitor=janitor,
        )
        stack.callback(worker.end)
        shared.close_theirs()
        import_module("torch")  # needed to reduce; the worker is importing it, too, at this moment
        yield Crew(shared, worker, costs)


def with_last_words(violation: Violation, log: str) -> Violation:
    """Quotes the first rank that said why it ended, as `rank.run_rank` writes it into the worker's
    log.
    """
    said = (
        re.search(r"⟦(Rank \d+: .*?)⟧", log, re.DOTALL) if violation.reason == "crashed" else None
    )
    return Violation("crashed", f"{violation.sentence} {said[1].strip()}") if said else violation
