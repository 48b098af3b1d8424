"""Figures of a workload's captures: every operator's share of the device's time without other
programs, and how well it is known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bottleneck_lab.measure.kinds.operator_profile.capture import OperatorCapture, Times

PLACES = ("first", "second", "third")
UNDISTURBED = 0.25
"""The quantile of one call's times in all passes that is taken for its time without other
programs.

Measured on two threads with a program that kept one of two cores busy: plain shares of the
convolutions fell from 87 to 75%, those from lower quartiles came out as 92%; quiet, both say 87%.
The least of all times, or single passes, lie no nearer.
"""
LOWER = 0.1
"""The quantile that UNDISTURBED is compared with, to see if other programs have a part in it."""
_STUDENT = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26, 15: 2.14, 20: 2.09}
"""By the number of captures, the two-sided 95% quantile of Student's distribution with one degree
of freedom less. For a number that is not listed, the next smaller one's is larger: safe.
"""


@dataclass(frozen=True)
class Share:
    """An operator's share (0–1) of all self time on the device, with half the width of its 95%
    interval.

    `fresh` is its share in a process that has just started; None is the same. The kernel hands out
    the memory of large results anew there, page by page, to whichever operator writes them first.
    Later the C library has enough of it. With torch 2.14, batch norm took 9% of the time of a
    ResNet-50's first passes on a CPU, and 3% from the third capture on.
    """

    name: str
    share: float
    half_width: float
    fresh: float | None = None

    @property
    def low(self) -> float:
        """The least share that an honest capture may show."""
        return min(self.share, self.share if self.fresh is None else self.fresh) - self.half_width

    @property
    def high(self) -> float:
        """The largest share that an honest capture may show."""
        return max(self.share, self.fresh or 0.0) + self.half_width

    def off_by(self, answer: float) -> float:
        """Return how far an answer is outside what an honest capture may show; 0 within it."""
        return max(self.low - answer, answer - self.high, 0.0)


@dataclass(frozen=True)
class Truth:
    """The verifier's knowledge: the shares, the captures they are from, one with the cold passes in
    it, and the roofline.
    """

    shares: dict[str, Share]
    capture: OperatorCapture
    cold: OperatorCapture
    balance: float
    """FLOP per byte at which this machine's memory and arithmetic are equally busy."""
    intensity: dict[str, float]
    """FLOP per byte of each operator, from the recorded shapes; operators of unknown work are
    missing.
    """
    allowed: Set[str]
    """The operators of a capture that holds the passes, and the marks that a check leaves in it,
    and nothing else.
    """
    balance_range: tuple[float, ...] = ()
    """The least and the largest balance that a pair of the measured ceilings gives; empty where the
    balance is the published one.
    """
    reached: Mapping[str, float] = field(default_factory=dict)
    """On a GPU, the share (0-1) of what its roofline allows that each operator reaches; empty on a
    CPU.
    """

    def ranked(self) -> list[Share]:
        """Return the shares, largest first."""
        return sorted(self.shares.values(), key=lambda share: -share.share)


def estimate_shares(captures: Sequence[OperatorCapture], passes: int) -> dict[str, Share]:
    """Return every operator's share of the time without other programs, over captures of `passes`
    passes each. Fewer than three captures leave all uncertain.
    """
    # Half the width of the interval is the statistical error (jackknife over captures) and, on top
    # of it, how far the shares would move if calls were taken at a lower quantile yet: on a quiet
    # machine that hardly matters, on a busy one it does.
    share, lower = (
        undisturbed_shares(captures, passes, quantile) for quantile in (UNDISTURBED, LOWER)
    )
    count = len(captures)
    if count < 3:
        return {name: Share(name, value, 1.0) for name, value in share.items()}
    left_out = [
        undisturbed_shares([*captures[:n], *captures[n + 1 :]], passes) for n in range(count)
    ]
    student = _STUDENT[max(listed for listed in _STUDENT if listed <= count)]
    shares = {}
    for name, value in share.items():
        spread = statistics.pstdev(one.get(name, 0.0) for one in left_out) * math.sqrt(count - 1)
        shares[name] = Share(name, value, student * spread + abs(value - lower[name]))
    return shares


