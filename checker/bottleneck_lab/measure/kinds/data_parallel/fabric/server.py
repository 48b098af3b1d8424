"""The fabric: the verifier's end of every rank. It owns the clock, the link, the payloads in flight
and every result.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bottleneck_lab.measure.channel.wire import Arena
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.data_parallel.fabric.clock import RankClock
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable, Fabric
from bottleneck_lab.measure.kinds.data_parallel.fabric.moments import NOTHING, Moments
from bottleneck_lab.measure.kinds.data_parallel.fabric.rules import Ledger, Violation
from bottleneck_lab.measure.kinds.data_parallel.fabric.timing import (
    COLLECTIVES,
    collective_us,
    communicate,
    play,
)
from bottleneck_lab.measure.kinds.data_parallel.protocol import (
    BATCH,
    DIMENSION,
    DTYPES,
    EVENT,
    FACTOR,
    ITEM_BYTES,
    OK,
    REDUCTIONS,
    UNMODELLED,
    EventKind,
    RankEvent,
    group_of,
    members,
    needs_factor,
    unpack,
)
from bottleneck_lab.measure.sandbox.limits import WATCH_S, Exceeded

_CHUNK = 1 << 18
_REDUCING = (EventKind.ALLREDUCE, EventKind.REDUCE, EventKind.REDUCESCATTER)
MAX_EVENTS = 100_000
"""Most events of a rank in a run: each is remembered, and an honest script sends some hundreds a
step.
"""
Factors = Callable[[int, int, int], list[float]]
"""(step, micro-batch, module) → the factors for the gradient of the module's output, one for each
part of the micro-batch.
"""
Batches = Callable[[int, int], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None]
"""(step, rank) → samples (micro-batches x samples x a sample's shape) and labels (micro-batches x
samples, int64), or None at the end.
"""


@dataclass
class Link:
    """One rank as the fabric sees it. `waiting`: the collective that it has entered, `announced` at
    these times, of `gradients` or not; `events`: their number so far.
    """

    sock: socket.socket
    arena: Arena
    clock: RankClock
    ledger: Ledger
    buffer: bytearray = field(default_factory=bytearray)
    waiting: RankEvent | None = None
    announced: tuple[float, float] = (0.0, 0.0)
    gradients: bool = False
    events: int = 0
    finished: bool = False
    patience_s: float = math.inf
    watch: Callable[[], None] = lambda: None

    def send(self, data: bytes) -> None:
        """Send all of `data`, watching the others meanwhile. Raises Violation when the rank is
        gone, or does not read the data it asked for.
        """
        end = time.monotonic() + self.patience_s
        while data:
            try:
                data = data[self.sock.send(data) :]
            except TimeoutError as error:
                self.watch()
                if time.monotonic() >= end:
                    raise Violation(
                        "timed out", f"Rank {self.ledger.rank} does not read the data it asked for."
                    ) from error
            except OSError as error:
                raise self.gone() from error

    def receive(self) -> bytes:
        """Receive more from the rank; nothing at its end. Raises Violation if it died."""
        try:
            return self.sock.recv(1 << 16)
        except OSError as error:
            raise self.gone() from error

    def gone(self) -> Violation:
        """Return the violation of a rank that ended early."""
        return Violation("crashed", f"Rank {self.ledger.rank} ended before its training was over.")


class FabricServer:
    """Serves the ranks of one run until all have finished, or one breaks a rule, dies or hangs."""

    def __init__(
        self,
        links: list[tuple[socket.socket, Arena]],
        result: Arena,
        costs: CostTable,
        fabric: Fabric,
        batches: Batches,
        factors: Factors,
        dry_after: int = 0,
    ) -> None:
        """`dry_after`: the steps after which the GPUs run dry before the next one; 0: never."""
        self.costs = costs
        self.fabric = fabric
        self.batches = batches
        self.factors = factors
        self.result = result
        self.dry_after = dry_after
        self.links = [
            Link(sock, arena, RankClock(fabric), Ledger(rank, costs))
            for rank, (sock, arena) in enumerate(links)
        ]
        self.trained_with: list[np.ndarray[Any, Any]] = []
        """The parameters of each step's forward, the same on all ranks, where ranks report them."""
        self.start = np.zeros(0, np.float32)
        self.recorded: list[RankEvent] = []
        self._everyone = group_of(range(len(links)))
        self._reduced: dict[int, dict[int, Moments]] = {}
        """Of the gradients that each group reduced, by step."""

    @property
    def gradients(self) -> list[list[Moments]]:
        """Return for each step the moments that its reduced gradients may have."""
        return [self._candidates(self._reduced.get(step, {})) for step in range(self.steps)]

    @property
    def steps(self) -> int:
        return self.links[0].clock.step

    def _candidates(self, reduced: dict[int, Moments]) -> list[Moments]:
        # All that the whole world reduced, alone, with what any one smaller group did, or with what
        # all groups of a size did: each of them may have had a part of the gradients.
        whole = reduced.get(self._everyone, NOTHING)
        smaller = {group: reduced[group] for group in reduced if group != self._everyone}
        by_size: dict[int, Moments] = {}
        for group, moments in smaller.items():
            size = group.bit_count()
            by_size[size] = by_size.get(size, NOTHING).plus(moments)
        parts = [*(smaller[group] for group in smaller if group & 1), *by_size.values()]
        return [whole, *(whole.plus(part) for part in parts)]

    @property
    def world(self) -> int:
        return len(self.links)

    def parameters(self, rank: int) -> np.ndarray[Any, Any]:
        """Return a copy of the parameters that a rank has put into its shared memory."""
        return self._placed(rank).copy()

    def all_parameters(self) -> list[np.ndarray[Any, Any]]:
        """Return every rank's parameters; ranks that have the same ones as rank 0, as they should,
        share its copy.
        """
        every = [self.parameters(0)]
        for rank in range(1, self.world):
            same = np.array_equal(every[0], self._placed(rank))
            every.append(every[0] if same else self.parameters(rank))
        return every

    def _placed(self, rank: int) -> np.ndarray[Any, Any]:
        return self.links[rank].arena.view(np.dtype(np.float32), (self.costs.elements,), 0)

    def serve(
        self,
        total_s: float,
        silence_s: float,
        progress: Callable[[int], None],
        excess: Callable[[], Exceeded | None],
    ) -> None:
        """Serve to the end. Raises Violation, for a run longer than `total_s` or silent for
        `silence_s`, too.

        `excess` returns the limit that the ranks exceed, if any; it is called twice a second.
        """

        def watch() -> None:
            if exceeded := excess():
                raise Violation(exceeded.reason, f"The script {exceeded.words}.")

        poll = select.poll()
        numbers = {link.sock.fileno(): rank for rank, link in enumerate(self.links)}
        for number, rank in numbers.items():
            poll.register(number, select.POLLIN)
            link = self.links[rank]
            link.sock.settimeout(WATCH_S)
            link.patience_s, link.watch = silence_s, watch
        last_event_s = time.monotonic()
        end_s = last_event_s + total_s
        while not all(link.finished for link in self.links):
            ready = poll.poll(1e3 * WATCH_S)
            watch()
            now_s = time.monotonic()
            if now_s >= end_s:
                raise self._hung(total_s)
            # Before the first event ranks import torch, which is not silence.
            if not ready and self.recorded and now_s - last_event_s >= silence_s:
                raise self._hung(silence_s)
            for number, _ in ready:
                if not self._receive(numbers[number]):
                    poll.unregister(number)
            if ready:
                last_event_s = time.monotonic()
            progress(min(link.clock.step for link in self.links))

    def _receive(self, rank: int) -> bool:
        link = self.links[rank]
        chunk = link.receive()
        if not chunk:
            if not link.finished:
                raise link.gone()
            return False
        link.buffer += chunk
        whole = len(link.buffer) // EVENT.size * EVENT.size
        for at in range(0, whole, EVENT.size):
            self._handle(rank, link, bytes(link.buffer[at : at + EVENT.size]))
        del link.buffer[:whole]
        return True

    def _handle(self, rank: int, link: Link, raw: bytes) -> None:
        try:
            event = unpack(raw)
        except ValueError as error:
            raise Violation(
                "tampered", f"Rank {rank} sent bytes that are not an event of the emulation."
            ) from error
        link.events += 1
        if link.events > MAX_EVENTS:
            raise Violation("tampered", f"Rank {rank} reported more than {MAX_EVENTS:,} events.")
        if link is self.links[0]:
            self.recorded.append(event)
        if link.waiting is not None or link.finished:
            raise Violation(
                "tampered",
                f"Rank {rank} sent events while it should have waited for the other ranks.",
            )
        if event.kind in COLLECTIVES:
            self._enter(rank, link, event)
        elif event.kind is EventKind.START:
            self.start = self.parameters(rank)
            link.send(OK)
        elif event.kind is EventKind.FETCH:
            self._hand_out(rank, link)
        elif event.kind is EventKind.PARAMETERS:
            self._finish(rank, link, event)
        elif event.kind is EventKind.TRAINED_WITH:
            self._compare(rank, link)
            link.send(OK)
        elif event.kind is EventKind.UNMODELLED:
            raise self._unmodelled(event)
        else:
            self._advance(link, event)

    def _advance(self, link: Link, event: RankEvent) -> None:
        if event.kind is EventKind.FORWARD:
            link.ledger.forward(event.which, event.number)
        elif event.kind is EventKind.BACKWARD:
            link.ledger.backward(event.which, event.number, event.flag)
            if needs_factor(event.which):
                factors = self.factors(link.clock.step, event.flag, event.which)
                link.send(b"".join(map(FACTOR.pack, factors)))
        elif event.kind is EventKind.OPTIMIZER:
            if not self.trained_with:  # else parameters say all
                link.ledger.optimizer()
        elif event.kind is EventKind.WAIT and event.number >= len(link.clock.collective_ends_us):
            raise Violation(
                "tampered",
                f"Rank {link.ledger.rank} reported waiting for a collective it has not entered.",
            )
        play(link.clock, event, self.costs)
        if event.kind is EventKind.OPTIMIZER and link.clock.step == self.dry_after:
            link.clock.run_dry()

    def _compare(self, rank: int, link: Link) -> None:
        """Remember the parameters that a rank's step was trained with. Raises Violation if another
        rank had different ones.
        """
        step = link.clock.step
        if step == len(self.trained_with):
            self.trained_with.append(self.parameters(rank))
        elif not np.array_equal(self.trained_with[step], self._placed(rank)):
            raise Violation(
                "wrong output",
                f"Rank {rank} of {self.world} began step {step + 1} with different parameters from"
                " another rank.",
            )

    @staticmethod
    def _unmodelled(event: RankEvent) -> VerifierFault:
        what = UNMODELLED[event.which % len(UNMODELLED)]
        return VerifierFault(
            f"Your script uses what the emulation does not model: {what}.",
            "That is no fault of the script. Please report it; until then, do without it, or check"
            " on GPUs with `--device cuda`.",
        )

    def _hand_out(self, rank: int, link: Link) -> None:
        batch = self.batches(link.ledger.fetched, rank)
        link.ledger.fetched += 1
        if batch is None:
            link.send(BATCH.pack(0, 0))
            return
        samples, labels = batch
        head = BATCH.pack(DTYPES.index(str(samples.dtype)), samples.ndim)
        link.send(
            b"".join(
                [head, *map(DIMENSION.pack, samples.shape), samples.tobytes(), labels.tobytes()]
            )
        )

    def _finish(self, rank: int, link: Link, event: RankEvent) -> None:
        if event.amount != self.costs.elements:
            raise Violation(
                "wrong output",
                f"Rank {rank} ended with {event.amount} parameters; the model has"
                f" {self.costs.elements}.",
            )
        steps = link.clock.step
        if self.batches(steps, rank) is not None:
            raise Violation("wrong output", self._too_few_steps(rank, link))
        if self.batches(steps - 1, rank) is None:
            raise Violation(
                "wrong output",
                f"Rank {rank} took {steps} optimizer steps, more than there were batches.",
            )
        link.finished = True

    def _too_few_steps(self, rank: int, link: Link) -> str:
        """Say why a rank that has finished took fewer steps than there are batches."""
        steps, fetched = link.clock.step, link.ledger.fetched
        times = f"{steps} time{'s' * (steps != 1)}"
        if fetched <= steps or self.batches(fetched - 1, rank) is not None:
            return f"Rank {rank} stopped after {steps} optimizer steps, with batches left."
        # Of an optimizer that the script has made itself, nothing is known.
        return (
            f"Rank {rank} went through all of its {fetched - 1} batches, but called `step` of the"
            f" optimizer that `train` is given {times}; each batch needs one call."
        )

    def _enter(self, rank: int, link: Link, event: RankEvent) -> None:
        if not event.group >> rank & 1 or event.group > self._everyone:
            raise Violation(
                "tampered", f"Rank {rank} entered a collective of ranks that it does not belong to."
            )
        if not self._can_carry(event):
            raise Violation(
                "crashed", f"Rank {rank} called a collective that the emulated link cannot carry."
            )
        # As far as the rank's ledger can tell, it exchanges gradients in this collective.
        if event.kind in _REDUCING:
            scattered = event.kind is EventKind.REDUCESCATTER
            parts = event.group.bit_count() if scattered else 1
            link.gradients = link.ledger.reduces_gradients(
                event.flag, event.amount, event.group, parts
            )
        else:
            hands_on = event.kind in (EventKind.BROADCAST, EventKind.ALLGATHER)
            link.gradients = hands_on and link.ledger.hands_on_gradients(event.flag, event.amount)
        link.waiting, link.announced = event, link.clock.announce()
        if all(self.links[other].waiting == event for other in members(event.group)):
            self._complete(event)
        elif all(other.waiting is not None for other in self.links):
            raise self._at_odds(event)

    def _can_carry(self, event: RankEvent) -> bool:
        """Return True if the link knows the type and the reduction, and has room for the result."""
        if event.flag >= len(DTYPES):
            return False
        if event.kind in _REDUCING and event.which >= len(REDUCTIONS):
            return False
        ranks = event.group.bit_count()
        if event.kind is EventKind.REDUCESCATTER and event.amount % ranks:
            return False
        parts = ranks if event.kind is EventKind.ALLGATHER else 1
        return parts * event.amount * ITEM_BYTES[event.flag] <= self.result.size

    def _complete(self, event: RankEvent) -> None:
        """Carry out a collective that all of its ranks have entered, and let them go on."""
        ranks = members(event.group)
        links = [self.links[rank] for rank in ranks]
        self._carry(event, links)
        end = max(link.announced[1] for link in links) + collective_us(
            event, self.fabric.shape(ranks), self.fabric
        )
        for link in links:
            communicate(link.clock, event, link.announced, end, gradients=link.gradients)
            link.waiting = None
        for link in links:
            link.send(OK)

    def _at_odds(self, event: RankEvent) -> Violation:
        """Return the violation of ranks that wait in different collectives."""
        # Every rank waits and no collective has all its ranks: whichever came last finds one of its
        # own in another.
        ranks = members(event.group)
        odd = next(rank for rank in ranks if self.links[rank].waiting != event)
        other = next(rank for rank in reversed(ranks) if self.links[rank].waiting == event)
        return Violation(
            "crashed",
            f"Rank {odd} is in {self._collective_of(odd)} while rank {other} is in"
            f" {self._collective_of(other)}.",
        )

    def _collective_of(self, rank: int) -> str:
        """Describe the collective that a rank waits in: `all-reduce of 64 float32`."""
        event = self.links[rank].waiting
        if event is None:
            return "no collective"
        ranks = ""
        if event.group != self._everyone:
            ranks = f" among ranks {', '.join(map(str, members(event.group)))}"
        return f"{COLLECTIVES[event.kind]} of {event.amount} {DTYPES[event.flag]}{ranks}"

    def _hung(self, after_s: float) -> Violation:
        late = [
            rank
            for rank, link in enumerate(self.links)
            if link.waiting is None and not link.finished
        ]
        waiting = [rank for rank, link in enumerate(self.links) if link.waiting is not None]
        if late and waiting:
            return Violation(
                "timed out",
                f"Rank {late[0]} did not reach the {self._collective_of(waiting[0])} that the"
                f" others are waiting in within {after_s:.0f} s.",
            )
        if waiting:
            return Violation(
                "timed out",
                f"Rank {waiting[0]} waits in {self._collective_of(waiting[0])} that the other"
                f" ranks never enter ({after_s:.0f} s).",
            )
        return Violation(
            "timed out", f"The {self.world} ranks did not finish within {after_s:.0f} s."
        )

    def _carry(self, event: RankEvent, links: list[Link]) -> None:
        """Carry a collective's payload. Of the whole world the result lies in the shared region
        when this returns, else in each member's own memory.
        """
        import torch

        if event.kind is EventKind.BARRIER:
            return
        dtype = getattr(torch, DTYPES[event.flag])
        count, size = event.amount, ITEM_BYTES[event.flag]
        everyone = event.group == self._everyone
        if everyone:
            result = torch.frombuffer(self.result.memory, dtype=torch.uint8)
        else:
            # Others may still be reading what the whole world exchanged last.
            result = torch.empty(self.result.size, dtype=torch.uint8)
        arenas = [torch.frombuffer(link.arena.memory, dtype=torch.uint8) for link in links]
        sources = [arena[: count * size] for arena in arenas]
        parts = 1
        if event.kind is EventKind.BROADCAST:
            root = self.links[event.which % self.world]
            result[: count * size].copy_(sources[links.index(root) if root in links else 0])
        elif event.kind is EventKind.ALLGATHER:
            parts = len(sources)
            for rank, source in enumerate(sources):
                result[rank * count * size : (rank + 1) * count * size].copy_(source)
        else:
            moments = _reduce(
                [source.view(dtype) for source in sources],
                result[: count * size].view(dtype),
                REDUCTIONS[event.which],
            )
            if links[0].gradients:
                reduced = self._reduced.setdefault(links[0].clock.step, {})
                reduced[event.group] = reduced.get(event.group, NOTHING).plus(moments)
        if everyone:
            return
        if event.kind is EventKind.REDUCESCATTER:  # each gets its own part
            nbytes = count * size // len(arenas)
            pieces = [result[at * nbytes : (at + 1) * nbytes] for at in range(len(arenas))]
        else:
            pieces = [result[: parts * count * size]] * len(arenas)
        for arena, piece in zip(arenas, pieces, strict=True):
            arena[: len(piece)].copy_(piece)


