"""Distribution-free statistics: nothing here assumes that timings are normal, because they never
are.

Mostly pure Python: a check has at most thousands of samples, and exact integers make the levels
exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist, median
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal distribution to its standard deviation: 1 / Φ⁻¹(3/4)."""


Change = Literal["better", "worse", "same", "cannot tell", "differs"]
"""The outcome of comparing two versions; `differs` where more time is neither better nor worse."""


class Interval(NamedTuple):
    """A median with its bounds, in the unit of the samples. A bound that the samples cannot bear is
    infinite.
    """

    low: float
    median: float
    high: float


@lru_cache(maxsize=4096)
def tail_rank(n: int, level: Fraction) -> int:
    """Return the largest k with P(Bin(n, ½) < k) ≤ `level` (below ½): the k-th smallest sample tops
    the median at most that often.

    0 means that n samples can bear no bound at this level. Exact: counts of coin tosses are
    integers. Source: the sign test's interval, David & Nagaraja, Order Statistics (2003), section
    7.1.
    """
    allowed, ways, rank = level * 2**n, 1, 0
    total = ways
    while total <= allowed and rank < n:
        rank += 1
        ways = ways * (n - rank + 1) // rank
        total += ways
    return rank


def bounds_at(samples: Sequence[float], rank: int) -> Interval:
    """Return the `rank`-th smallest sample, the median and the `rank`-th largest one; infinite
    bounds at rank 0.

    Raises ValueError without samples, or when one of them is not a number.
    """
    if not samples or any(math.isnan(sample) for sample in samples):
        raise ValueError("an interval needs at least one sample, and every sample must be a number")
    ordered = sorted(samples)
    middle = float(median(ordered))
    if rank == 0:
        return Interval(-math.inf, middle, math.inf)
    return Interval(ordered[rank - 1], middle, ordered[-rank])


def median_interval(samples: Sequence[float], confidence: float) -> Interval:
    """Return an interval that covers the true median with at least `confidence` (0–1), whatever the
    distribution, ties included.

    Raises ValueError on a confidence outside (0, 1) and on samples that are missing or not numbers.
    """
    _require_share(confidence)
    # The decimal that was written, not the binary float nearest to it: 0.95 must mean 19/20.
    return bounds_at(samples, tail_rank(len(samples), (1 - Fraction(str(confidence))) / 2))


def signed_rank_interval(samples: Sequence[float], confidence: float) -> Interval:
    """Return an interval for the centre of a symmetric distribution, around the Hodges-Lehmann
    estimate: about half as wide as `median_interval`'s.

    Ratios of paired measurements in random order are symmetric in the logarithm as long as a change
    scales the times; without a change they always are, and the interval then misses 0 at most with
    1 - `confidence`, ties included. Bounds that the samples cannot bear are infinite. Source:
    Hollander, Wolfe & Chicken, Nonparametric Statistical Methods (2014), section 3.3: ordered Walsh
    averages. Raises ValueError on a confidence outside (0, 1) and on samples that are missing or
    not numbers.
    """
    _require_share(confidence)
    bounds_at(samples, 0)
    values = np.asarray(samples, dtype=np.float64)
    first, second = np.triu_indices(len(values))
    walsh = np.sort((values[first] + values[second]) / 2)
    rank = _signed_rank(len(values), (1 - Fraction(str(confidence))) / 2)
    middle = float(np.median(walsh))
    if rank:
        return Interval(float(walsh[rank - 1]), middle, float(walsh[-rank]))
    return Interval(-math.inf, middle, math.inf)