def with_fresh(shares: Mapping[str, Share], cold: OperatorCapture, passes: int) -> dict[str, Share]:
    """Return the shares with those of a fresh process: the passes after the first of a process's
    first capture.
    """
    rows = {name: by_pass(cold, name, passes) for name in shares}
    times = {name: float(each[min(1, len(each) - 1) :].sum()) for name, each in rows.items()}
    whole = sum(times.values()) or 1.0
    return {name: replace(share, fresh=times[name] / whole) for name, share in shares.items()}


def undisturbed_shares(
    captures: Sequence[OperatorCapture], passes: int, quantile: float = UNDISTURBED
) -> dict[str, float]:
    """Return every operator's share when each call of the network takes the given quantile of its
    times in all passes of all captures.
    """
    names = {name for capture in captures for name in capture.times}
    times = {
        name: _pass_ns([by_pass(capture, name, passes) for capture in captures], quantile)
        for name in names
    }
    whole = sum(times.values()) or 1.0
    return {name: value / whole for name, value in times.items()}


def by_pass(capture: OperatorCapture, name: str, passes: int) -> Times:
    """Return an operator's self times, ns, of shape (passes, calls in a pass); one row with the
    mean pass's sum where passes differ in their number of calls.
    """
    times = capture.times.get(name, np.zeros(0, np.int64))
    if len(times) % passes:
        return np.array([[times.sum() // passes]])
    return times.reshape(passes, -1)


def _pass_ns(parts: Sequence[Times], quantile: float) -> float:
    """Return nanoseconds in one pass: the sum of each call's quantile over all rows; of whole
    passes where captures differ in their calls.
    """
    if len({part.shape[1] for part in parts}) > 1:
        parts = [part.sum(axis=1, keepdims=True) for part in parts]
    return float(np.quantile(np.concatenate(parts), quantile, axis=0).sum())


def uncertainty(shares: Mapping[str, Share]) -> float:
    """Return half the width (a share, 0–1) of the widest interval among the shares that answers
    name, and the next one.
    """
    largest = sorted(shares.values(), key=lambda share: -share.share)[: len(PLACES) + 1]
    return max(share.half_width for share in largest)


Work = Callable[[str, Any, Any], tuple[float, float] | None]
"""A lab's `judge.work`: FLOP and bytes of a call, from its shapes."""


def counted_work(capture: OperatorCapture, work: Work) -> dict[str, tuple[float, float]]:
    """Return FLOP and bytes of each operator, summed over all its calls; those of unknown work are
    missing.
    """
    sums: dict[str, tuple[float, float]] = {}
    for call in capture.calls:
        counted = work(call.name, call.dims, call.concrete)
        if counted is not None:
            flop, moved = sums.get(call.name, (0.0, 0.0))
            sums[call.name] = (flop + counted[0], moved + counted[1])
    return sums


def intensities(capture: OperatorCapture, work: Work) -> dict[str, float]:
    """Return FLOP per byte of each operator over all its calls: sums of both, so that large calls
    weigh more.
    """
    return {
        name: flop / moved for name, (flop, moved) in counted_work(capture, work).items() if moved
    }


def reached_shares(
    capture: OperatorCapture, work: Work, bytes_per_s: float, flops_per_s: float
) -> dict[str, float]:
    """Return the share of its roof that each operator reaches: the seconds that these ceilings
    allow for all its calls, over those that they took.
    """
    took = {name: float(times.sum()) / 1e9 for name, times in capture.times.items()}
    return {
        name: max(flop / flops_per_s, moved / bytes_per_s) / took[name]
        for name, (flop, moved) in counted_work(capture, work).items()
        if took.get(name)
    }
