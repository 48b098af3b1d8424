"""One level of load as the verifier asks for it, and what came of it: who was answered, when, and whether the generator kept its schedule."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bottleneck_lab.measure.faults import VerifierFault
from bottleneck_lab.measure.kinds.server.load import Plan
from bottleneck_lab.measure.kinds.server.pictures import Strips
from bottleneck_lab.measure.sandbox.janitor import Janitor

PROGRAM = "bottleneck_lab.measure.kinds.server.load"
LOOK_S = 0.1
OVERTIME_S = 30.0
"""How much longer than planned a level may take before the generator is held to hang."""
OK = 200

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Level:
    """What came of a level, an array entry a request: when it was due, sent and answered (ns; 0: never), HTTP status, body.

    `pictures`: what was sent. `cores`: what the generator itself used of the machine.
    """

    pictures: Array
    begun_ns: Array
    sent_ns: Array
    ended_ns: Array
    status: Array
    replies: list[bytes]
    cores: float

    def latencies_s(self) -> Array:
        """Seconds from when each was due to its answer; infinite where there was none."""
        answered = (self.status == OK) & (self.ended_ns > 0)
        return np.where(answered, (self.ended_ns - self.begun_ns) / 1e9, math.inf)

    def rate(self, seconds: float) -> float:
        """Requests answered a second in the first so many seconds."""
        in_time = (self.status == OK) & (self.ended_ns - self.begun_ns[0] <= seconds * 1e9)
        return float(in_time.sum()) / seconds

    def lateness_s(self) -> Array:
        """Seconds from when each was due to when it was sent, of those that were sent: the generator's own delay."""
        sent = self.sent_ns > 0
        late: Array = (self.sent_ns[sent] - self.begun_ns[sent]) / 1e9
        return late

    def scores(self, number: int) -> Array | None:
        """The scores that request `number` was answered with; None where the reply is not of that form."""
        try:
            scores = np.array(json.loads(self.replies[number])["scores"], np.float64)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return scores if scores.ndim == 1 and np.isfinite(scores).all() else None


class Load:
    """Makes load for the server at a socket. Its files lie in `folder`."""

    def __init__(self, folder: Path, strips: Strips, janitor: Janitor, rng: np.random.Generator) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._janitor = janitor
        self._strips = strips
        self._rng = rng
        strips.save(folder / "strips.npz")

    def closed(
        self, address: str, clients: int, seconds: float, watch: Callable[[float], None], **options: Any
    ) -> Level:
        """`clients` clients for so many seconds, each sending when it has its answer. `options` are those of a plan."""
        pictures = self._strips.draw(int(1000 * seconds) + clients, self._rng)
        return self._run(address, pictures, watch, clients=clients, seconds=seconds, **options)

    def open(
        self,
        address: str,
        rate: float,
        seconds: float,
        watch: Callable[[float], None],
        **options: Any,
    ) -> Level:
        """Poisson arrivals of `rate` requests a second for so many seconds. `options` are those of a plan."""
        gaps = self._rng.exponential(1e9 / rate, size=int(rate * seconds * 1.5) + 50)
        due = np.cumsum(gaps)
        due_ns = due[due < seconds * 1e9].astype(np.int64)
        pictures = self._strips.draw(len(due_ns), self._rng)
        return self._run(address, pictures, watch, due_ns=due_ns.tolist(), **options)

    def _run(self, address: str, pictures: Array, watch: Callable[[float], None], **options: Any) -> Level:
        """Runs the generator; `watch` is called between looks, with how many seconds it may take."""
        places = {name: self._folder / name for name in ("strips.npz", "pictures.npy", "plan", "out.npz")}
        np.save(places["pictures.npy"], pictures)
        plan = Plan(address, str(places["strips.npz"]), str(places["pictures.npy"]), **options)
        places["plan"].write_bytes(msgspec.msgpack.encode(plan))
        command = [sys.executable, "-I", "-m", PROGRAM, "--plan", str(places["plan"]), "--out", str(places["out.npz"])]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._janitor.follow(process.pid)
        try:
            _wait(process, plan, watch)
        finally:
            process.kill()
            process.wait()
            self._janitor.forget(process.pid)
        return _read(places["out.npz"], pictures)


def _wait(process: subprocess.Popen[bytes], plan: Plan, watch: Callable[[float], None]) -> None:
    planned_s = max(plan.seconds, plan.due_ns[-1] / 1e9 if plan.due_ns else 0.0) + plan.patience_s
    looks = int((planned_s + OVERTIME_S) / LOOK_S)
    for _ in range(looks):
        if process.poll() is not None:
            break
        watch(LOOK_S)
    if process.poll() != 0:
        raise VerifierFault("The load generator did not finish.")


def _read(path: Path, pictures: Array) -> Level:
    with np.load(path, allow_pickle=False) as saved:
        whole, ends = saved["replies"].tobytes(), saved["reply_ends"].tolist()
        replies = [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        begun, sent, ended, status = (saved[name] for name in ("begun_ns", "sent_ns", "ended_ns", "status"))
        used = pictures[np.arange(len(replies)) % len(pictures)]
        return Level(used, begun, sent, ended, status, replies, float(saved["cores"]))
