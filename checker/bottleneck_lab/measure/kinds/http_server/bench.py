"""The load that servers get in a check or a run, and how their answers are judged: `Bench` for
every kind of server, `HttpBench` for a lab whose judge makes the requests.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from bottleneck_lab.grading.criteria import BUSY_CORES
from bottleneck_lab.measure.channel.messages import Ran
from bottleneck_lab.measure.channel.session import Role
from bottleneck_lab.measure.context import Context
from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.http_server import HttpServerSettings, figures
from bottleneck_lab.measure.kinds.http_server.judging import Requests, check_answers
from bottleneck_lab.measure.kinds.http_server.load.level import Array, Level, Load
from bottleneck_lab.measure.kinds.http_server.load.stolen import stolen_from_machine_s
from bottleneck_lab.measure.kinds.http_server.session import ServerSession
from bottleneck_lab.measure.machine import LoadMeter, own_cpu_s
from bottleneck_lab.measure.settings import WorkerSettings
from bottleneck_lab.needs import require_packages

CLOSED_PATIENCE_S = 10.0
DECIDING_ANSWERS = 200
MOST_WAITED = 0.9
"""Share of time that a server is held to have waited, at most: some of it ran."""
SLOWED = 1.2
"""Other programs make CPU time itself longer by this factor, at most, since they slow caches and
memory: beside two of them the shortest calibration was at most 1.07 times as long as on a quiet
machine (docs/statistics.md).
"""

S = TypeVar("S", bound=WorkerSettings)


@dataclass(frozen=True)
class Plateau:
    """The requests/s of the shipped server when it always has work.

    waited: the share (0–1) of that time in which its threads waited for a core, or a hypervisor
    took one. other_cores: those that other programs kept busy. limit: requests/s that it cannot
    exceed on this machine, whatever else runs; infinite where that is not known.
    """

    rate: float
    waited: float = 0.0
    other_cores: float = 0.0
    limit: float = math.inf

    @property
    def alone(self) -> float:
        """The most requests/s that it might answer with nothing else running."""
        # Waits add up over threads that also wait for each other: they can claim more than the
        # machine can do. A limit below what was measured is wrong, and caps nothing.
        return max(self.rate, min(self.rate / (1 - self.waited), self.limit))

    @property
    def lost(self) -> float:
        """The share (0–1) of its time that others may have cost it."""
        return 1 - self.rate / self.alone


class Others(NamedTuple):
    """What ran beside a closed loop: the cores that other programs kept busy, and the share (0–1)
    of it in which the server's threads waited for a core, or a hypervisor took one.
    """

    cores: float
    waited: float


@dataclass
class Bench(ABC, Generic[S]):
    """Loads servers with requests, and judges their answers.

    clients, closed_s: connections and seconds of a closed loop. bad: the beginning of a sentence
    about a request that must be refused.
    """

    context: Context[S]
    rng: np.random.Generator
    load: Load
    clients: int
    closed_s: float
    bad: str = "A request that must be refused"

    @abstractmethod
    def session(self, role: Role, folder: Path) -> ServerSession:
        """Start a server and wait until its code is loaded."""

    @abstractmethod
    def rates(self, level: Level, batches: Sequence[Ran]) -> list[float]:
        """Return the requests answered a second in each block of a closed loop."""

    @abstractmethod
    def wrong_answers(
        self,
        level: Level,
        batches: Sequence[Ran],
        all_of: Array | None,
    ) -> str | None:
        """Return what is wrong with the answers of a level, if anything.

        `all_of`: numbers of the requests that must have been answered.
        """

    @abstractmethod
    def bad_requests(self) -> list[bytes]:
        """Return requests that must be refused, as bytes to send."""

    def refuses(self, request: bytes, status: int) -> bool:  # noqa: ARG002 - other kinds look at it
        """Return True if `status` refuses such a request as it must be refused."""
        return 400 <= status < 500

    def after_load(self, server: ServerSession) -> None:
        """Do what else has to be done with the learner's server; called once after the load."""

    def deciding(self) -> float:
        """Return the number of answers of a closed loop that a decision needs."""
        return DECIDING_ANSWERS

    def limit(self) -> float:
        """Return the requests/s that the shipped server cannot exceed on this machine, as an upper
        bound; infinite where the kind does not know any.
        """
        return math.inf

    def most_gain(self) -> float:
        """Return how many times the shipped server's rate any fix can reach; infinite where the
        kind does not know that.
        """
        return math.inf

    def as_shipped(self) -> bool:
        """Return True if the learner's files are, byte for byte, those that were shipped."""
        context = self.context
        return all(
            (context.submission / name).read_bytes() == (context.lab.path / name).read_bytes()
            for name in context.lab.spec.editable
        )

    def start(self, role: Role, folder: Path) -> ServerSession:
        """Start a server and wait until it answers."""
        server = self.session(role, folder)
        server.wait_until_it_answers(self.load, self.context.settings.start_s)
        return server

    def closed(
        self, server: ServerSession, seconds: float, **options: Any
    ) -> tuple[Level, list[Ran]]:
        """Run a closed loop; `options` are those of a plan. Returns it with the batches that a
        device ran meanwhile.
        """
        return server.batches_of(
            lambda: self.load.closed(
                server.address,
                self.clients,
                seconds,
                server.follow,
                patience_s=CLOSED_PATIENCE_S,
                **options,
            )
        )

    def plateau(self, server: ServerSession, seconds: float) -> Plateau:
        """Measure for `seconds` the shipped server's rate when it always has work, and what others
        cost it.

        Raises VerifierFault if it hardly answers any request.
        """
        # Blocks instead of one mean: a stall of the machine spoils one of them, and the median not.
        level, batches, others = self.closed_beside(server, seconds)
        rates = self.rates(level, batches)
        if not rates:
            raise VerifierFault(
                f"The shipped server hardly answered any request in {seconds:.0f} s.",
                "Close other programs and try again.",
            )
        return Plateau(median(rates), others.waited, others.cores, self.limit())

    def closed_beside(
        self, server: ServerSession, seconds: float
    ) -> tuple[Level, list[Ran], Others]:
        """Run a closed loop, and observe what other programs cost the server meanwhile."""
        meter, waiting = LoadMeter(lambda: own_cpu_s() + server.cpu_s()), server.waiting()
        stolen_s = stolen_from_machine_s()
        level, batches = self.closed(server, seconds)
        cores, waited = meter.cores(), 0.0
        # A server's own threads wait for each other's core, too: only beside others it is a loss.
        if cores > BUSY_CORES:
            waited_s = waiting.seconds() + stolen_from_machine_s() - stolen_s
            waited = min(MOST_WAITED, waited_s / seconds)
        return level, batches, Others(cores, waited)

    def open(self, server: ServerSession, rate: float, seconds: float) -> tuple[Level, list[Ran]]:
        """Run an open loop. Returns it with the batches that a device ran meanwhile."""
        return server.batches_of(
            lambda: self.load.open(server.address, rate, seconds, server.follow)
        )


