"""The verifier's end of a worker and its ranks: one run of a training script on emulated GPUs after
the other.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bottleneck_lab.errors import BusyMachineError
from bottleneck_lab.grading.verdict import WHEN_QUIET
from bottleneck_lab.measure.channel.session import failed_to_start
from bottleneck_lab.measure.channel.wire import Arena
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable, load_fabric
from bottleneck_lab.measure.kinds.data_parallel.fabric.rules import Violation
from bottleneck_lab.measure.kinds.data_parallel.fabric.server import FabricServer
from bottleneck_lab.measure.kinds.data_parallel.fabric.starvation import Starvation
from bottleneck_lab.measure.kinds.data_parallel.figures import WARMUP_STEPS, EmulatedRun
from bottleneck_lab.measure.kinds.data_parallel.protocol import OK
from bottleneck_lab.measure.sandbox.bubblewrap import lets_ranks_part
from bottleneck_lab.measure.sandbox.janitor import Janitor
from bottleneck_lab.measure.sandbox.limits import Limits
from bottleneck_lab.measure.sandbox.process import Worker, python_module
from bottleneck_lab.measure.sandbox.visible import Paths, readable_folders

_APART = "files, processes, network and shared memory of each rank's own"
_TOGETHER = "could reach each other through files: they share the machine's"
_SPARE_BYTES = 1 << 20
MANY_STEPS, MORE_STEPS = 51, 5
RUN_S = 300.0
"""A run takes 20 s on two quiet cores, and several times that beside other programs, which is not
the script's fault: a script that hangs is known by its silence.
"""
LIMITS = Limits(total_s=4 * RUN_S, memory_bytes=12 << 30, processes=64)
"""Of one script's worker, which makes two runs; the shipped script's waits until the learner's has
made its own. Eight ranks of the solution hold 4.6 GiB.
"""
SILENCE_S = 25.0
"""Longest time without an event of any rank, after the first event."""


@dataclass
class Secret:
    """The draws of a check: the number of steps, and every rank's samples and labels."""

    steps: int
    seed: int
    recorded: bool = False
    """A profiler starts after the warm-up, when the GPUs have nothing to do: else work of the
    warm-up, which is not in the recording, would fill the steps that are.
    """

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Secret:
        """Draw the batches of a timed run: one step after the warm-up, which times repeat."""
        return cls(WARMUP_STEPS + 1, int(rng.integers(1 << 62)))

    @classmethod
    def draw_many(cls, rng: np.random.Generator) -> Secret:
        """Draw a run of many steps: at least 51, so that what happens once in fifty happens in it,
        and then any number, so that no step is known to be the last.
        """
        steps = MANY_STEPS + min(int(rng.exponential(MORE_STEPS)), 8 * MORE_STEPS)
        return cls(steps, int(rng.integers(1 << 62)))

    def batch(
        self, costs: CostTable, step: int, rank: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        """Return samples and labels of a rank's step, the same for every script under comparison;
        None after the last step.
        """
        if step >= self.steps:
            return None
        rng, stand_in = np.random.default_rng([self.seed, step, rank]), costs.stand_in
        batch = (costs.micro_batches, stand_in.samples)
        shape = (*batch, *stand_in.shape)
        samples: np.ndarray[Any, Any]
        if costs.tokens:
            samples = rng.integers(costs.tokens, size=shape)
        else:
            samples = rng.standard_normal(shape, dtype=np.float32)
        return samples, rng.integers(costs.classes, size=batch, dtype=np.int64)

    def batch_as_one(
        self, costs: CostTable, ranks: int, step: int, _: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        """Return the batches of all ranks as the single micro-batch of one, rank by rank."""
        batches = [self.batch(costs, step, rank) for rank in range(ranks)]
        drawn = [batch for batch in batches if batch is not None]
        if not drawn:
            return None
        samples, labels = (np.concatenate(each) for each in zip(*drawn, strict=True))
        return samples.reshape(1, -1, *costs.stand_in.shape), labels.reshape(1, -1)

    def factors(self, step: int, micro_batch: int, module: int) -> list[float]:
        """Return the one factor for the gradient of a module's output, the same on every rank and
        for every script under comparison.
        """
        rng = np.random.default_rng([self.seed, step, micro_batch, module])
        return [float(rng.uniform(0.6, 1.6))]

    def factors_as_one(
        self, costs: CostTable, ranks: int, step: int, _: int, module: int
    ) -> list[float]:
        """Return the factors for the micro-batches of all ranks in one, as `batch_as_one` has
        them.
        """
        of_a_rank = [self.factors(step, each, module)[0] for each in range(costs.micro_batches)]
        return of_a_rank * ranks


@dataclass
class _Shared:
    """Descriptors that the verifier shares with ranks: for each run a pair of sockets a rank,
    memory a rank, a region for results, and the line that starts runs.
    """

    runs: list[list[tuple[socket.socket, socket.socket]]]
    arenas: list[Arena]
    result: Arena
    go: tuple[socket.socket, socket.socket]

    @classmethod
    def create(cls, stack: contextlib.ExitStack, worlds: list[int], size: int) -> _Shared:
        """Create them, `size` bytes of memory each. Everything is closed with `stack`. Runs come
        one after the other, so they use the same memory.
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
        arenas, result = [arena() for _ in range(max(worlds))], arena(others_write=False)
        return cls(runs, arenas, result, pair())

    def job(
        self, folder: Path, entry: str, parts: list[int], *, many_steps: bool
    ) -> dict[str, Any]:
        """Return the worker's `RankJob`: descriptors by their numbers, where the script lies, and
        of each run how many micro-batches make its only one, or 0 where a rank has its own.
        """
        return {
            "sockets": [[theirs.fileno() for _, theirs in run] for run in self.runs],
            "arenas": [arena.fd for arena in self.arenas],
            "result": self.result.fd,
            "go": self.go[1].fileno(),
            "many_steps": many_steps,
            "parts": parts,
            "folder": str(folder),
            "entry": entry,
            "apart": lets_ranks_part(),
            "readable": readable_folders([]),
        }

    def close_theirs(self) -> None:
        """Close the ranks' ends: a rank's death shows only once nobody here holds its end."""
        for _, theirs in (*(pair for run in self.runs for pair in run), self.go):
            theirs.close()


class Crew:
    """A worker that has torch imported, and forks the ranks of one run after the other from it."""

    def __init__(
        self, shared: _Shared, worker: Worker, tables: list[CostTable], together: list[int]
    ) -> None:
        """Of each run: the table of its model, and the ranks whose samples its only rank gets; 0:
        each its own.
        """
        self.isolation = {**worker.isolation, "ranks": _APART if lets_ranks_part() else _TOGETHER}
        self._shared = shared
        self._worker = worker
        self._runs = zip(shared.runs, tables, together, strict=True)

    def run(
        self, secret: Secret, progress: Callable[[float], None] = lambda _share: None
    ) -> EmulatedRun:
        """Run the script on the next number of ranks, calling `progress` with the share (0–1) done.

        Raises Violation when it breaks a rule, crashes or hangs, BusyMachineError when it did not
        finish because other programs had the cores, VerifierFault when no rank was forked.
        """
        # Sockets are of one run: what an earlier run's ranks left in theirs cannot be read here.
        pairs, costs, together = next(self._runs)
        batches, factors = partial(secret.batch, costs), secret.factors
        if together:
            batches = partial(secret.batch_as_one, costs, together)
            factors = partial(secret.factors_as_one, costs, together)
            costs = costs.as_one(together)
        links = [
            (ours, arena) for (ours, _), arena in zip(pairs, self._shared.arenas, strict=False)
        ]
        server = FabricServer(
            links,
            self._shared.result,
            costs,
            load_fabric(),
            batches,
            factors,
            dry_after=WARMUP_STEPS if secret.recorded else 0,
        )
        # Ranks that wait for a core look like ranks that hang.
        starvation = Starvation(self._worker)
        # A dead worker shows below, by its ranks' sockets.
        with contextlib.suppress(BrokenPipeError):
            self._shared.go[0].sendall(OK)
        try:
            server.serve(
                RUN_S,
                SILENCE_S,
                lambda step: progress(step / secret.steps),
                self._worker.watch.now_and_then,
            )
        except Violation as violation:
            if not self._forked():
                last = self._worker.log_tail().strip().rpartition("\n")[2][:300]
                raise failed_to_start(f"{violation.sentence} It last printed: {last}") from None
            explained = with_last_words(violation, self._worker.log_tail())
            if violation.reason == "timed out" and starvation.happened():
                raise BusyMachineError(
                    f"Other programs kept most cores busy: {len(links)} ranks did not finish.",
                    WHEN_QUIET,
                ) from None
            raise explained from None
        return EmulatedRun(
            world=together or len(links),
            costs=costs,
            clocks=[link.clock for link in server.links],
            reduced_bytes=server.links[0].ledger.reduced_bytes,
            gradients=server.gradients,
            orders=[link.ledger.order for link in server.links],
            start=server.start,
            events=server.recorded,
            parameters=server.all_parameters(),
            trained_with=server.trained_with,
        )

    def _forked(self) -> bool:
        """Return True if the worker has ever forked ranks, in which the script runs."""
        try:
            return bool(self._shared.go[0].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except (BlockingIOError, ConnectionResetError):  # nothing came, and perhaps never will
            return False


@contextlib.contextmanager
def crew(
    folder: Path,
    entry: str,
    costs: CostTable,
    worlds: list[int],
    scratch: Path,
    janitor: Janitor,
    *,
    many_steps: bool = False,
    as_one: int = 0,
) -> Iterator[Crew]:
    """Start a crew for the script in `folder`, for one run on each of `worlds` ranks in this order;
    the first one with the small model, if it is of `many_steps`, and the first `as_one` of them on
    a single rank that trains on the samples of all. On leaving, every process is ended and every
    descriptor closed.
    """
    together = [*worlds[:as_one], *[0] * len(worlds[as_one:])]
    tables = [costs] * len(worlds)
    if many_steps:
        tables[0] = costs.of_small_model()
    scratch.mkdir(parents=True)
    shutil.copytree(folder, scratch / "code")
    with contextlib.ExitStack() as stack:
        # Only what is used of it takes memory: room for each rank's copy of the model.
        size = 4 * costs.elements * max(worlds) + _SPARE_BYTES
        ranks = [1] * as_one + worlds[as_one:]
        shared = _Shared.create(stack, ranks, size)
        parts = [each * costs.micro_batches for each in together]
        job = shared.job(scratch / "code", entry, parts, many_steps=many_steps)
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
        # The fabric reduces with it. Now, while the worker is importing it, too.
        torch = import_module("torch")
        # Beside ranks that compute, a second thread is mostly waited for, at full speed.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        yield Crew(shared, worker, tables, together)


def with_last_words(violation: Violation, log: str) -> Violation:
    """Add the reason that the first rank to fail wrote into the worker's log (`child.run_rank`)."""
    # The log is the script's own: it can only add words to a violation, not change the reason.
    quoted = re.search(r"⟦(Rank \d+: .*?)⟧", log, re.DOTALL)
    if violation.reason != "crashed" or quoted is None:
        return violation
    return Violation("crashed", f"{violation.sentence} {quoted[1].strip()}")