def _reduce(sources: list[Any], out: Any, operation: str) -> Moments:
    """Reduce over the ranks in their order into `out`, narrow floats in float32, a piece at a time
    so that the sums stay in cache. Returns the moments of a floating result.
    """
    import torch

    moments = NOTHING
    for at in range(0, out.numel(), _CHUNK):
        pieces = [source[at : at + _CHUNK] for source in sources]
        wide = torch.float32 if out.dtype in (torch.float16, torch.bfloat16) else out.dtype
        sum_ = pieces[0].to(wide, copy=True)
        for piece in pieces[1:]:
            if operation in ("sum", "avg"):
                sum_ += piece.to(wide)
            elif operation == "product":
                sum_ *= piece.to(wide)
            elif operation == "max":
                sum_ = torch.maximum(sum_, piece.to(wide))
            else:
                sum_ = torch.minimum(sum_, piece.to(wide))
        if operation == "avg":  # whole numbers are rounded towards zero, as NCCL does
            whole = None if wide.is_floating_point else "trunc"
            sum_ = torch.div(sum_, len(sources), rounding_mode=whole)
        out[at : at + _CHUNK] = sum_
        if out.dtype.is_floating_point:
            squares = sum_ * sum_
            of_piece = float(sum_.abs().sum()), float(squares.sum()), float(squares.dot(squares))
            moments = moments.plus(Moments(*of_piece))
    return moments