@dataclass(kw_only=True)
class HttpBench(Bench[HttpServerSettings]):
    """Loads servers with the requests of the lab's judge."""

    requests: Requests

    @classmethod
    def prepare(cls, context: Context[HttpServerSettings]) -> HttpBench:
        """Make the load from the lab's judge. Raises MachineError if the load generator's packages
        are not installed.
        """
        require_packages("labs", httptools="httptools")
        settings, rng = context.settings, np.random.default_rng(context.rng.getrandbits(128))
        requests = Requests(context)
        load = Load(
            context.janitor.folder / "load", requests, context.janitor, rng, settings.most_a_second
        )
        return cls(context, rng, load, settings.clients, settings.closed_s, requests=requests)

    def session(self, role: Role, folder: Path) -> ServerSession:
        return ServerSession.start(self.context, role, folder)

    def rates(self, level: Level, batches: Sequence[Ran]) -> list[float]:  # noqa: ARG002 - there is no device
        return figures.rates(level)

    def wrong_answers(
        self,
        level: Level,
        batches: Sequence[Ran],  # noqa: ARG002 - there is no device
        all_of: Array | None,
    ) -> str | None:
        return check_answers(level, self.requests, self.context.settings.judged, self.rng, all_of)

    def bad_requests(self) -> list[bytes]:
        return self.requests.bad(self.rng)
