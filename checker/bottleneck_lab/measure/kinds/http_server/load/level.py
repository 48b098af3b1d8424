"""Put a server under one level of load, and read the result: what was answered, when, and how well
the generator kept its schedule.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.http_server.load.generator import Plan
from bottleneck_lab.measure.kinds.http_server.load.messages import Messages
from bottleneck_lab.measure.kinds.http_server.load.program import run_watched
from bottleneck_lab.measure.sandbox.janitor import Janitor

PROGRAM = "bottleneck_lab.measure.kinds.http_server.load.generator"
OVERTIME_S = 30.0
"""How much longer than planned a level may take before the generator counts as hung."""
OK = 200
MOST_A_SECOND = 1000
"""Requests drawn for each second of a closed loop; a server that answers more gets the first ones
again.
"""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Level:
    """The result of a level, one array entry per request: when it was due, sent and answered (ns;
    0: never), HTTP status, body.

    requests: the requests themselves, as their source drew them. cores: those that the generator
    itself used. stolen_ns: how long, between due and sent, a hypervisor kept the generator from
    running.
    """

    requests: Array
    begun_ns: Array
    sent_ns: Array
    ended_ns: Array
    status: Array
    replies: list[bytes]
    cores: float
    stolen_ns: Array | int = 0

    def latencies_s(self) -> Array:
        """Return the seconds from when each request was due to its answer; infinite if there was
        none.
        """
        # From when it was due, not from when it was sent: what a late generator adds is seen, and
        # not the server's to gain.
        answered = (self.status == OK) & (self.ended_ns > 0)
        return np.where(answered, (self.ended_ns - self.begun_ns) / 1e9, math.inf)

    def rate(self, seconds: float) -> float:
        """Return the requests/s answered in the first `seconds`."""
        in_time = (self.status == OK) & (self.ended_ns - self.begun_ns[0] <= seconds * 1e9)
        return float(in_time.sum()) / seconds

    def lateness_s(self) -> Array:
        """Return the seconds from when each request was due to when it was sent, for those sent."""
        late: Array = (self.sent_ns - self.begun_ns)[self.sent_ns > 0] / 1e9
        return late

    def own_lateness_s(self) -> Array:
        """Return the same without the time that a hypervisor took: the generator's own delay."""
        own: Array = (self.sent_ns - self.begun_ns - self.stolen_ns)[self.sent_ns > 0] / 1e9
        return own


class Source(Protocol):
    """The source of requests: draws them in secret, and knows the message for each."""

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draw `count` requests: one array entry each, in the source's own terms."""

    def messages(self, requests: Array) -> Messages:
        """Return the messages to send for these."""


class Load:
    """Makes load for the server at a socket. Its files lie in `folder`."""

    def __init__(
        self,
        folder: Path,
        source: Source,
        janitor: Janitor,
        rng: np.random.Generator,
        most_a_second: int = MOST_A_SECOND,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._janitor = janitor
        self._source = source
        self._rng = rng
        self._most_a_second = most_a_second

    def closed(
        self,
        address: str,
        clients: int,
        seconds: float,
        watch: Callable[[float], None],
        **options: Any,
    ) -> Level:
        """Load it with `clients` clients for `seconds`, each of which waits for its answer before
        it sends again. `options` are those of a plan.
        """
        requests = self._source.draw(int(self._most_a_second * seconds) + clients, self._rng)
        return self._run(address, requests, watch, clients=clients, seconds=seconds, **options)

    def open(
        self,
        address: str,
        rate: float,
        seconds: float,
        watch: Callable[[float], None],
        **options: Any,
    ) -> Level:
        """Load it with Poisson arrivals at `rate` requests/s for `seconds`; `options` as above."""
        # Poisson arrivals have exponential gaps; half as many again as are expected, and some more.
        gaps = self._rng.exponential(1e9 / rate, size=int(rate * seconds * 1.5) + 50)
        due, end_ns = np.cumsum(gaps), seconds * 1e9
        count = max(1, int((due < end_ns).sum()))  # a short loop may draw none
        return self.at(address, np.minimum(due[:count], end_ns).astype(np.int64), watch, **options)

    def at(
        self, address: str, due_ns: Array, watch: Callable[[float], None], **options: Any
    ) -> Level:
        """Send a request at each of these times, in ns from the start. `options`: of a plan."""
        requests = self._source.draw(len(due_ns), self._rng)
        return self._run(address, requests, watch, due_ns=due_ns.tolist(), **options)

    def _run(
        self, address: str, requests: Array, watch: Callable[[float], None], **options: Any
    ) -> Level:
        """Run the generator; `watch` is called again and again meanwhile, with the seconds it may
        take.
        """
        messages, plan_file, out = (
            self._folder / name for name in ("messages.npz", "plan", "out.npz")
        )
        self._source.messages(requests).save(messages)
        plan = Plan(address, str(messages), **options)
        plan_file.write_bytes(msgspec.msgpack.encode(plan))
        planned_s = plan.seconds + plan.patience_s
        if plan.due_ns:
            planned_s = plan.due_ns[-1] / 1e9 + plan.patience_s
        command = [sys.executable, "-I", "-m", PROGRAM, "--plan", str(plan_file), "--out", str(out)]
        status = run_watched(command, self._janitor, watch, planned_s + OVERTIME_S)
        if status != 0:
            raise VerifierFault("The load generator did not finish.")
        return _read(out, requests)


def _read(path: Path, requests: Array) -> Level:
    with np.load(path, allow_pickle=False) as saved:
        whole, ends = saved["replies"].tobytes(), saved["reply_ends"].tolist()
        replies = [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return Level(
            # A closed loop starts again at the first request when it has sent the last.
            requests[np.arange(len(replies)) % len(requests)],
            saved["begun_ns"],
            saved["sent_ns"],
            saved["ended_ns"],
            saved["status"],
            replies,
            float(saved["cores"]),
            saved["stolen_ns"],
        )
