"""Emulated CI machines, and commit histories whose every change is known. Time is virtual: nothing
waits. Only the verifier runs this file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

OK, OUT_OF_TIME, UNKNOWN = range(3)
START_S, BUILD_S = 0.3, 20.0
BENCHMARKS = ("parse", "plan", "scan", "join", "sort", "write")
SECONDS = (0.25, 2.5)
"""How long a benchmark takes in the first commit, on a machine of average speed."""
MACHINE = (0.8, 1.25)
"""The range of machine speeds, as a factor on every time."""
WANDERS, WANDERS_S = 0.04, 60.0
"""A machine's speed drifts: by how much (the standard deviation of its logarithm), and with what
correlation time.
"""
NEIGHBOUR_COMES_S, NEIGHBOUR_STAYS_S, NEIGHBOUR = 150.0, 40.0, (1.15, 1.4)
"""Other people's jobs: mean time until one comes, mean time it stays, and the factor by which it
slows everything down.
"""
NOISE = (0.01, 0.03)
STALLED, STALL = 0.03, (1.3, 3.0)
HASTY, HASTE = 0.02, (0.7, 0.9)
"""The shares of runs that come out much too long or too short, and the factors."""
NOBODY_CARES = 0.01
"""How much a clean commit may change a time, either way."""


@dataclass
class History:
    """A repository: how long each commit's benchmarks take, and which commit passed last."""

    rng: np.random.Generator
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    passed: str = ""
    baseline: str = ""
    spoiled: tuple[str, ...] = ()
    """Benchmarks that the last stopped commit made slower; its author fixes them only in part."""

    def first(self) -> str:
        """The first commit of the history."""
        drawn = np.exp(self.rng.uniform(*np.log(SECONDS), len(BENCHMARKS)))
        self.passed = self._add(dict(zip(BENCHMARKS, drawn.tolist(), strict=True)))
        return self.passed

    def clean(self) -> str:
        """A commit on top of the last that passed: nothing noticeably slower, perhaps something
        faster.
        """
        changes = 1 + self.rng.uniform(-NOBODY_CARES, NOBODY_CARES, len(BENCHMARKS))
        if self.rng.random() < 0.25:
            changes[self.rng.integers(len(BENCHMARKS))] = self.rng.uniform(0.7, 0.92)
        return self._commit(changes)

    def regression(self) -> tuple[str, set[str]]:
        """A commit that makes one to all benchmarks slower by 10% or more, half the time only just;
        and their names. It may make another faster.
        """
        changes = 1 + self.rng.uniform(-NOBODY_CARES, NOBODY_CARES, len(BENCHMARKS))
        again = [BENCHMARKS.index(name) for name in self.spoiled[:1]]
        count = int(self.rng.integers(1, len(BENCHMARKS) + 1))
        chosen = again or self.rng.choice(len(BENCHMARKS), count, replace=False).tolist()
        for which in chosen:
            small = again or self.rng.random() < 0.5
            changes[which] = 1 + (
                self.rng.uniform(0.10, 0.13) if small else self.rng.uniform(0.13, 0.4)
            )
        spared = [which for which in range(len(BENCHMARKS)) if which not in chosen]
        if spared and self.rng.random() < 0.5:
            changes[self.rng.choice(spared)] = self.rng.uniform(0.6, 0.92)
        self.spoiled = () if again else tuple(BENCHMARKS[which] for which in chosen)
        return self._commit(changes), {BENCHMARKS[which] for which in chosen}

    def _commit(self, changes: np.ndarray) -> str:
        before = self.seconds[self.passed]
        return self._add(
            {
                name: before[name] * change
                for name, change in zip(BENCHMARKS, changes.tolist(), strict=True)
            }
        )

    def _add(self, seconds: dict[str, float]) -> str:
        commit = self.rng.bytes(20).hex()
        self.seconds[commit] = seconds
        return commit


class Job:
    """One CI job on a randomly drawn machine, whose speed drifts, whose neighbours come and go, and
    whose runs stall.
    """

    disturbed = ""
    """Where runs are real work: why this job cannot be judged. Nothing disturbs an emulated one."""

    def __init__(self, history: History, rng: np.random.Generator, budget_s: float) -> None:
        self.history, self.rng, self.budget_s = history, rng, budget_s
        self.used_s = 0.0
        self.runs = 0
        self._machine = float(np.exp(rng.uniform(*np.log(MACHINE))))
        self._noise = {name: float(rng.uniform(*NOISE)) for name in BENCHMARKS}
        self._level, self._level_at_s = float(rng.normal(0, WANDERS)), 0.0
        self._neighbour, self._until_s = 1.0, float(rng.exponential(NEIGHBOUR_COMES_S))
        self._built: set[str] = set()

    def run(self, commit: str, benchmark: str) -> tuple[int, float]:
        """A status and the seconds that the run took."""
        if commit not in self.history.seconds or benchmark not in BENCHMARKS:
            return UNKNOWN, 0.0
        if commit not in self._built:
            self._built.add(commit)
            self.used_s += BUILD_S
        self.used_s += START_S
        self.runs += 1
        seconds = self.history.seconds[commit][benchmark] * self._slowdown() * self._luck(benchmark)
        self.used_s += seconds
        return (OUT_OF_TIME, 0.0) if self.used_s > self.budget_s else (OK, seconds)

    def _slowdown(self) -> float:
        """The machine's slowdown at this moment."""
        keep = math.exp((self._level_at_s - self.used_s) / WANDERS_S)
        self._level = keep * self._level + math.sqrt(1 - keep**2) * float(
            self.rng.normal(0, WANDERS)
        )
        self._level_at_s = self.used_s
        while self._until_s < self.used_s:
            there = self._neighbour > 1
            self._neighbour = 1.0 if there else float(self.rng.uniform(*NEIGHBOUR))
            self._until_s += float(
                self.rng.exponential(NEIGHBOUR_COMES_S if there else NEIGHBOUR_STAYS_S)
            )
        return self._machine * self._neighbour * math.exp(self._level)

    def _luck(self, benchmark: str) -> float:
        """The factor of a single run."""
        drawn = float(self.rng.random())
        usual = math.exp(float(self.rng.normal(0, self._noise[benchmark])))
        if drawn < STALLED:
            return usual * float(self.rng.uniform(*STALL))
        return usual * float(self.rng.uniform(*HASTE)) if drawn > 1 - HASTY else usual
