"""An emulated accelerator whose every cost is known: host, queue, caches, clocks. Time is virtual:
nothing waits, and no machine's speed matters.

Costs are of the order of a data-centre GPU's; they are set here and not published anywhere. Only
the verifier runs this file.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

MAKE, FREE, CALL, USE, RECORD, SYNCHRONIZE, FLUSH, TIME, PERF_COUNTER, MARK, LEFT = range(11)
OK, OUT_OF_TIME, OUT_OF_MEMORY = range(3)

CACHE_BYTES = 48 << 20
MEMORY_BYTES = 8 << 30
QUEUE_LENGTH = 1024
READ_CLOCK_S, RECORD_S, SYNCHRONIZE_S, MAKE_S = 1e-7, 1e-6, 8e-6, 2e-5
COPY_BYTES_S = 12e9
TICK_S, EVENT_TICK_S = 4e-3, 5e-7
AWAKE_S, ASLEEP_S, SLOWEST = 15e-3, 50e-3, 0.6
"""Clocks rise from SLOWEST (a share of full speed) to full speed within AWAKE_S of work, and fall
after ASLEEP_S of idling.
"""
STALLS_A_SECOND, STALL_S = 2.0, (10e-3, 30e-3)
"""Someone else uses the device: how often per second of work, and for how long. Rare enough that
they hardly move the middle of long calls.
"""
STEPS_A_SECOND, STEP_S = 2.0, 0.03
"""The network adjusts the calendar clock: how often per second, and by how much at most."""


@dataclass(frozen=True)
class Function:
    """A function of known cost. Shares and factors are of `cost_s`: the middle of what calls take
    in steady state on data that is in no cache.
    """

    cost_s: float
    jitter: float
    launch_s: float
    compile_s: float
    tuning: tuple[float, ...]
    input_bytes: int
    cached_share: float
    constant_share: float
    lazy: bool


@dataclass(frozen=True)
class Scale:
    """How long things take on a device, in seconds. `quiet`, `noisy` and `launch` are ranges;
    `practice` holds the costs of the practice functions.

    `quiet_jitter` is the range of the jitter of quiet functions, which is never below `grain_s`:
    what a call varies by, at least.
    """

    quiet_s: tuple[float, float]
    quiet_jitter: tuple[float, float]
    grain_s: float
    noisy_s: tuple[float, float]
    launch_s: tuple[float, float]
    flush_s: float
    practice_s: tuple[float, float, float, float, float]


GPU = Scale(
    quiet_s=(3e-5, 4e-3),
    quiet_jitter=(0.005, 0.05),
    grain_s=EVENT_TICK_S,
    noisy_s=(2e-3, 12e-3),
    launch_s=(3e-6, 6e-6),
    flush_s=32e-6,
    practice_s=(4e-5, 2e-3, 3e-4, 2.5e-2, 2.4e-3),
)
NOISY_JITTER = (0.25, 0.5)


def draw(rng: np.random.Generator, *, noisy: bool = False, scale: Scale = GPU) -> Function:
    """A function with secret figures. `noisy`: its calls are long and vary by a quarter to a half,
    and there is time for only some.
    """
    cost_s = log_uniform(rng, scale.noisy_s if noisy else scale.quiet_s)
    jitter = log_uniform(rng, NOISY_JITTER if noisy else scale.quiet_jitter)
    most = min(32 << 20, cost_s * 2e12)  # no faster than a memory of 2 TB/s
    return Function(
        cost_s=cost_s,
        jitter=max(jitter, scale.grain_s / cost_s),
        launch_s=float(rng.uniform(*scale.launch_s)),
        compile_s=float(rng.uniform(10e-3, 80e-3)),
        tuning=tuple(rng.uniform(1.4, 3.0, int(rng.integers(2, 13))).tolist()),
        input_bytes=int(math.exp(rng.uniform(math.log(2 << 20), math.log(most)))),
        cached_share=float(rng.uniform(0.25, 0.8)),
        constant_share=float(rng.uniform(0.08, 0.15)),
        lazy=bool(rng.random() < 0.35),
    )


def log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    """A draw that is as often in any part of the range as in one as many times as long."""
    return float(np.exp(rng.uniform(*np.log(limits))))


@dataclass
class Device:
    """The machine while one benchmark uses it. `host_s` is the host's time; at `tail_s` all queued
    work will have run.

    A device that does real work overrides `_until`, `_wait`, `_run`, `_mark` and `_reached`.
    """

    function: Function
    rng: np.random.Generator
    budget_s: float
    scale: Scale = GPU
    host_s: float = 0.0
    tail_s: float = 0.0
    awake_since_s: float = -math.inf
    worked_until_s: float = -math.inf
    calls: int = 0
    runs: int = 0
    disturbed = ""
    """On a device that does real work: why this benchmark cannot be judged. Nothing disturbs the
    emulated one.
    """
    rows: list[tuple[str, float, float]] | None = None
    """If this is a list, what host and device do is appended to it: name, begin and end in seconds.
    """
    inputs: dict[int, bool] = field(default_factory=dict)
    events: dict[int, float] = field(default_factory=dict)
    unused: dict[int, int] = field(default_factory=dict)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    queued: deque[float] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._until_stall_s = float(self.rng.exponential(1 / STALLS_A_SECOND))
        self._calendar_s = 1.7e9 + float(self.rng.uniform(0, 1))
        self._next_step_s = float(self.rng.exponential(1 / STEPS_A_SECOND))
        self._draws: list[float] = []

    def serve(self, commands: list[tuple[int, int, int]]) -> tuple[int, list[float]]:
        """Carries out the benchmark's commands; a status, and the values of those that read a clock
        or a mark.
        """
        values: list[float] = []
        for code, first, second in commands:
            if self.host_s > self.budget_s:
                return OUT_OF_TIME, []
            began_s = self.host_s
            if code == CALL:
                self._call(first, second)
            elif code == USE:
                self._compute(self.unused.pop(first, 0))
            elif code == RECORD:
                self._spend(RECORD_S)
                self._mark(first)
            elif code == MAKE:
                if (len(self.inputs) + 1) * self.function.input_bytes > MEMORY_BYTES:
                    return OUT_OF_MEMORY, []
                self._make(first, constant=bool(second))
            elif code == FREE:
                self.inputs.pop(first, None)
                self.cache.pop(first, None)
            elif code == SYNCHRONIZE:
                self._wait()
                self._spend(SYNCHRONIZE_S)
            elif code == FLUSH:
                self._spend(self.function.launch_s)
                self._queue(self.scale.flush_s, "flush_cache")
                self.cache.clear()
            elif code == MARK:
                values.append(self._event_ticks(first) if self._reached(first) else math.nan)
            else:
                values.append(self._clock(code))
            self._note(code, began_s)
        return OK, values

    @property
    def used_s(self) -> float:
        """How long the benchmark has used the machine: until both host and device are done."""
        return max(self.host_s, self.tail_s)

    def _call(self, result: int, input_: int) -> None:
        if input_ not in self.inputs:
            return  # a benchmark cannot name an input that it does not hold
        if not self.calls:
            self._work(self.function.compile_s)  # compiling tries variants on the device
        self.calls += 1
        self._spend(self.function.launch_s)
        if self.function.lazy:
            self.unused[result] = input_
        else:
            self._compute(input_)

    def _compute(self, input_: int) -> None:
        if not input_ or input_ not in self.inputs:
            return
        function = self.function
        cost_s = function.cost_s * (1 + function.jitter * self._symmetric())
        if input_ in self.cache:
            cost_s *= 1 - function.cached_share
        if self.inputs[input_]:
            cost_s *= 1 - function.constant_share
        if self.runs < len(function.tuning):
            cost_s *= function.tuning[self.runs]
        self.runs += 1
        self._touch(input_)
        self._queue(cost_s, "function")

    def _queue(self, cost_s: float, name: str = "") -> float:
        """Queues work that costs this much at full speed; returns when it will have run. A full
        queue makes the host wait.
        """
        while self.queued and self.queued[0] <= self.host_s:
            self.queued.popleft()
        if len(self.queued) >= QUEUE_LENGTH:
            self._until(self.queued.popleft())
        begin_s = max(self.host_s, self.tail_s)
        if cost_s:
            self._wake(begin_s)
            speed = SLOWEST + (1 - SLOWEST) * min(1.0, (begin_s - self.awake_since_s) / AWAKE_S)
            took_s = cost_s / speed
            took_s += self._stalled(took_s)
            self.tail_s = self.worked_until_s = begin_s + took_s
            self._run(took_s)
            if self.rows is not None:
                self.rows.append((name, begin_s, self.tail_s))
        else:
            self.tail_s = begin_s
        self.queued.append(self.tail_s)
        return self.tail_s

    def _stalled(self, took_s: float) -> float:
        self._until_stall_s -= took_s
        stalled_s = 0.0
        while self._until_stall_s < 0:
            stalled_s += float(self.rng.uniform(*STALL_S))
            self._until_stall_s += float(self.rng.exponential(1 / STALLS_A_SECOND))
        return stalled_s

    def _symmetric(self) -> float:
        """A draw of unit scale, symmetric about 0 and within ±1.9."""
        if not self._draws:
            drawn = self.rng.normal(size=4096)
            self._draws = drawn[np.abs(drawn) < 1.9].tolist()
        return self._draws.pop()

    def _make(self, id_: int, *, constant: bool) -> None:
        self._work(MAKE_S + self.function.input_bytes / COPY_BYTES_S)
        self.inputs[id_] = constant

    def _work(self, seconds: float) -> None:
        """Work that occupies the host and the device together."""
        self._wait()
        self._wake(self.host_s)
        self.tail_s = self.worked_until_s = self.host_s + seconds
        self._run(seconds)
        self._wait()

    def _spend(self, seconds: float) -> None:
        """Keeps the host busy for this long."""
        self._until(self.host_s + seconds)

    def _until(self, host_s: float) -> None:
        """The host goes on at `host_s` at the earliest."""
        self.host_s = max(self.host_s, host_s)

    def _wait(self) -> None:
        """The host waits for the device."""
        self._until(self.tail_s)

    def _run(self, seconds: float) -> None:
        """Gives the device this much more to do."""

    def _mark(self, event: int) -> None:
        """Queues an event: the device notes when it reaches it."""
        self.events[event] = self._queue(0.0)

    def _reached(self, event: int) -> bool:
        """Return True if the device has reached the event and the host knows it."""
        return self.events.get(event, math.inf) <= self.host_s

    def _wake(self, begin_s: float) -> None:
        if begin_s - self.worked_until_s > ASLEEP_S:
            self.awake_since_s = begin_s

    def _touch(self, input_: int) -> None:
        self.cache.pop(input_, None)
        self.cache[input_] = None
        while len(self.cache) * self.function.input_bytes > CACHE_BYTES:
            self.cache.popitem(last=False)

    def _event_ticks(self, event: int) -> float:
        return math.floor(self.events[event] / EVENT_TICK_S) * EVENT_TICK_S

    def _clock(self, code: int) -> float:
        self._spend(READ_CLOCK_S)
        if code == LEFT:
            return self.budget_s - self.host_s
        if code == PERF_COUNTER:
            return 1000 + self.host_s
        while self._next_step_s < self.host_s:
            self._calendar_s += float(self.rng.uniform(-STEP_S, STEP_S))
            self._next_step_s += float(self.rng.exponential(1 / STEPS_A_SECOND))
        return math.floor((self._calendar_s + self.host_s) / TICK_S) * TICK_S

    def _note(self, code: int, began_s: float) -> None:
        if self.rows is not None and code in HOST_ROWS:
            self.rows.append((f"host {HOST_ROWS[code]}", began_s, self.host_s))


HOST_ROWS = {
    CALL: "call",
    MAKE: "make_input",
    SYNCHRONIZE: "synchronize",
    TIME: "time",
    PERF_COUNTER: "perf_counter",
}