@lru_cache(maxsize=4096)
def _signed_rank(n: int, level: Fraction) -> int:
    """Return the largest k with P(W < k) <= `level`, W the sum of those ranks 1…n whose coin shows
    heads; 0 where there is none.
    """
    shares = np.zeros(n * (n + 1) // 2 + 1)
    shares[0] = 1.0
    for rank in range(1, n + 1):
        # The right side is computed before it is assigned.
        shares[rank:] = shares[rank:] + shares[:-rank]
        shares /= 2
    # Exact up to n = 53, as long as 2ⁿ sums have a float each; beyond, the last digits are rounded
    # to the safe side.
    return int(
        np.searchsorted(np.cumsum(shares), float(level) * (1 - 1e-12 * (n > 53)), side="right")
    )


def rank_sum_interval(
    first: Sequence[float], second: Sequence[float], confidence: float
) -> Interval:
    """Return an interval for how far `second` lies above `first`, around the Hodges-Lehmann
    estimate: independent samples whose distributions differ by a shift.

    Bounds that the samples cannot bear are infinite. Source: Hollander, Wolfe & Chicken,
    Nonparametric Statistical Methods (2014), section 4.3: ordered differences. Raises ValueError on
    a confidence outside (0, 1) and on samples that are missing or not numbers.
    """
    _require_share(confidence)
    bounds_at(first, 0), bounds_at(second, 0)
    differences = np.sort(
        np.subtract.outer(
            np.asarray(second, dtype=np.float64), np.asarray(first, dtype=np.float64)
        ).ravel()
    )
    rank = _rank_sum(*sorted((len(first), len(second))), (1 - Fraction(str(confidence))) / 2)
    middle = float(np.median(differences))
    if not rank:
        return Interval(-math.inf, middle, math.inf)
    return Interval(float(differences[rank - 1]), middle, float(differences[-rank]))


def rank_sum_order(first: Sequence[float], second: Sequence[float], confidence: float) -> int:
    """Return -1 if `second` lies below `first` by the rank-sum test, 1 if above, 0 if that cannot
    be told. Ties count half to either side (Hollander, Wolfe & Chicken, section 4.1), whereas the
    interval's bounds count all of them against a difference.
    """
    signs = np.sign(np.subtract.outer(np.asarray(second), np.asarray(first)))
    above = float((signs > 0).sum()) + (signs == 0).sum() / 2
    rank = _rank_sum(*sorted(signs.shape), (1 - Fraction(str(confidence))) / 2)
    if above < rank:
        return -1
    return 1 if signs.size - above < rank else 0


EXACT_PAIRS = 2500


@lru_cache(maxsize=4096)
def _rank_sum(fewer: int, more: int, level: Fraction) -> int:
    """Return the largest k with P(U < k) <= `level`, U the number of pairs in which the second is
    larger, when nothing differs. Normal beyond 50 by 50.
    """
    pairs = fewer * more
    if pairs > EXACT_PAIRS:
        sigma = math.sqrt(pairs * (fewer + more + 1) / 12)
        return max(int(pairs / 2 + NormalDist().inv_cdf(float(level)) * sigma), 0)
    ways = [1] + [
        0
    ] * pairs  # of reaching each U: the Gaussian binomial coefficient, factor by factor
    for i in range(1, fewer + 1):
        for u in range(pairs, more + i - 1, -1):
            ways[u] -= ways[u - more - i]
        for u in range(i, pairs + 1):
            ways[u] += ways[u - i]
    allowed, total, rank = level * math.comb(fewer + more, fewer), 0, 0
    while total + ways[rank] <= allowed:
        total += ways[rank]
        rank += 1
    return rank


def paired_ratios(reference_s: Sequence[float], learner_s: Sequence[float]) -> list[float]:
    """Return the reference time over learner time of each pair: 2 means that the learner's code
    took half as long.

    Raises ValueError when the two differ in length or a time is not a positive finite number of
    seconds.
    """
    if len(reference_s) != len(learner_s):
        raise ValueError(
            f"{len(reference_s)} reference times cannot be paired with {len(learner_s)} others"
        )
    if not all(0 < time < math.inf for time in (*reference_s, *learner_s)):
        raise ValueError("a measured time must be a positive finite number of seconds")
    return [reference / learner for reference, learner in zip(reference_s, learner_s, strict=True)]


def judge_ratio(interval: Interval, tolerated: float, excluded: float) -> Change:
    """Judge an interval of time after over time before.

    A change of up to `tolerated` (a share) is nobody's concern; "same" says that one of `excluded`
    or more is ruled out.
    """
    if interval.low > 1 + tolerated:
        return "worse"
    if interval.high < 1 / (1 + tolerated):
        return "better"
    within = interval.high < 1 + excluded and interval.low > 1 / (1 + excluded)
    return "same" if within else "cannot tell"


def log_ratios(reference_s: Sequence[float], learner_s: Sequence[float]) -> list[float]:
    """Return the natural logarithm of each pair's ratio, so that twice as fast and half as fast lie
    equally far from 0.
    """
    return [math.log(ratio) for ratio in paired_ratios(reference_s, learner_s)]


def noise_share(log_ratios_: Sequence[float]) -> float:
    """Return the typical deviation of one pair from the median pair, as a share: 0.05 means that
    pairs differ by about 5%.

    From the median absolute deviation, so that a few stalls do not count. Raises ValueError without
    samples.
    """
    middle = bounds_at(log_ratios_, 0).median
    spread = MAD_TO_SIGMA * median(abs(value - middle) for value in log_ratios_)
    return math.expm1(spread)


def largest_fall(levels: ArrayLike) -> float:
    """Return the most by which a level lies below any before it, in the levels' unit."""
    rows = np.asarray(levels, dtype=float)
    return float((np.maximum.accumulate(rows) - rows).max(initial=0.0))


def _require_share(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
