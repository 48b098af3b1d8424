"""When to stop measuring and what to conclude: a sequential test whose error is known exactly.

The samples are looked at after each group. At a look, the median's interval (order statistics) is
compared with the target. Looking several times makes an error likelier, so each look is held to a
stricter level: the loosest at which the chance of *ever* erring, counted over all paths of a fair
coin, stays within the plan's `error`. docs/statistics.md shows why a fair coin.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from bottleneck_lab.analysis.statistics import Interval, bounds_at, median_interval, tail_rank

Direction = Literal["at_least", "at_most"]
Side = Literal["reference", "learner"]

SELF_TEST_CONFIDENCE = 0.95

SELF_TEST_PAIRS = (12, 24, 48)
"""Pairs of an A/A test: if one number is too few, measure up to the next before giving up on the
machine.
"""

SELF_TEST_MARGIN = 0.2
"""A lab's slow and fixed code are at least 1.5x apart; with the target between them, each is about
1.2x from it.
"""

SELF_TEST_LIMIT = 0.5
"""Less equal than this, and hardly any honest work would clear a target by as much: the machine is
unfit.
"""

FAR = 2.0
"""Work that misses its target by this factor, and by the doubt besides, is far off."""


class State(StrEnum):
    """The conclusion that the samples so far allow."""

    PASS = "PASS"
    FAIL = "FAIL"
    CONTINUE = "CONTINUE"
    INCONCLUSIVE = "INCONCLUSIVE"


@lru_cache(maxsize=64)
def look_ranks(looks: tuple[int, ...], error: float) -> tuple[int, ...]:
    """Return the order statistic to use at each look, at the loosest level common to all looks that
    keeps to `error` in total.

    Bonferroni (error / looks) is always good enough and is where the search starts; looks share
    samples, so there is room above it. 0 at a look that has too few samples. The cost grows with
    the cube of the last look: plans are small. Source: Pocock, Biometrika 64 (1977), with the exact
    distribution of the sign test in place of the normal one.
    """
    # In fractions, so that nothing is rounded where a chance is compared with the one allowed. By
    # its text, 0.001 is a thousandth; by its value, a little more.
    allowed = Fraction(str(error))
    safe, unsafe = allowed / len(looks), allowed
    best = _ranks_at(looks, safe)
    # Twelve halvings: the ranks are whole numbers, and no longer change.
    for _ in range(12):
        level = (safe + unsafe) / 2
        ranks = _ranks_at(looks, level)
        if ever_missed(looks, ranks) <= allowed:
            safe, best = level, ranks
        else:
            unsafe = level
    return best


def _ranks_at(looks: tuple[int, ...], level: Fraction) -> tuple[int, ...]:
    return tuple(tail_rank(look, level) for look in looks)


def ever_missed(looks: Sequence[int], ranks: Sequence[int]) -> Fraction:
    """Return the exact chance that at some look the lower bound lies above the true median (the
    upper bound below it: the same).

    Each sample falls below the median like a fair coin, and a look errs when fewer than `rank`
    have. `alive` counts, by number of samples below, the paths of coin tosses that have not erred
    yet.
    """
    alive, tossed = {0: 1}, 0
    for look, rank in zip(looks, ranks, strict=True):
        # Of the samples since the last look, `more` fall below the median in `way` orders.
        coins = look - tossed
        ways = [math.comb(coins, more) for more in range(coins + 1)]
        after: dict[int, int] = defaultdict(int)
        for below, paths in alive.items():
            for more, way in enumerate(ways):
                after[below + more] += paths * way
        alive = {below: paths for below, paths in after.items() if below >= rank}
        tossed = look
    # Whole numbers until here: of 2 ** 192 paths, a float would lose the few that err.
    return 1 - Fraction(sum(alive.values()), 2**tossed)


class Plan(msgspec.Struct, frozen=True):
    """After how many samples to look, and the chance `error` that a bound ever lies on the wrong
    side of the median.

    The last look is the cap. Raises ValueError unless the looks increase and some look can bear a
    bound.
    """

    looks: tuple[int, ...] = (12, 16, 24, 32, 48, 64, 96, 128, 192)
    error: float = 0.001

    def __post_init__(self) -> None:
        if (
            not self.looks
            or self.looks[0] < 1
            or any(b <= a for a, b in zip(self.looks, self.looks[1:], strict=False))
        ):
            raise ValueError(f"looks must increase from at least 1: {self.looks}")
        if not 0 < self.error < 0.5:
            raise ValueError(f"an error lies between 0 and ½, not at {self.error}")
        # A plan whose last look has no bound could only ever end undecided.
        if look_ranks(self.looks, self.error)[-1] == 0:
            raise ValueError(
                f"{self.looks[-1]} samples cannot bear a bound with an error of {self.error}"
            )

    @property
    def confidence(self) -> float:
        """Chance (0–1) that no interval, at any look, misses the true median on either side."""
        return 1 - 2 * self.error

    @property
    def ranks(self) -> tuple[int, ...]:
        """For each look, which order statistic bounds the median; 0 where there are too few
        samples.
        """
        return look_ranks(self.looks, self.error)


PAIRS = Plan()
"""For pairs of calls: many and cheap. The first looks are for quiet machines; pairs that differ by
20% need all 192 to tell 1.1x from 1x.
"""

BLOCKS = Plan(looks=(8, 12, 16, 24), error=0.01)
"""For blocks of seconds each: fewer, so a looser level; docs/statistics.md has what it costs."""


class Decision(msgspec.Struct, frozen=True):
    """The answer of a test. `samples` is how many were looked at, `wanted` how many more to measure
    before asking again.
    """

    state: State
    interval: Interval
    samples: int
    wanted: int


class Outlook(NamedTuple):
    """Chances (0–1) that a test still ends with PASS, and with FAIL."""

    passes: float
    fails: float


class SequentialTest(msgspec.Struct, frozen=True):
    """A test of whether the median of samples reaches a target, in the samples' own unit (a ratio,
    a share, milliseconds).

    `margin` makes it a non-inferiority test: the bound needs to reach only `margin` × target (÷ for
    `at_most`). `doubt` is how far, as a share, this machine may favour one side: a bound must clear
    the bar by as much either way. A pure function of the samples in the order they were measured:
    it keeps nothing between calls.
    """

    target: float
    direction: Direction = "at_least"
    plan: Plan = PAIRS
    margin: float = 1.0
    doubt: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.target) and 0 < self.margin <= 1):
            raise ValueError(
                f"target {self.target} must be finite and margin {self.margin} in (0, 1]"
            )
        if not 0 <= self.doubt < math.inf:
            raise ValueError(f"a doubt is a share of at least 0, not {self.doubt}")

    @property
    def bar(self) -> float:
        """The value that the bound must reach."""
        if self.direction == "at_least":
            return self.target * self.margin
        return self.target / self.margin

    def decide(self, samples: Sequence[float], *, exhausted: bool = False) -> Decision:
        """Return the first decision that any look so far has reached, so that further samples never
        turn it.

        `exhausted` says that no more samples can come (the time is up): CONTINUE becomes
        INCONCLUSIVE. Samples beyond the last look that was reached are not used. Raises ValueError
        on samples that are not numbers.
        """
        # Every look is taken again with each call. So a decision rests on the samples of its look
        # alone, and those that were measured after it cannot turn it.
        interval, seen = Interval(-math.inf, math.nan, math.inf), 0
        for look, rank in zip(self.plan.looks, self.plan.ranks, strict=True):
            if look > len(samples):
                return _undecided(interval, seen, wanted=0 if exhausted else look - len(samples))
            interval, seen = bounds_at(samples[:look], rank), look
            state = self.judge(interval)
            if state is not State.CONTINUE:
                return Decision(state, interval, seen, 0)
        return _undecided(interval, seen, wanted=0)

    def outlook(self, samples: Sequence[float], most: int) -> Outlook:
        """Return the chances that one of the looks to come decides if no more than `most` samples
        can be had, by the share of samples so far on each side of the bar.
        """
        # A bound clears the bar once fewer than `rank` samples fall short of it. How many of those
        # to come will is a beta-binomial from Jeffreys' prior (Spiegelhalter, Freedman and
        # Blackburn, Control. Clin. Trials 7, 1986). Added up over the looks: too high, if anything.
        sign = 1.0 if self.direction == "at_least" else -1.0
        above, below = self.bar * (1 + self.doubt), self.bar / (1 + self.doubt)
        if self.direction == "at_most":
            above, below = below, above
        seen = len(samples)
        short = sum(sign * sample < sign * above for sample in samples)
        beyond = sum(sign * sample >= sign * below for sample in samples)
        to_pass = to_fail = 0.0
        for look, rank in zip(self.plan.looks, self.plan.ranks, strict=True):
            if seen < look <= most:
                to_pass += _fewer_than(rank, short, seen, look)
                to_fail += _fewer_than(rank, beyond, seen, look)
        return Outlook(min(1.0, to_pass), min(1.0, to_fail))

    def misses_by_far(self, samples: Sequence[float]) -> bool:
        """Return True if every sample misses the bar by more than FAR and the doubt together."""
        bar, factor = self.bar, FAR * (1 + self.doubt)
        if self.direction == "at_least":
            return max(samples, default=math.inf) * factor < bar
        return min(samples, default=-math.inf) > bar * factor

    def first_look(self, samples: Sequence[float]) -> Decision | None:
        """Return the FAIL of the plan's first look if all its samples miss the bar by far: a check
        need not go on. None for all other work, which is decided by `decide`.
        """
        # Nothing is decided here that `decide` would not: its first look fails with less. So the
        # plan's error covers it.
        first, rank = self.plan.looks[0], self.plan.ranks[0]
        if not rank or len(samples) < first or not self.misses_by_far(samples[:first]):
            return None
        return Decision(State.FAIL, bounds_at(samples[:first], rank), first, 0)

    def judge(self, interval: Interval) -> State:
        """Return PASS or FAIL if the whole interval lies on that side of the bar, and CONTINUE
        otherwise.
        """
        # With a doubt the bar is a band, and both a PASS and a FAIL must be clear of all of it.
        above, below = self.bar * (1 + self.doubt), self.bar / (1 + self.doubt)
        reached, missed = interval.low >= above, interval.high < below
        if self.direction == "at_most":
            reached, missed = interval.high <= below, interval.low > above
        if reached:
            return State.PASS
        return State.FAIL if missed else State.CONTINUE


def _fewer_than(rank: int, such: int, seen: int, look: int) -> float:
    """Return the chance that fewer than `rank` of `look` samples are of a kind of which there are
    `such` among the `seen` first.
    """
    more, kind, other = look - seen, such + 0.5, seen - such + 0.5
    return math.fsum(
        math.comb(more, count)
        * math.exp(_log_beta(kind + count, other + more - count) - _log_beta(kind, other))
        for count in range(min(rank - such, more + 1))
    )


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _undecided(interval: Interval, samples: int, wanted: int) -> Decision:
    return Decision(State.CONTINUE if wanted else State.INCONCLUSIVE, interval, samples, wanted)


class SelfTest(msgspec.Struct, frozen=True):
    """How the reference compared with itself. `spread` is how far from equal, as a share, it may
    have come out.

    `doubt` is what a test must allow for: nothing on a quiet machine, the spread on another. Not
    `fit`: judge nobody here.
    """

    quiet: bool
    fit: bool
    spread: float
    sentence: str

    @property
    def doubt(self) -> float:
        """For `SequentialTest.doubt`."""
        return 0.0 if self.quiet else self.spread


def self_test(log_ratios: Sequence[float], margin: float = SELF_TEST_MARGIN) -> SelfTest:
    """Judge an A/A test: does the reference, measured against itself, come out equal to within
    `margin` (0.2 is 20%)?

    Where it does not, the machine is noisy, or favours one side, and it cannot be told which: the
    spread is held to be favour. Raises ValueError with fewer than 6 pairs, which bound nothing.
    """
    interval = median_interval(log_ratios, SELF_TEST_CONFIDENCE)
    if math.isinf(interval.high):
        raise ValueError(f"an A/A test needs at least 6 pairs, not {len(log_ratios)}")
    spread = math.expm1(max(-interval.low, interval.high, 0.0))
    span = f"between {math.exp(interval.low):.2f}x and {math.exp(interval.high):.2f}x"
    seen = f"the same code, measured against itself {len(log_ratios)} times, gave ratios {span}"
    if spread <= margin:
        return SelfTest(True, True, spread, f"Quiet enough at first: {seen}.")
    if spread <= SELF_TEST_LIMIT:
        need = f"a target counts as met or missed only if the result clears it by {spread:.0%}"
        return SelfTest(False, True, spread, f"This machine is not quiet: {seen}; so {need}.")
    limit = max(margin, SELF_TEST_LIMIT)
    return SelfTest(
        False,
        False,
        spread,
        f"This machine is too busy: {seen}; they must be within {limit:.0%} of 1x.",
    )


def shuffled_order(rng: random.Random, n: int) -> list[tuple[Side, Side]]:
    """Draw which side goes first in each of `n` pairs: an independent fair coin each.

    Independence is what makes the interval exact on a drifting machine (docs/statistics.md), so the
    order is not balanced. Use a generator that the measured code cannot predict, such as
    `random.SystemRandom`.
    """
    return [
        ("reference", "learner") if rng.getrandbits(1) else ("learner", "reference")
        for _ in range(n)
    ]
