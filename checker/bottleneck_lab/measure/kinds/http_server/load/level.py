"""One level of load as the verifier asks for it, and its result: what was answered, when, and
whether the generator kept its schedule.
"""

from __future__ import annotations

import math
import subprocess
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
from bottleneck_lab.measure.sandbox.janitor import Janitor

PROGRAM = "bottleneck_lab.measure.kinds.http_server.load.generator"
LOOK_S = 0.1
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

    `asked`: what was sent, as the source of the requests drew it. `cores`: what the generator
    itself used. `stolen_ns`: for how long between due and sent a hypervisor kept the generator from
    running.
    """

    asked: Array
    begun_ns: Array
    sent_ns: Array
    ended_ns: Array
    status: Array
    replies: list[bytes]
    cores: float
    stolen_ns: Array | int = 0

    def latencies_s(self) -> Array:
        """Seconds from when each request was due to its answer; infinite if there was none."""
        answered = (self.status == OK) & (self.ended_ns > 0)
        return np.where(answered, (self.ended_ns - self.begun_ns) / 1e9, math.inf)

    def rate(self, seconds: float) -> float:
        """Requests/s answered in the first `seconds`."""
        in_time = (self.status == OK) & (self.ended_ns - self.begun_ns[0] <= seconds * 1e9)
        return float(in_time.sum()) / seconds

    def lateness_s(self) -> Array:
        """Seconds from when each request was due to when it was sent, for those that were sent."""
        return self._late_s(0)

    def own_lateness_s(self) -> Array:
        """The same without the time a hypervisor took: the generator's own delay."""
        return self._late_s(self.stolen_ns)

    def _late_s(self, excused_ns: Array | int) -> Array:
        late: Array = (self.sent_ns - self.begun_ns - excused_ns)[self.sent_ns > 0] / 1e9
        return late


class Source(Protocol):
    """Where requests come from: secret draws, and what is sent for each."""

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """`count` requests, one entry each, as the source knows them."""

    def messages(self, asked: Array) -> Messages:
        """What is sent for these."""


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
        """`clients` clients for `seconds`, each waiting for its answer before it sends again.
        `options`: of a plan.
        """
        asked = self._source.draw(int(self._most_a_second * seconds) + clients, self._rng)
        return self._run(address, asked, watch, clients=clients, seconds=seconds, **options)

    def open(
        self,
        address: str,
        rate: float,
        seconds: float,
        watch: Callable[[float], None],
        **options: Any,
    ) -> Level:
        """Poisson arrivals at `rate` requests/s for `seconds`. `options`: of a plan."""
        gaps = self._rng.exponential(1e9 / rate, size=int(rate * seconds * 1.5) + 50)
        due, end_ns = np.cumsum(gaps), seconds * 1e9
        count = max(1, int((due < end_ns).sum()))  # a short loop may draw none
        return self.at(address, np.minimum(due[:count], end_ns).astype(np.int64), watch, **options)

    def at(
        self, address: str, due_ns: Array, watch: Callable[[float], None], **options: Any
    ) -> Level:
        """A request at each of these times, in ns from the start. `options`: of a plan."""
        asked = self._source.draw(len(due_ns), self._rng)
        return self._run(address, asked, watch, due_ns=due_ns.tolist(), **options)

    def _run(
        self, address: str, asked: Array, watch: Callable[[float], None], **options: Any
    ) -> Level:
        """Runs the generator; `watch` is called again and again meanwhile, with the seconds it may
        take.
        """
        places = {name: self._folder / name for name in ("messages.npz", "plan", "out.npz")}
        self._source.messages(asked).save(places["messages.npz"])
        plan = Plan(address, str(places["messages.npz"]), **options)
        places["plan"].write_bytes(msgspec.msgpack.encode(plan))
        command = [
            sys.executable,
            "-I",
            "-m",
            PROGRAM,
            "--plan",
            str(places["plan"]),
            "--out",
            str(places["out.npz"]),
        ]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._janitor.follow(process.pid)
        try:
            _wait(process, plan, watch)
        finally:
            process.kill()
            process.wait()
            self._janitor.forget(process.pid)
        return _read(places["out.npz"], asked)


def _wait(process: subprocess.Popen[bytes], plan: Plan, watch: Callable[[float], None]) -> None:
    planned_s = max(plan.seconds, plan.due_ns[-1] / 1e9 if plan.due_ns else 0.0) + plan.patience_s
    looks = int((planned_s + OVERTIME_S) / LOOK_S)
    for _ in range(looks):
        if process.poll() is not None:
            break
        watch(LOOK_S)
    if process.poll() != 0:
        raise VerifierFault("The load generator did not finish.")


def _read(path: Path, asked: Array) -> Level:
    with np.load(path, allow_pickle=False) as saved:
        whole, ends = saved["replies"].tobytes(), saved["reply_ends"].tolist()
        replies = [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        begun, sent, ended, status = (
            saved[name] for name in ("begun_ns", "sent_ns", "ended_ns", "status")
        )
        cores, stolen = float(saved["cores"]), saved["stolen_ns"]
        used = asked[np.arange(len(replies)) % len(asked)]
        return Level(used, begun, sent, ended, status, replies, cores, stolen)
