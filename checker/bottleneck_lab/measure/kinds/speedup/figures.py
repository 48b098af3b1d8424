"""Figures of one case: its timed pairs, with and without the protocol's time, and the decisions of
the sequential tests on them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import msgspec

from bottleneck_lab.analysis.statistics import Interval, bounds_at
from bottleneck_lab.grading.sequential import Decision, SequentialTest, State

FAR_PAIRS = 7
"""For code so slow that the time runs out before the first look: this many pairs of a case decide
if each misses the target by far (sequential.FAR).

Code that meets the target would have to fall on the wrong side of it seven times out of seven, 1 in
2⁷, and each time by a factor of two.
"""

FIRST_LOOK_PAIRS = 10
"""Pairs of a case at the first look, before the machine is compared with itself: if each of them
misses the target by far, the case fails. The chance by the coin alone is 2⁻¹⁰, less than the plan's
error of 0.1%.
"""

VERY_FAR_PAIRS, VERY_FAR = 3, 2.0
"""Pairs that suffice at the first look if they miss the target by VERY_FAR times as much, six times
on the worst machine, and no other pair by less than far. The coin alone would need ten. But right
code would have to take six times its time in each of them; if it did so in one call out of ten,
three would be as rare as the plan's error. docs/statistics.md has how rare it is.
"""

MOVED_PAIRS = 7
"""Pairs of a case that come with a call that computes nothing. Their median is taken from both
sides' times, so near a tie even a wrong one would change nothing.
"""

LEAST_OWN = 0.1
"""Of a call, the share (0-1) that always counts as computing: a call that takes no longer than
moving its data is no proof of infinite speed.
"""

MOST_WAITED = 0.9
"""Share of its time that the reference is held to have waited, at most: threads that waited at the
same time are in it several times over.
"""


@dataclass
class Case:
    """The timed pairs of one case: seconds of the reference and of the learner, in the order
    measured. `overhead_s` of each is the protocol's.

    `cpu_s`: CPU seconds of the learner's calls, added up; `threads`: cores that these may keep
    busy; `waited_s`: seconds in which its threads were ready to run in these calls and had no core,
    where `threads` limits them; `computing`: how many of them computed in each of these calls.
    `idle`: whether the first MOVED_PAIRS come with a call of the reference's that moves the same
    data and computes nothing; `moved_s`: seconds of those. `out_of_time`: the learner's calls have
    used up the time of the whole comparison. `far_off`: the first look has shown it to be far too
    slow.
    """

    name: str
    overhead_s: float = 0.0
    reference_s: list[float] = field(default_factory=list)
    learner_s: list[float] = field(default_factory=list)
    decisions: dict[str, Decision] = field(default_factory=dict)
    cpu_s: float = 0.0
    threads: int | None = None
    waited_s: float = 0.0
    computing: list[int] = field(default_factory=list)
    idle: bool = False
    moved_s: list[float] = field(default_factory=list)
    out_of_time: bool = False
    far_off: bool = False

    def decide(self, tests: dict[str, SequentialTest], *, exhausted: bool) -> bool:
        """Ask every test about the pairs so far. Returns True while one of them wants more."""
        whole = self.as_judged()
        without = whole.without_overhead()
        self.decisions = {
            id_: _agreed(test, SAMPLES[id_](whole), SAMPLES[id_](without), exhausted=exhausted)
            for id_, test in tests.items()
        }
        late = self.out_of_time and len(self.learner_s) >= FAR_PAIRS and self.is_far(tests)
        if late or (self.far_off and self.fails_at_first_look(tests)):
            self.decisions["speedup"] = Decision(
                State.FAIL, self.span(), len(self.learner_s), wanted=0
            )
        return any(decision.wanted for decision in self.decisions.values())

    @property
    def overhead_share(self) -> float:
        """The protocol's share (0–1) of the learner's median call; 0 where there is none yet."""
        return self.overhead_s / median(self.learner_s or [math.inf])

    @property
    def cores(self) -> float:
        """Cores that the learner's calls kept busy on average."""
        return self.cpu_s / max(sum(self.learner_s), 1e-9)

    @property
    def ready(self) -> float:
        """The learner's threads that computed, or would have on a free core, on average: on a busy
        machine more than `cores`.
        """
        return (self.cpu_s + self.waited_s) / max(sum(self.learner_s), 1e-9)

    @property
    def speedup(self) -> float:
        """The median ratio of its pairs, of which there must be one, as they are judged."""
        return median(self.as_judged().ratios())

    def as_judged(self) -> Case:
        """Return the case with the learner's extra cores charged, and without moved data."""
        return self.charged().without_moving()

    def charged(self) -> Case:
        """Return the case with the learner's time as it would have been on the cores that it may
        use: time times cores over threads, where that is more.
        """
        beyond = max(1.0, self.cores / self.threads) if self.threads else 1.0
        return replace(self, learner_s=[second * beyond for second in self.learner_s], threads=None)

    def without_overhead(self) -> Case:
        """Return the case without the protocol's time; of an answer faster than that, nothing is
        left.
        """
        reference_s, learner_s = (
            [max(second - self.overhead_s, 1e-9) for second in side]
            for side in (self.reference_s, self.learner_s)
        )
        return replace(self, overhead_s=0.0, reference_s=reference_s, learner_s=learner_s)

    def without_moving(self) -> Case:
        """Return the case without the time of a call that computes nothing; at least LEAST_OWN of
        each call is left. Unchanged where no such call was timed.

        That time is the reference's for both sides: the learner could drag its own out.
        """
        moved_s = median(self.moved_s) if self.moved_s else 0.0
        reference_s, learner_s = (
            [max(second - moved_s, LEAST_OWN * second) for second in side]
            for side in (self.reference_s, self.learner_s)
        )
        return replace(self, moved_s=[], reference_s=reference_s, learner_s=learner_s)

    def without_waiting(self, share: float) -> Case:
        """Return the case without the share (0–1) of the learner's time in which its threads waited
        for a core.
        """
        # Threads that waited at the same time are in the share several times over: what the calls
        # computed, on all the cores that they may use, must stay.
        computed = min(self.cores / (self.threads or os.cpu_count() or 1), 1.0)
        learner_s = [max(second * max(1 - share, computed), 1e-9) for second in self.learner_s]
        return replace(self, learner_s=learner_s)

    def beside_waiting(self, learner: float, reference: float) -> Case:
        """Return the case without the shares (0–1) of both sides' time in which their threads
        waited for a core.
        """
        kept = 1 - min(reference, MOST_WAITED)
        reference_s = [second * kept for second in self.reference_s]
        return replace(self.without_waiting(learner), reference_s=reference_s)

    def fails_at_first_look(self, tests: dict[str, SequentialTest]) -> bool:
        """Return True if every one of its few pairs misses the target by far, and so many do, or
        some by so much, that no more are needed.
        """
        return self.is_far(tests) and (
            len(self.learner_s) >= FIRST_LOOK_PAIRS
            or sum(self._far_pairs(tests["speedup"], VERY_FAR)) >= VERY_FAR_PAIRS
        )

    def is_far(self, tests: dict[str, SequentialTest]) -> bool:
        """Return True if there are too few pairs for a look and every one misses the target by far,
        with the protocol's time and without it.
        """
        test = tests.get("speedup")
        if test is None or not 0 < len(self.learner_s) < test.plan.looks[0]:
            return False
        return all(self._far_pairs(test))

    def _far_pairs(self, test: SequentialTest, times: float = 1.0) -> list[bool]:
        """Return of each pair if it misses the target by far, or by so many `times` as much."""
        both = zip(self.ratios(), self.without_overhead().ratios(), strict=True)
        return [test.misses_by_far([times * ratio for ratio in pair]) for pair in both]

    def states(self) -> dict[str, State]:
        """Return the outcome of each test so far."""
        return {id_: decision.state for id_, decision in self.decisions.items()}

    def failed(self) -> bool:
        """Return True if some test says that a target is surely not met."""
        return State.FAIL in self.states().values()

    def passed(self) -> bool:
        """Return True if every test says that its target is surely met."""
        return set(self.states().values()) == {State.PASS}

    def decided(self) -> bool:
        """Return True if more pairs would change nothing: it has failed, or passed every test."""
        return self.failed() or self.passed()

    def times(self) -> dict[str, list[float]]:
        """Return all seconds, as a verdict's file has them."""
        return {
            "reference_s": self.reference_s,
            "learner_s": self.learner_s,
            "moved_s": self.moved_s,
        }

    def span(self) -> Interval:
        """Return the median of its ratios, between the least and the largest."""
        return bounds_at(self.ratios(), rank=1)

    def ratios(self) -> list[float]:
        """Return reference over learner, pair by pair."""
        return [
            reference / learner
            for reference, learner in zip(self.reference_s, self.learner_s, strict=True)
        ]


Samples = Callable[[Case], list[float]]
SAMPLES: dict[str, Samples] = {
    "speedup": Case.ratios,
    "p50-ms": lambda case: [1000 * second for second in case.learner_s],
}
"""The samples of each criterion that this kind can measure, one a pair."""


def _agreed(
    test: SequentialTest, samples: list[float], without: list[float], *, exhausted: bool
) -> Decision:
    """Return the decision that holds both with the protocol's time and without it; undecided where
    the two differ.
    """
    # The protocol's time is in both sides' and pulls every ratio towards 1.
    first, second = (test.decide(each, exhausted=exhausted) for each in (samples, without))
    if first.state is second.state:
        return first
    wanted = max(first.wanted, second.wanted)
    return msgspec.structs.replace(
        first, state=State.CONTINUE if wanted else State.INCONCLUSIVE, wanted=wanted
    )
